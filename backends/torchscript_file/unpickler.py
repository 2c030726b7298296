"""The pickled tree of a TorchScript file, read by a machine that can only build containers.

Trust boundary: ``pickle`` imports and calls whatever its input names. Here the opcodes are split by
``pickletools`` (which runs nothing) and worked by the few handlers below; a name in the file is
text, compared with tables, and never imported. Anything else is an error.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backends.torchscript_file.errors import TorchScriptFileError
from backends.torchscript_file.tree import Module, Opaque, Value

# What stands for a persistent id, and for ``torch._utils._rebuild_tensor_v2(storage, ...)``.
LoadStorage = Callable[[tuple[Value, ...]], Value]
MakeTensor = Callable[[tuple[Value, ...]], Value]

# A class of a program's own script (``__main__``) is the module ``__torch__`` itself.
SCRIPTED = ("__torch__.", "__torch__ ")
# A DLRM of 26 tables takes 2,600.
_MOST_OPCODES = 200_000
# Where a class that pickles itself (a TorchBind class) leaves what it pickled.
STATE = "__state__"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_SAME = {f"torch.jit._pickle build_{kind}list" for kind in ("int", "double", "bool", "tensor")} | {
    "torch.jit._pickle restore_type_tag"
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class _Name:
    """A global that the file names: ``module name``."""

    text: str


@dataclass(slots=True)
class _Machine:
    load_storage: LoadStorage
    make_tensor: MakeTensor
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, opcode: str, argument: Any) -> None:
        """Work one opcode."""
        if opcode in _LITERALS:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _TUPLES:
            self.stack.append(tuple(self._pop(_TUPLES[opcode])))
        else:
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise ValueError(f"opcode {opcode} has no place in a TorchScript file")
            handler(self, argument)

    def _pop(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise ValueError("the stack is empty")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise ValueError("a mark is missing")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def mark(self, argument: object) -> None:
        self.marks.append(len(self.stack))

    def put(self, argument: int) -> None:
        self.memo[argument] = self.stack[-1]

    def get(self, argument: int) -> None:
        self.stack.append(self.memo[argument])

    def push_name(self, argument: str) -> None:
        self.stack.append(_Name(argument))

    def push_tuple(self, argument: object) -> None:
        self.stack.append(tuple(self._pop_to_mark()))

    def push_list(self, argument: object) -> None:
        self.stack.append([])

    def push_dict(self, argument: object) -> None:
        self.stack.append({})

    def append(self, argument: object) -> None:
        self._extend(self._pop(1))

    def appends(self, argument: object) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("items are appended to something that is no list")
        _refuse_names(items)
        target.extend(items)

    def set_item(self, argument: object) -> None:
        self._update(self._pop(2))

    def set_items(self, argument: object) -> None:
        self._update(self._pop_to_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError("items are set in something that is no dict")
        _refuse_names(items)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float):
                raise TypeError(f"a {type(key).__name__} is the key of a dict")
            target[key] = value

    def persistent(self, argument: object) -> None:
        (reference,) = self._pop(1)
        self.stack.append(self.load_storage(_tuple(reference)))

    def new(self, argument: object) -> None:
        name, arguments = self._pop(2)
        text = _text(name)
        if not text.startswith(SCRIPTED) or arguments != ():
            raise ValueError(f"an object of {text!r} is no scripted module")
        self.stack.append(Module(_dotted(text)))

    def reduce(self, argument: object) -> None:
        name, arguments = self._pop(2)
        if _text(name).startswith(SCRIPTED) and not isinstance(arguments, tuple):
            # TorchScript pickles an enum as its class and bare value.
            arguments = (arguments,)
        self.stack.append(self._call(_text(name), _tuple(arguments)))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Value:
        if name == _TENSOR:
            return self.make_tensor(arguments)
        if name == "collections OrderedDict" and not arguments:
            return {}
        if name in _SAME and arguments:
            return arguments[0]
        if name == "torch device" or name.startswith(SCRIPTED):
            return Opaque(_dotted(name), arguments)
        raise ValueError(f"{name!r} is called, which no TorchScript tensor or container needs")

    def build(self, argument: object) -> None:
        (state,) = self._pop(1)
        target = self.stack[-1]
        if not isinstance(target, Module):
            raise TypeError("a state is given to something that is no module")
        if not isinstance(state, dict):
            state = {STATE: state}
        target.attributes.update({str(key): value for key, value in state.items()})

    def ignore(self, argument: object) -> None:
        """Do nothing."""


_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.ignore,
    "STOP": _Machine.ignore,
    "MARK": _Machine.mark,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.push_name,
    "TUPLE": _Machine.push_tuple,
    "EMPTY_LIST": _Machine.push_list,
    "EMPTY_DICT": _Machine.push_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BINPERSID": _Machine.persistent,
    "NEWOBJ": _Machine.new,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


def unpickle(data: bytes, where: str, load_storage: LoadStorage, make_tensor: MakeTensor) -> Value:
    """Return the value that ``data`` pickles; errors say ``where`` it lies, and the byte.

    Raises TorchScriptFileError.
    """
    machine = _Machine(load_storage, make_tensor)
    position = 0
    try:
        for count, (opcode, argument, at) in enumerate(pickletools.genops(data)):
            position = at or 0
            if count >= _MOST_OPCODES:
                raise ValueError(f"it has more than {_MOST_OPCODES} opcodes")
            machine.step(opcode.name, argument)
        if len(machine.stack) != 1 or machine.marks:
            raise ValueError("it ends with more or less than one value")
    except TorchScriptFileError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise TorchScriptFileError(f"{where}, byte {position}: {error}") from error
    result: Value = machine.stack[0]
    return result


def storage_type(name: Value) -> str:
    """Return the storage class that a persistent id names ("FloatStorage"). Raises ValueError."""
    module, _, kind = _text(name).partition(" ")
    if module != "torch":
        raise ValueError(f"{module!r} has no storages")
    return kind


def _refuse_names(items: list[Any]) -> None:
    for item in items:
        if isinstance(item, _Name):
            raise TypeError(f"the name {item.text!r} stands where a value must")


def _text(name: Value) -> str:
    if not isinstance(name, _Name):
        raise TypeError(f"a {type(name).__name__} stands where a name must")
    return name.text


def _tuple(value: Value) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError(f"a {type(value).__name__} stands where a tuple must")
    return value


def _dotted(text: str) -> str:
    return text.replace(" ", ".")
