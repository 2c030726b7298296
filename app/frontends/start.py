"""``python -P -m app.frontends.start DESCRIPTOR``: a front end, compiled where the engine is."""

from app.compiled.use import use_compiled
from app.config import compiled_wanted


def main() -> int:
    """Run a front end; return its exit code."""
    use_compiled(wanted=compiled_wanted())
    from app.frontends.process import main as run  # noqa: PLC0415  # the choice is made by now

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
