"""An artifact whose manifest says something else of a table than its model file is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.dlrm.manifest import MANIFEST_FILE
from scheduler.errors import LoadError
from tests.fixtures.artifacts import load
from tests.fixtures.native import load_native


@pytest.fixture(params=["torch_dlrm", "torch_dlrm as it is", "native_dlrm"])
def serve(request: pytest.FixtureRequest, kernel_cache: Path) -> Callable[[Path], object]:
    if request.param == "native_dlrm":
        return lambda folder: load_native(folder, kernel_cache)
    plan = "artifact" if "as it is" in request.param else "auto"
    return lambda folder: load(folder, plan=plan)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dim": 32}, "'cat_3' has dim 32 and pooling 'sum', in the model file 16 and 'sum'"),
        ({"dim": "64"}, "'cat_3' has dim '64' and"),
        ({"pooling": "mean"}, "has dim 16 and pooling 'mean', in the model file 16 and 'sum'"),
    ],
)
def test_a_manifest_of_other_tables_is_refused(
    small_artifact: Path,
    tmp_path: Path,
    serve: Callable[[Path], object],
    change: dict[str, Any],
    complaint: str,
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(small_artifact, folder)
    path = folder / MANIFEST_FILE
    document = json.loads(path.read_text())
    document["tables"][3].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(LoadError, match=complaint):
        serve(folder)
