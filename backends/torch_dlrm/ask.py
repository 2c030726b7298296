"""What the child process does: write a TorchScript DLRM's answers to its stdout."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from backends.dlrm.manifest import file_sha256
from backends.torch_dlrm.answers import REFUSED, Answers, NoAnswerError, write_answers
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.formats import read_weights
from backends.torch_dlrm.libraries import libraries_line
from backends.torch_dlrm.probes import Probe, digest, make_probes
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.unchanged import load_model
from scheduler.errors import LoadError
from scheduler.types import Array

_NICENESS = 5
_STDOUT, _STDERR = 1, 2


def main(arguments: Sequence[str]) -> int:
    """Answer; return the exit status. The last line of stderr says what went wrong."""
    (model_file,) = map(Path, arguments)
    # What a library prints must not get among the answers.
    out = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    # Whoever asks may be serving on the same CPUs.
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    try:
        content = io.BytesIO()
        write_answers(content, answer(model_file))
    except LoadError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except (NotRecognisedError, NoAnswerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with os.fdopen(out, "wb") as file:
        file.write(content.getbuffer())
    return 0


def answer(model_file: Path) -> Answers:
    """Load the TorchScript file here and run the probes through its own forward.

    Raises LoadError, NotRecognisedError or NoAnswerError.
    """
    probes = make_probes(read_weights(model_file, verify=False))
    module, derived = load_model(model_file, torch.device("cpu"))
    device = torch.device(derived.device or "cpu")
    if device.type != "cpu":
        if (device.index or 0) >= torch.cuda.device_count():
            raise NoAnswerError(f"it was exported for {device}, which is not here")
        module, _ = load_model(model_file, device)
    output, scores = _run(module, probes, device)
    return Answers(
        sha256=file_sha256(model_file),
        probes=digest(probes),
        libraries=libraries_line(),
        output=output,
        device=derived.device,
        scores=scores,
        feature_names=derived.feature_names,
    )


def _run(
    module: Module, probes: Sequence[Probe], device: torch.device
) -> tuple[str, tuple[Array, ...]]:
    names: set[str] = set()

    def forward(inputs: dict[str, Array]) -> Array:
        outputs = module(
            {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}
        )
        names.update(outputs)
        (scores,) = outputs.values()
        if device.type != "cpu":
            # Its own copy to the host may not have been waited for.
            torch.cuda.synchronize(device)
        array: Array = scores.cpu().numpy()
        return array

    try:
        with torch.inference_mode():
            scores = tuple(forward(probe.inputs) for probe in probes)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise NoAnswerError(" ".join(str(error).split())) from error
    if len(names) != 1 or any(one.ndim != 1 or one.dtype != np.float32 for one in scores):
        raise NoAnswerError("its output is not one float32 score a row")
    return names.pop(), scores
