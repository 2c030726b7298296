"""Tell the DLRM in a TorchScript file, by the whole of what its forward computes.

Every operation between the inputs and the score must be one that is known here and stand where a
DLRM has it, so a model that computes anything else is refused, never served wrongly.
"""

import numpy as np

from backends.dlrm.forward.model import Bytes, Dlrm, Floats, Linear, Table
from backends.native_dlrm.errors import UnknownModelError
from backends.native_dlrm.graph import Graph, Node, Path, Value, read_forward
from backends.native_dlrm.keys import KeyedIds
from backends.native_dlrm.lookup import read_lookup
from backends.torchscript_file.tree import Module, Tensor, TorchScriptFile

DENSE = "float_features"
_FLOAT32 = 6  # c10::ScalarType::Float


def recognise(file: TorchScriptFile) -> Dlrm:
    """Return the DLRM that ``file`` computes; its arrays view the file.

    Raises UnknownModelError.
    """
    try:
        return _Recogniser(file).dlrm()
    except RecursionError as error:
        raise UnknownModelError("its forward is nested too deeply") from error


class _Recogniser:
    def __init__(self, file: TorchScriptFile) -> None:
        self._root = file.root
        self._storage: Bytes = file.storage
        self._graph: Graph = read_forward(file.code, file.root.type_name)
        self._ids = KeyedIds(self._graph)

    def dlrm(self) -> Dlrm:
        output, score = self._output()
        sigmoid = _is(score, "torch.sigmoid")
        over, joined = self._layers(score.input(0) if sigmoid else score)
        dense_vector, vectors = self._interaction(joined)
        dense, values = self._layers(dense_vector)
        _require(_is_input(values, DENSE), f"the dense layers do not start at {DENSE!r}")
        tables, names = self._tables(_cast(vectors))
        order = {table.feature: position for position, table in enumerate(tables)}
        return Dlrm(
            tables=tables,
            interacted=tuple(order[name] for name in names),
            dense=dense,
            over=over,
            sigmoid=sigmoid,
            output=output,
            storage=self._storage,
        )

    def _output(self) -> tuple[str, Node]:
        result = self._graph.result
        match result:
            case Node(op="dict", inputs=((str(name), value),)):
                return name, _cast(value, flat=True)
        raise UnknownModelError("its forward does not return one named output")

    def _layers(self, value: Value) -> tuple[tuple[Linear, ...], Value]:
        """Return the linear layers that end at ``value``, in order, and what goes into them."""
        layers: list[Linear] = []
        while True:
            relu = _is(value, "torch.relu")
            inner = value.input(0) if relu and isinstance(value, Node) else value
            match inner:
                case Node(op=".forward", inputs=(Path(text), before)):
                    pass
                case Node(op=op, inputs=(before,)) if op.startswith("self.") and op.endswith(
                    ".forward"
                ):
                    text = op.removesuffix(".forward")
                case _:
                    _require(not relu, "a ReLU follows something other than a linear layer")
                    break
            layers.append(self._linear(text, relu))
            value = before
        _require(layers, "linear layers are missing")
        return tuple(reversed(layers)), value

    def _linear(self, path: str, relu: bool) -> Linear:
        module = self._module(path)
        _require(".linear." in module.type_name.lower(), f"{path} is no linear layer")
        weight, bias = module.attributes.get("weight"), module.attributes.get("bias")
        return Linear(_floats(path, weight, 2), _floats(path, bias, 1), relu)

    def _interaction(self, value: Value) -> tuple[Value, Value]:
        """Return the dense vector and the looked-up ones that the over layers' input is made of."""
        match value:
            case Node(op="torch.cat", inputs=((dense, Node(op="torch.index") as pairs), 1)):
                pass
            case _:
                raise UnknownModelError("the over layers' input is no dense vector and its pairs")
        match pairs.inputs:
            case (sliced, (None, Path(first), Path(second))):
                product = self._unsliced(sliced)
            case _:
                raise UnknownModelError("the interaction does not pick pairs of its products")
        match product:
            case Node(
                op="torch.bmm",
                inputs=(
                    Node(
                        op="torch.cat", inputs=((Node(op="torch.unsqueeze") as row, rest), 1)
                    ) as left,
                    Node(op="torch.transpose", inputs=(right, 1, 2)),
                ),
            ) if left is right and row.input(0) is dense and row.inputs[1:] == (1,):
                pass
            case _:
                raise UnknownModelError("the interaction is not that of every pair of vectors")
        vectors = _reshaped(rest)
        self._check_pairs(first, second)
        return dense, vectors

    def _unsliced(self, value: Value) -> Value:
        match value:
            case Node(op="torch.slice", inputs=(inner, 0, 0, 9223372036854775807)):
                return inner
        return value

    def _check_pairs(self, first: str, second: str) -> None:
        left, right = self._tensor(first), self._tensor(second)
        vectors = len(self._ids.names) + 1
        expected = np.triu_indices(vectors, 1)
        same = np.array_equal(left, expected[0]) and np.array_equal(right, expected[1])
        _require(same, f"the interaction's pairs are not those above the diagonal of {vectors}")

    def _tables(self, value: Value) -> tuple[tuple[Table, ...], tuple[str, ...]]:
        """Return the tables in wire order, and the names in the order of the interaction."""
        names, lookups = self._ids.pooled(value)
        found: dict[str, Table] = {}
        for path, features in lookups:
            for table in read_lookup(self._module(path), features):
                found[table.feature] = table
        _require(sorted(found) == sorted(self._ids.names), "not every id feature has one table")
        return tuple(found[name] for name in self._ids.names), names

    def _module(self, path: str) -> Module:
        module = self._root.get(path.removeprefix("self."))
        if not isinstance(module, Module):
            raise UnknownModelError(f"the file has no module {path}")
        return module

    def _tensor(self, path: str) -> Tensor:
        tensor = self._root.tensor(path.removeprefix("self."))
        if tensor is None:
            raise UnknownModelError(f"the file has no tensor {path}")
        return tensor


def _is(value: Value, op: str) -> bool:
    return isinstance(value, Node) and value.op == op


def _is_input(value: Value, name: str) -> bool:
    match value:
        case Node(op="getitem", inputs=(Node(op="argument"), found)):
            return found == name
    return False


def _cast(value: Value, *, flat: bool = False) -> Node:
    """Return what ``value`` is before it was moved, cast to float32 or, if ``flat``, reshaped."""
    while isinstance(value, Node):
        moved = value.op == "torch.to" and all(map(_keeps_value, value.inputs[1:]))
        if not moved and not (flat and value.op in {"torch.reshape", "torch.squeeze"}):
            return value
        value = value.input(0)
    raise UnknownModelError("a value is no result of an operation")


def _keeps_value(argument: Value) -> bool:
    if isinstance(argument, bool) or argument is None or _is(argument, "torch.device"):
        return True
    return argument == _FLOAT32


def _reshaped(value: Value) -> Value:
    match value:
        case Node(op="torch.reshape", inputs=(inner, (-1, int(), int()))):
            return inner
    raise UnknownModelError("the looked-up vectors are not laid out one a feature")


def _floats(path: str, value: object, axes: int) -> Floats:
    if not isinstance(value, np.ndarray) or value.ndim != axes or value.dtype != np.float32:
        raise UnknownModelError(f"{path} has no FP32 weight and bias")
    return value


def _require(holds: object, complaint: str) -> None:
    if not holds:
        raise UnknownModelError(complaint)
