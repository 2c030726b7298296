"""What a TorchScript file holds once it is read: modules, enums and the code's text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# Modules, tensors (read-only arrays), Opaque values, None, bool, int, float, str, and lists, tuples
# and dicts of them.
Value: TypeAlias = object
Tensor: TypeAlias = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One scripted module or class instance: its qualified type name and attributes."""

    type_name: str
    attributes: dict[str, Value] = field(default_factory=dict)

    def get(self, path: str) -> Value:
        """Return what the dotted ``path`` leads to below this module, or None."""
        found: Value = self
        for name in path.split("."):
            if not isinstance(found, Module):
                return None
            found = found.attributes.get(name)
        return found

    def tensor(self, path: str) -> Tensor | None:
        """Return the tensor at the dotted ``path``, or None."""
        found = self.get(path)
        return found if isinstance(found, np.ndarray) else None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of a type that only PyTorch has (an enum, a device): its type and arguments."""

    type_name: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class TorchScriptFile:
    """The whole file; ``code`` is the text of each source file.

    Every tensor is a view of ``storage``: the mapping of the file, (bytes,) uint8.
    """

    root: Module
    storage: npt.NDArray[np.uint8]
    code: Mapping[str, str]
    version: int


def modules(root: Module) -> Iterator[tuple[str, Module]]:
    """Yield ``root`` ("") and every module below it with its dotted path, each once."""
    seen = {id(root)}
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        yield path, module
        below = []
        for name, value in module.attributes.items():
            if isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                below.append((f"{path}.{name}".lstrip("."), value))
        pending += reversed(below)
