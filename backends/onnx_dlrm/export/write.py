"""Write an artifact as an ONNX file, and keep it only if it gives the artifact's scores."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from onnx import helper, save_model

from backends.dlrm.gather import DENSE
from backends.dlrm.manifest import (
    EXAMPLE_FILE,
    GOLDEN_FILE,
    GOLDEN_SCORES,
    Manifest,
    file_sha256,
    model_file,
    read_manifest,
    verify,
)
from backends.dlrm.manifest import MODEL_FILE as TORCHSCRIPT_FILE
from backends.onnx_dlrm.backend import OnnxDlrmBackend
from backends.onnx_dlrm.described import METADATA_KEY
from backends.onnx_dlrm.export.graph import build
from backends.onnx_dlrm.export.storage import Storage
from backends.onnx_dlrm.export.weights import read_weights
from backends.onnx_dlrm.options import OnnxDlrmOptions
from backends.onnx_dlrm.runtime import MODEL_FILE, WEIGHTS_FILE
from backends.torchscript_file.reader import read_torchscript
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest

TOLERANCE = 1e-6
# What ONNX Runtime 1.32 and older ones of the last years read.
_OPSET, _IR_VERSION = 18, 10


def export(artifact: Path, out: Path) -> float:
    """Write the artifact in ``artifact`` into the folder ``out``, whole or not at all.

    Returns the largest difference from the artifact's golden scores. Raises LoadError.
    """
    if out.exists():
        raise LoadError(f"{out} exists; name a folder that does not")
    if not artifact.is_dir():
        raise LoadError(f"{artifact} is no folder: name the artifact's, with golden scores to meet")
    manifest = read_manifest(artifact)
    if (file := model_file(artifact)).name != TORCHSCRIPT_FILE:
        raise LoadError(f"{file}: ONNX is written of a {TORCHSCRIPT_FILE} (narsil export)")
    verify(artifact, manifest)
    if len(manifest.outputs) != 1:
        raise LoadError(f"{artifact} has {len(manifest.outputs)} outputs, not 1")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write(artifact, manifest, folder)
        difference = _difference(artifact, folder, manifest.outputs[0])
        if not difference <= TOLERANCE:
            raise LoadError(
                f"the ONNX file's scores are {difference:.3g} from the artifact's golden ones, "
                f"more than {TOLERANCE:g}: this model is not one that can be written as ONNX"
            )
        for name in (GOLDEN_FILE, EXAMPLE_FILE):
            shutil.copyfile(artifact / name, folder / name)
        folder.chmod(0o755)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return difference


def _write(artifact: Path, manifest: Manifest, folder: Path) -> None:
    weights = read_weights(read_torchscript(artifact / TORCHSCRIPT_FILE), manifest)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        graph = build(weights, manifest.name, manifest.outputs[0], Storage(WEIGHTS_FILE, file))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    said = {
        "name": manifest.name,
        "version": manifest.version,
        "tables": [
            {
                "feature": each.feature,
                "rows": each.rows,
                "ids": each.ids,
                "vocabulary": each.vocabulary,
            }
            for each in manifest.tables
        ],
        "dense_names": list(manifest.dense_names),
        "weights_sha256": file_sha256(folder / WEIGHTS_FILE),
    }
    helper.set_model_props(model, {METADATA_KEY: json.dumps(said)})
    save_model(model, folder / MODEL_FILE)
    for each in manifest.tables:
        if each.vocabulary:
            shutil.copyfile(artifact / each.vocabulary, folder / each.vocabulary)


def _difference(artifact: Path, folder: Path, output: str) -> float:
    """Serve the golden batch from ``folder``; return the largest difference in a score."""
    try:
        with np.load(artifact / GOLDEN_FILE, allow_pickle=False) as golden:
            arrays = {name: golden[name] for name in golden.files}
    except (OSError, ValueError) as error:
        raise LoadError(f"{artifact} has no golden scores to compare with: {error}") from error
    found = [name for prefix in GOLDEN_SCORES if (name := f"{prefix}{output}") in arrays]
    if not found:
        raise LoadError(f"{artifact} has no golden scores of the output {output!r}")
    wanted = arrays[found[0]]
    backend = OnnxDlrmBackend(OnnxDlrmOptions(str(folder), lanes=1, max_batch_rows=len(wanted)))
    backend.load()
    names = [each.name for each in backend.spec.inputs]
    request = InferRequest("", len(arrays[DENSE]), {name: arrays[name] for name in names})
    backend.check(request)
    scores = backend.prepare(Batch((request,)))()[output].astype(np.float64)
    backend.close()
    return float(np.abs(scores - wanted.astype(np.float64)).max())
