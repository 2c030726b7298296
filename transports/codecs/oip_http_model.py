"""What the Open Inference Protocol says of a model, in JSON: the protobuf's fields by their names.

Not protobuf's own JSON, which renames fields and writes 64-bit integers as strings.
"""

from typing import Any, TypeAlias

from google.protobuf.message import Message

Document: TypeAlias = dict[str, Any]


def document_of(message: Message) -> Document:
    """Return ``message`` as JSON has it; unset messages are left out, unset numbers are 0."""
    return {
        field.name: _value(message, field)
        for field in message.DESCRIPTOR.fields
        if field.is_repeated or not field.has_presence or message.HasField(field.name)
    }


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _plain(value, field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _plain(entry, of_value) for key, entry in value.items()}
    return [_plain(entry, field) for entry in value]


def _plain(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return document_of(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
