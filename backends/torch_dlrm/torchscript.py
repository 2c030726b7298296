"""Load a TorchScript DLRM and read off what its graph and weights say about it."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

# Registers the fbgemm:: operators; torch.jit.load refuses an artifact that names unknown ones.
import fbgemm_gpu  # noqa: F401
import torch

from backends.torch_dlrm.artifact import Derived
from scheduler.errors import LoadError

_untyped_load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
_FIRST_DENSE_WEIGHT = "dense_arch.model._mlp.0._linear.weight"
_TABLE_ROWS = "rows_per_table"


def load_module(path: Path, device: torch.device) -> torch.jit.ScriptModule:
    """Load the TorchScript file at ``path`` onto ``device``. Raises LoadError."""
    with warnings.catch_warnings():
        # TorchScript is deprecated as a whole, and it is the artifact format we serve.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            module = _untyped_load(path, map_location=device)
        except (RuntimeError, ValueError, OSError) as error:
            # What follows is PyTorch's stack.
            why = str(error).strip().partition("\n")[0]
            raise LoadError(f"{path} is no TorchScript model this build loads: {why}") from error
    return module.eval()


def derive(module: torch.jit.ScriptModule) -> Derived:
    """Read feature names, table rows, dense width and device off a packaged DLRM."""
    calls = _nodes(module, "prim::CallMethod")
    return Derived(
        feature_names=_feature_names(calls),
        table_rows=_table_rows(module, calls),
        dense_features=_dense_features(module),
        device=_device(module),
    )


def _feature_names(calls: list[torch.Node]) -> tuple[str, ...]:
    """Return the keys given to the one KeyedJaggedTensor that the graph makes."""
    made = [
        call.inputsAt(1).node()
        for call in calls
        if call.s("name") == "__init__" and _type(call).endswith(".KeyedJaggedTensor")
    ]
    if len(made) != 1 or made[0].kind() != "prim::ListConstruct":
        return ()
    keys = tuple(str(value.toIValue()) for value in made[0].inputs())
    # A key computed while running has no constant value.
    return () if "None" in keys else keys


def _table_rows(module: torch.jit.ScriptModule, calls: list[torch.Node]) -> tuple[int, ...]:
    """Return rows per feature, if one lookup serves all features in wire order."""
    rows = [tensor for name, tensor in module.named_buffers() if _last(name) == _TABLE_ROWS]
    permuted = any(call.s("name") == "permute" for call in calls)
    if len(rows) != 1 or permuted:
        return ()
    return tuple(rows[0].tolist())


def _dense_features(module: torch.jit.ScriptModule) -> int:
    weights: Iterator[tuple[str, torch.Tensor]] = module.named_parameters()
    widths = [weight.shape[1] for name, weight in weights if name.endswith(_FIRST_DENSE_WEIGHT)]
    return widths[0] if len(widths) == 1 else 0


def _device(module: torch.jit.ScriptModule) -> str:
    """Return the device that tracing wrote into the graph: the one it was exported on."""
    constants = [node.output() for node in _nodes(module, "prim::Constant")]
    devices = {
        str(constant.toIValue())
        for constant in constants
        if constant.type().kind() == "DeviceObjType"
    }
    # The tail's copy to the host names the CPU also in an artifact for a GPU.
    return max(devices, key=lambda name: name != "cpu", default="")


def _nodes(module: torch.jit.ScriptModule, kind: str) -> list[torch.Node]:
    return [node for node in module.graph.nodes() if node.kind() == kind]


def _type(call: torch.Node) -> str:
    return call.inputsAt(0).type().annotation_str


def _last(name: str) -> str:
    return name.rpartition(".")[2]
