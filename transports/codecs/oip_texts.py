"""Texts (BYTES) of the Open Inference Protocol: the ids of a feature that has a vocabulary.

Only ``FEATURE.values`` takes them. They stay as the wire had them until the model is known to:
no other tensor of texts is looked into.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.errors import invalid, shown
from scheduler.types import Array, ModelSpec
from transports.codecs.oip_context import PREFIX
from transports.codecs.oip_tensors import BYTES, Tensor

# Each text is an object of its own, made on the event loop: about 0.1 s a MiB at worst.
MAX_TEXT_BYTES = 1 << 20
_LENGTH_BYTES = 4


def ids_of_texts(spec: ModelSpec, tensor: Tensor) -> Array:
    """Return the ids that ``tensor``'s texts are by its feature's vocabulary.

    Raises ServingError (INVALID_REQUEST).
    """
    label = f"tensor {shown(tensor.name)}"
    feature = tensor.name.removeprefix(PREFIX).removesuffix(".values")
    vocabulary = spec.vocabularies.get(feature)
    if vocabulary is None or not tensor.name.endswith(".values"):
        few = ", ".join(f"{name}.values" for name in list(spec.vocabularies)[:5])
        takes = f"only {few} take texts" if few else "no input of the model takes texts"
        raise invalid(f"{label}: datatype {BYTES!r} is not supported: {takes}")
    check_text_size(label, tensor.array.nbytes)
    texts = list(_texts(label, tensor.array))
    expected = int(np.prod(tensor.shape, dtype=object))
    if len(texts) != expected:
        raise invalid(
            f"{label}: has {len(texts)} entries, expected {expected}: shape {list(tensor.shape)}"
        )
    return vocabulary.ids_of(texts).reshape(tensor.shape)


def check_text_size(label: str, size_bytes: int) -> None:
    """Refuse texts of more bytes than are read. Raises ServingError (INVALID_REQUEST)."""
    if size_bytes > MAX_TEXT_BYTES:
        raise invalid(f"{label}: has {size_bytes} bytes, above the limit of {MAX_TEXT_BYTES} bytes")


def _texts(label: str, array: Array) -> Iterator[str]:
    entries = array.tolist() if array.dtype.kind == "O" else _split(label, array.tobytes())
    for index, entry in enumerate(entries):
        try:
            yield entry if isinstance(entry, str) else entry.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"{label}: entry {index} is not UTF-8: {error.reason}") from error


def _split(label: str, data: bytes) -> Sequence[bytes]:
    """Return the entries of ``data``: each is its length, 4 bytes little-endian, and its bytes."""
    entries: list[bytes] = []
    start = 0
    while start < len(data):
        begin = start + _LENGTH_BYTES
        end = begin + int.from_bytes(data[start:begin], "little")
        if end > len(data) or begin > len(data):
            raise invalid(f"{label}: entry {len(entries)} ends after the last of {len(data)} bytes")
        entries.append(data[begin:end])
        start = end
    return entries
