"""Make an artifact folder, whole or not at all. Needs torchrec."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from backends.dlrm.manifest import (
    EXAMPLE_FILE,
    MODEL_FILE,
    PROGRAM_FILE,
    Manifest,
    Table,
    file_sha256,
    model_file,
    write_manifest,
)
from backends.torch_dlrm.answers import ANSWERS_FILE, NoAnswerError, write_answers
from backends.torch_dlrm.ask import answer
from backends.torch_dlrm.compiled_program import save_compiled
from backends.torch_dlrm.device import parse_device
from backends.torch_dlrm.export.errors import ExportError
from backends.torch_dlrm.export.free import check_free
from backends.torch_dlrm.export.golden import (
    OUTPUT,
    ROWS,
    Golden,
    example_request,
    golden_inputs,
    write_golden,
)
from backends.torch_dlrm.export.model import build, package, scores, seed_weights, tensors
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.state import read_state, shape_of
from backends.torch_dlrm.libraries import libraries
from backends.torch_dlrm.program import save_program
from backends.torch_dlrm.recognise import NotRecognisedError, recognise
from backends.torch_dlrm.torchscript import load_module
from backends.torchscript_file.reader import read_torchscript
from scheduler.types import Array

_log = logging.getLogger(__name__)

STEPS = 6
_LEAST_SCORE_STD = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A model trained here: FP32 ``state``, where the ``weights`` come from, and real requests.

    ``beside`` is called with the folder once model and golden batch are in it, to add files.
    """

    state: Mapping[str, torch.Tensor]
    weights: str
    golden: Mapping[str, Array]
    example: str
    beside: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Order:
    """Ask for one artifact. With ``state_file`` the sizes are those of its weights, and so is the
    order of the features, unless it is ``features_given``; ``mean`` names those whose bags are
    averaged.

    With ``trained`` the weights, the golden batch and the example are those of that model.

    ``tables`` says how their rows are stored, one of TABLES; ``format`` is "pt" (TorchScript), or,
    for the CPU, "pt2" (torch.export) or "aoti" (AOTInductor).
    """

    out: Path
    shape: DlrmShape
    name: str
    version: str = "1"
    seed: int = 0
    state_file: Path | None = None
    device: str = "cpu"
    tables: str = "int8"
    replace: bool = False
    format: str = "pt"
    trained: Trained | None = None
    features_given: bool = True
    mean: str = ""


# What a model's file has besides its weights and tables: code, names, padding.
ROOM_BYTES = 1 << 20


def export(order: Order, step: Callable[[str], None]) -> Manifest:
    """Write the artifact folder ``order.out``; ``step`` is told what starts, ``STEPS`` times.

    Raises ExportError, or LoadError for a device that is not here.
    """
    with _whole_folder(order.out, order.replace) as folder:
        return _write(order, folder, step)


def _write(order: Order, folder: Path, step: Callable[[str], None]) -> Manifest:
    device = parse_device(order.device)
    if order.format != "pt" and device.type != "cpu":
        raise ExportError(f"--format {order.format} is for the CPU")
    step("building the FP32 model")
    trained = order.trained
    state = _state(order)
    shape = shape_of(state, order.mean) if order.state_file and state else order.shape
    inputs = trained.golden if trained else golden_inputs(shape, ROWS, order.seed)
    dlrm = build(shape)
    if state:
        dlrm.load_state_dict(state)
    else:
        seed_weights(dlrm, order.seed, shape, inputs)
    step("scoring the golden batch in FP32")
    exact = scores(dlrm, shape, inputs).numpy()
    _require_spread(exact, trained=state is not None)
    step("quantising, sharding and scripting")
    packed = package(dlrm, shape, device, inputs, order.tables)
    _check_room(folder, sum(tensor.nbytes for tensor in packed.buffers()))
    packed.save(folder / MODEL_FILE)
    step("scoring the golden batch with the artifact")
    module = load_module(folder / MODEL_FILE, device)
    with torch.inference_mode():
        quantised = module(tensors(inputs, device))[OUTPUT].numpy()
    if order.format != "pt":
        _to_program(folder, shape.features, order.format)
    if order.format != "aoti":
        _record_answers(folder)
    step("writing the golden batch and an example")
    write_golden(folder, Golden(inputs, {OUTPUT: exact}, {OUTPUT: quantised}))
    example = trained.example if trained else json.dumps(example_request(shape, order.seed)) + "\n"
    (folder / EXAMPLE_FILE).write_text(example, encoding="utf-8")
    if trained:
        trained.beside(folder)
    step("writing the manifest")
    manifest = _manifest(order, shape, float(exact.std()), file_sha256(model_file(folder)))
    write_manifest(folder, manifest)
    return manifest


def _check_room(folder: Path, size_bytes: int) -> None:
    """Raise OSError for a disk that cannot take so much: PyTorch's own writer ends the process."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes + ROOM_BYTES)


def _state(order: Order) -> Mapping[str, torch.Tensor] | None:
    """Return the weights that were trained, here or elsewhere; None: they are to be drawn."""
    if order.trained:
        return order.trained.state
    named = order.shape.features if order.features_given else ()
    return read_state(order.state_file, named) if order.state_file else None


def _to_program(folder: Path, features: tuple[str, ...], kind: str) -> None:
    """Replace the TorchScript model by a program of the same weights, compiled for "aoti"."""
    script = folder / MODEL_FILE
    dlrm = recognise(read_torchscript(script).root)
    save = save_compiled if kind == "aoti" else save_program
    save(dlrm, OUTPUT, features, folder / PROGRAM_FILE)
    script.unlink()


def _record_answers(folder: Path) -> None:
    """Write what the artifact itself answers to the probes, so that no server need ask it."""
    try:
        write_answers(folder / ANSWERS_FILE, answer(model_file(folder)))
    except (NotRecognisedError, NoAnswerError) as error:
        _log.warning("no lean plan for %s: %s", folder, error)


def _require_spread(exact: Array, *, trained: bool) -> None:
    """Refuse seeded weights with which a golden test would pass on zeroed tables."""
    if not trained and exact.std() < _LEAST_SCORE_STD:
        raise ExportError(
            f"the scores' standard deviation is {exact.std():.2g}, below {_LEAST_SCORE_STD}; "
            "try another --seed"
        )


def _manifest(order: Order, shape: DlrmShape, score_std: float, sha256: str) -> Manifest:
    pairs = zip(shape.features, shape.table_rows, strict=True)
    return Manifest(
        name=order.name,
        version=order.version,
        device=str(parse_device(order.device)),
        tables=tuple(Table(feature, rows, shape.dim) for feature, rows in pairs),
        dense_names=shape.dense_names,
        dense_layers=shape.dense_layers,
        over_layers=shape.over_layers,
        dtypes={"tables": order.tables, "dense_layers": "float32", "scores": "float32"},
        outputs=(OUTPUT,),
        weights=_weights(order),
        score_std=score_std,
        libraries={**libraries(), "torchrec": version("torchrec")},
        sha256=sha256,
    )


def _weights(order: Order) -> str:
    """Say where the weights come from."""
    if order.trained:
        return order.trained.weights
    return f"from {order.state_file.name}" if order.state_file else f"seed {order.seed}"


@contextmanager
def _whole_folder(out: Path, replace: bool) -> Iterator[Path]:
    """Give a folder beside ``out`` that takes its place if the block succeeds, or vanishes."""
    check_free(out, replace=replace)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield folder
        folder.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
