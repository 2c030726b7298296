"""Follow TorchRec's keyed tensors through a graph: which feature's ids and vectors are where."""

from backends.native_dlrm.errors import UnknownModelError
from backends.native_dlrm.graph import Graph, Node, Value

_IDS = "__torch__.torchrec.sparse.jagged_tensor.KeyedJaggedTensor"
_POOLED = "__torch__.torchrec.sparse.jagged_tensor.KeyedTensor"
_FLATTEN = "__torch__.torchrec.distributed.quant_embeddingbag.flatten_feature_lengths"
_LENGTHS, _VALUES = "id_list_features.lengths", "id_list_features.values"
Lookups = list[tuple[str, tuple[str, ...]]]


class KeyedIds:
    """The one KeyedJaggedTensor that the graph makes of its inputs; ``names`` in wire order."""

    def __init__(self, graph: Graph) -> None:
        """Find it. Raises UnknownModelError."""
        self._graph = graph
        made = graph.calls(f"{_IDS}.__new__")
        if len(made) != 1:
            raise UnknownModelError(f"it makes {len(made)} KeyedJaggedTensors of its inputs, not 1")
        self._made = made[0]
        keys, values, weights, lengths, *others = self._arguments(self._made)
        if not _is_input(values, _VALUES) or not _is_input(lengths, _LENGTHS):
            raise UnknownModelError(f"its ids are not {_VALUES!r} with {_LENGTHS!r}")
        if weights is not None or any(other is not None for other in others):
            raise UnknownModelError("its ids have weights or strides of their own")
        self.names = _strings(keys)
        if len(set(self.names)) != len(self.names) or not self.names:
            raise UnknownModelError("its id features have no names of their own")

    def pooled(self, value: Value) -> tuple[tuple[str, ...], Lookups]:
        """Return the features whose vectors ``value`` joins, in order, and the lookups they need.

        A lookup is a module's path and the features it serves, in its order.
        """
        match value:
            case Node(op="torch.cat", inputs=(tuple(items), 1)) if items:
                pass
            case _:
                raise UnknownModelError("the looked-up vectors are not joined feature by feature")
        sources: list[Node] = []
        names: list[str] = []
        for item in items:
            match item:
                case Node(
                    op="getitem", inputs=(Node(op=".to_dict", inputs=(Node() as made,)), str(name))
                ):
                    names.append(name)
                    sources.append(made)
                case _:
                    raise UnknownModelError("a looked-up vector is taken from somewhere else")
        if any(source is not sources[0] for source in sources):
            raise UnknownModelError("it looks ids up in several collections")
        return tuple(names), self._lookups(sources[0])

    def _lookups(self, pooled: Node) -> Lookups:
        if pooled.op != f"{_POOLED}.__new__":
            raise UnknownModelError("its pooled vectors are no KeyedTensor")
        keys, _, values, axis, *others = self._arguments(pooled)
        if axis != 1 or any(other is not None for other in others):
            raise UnknownModelError("its KeyedTensor is not keyed by columns")
        match _moved(values):
            case Node(op="torch.cat", inputs=(tuple(parts), 1)):
                lookups = [self._lookup(_moved(part)) for part in parts]
            case one:
                lookups = [self._lookup(one)]
        if tuple(name for _, names in lookups for name in names) != _strings(keys):
            raise UnknownModelError("its KeyedTensor names its columns in another order")
        return lookups

    def _lookup(self, value: Value) -> tuple[str, tuple[str, ...]]:
        match value:
            case Node(
                op=op,
                inputs=(
                    Node(op=".values", inputs=(ids,)),
                    Node(op="torch.to", inputs=(Node(op=".offsets", inputs=(same,)), _)),
                    None,
                ),
            ) if op.startswith("self.") and op.endswith(".forward") and ids is same:
                return op.removesuffix(".forward"), self._names(ids)
        raise UnknownModelError("a lookup takes something other than ids and their offsets")

    def _names(self, value: Value) -> tuple[str, ...]:
        """Return the features of a KeyedJaggedTensor made from the first one, in its order."""
        match value:
            case Node() if value is self._made:
                return self.names
            case Node(op=".to", inputs=(inner, *_)):
                return self._names(inner)
            case Node(op=op, inputs=(inner,)) if op == _FLATTEN:
                return self._names(inner)
            case Node(op=".permute", inputs=(inner, tuple(order), *_)):
                names = self._names(inner)
                return tuple(names[index] for index in _indices(order, len(names)))
            case Node(
                op="getitem",
                inputs=(Node(op=".split", inputs=(inner, tuple(sizes))), int(part)),
            ):
                counts = _indices(sizes, len(self.names) + 1)
                start = sum(counts[:part])
                return self._names(inner)[start : start + counts[part]]
        raise UnknownModelError("the ids go through an operation that is not known")

    def _arguments(self, made: Node) -> tuple[Value, ...]:
        """Return what the constructor of ``made`` is given."""
        for call in self._graph.calls(".__init__"):
            if call.input(0) is made and len(call.inputs) >= 5:
                return call.inputs[1:]
        raise UnknownModelError(f"{made.op} is not initialised")


def _is_input(value: Value, name: str) -> bool:
    match value:
        case Node(op="getitem", inputs=(Node(op="argument"), found)):
            return found == name
    return False


def _moved(value: Value) -> Value:
    """Return ``value`` before it was moved to a device."""
    match value:
        case Node(op="torch.to", inputs=(inner, Node(op="torch.device"), *_)):
            return inner
    return value


def _strings(value: Value) -> tuple[str, ...]:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise UnknownModelError("the names of its features are not in its code")
    return tuple(str(item) for item in value)


def _indices(values: tuple[Value, ...], limit: int) -> list[int]:
    numbers = [value for value in values if isinstance(value, int) and 0 <= value < limit]
    if len(numbers) != len(values):
        raise UnknownModelError("its features are split or permuted by something else than numbers")
    return numbers
