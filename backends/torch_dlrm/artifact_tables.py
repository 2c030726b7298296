"""The tables that a TorchScript module on the CPU reads."""

from typing import Any

import numpy as np
import torch

from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.weights import BITS, Tables

_STORE = "weights_host"


class UnreachableError(Exception):
    """Say why the rows that a module reads are not to be had."""


def tables_of(module: Module, derived: Derived) -> Tables:
    """Return the tables of the one lookup of a TorchScript module on the CPU, as it reads them.

    Raises UnreachableError.
    """
    if not isinstance(module, torch.jit.ScriptModule):
        raise UnreachableError("a torch.export program is served as it came (plan artifact)")
    if not derived.table_rows:
        raise UnreachableError("which feature has which table is not known (plan artifact)")
    found = [one for one in module.modules() if hasattr(one, _STORE)]
    if len(found) != 1:
        raise UnreachableError(f"the model has {len(found)} lookups, not one (plan artifact)")
    lookup: Any = found[0]
    store = getattr(lookup, _STORE)
    if store.device.type != "cpu" or not store.numel():
        raise UnreachableError("they are not in host memory; only tables on the CPU can change")
    if any(buffer.numel() for name, buffer in lookup.named_buffers() if _remaps(name)):
        raise UnreachableError("they are pruned: ids are remapped before the lookup")
    widths = np.unique(np.diff(lookup.D_offsets.numpy()))
    types = lookup.weights_tys.numpy()
    if len(widths) != 1 or not set(types.tolist()) <= BITS.keys():
        raise UnreachableError("they differ in width, or are of a type that is not known")
    return Tables(
        block=store.numpy(),
        starts=lookup.weights_offsets.numpy(),
        types=types,
        rows=lookup.rows_per_table.numpy(),
        dim=int(widths[0]),
        largest=(),
        pooling=0,
        row_alignment=max(1, int(lookup.row_alignment)),
    )


def _remaps(name: str) -> bool:
    return name.startswith("index_remapping") and "offsets" not in name
