"""Whether a forward scores as the artifact itself does."""

from backends.torch_dlrm.answers import Answers
from backends.torch_dlrm.probes import Probe, doubt
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.serving import RunGathered
from backends.torch_dlrm.weights import Dlrm


def prove(run: RunGathered, dlrm: Dlrm, probes: list[Probe], answers: Answers) -> None:
    """Raise NotRecognisedError unless ``run`` answers the probes as the artifact does."""
    why = doubt(dlrm, lambda inputs: run(inputs)[answers.output], probes, answers.scores)
    if why:
        raise NotRecognisedError(f"not proven to score as the artifact does: {why}")
