"""``pytest -p tests.compiled.plugin``: run over the compiled modules, or not at all."""

import pytest

from app.compiled.use import use_compiled


def pytest_load_initial_conftests() -> None:
    """Choose before any conftest imports what is compiled."""
    if not use_compiled():
        raise pytest.UsageError("nothing is compiled of these sources: narsil compile")
