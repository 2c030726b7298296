"""``narsil inspect``: what a file or folder of a model is, what is missing, what to do next."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.bring.report import Report, TableLine, of_dlrm, widths
from backends.bring.repository import read_repository
from backends.checkpoints.read import read_tensors
from backends.checkpoints.weights import Weights, find_weights
from backends.dlrm.kinds import Kind, kind_of
from backends.dlrm.manifest import MODEL_FILE, model_file, read_manifest
from backends.native_dlrm.converted import read_converted
from backends.native_dlrm.errors import UnknownModelError
from backends.native_dlrm.recognise import recognise
from backends.torchscript_file.reader import read_torchscript
from scheduler.errors import LoadError, first_of

# FBGEMM's numbers of types.
_KINDS = {0: "fp32", 1: "fp16", 2: "int8", 3: "int4"}
_PACKAGED = (
    "it holds pickles that are run when it is loaded, so it is not loaded; where it was made, save "
    "the model's state_dict() and bring that"
)


def main(argv: Sequence[str]) -> int:
    """Run ``narsil inspect`` with ``argv``; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="narsil inspect",
        description="Say what a file or folder of a model is, without running anything in it.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="file or folder")
    path: Path = parser.parse_args(argv).path
    try:
        report = inspect(path)
    except LoadError as error:
        sys.stderr.write(f"narsil inspect: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in report.lines()))
    return 1 if report.missing else 0


def inspect(path: Path) -> Report:
    """Return what is at ``path``. Raises LoadError where that is nothing known, or damaged."""
    try:
        kind = kind_of(path)
    except LoadError:
        repository = read_repository(path) if path.is_dir() else None
        if repository is None:
            raise
        return repository
    return _known(kind, path)


def _known(kind: Kind, path: Path) -> Report:
    if kind is Kind.PACKAGE:
        return Report(kind.value, missing=(_PACKAGED,))
    if kind in {Kind.STATE_DICT, Kind.DCP}:
        return _checkpoint(kind, path)
    if kind is Kind.ONNX:
        return _onnx(kind, path)
    if kind is Kind.PROGRAM:
        return _program(kind, path, path)
    if kind is Kind.CONVERTED:
        _, dlrm = read_converted(path, verify=False)
        return of_dlrm(kind.value, dlrm, (f"narsil serve {path} --backend native_dlrm",))
    return _artifact(kind, path) if kind is Kind.ARTIFACT else _torchscript(kind, path, path)


def _artifact(kind: Kind, path: Path) -> Report:
    file = model_file(path)
    # Whoever has no manifest beside it serves the file itself.
    served = path if (path / "manifest.json").exists() else file
    if served == path:
        read_manifest(path)
    make = _torchscript if file.name == MODEL_FILE else _program
    return make(kind, file, served)


def _torchscript(kind: Kind, file: Path, served: Path) -> Report:
    commands = (f"narsil serve {served}",)
    try:
        dlrm = recognise(read_torchscript(file))
    except UnknownModelError as error:
        note = f"native_dlrm does not know what it computes: {error}; torch_dlrm runs it as it came"
        return Report(kind.value, notes=(note,), next_commands=commands)
    return of_dlrm(kind.value, dlrm, (*commands, f"narsil serve {served} --backend native_dlrm"))


def _program(kind: Kind, file: Path, served: Path) -> Report:
    # Where PyTorch is not installed, all else still works.
    try:
        from backends.torch_dlrm.program_file import read_program  # noqa: PLC0415
        from backends.torch_dlrm.recognise import NotRecognisedError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        return Report(kind.value, missing=(f"{error}; reading it needs the extra 'cpu'",))
    commands = (f"narsil serve {served}",)
    try:
        dlrm, features = read_program(file, verify=False)
    except NotRecognisedError as error:
        return Report(kind.value, notes=(str(error),), next_commands=commands)
    tables = dlrm.tables
    pooling = "mean" if tables.pooling else "sum"
    return Report(
        kind.value,
        tuple(
            TableLine(feature, int(rows), tables.dim, _KINDS.get(int(kind_id), "?"), pooling)
            for feature, rows, kind_id in zip(features, tables.rows, tables.types, strict=True)
        ),
        "in wire order",
        widths([layer.weight.shape for layer in dlrm.dense]),
        widths([layer.weight.shape for layer in dlrm.over]),
        next_commands=commands,
    )


def _onnx(kind: Kind, path: Path) -> Report:
    file = path / "model.onnx" if path.is_dir() else path
    try:
        from backends.onnx_dlrm.described import describe  # noqa: PLC0415
        from backends.onnx_dlrm.session import open_session  # noqa: PLC0415
    except ModuleNotFoundError as error:
        return Report(kind.value, missing=(f"{error}; reading it needs the extra 'onnx'",))
    session = open_session(file)
    notes = (f"{session.dense_features} dense features; outputs {', '.join(session.outputs)}",)
    try:
        described = describe(file, session.metadata)
    except LoadError as error:
        return Report(kind.value, notes=notes, missing=(str(error),))
    layout = described.layout
    tables = tuple(
        TableLine(feature, rows, None, "", "")
        for feature, rows in zip(layout.features, layout.table_rows.tolist(), strict=True)
    )
    command = f"narsil serve {path} --backend onnx_dlrm"
    return Report(kind.value, tables, "in wire order", notes=notes, next_commands=(command,))


def _checkpoint(kind: Kind, path: Path) -> Report:
    tensors = read_tensors(path)
    what = kind.value if kind is Kind.DCP else f"{kind.value} ({tensors.form})"
    try:
        weights = find_weights(tensors)
    except LoadError as error:
        return Report(what, missing=(str(error),))
    features = tuple(name.removeprefix("t_") for name in weights.tables)
    order, flag = "in the model's order", ""
    if not weights.ordered:
        order, flag = "in no order: --features has to give the model's", " --features NAMES"
    return Report(
        f"{what}, named as {weights.naming} does",
        tuple(
            TableLine(feature, len(table), table.shape[1], "fp32", "sum")
            for feature, table in zip(features, weights.tables.values(), strict=True)
        ),
        order,
        widths([weight.shape for weight, _ in weights.dense]),
        widths([weight.shape for weight, _ in weights.over]),
        notes=_notes(weights),
        next_commands=(
            f"narsil convert {path} DIR{flag}    (FP32, for native_dlrm)",
            f"narsil export DIR --from {path}{flag}    (INT8, TorchScript)",
        ),
    )


def _notes(weights: Weights) -> tuple[str, ...]:
    notes = ["a state dict does not say how bags are pooled: summed, or averaged by --mean NAMES"]
    if weights.ignored:
        ignored = first_of(weights.ignored)
        notes.append(f"{len(weights.ignored)} tensors are no part of the model: {ignored}")
    return tuple(notes)
