"""``narsil export``: make an artifact, or check one."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backends.checkpoints.weights import MEAN_HELP
from backends.torch_dlrm.export.check import TOLERANCE, check_artifact
from backends.torch_dlrm.export.errors import ExportError
from backends.torch_dlrm.export.free import check_free
from backends.torch_dlrm.export.presets import PRESETS, TABLES, DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from scheduler.errors import LoadError

_NO_TORCHREC = """narsil export: {error}. Install what the export needs, in this project's folder:
    pip install -e '.[cpu,export]' && pip install --no-deps torchrec==1.8.0"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def main(argv: Sequence[str]) -> int:
    """Run ``narsil export`` with ``argv``; return the exit status."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        return _check(arguments, console) if arguments.check else _export(arguments, console)
    except ModuleNotFoundError as error:
        console.print(_NO_TORCHREC.format(error=error), markup=False)
    except (ExportError, LoadError) as error:
        console.print(f"narsil export: {error}", markup=False)
    except OSError as error:  # a disk that is full, a folder that may not be written to
        console.print(f"narsil export: {error.filename or arguments.out}: {error.strerror}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narsil export", description="Make a servable DLRM artifact, or check one."
    )
    parser.add_argument("out", metavar="DIR", type=Path, help="folder of the artifact")
    parser.add_argument(
        "--check", action="store_true", help="run the golden batch of DIR instead of making it"
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="reference")
    parser.add_argument("--seed", type=int, default=0, help="of weights and golden batch")
    parser.add_argument(
        "--from",
        "--state-dict",
        dest="state_dict",
        type=Path,
        metavar="FILE",
        help="FP32 weights of a trained DLRM: a state dict of TorchRec's or facebookresearch's"
        " (.pt, .safetensors), or a DCP folder; see docs/bring-your-own.md",
    )
    parser.add_argument(
        "--features",
        metavar="NAMES",
        help="with --from: its tables' features, in order; default: the file's",
    )
    parser.add_argument("--mean", metavar="NAMES", default="", help=f"with --from: {MEAN_HELP}")
    parser.add_argument("--name", help="model name; default: the folder's")
    parser.add_argument("--version", default="1", help="model version")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N: it will serve there only")
    parser.add_argument(
        "--format",
        choices=("pt", "pt2", "aoti"),
        default="pt",
        help="TorchScript, torch.export, or machine code by AOTInductor (one lane; needs g++)",
    )
    parser.add_argument(
        "--tables", choices=TABLES, default="int8", help="how the rows of tables are stored"
    )
    parser.add_argument("--force", action="store_true", help="replace an artifact that exists")
    return parser


def _check(arguments: argparse.Namespace, console: Console) -> int:
    with quiet():
        report = check_artifact(arguments.out)
    console.print(
        f"{'passed' if report.passed else 'FAILED'}: {report.rows} golden rows\n"
        f"  largest difference from the golden scores  {report.difference:.3g} "
        f"(at most {TOLERANCE:g})\n"
        f"  largest difference of those from FP32      {report.quantisation:.3g}\n"
        f"  standard deviation of the scores           {report.score_std:.3g}",
        markup=False,
    )
    return 0 if report.passed else 1


def _export(arguments: argparse.Namespace, console: Console) -> int:
    check_free(arguments.out, replace=arguments.force)  # before PyTorch's seconds
    if arguments.state_dict and not arguments.state_dict.exists():
        raise ExportError(f"--from {arguments.state_dict}: no such file or folder")
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with quiet(), Progress(*columns, console=console) as progress:
        task = progress.add_task("loading PyTorch and TorchRec", total=None)
        # Without TorchRec, --check and --help still work, and at once.
        from backends.torch_dlrm.export.write import STEPS, Order, export  # noqa: PLC0415

        progress.update(task, total=STEPS, completed=-1)
        order = Order(
            out=arguments.out,
            shape=_shape(arguments),
            name=model_name(arguments),
            version=arguments.version,
            seed=arguments.seed,
            state_file=arguments.state_dict,
            device=arguments.device,
            tables=arguments.tables,
            replace=arguments.force,
            format=arguments.format,
            features_given=bool(arguments.features) or not arguments.state_dict,
            mean=arguments.mean,
        )
        export(order, lambda text: progress.update(task, description=text, advance=1))
        progress.update(task, description="done", completed=STEPS)
    console.print(
        f"wrote {order.out} (model {order.name!r}, version {order.version})", markup=False
    )
    return 0


def _shape(arguments: argparse.Namespace) -> DlrmShape:
    preset = PRESETS[arguments.preset]
    if arguments.mean and not arguments.state_dict:
        raise ExportError("--mean goes with --from; a preset's bags are summed")
    if not arguments.features:
        return preset
    if not arguments.state_dict:
        raise ExportError("--features goes with --from; a preset has features of its own")
    return replace(preset, features=tuple(arguments.features.split(",")))


def model_name(arguments: argparse.Namespace) -> str:
    """Return ``--name``, else the name of the folder. Raises ExportError if it fits no URL."""
    name: str = arguments.name or arguments.out.resolve().name
    if not _NAME.fullmatch(name):
        raise ExportError(f"--name {name!r}: use letters, digits, '.', '_' and '-' only")
    return name
