"""Collect an ONNX graph node by node."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from backends.onnx_dlrm.export.storage import Storage


class GraphBuilder:
    """Collect nodes and constants; large constants go to ``storage``."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}

    def constant(self, name: str, *parts: npt.NDArray[Any]) -> str:
        """Keep a constant, its ``parts`` one below the other; return its name."""
        self._constants[name] = self._storage.tensor(name, parts)
        return name

    def sizes(self, *numbers: int) -> str:
        """Keep whole numbers as a constant of one axis; return its name."""
        name = "_".join(["sizes", *map(str, numbers)])
        return self.constant(name, np.array(numbers, np.int64))

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add one node; return the name of its output."""
        name = out or f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def graph(
        self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]
    ) -> GraphProto:
        """Return the whole graph."""
        constants = list(self._constants.values())
        return helper.make_graph(self._nodes, name, inputs, outputs, constants)
