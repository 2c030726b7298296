"""The forward of a scripted module as a graph of operations, told from its source text.

TorchScript writes each operation as one assignment in Python's syntax, each name assigned once. The
text is parsed (``ast`` runs nothing) and every assignment becomes one Node.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from backends.native_dlrm.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class Path:
    """A dotted name: an operator (``torch.relu``) or an attribute (``self._module.over_arch``)."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation: ``op`` on ``inputs``; a method of a value is ``.name``, the value first."""

    op: str
    inputs: tuple["Value", ...] = ()

    def input(self, index: int) -> "Value":
        """Return an input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None


Value: TypeAlias = "Node | Path | tuple[Value, ...] | str | int | float | bool | None"
_FOLLOWED = ("annotate", "unchecked_cast")


@dataclass(frozen=True, slots=True)
class Graph:
    """What ``forward`` returns, and every operation in order (some work by side effect)."""

    result: Value
    nodes: Sequence[Value]

    def calls(self, op: str) -> list[Node]:
        """Return the operations called ``op``, in order."""
        return [node for node in self.nodes if isinstance(node, Node) and node.op == op]


def read_forward(code: Mapping[str, str], type_name: str) -> Graph:
    """Return the graph of ``forward`` of the scripted class. Raises UnknownModelError."""
    module, _, name = type_name.rpartition(".")
    text = code.get(module.replace(".", "/") + ".py", "")
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownModelError(f"the code of {type_name} cannot be parsed: {error}") from error
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    return _graph(item)
    raise UnknownModelError(f"the file has no code of {type_name}.forward")


def _graph(function: ast.FunctionDef) -> Graph:
    scope: dict[str, Value] = {
        argument.arg: Path("self") if argument.arg == "self" else Node("argument", (argument.arg,))
        for argument in function.args.args
    }
    nodes: list[Value] = []
    for statement in function.body:
        if isinstance(statement, ast.Return) and statement.value:
            return Graph(_value(statement.value, scope), nodes)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise UnknownModelError("its forward branches, loops or assigns to several names")
        value = _value(statement.value, scope)
        scope[statement.targets[0].id] = value
        nodes.append(value)
    raise UnknownModelError("its forward returns nothing")


def _value(node: ast.expr, scope: Mapping[str, Value]) -> Value:
    match node:
        case ast.Name(id=name):
            return scope.get(name, Path(name))
        case ast.Attribute(value=base, attr=name):
            return _attribute(_value(base, scope), name)
        case ast.Subscript(value=base, slice=index):
            return Node("getitem", (_value(base, scope), _value(index, scope)))
        case ast.Call(func=function, args=arguments, keywords=[]):
            return _call(_value(function, scope), tuple(_value(item, scope) for item in arguments))
    return _literal(node, scope)


def _literal(node: ast.expr, scope: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=str() | int() | float() | None as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_value(item, scope) for item in items)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return Node("dict", tuple((_value(k, scope), _value(v, scope)) for k, v in pairs if k))
    raise UnknownModelError(f"its forward has an expression of another kind: {type(node).__name__}")


def _attribute(base: Value, name: str) -> Value:
    return Path(f"{base.text}.{name}") if isinstance(base, Path) else Node(f".{name}", (base,))


def _call(function: Value, arguments: tuple[Value, ...]) -> Value:
    match function, arguments:
        case Path("getattr"), (base, str(name)):
            return _attribute(base, name)
        case Path(text), (_, value) if text in _FOLLOWED:
            return value
        case Path(text), _:
            return Node(text, arguments)
        case Node(op=op, inputs=inputs), _ if op.startswith("."):
            return Node(op, (*inputs, *arguments))
    raise UnknownModelError("its forward calls something that has no name")
