"""Well-formed messages of ill-formed content: any field may be missing, of any value, and repeated."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

Kind = FieldDescriptor

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    Kind.CPPTYPE_UINT32: st.sampled_from([0, 1, 2, 5, 2**20, 2**31 - 1, 2**31, 2**32 - 1]),
    Kind.CPPTYPE_INT32: st.sampled_from([0, 1, -1, -2, 7, 2**31 - 1, -(2**31)]),
    Kind.CPPTYPE_UINT64: st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**64 - 1]),
    Kind.CPPTYPE_FLOAT: st.floats(width=32),
    Kind.CPPTYPE_BOOL: st.booleans(),
    Kind.CPPTYPE_ENUM: st.integers(-1, 9),
}
TEXTS = st.sampled_from(["", "a", "ä\0", "{", "[[[[", "[1]", '{"a":1}', "user"]) | st.text(max_size=5)


def garbage(message: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of a type."""
    return _fields(message.DESCRIPTOR).map(lambda fields: message(**fields))


def _fields(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    optional = {field.name: st.deferred(lambda field=field: _values(field)) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=optional).map(lambda fields: _one_of_each(descriptor, fields))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return st.dictionaries(_single(entry["key"]), _single(entry["value"]), max_size=3)
    return st.lists(_single(field), max_size=3) if field.is_repeated else _single(field)


def _single(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == Kind.CPPTYPE_MESSAGE:
        return _fields(field.message_type)
    if field.cpp_type == Kind.CPPTYPE_STRING:
        return st.binary(max_size=8) if field.type == Kind.TYPE_BYTES else TEXTS
    return SCALARS[field.cpp_type]


def _one_of_each(descriptor: Descriptor, fields: dict[str, Any]) -> dict[str, Any]:
    """Keep one field of each oneof: a constructor takes no more."""
    for group in descriptor.oneofs:
        given = [field.name for field in group.fields if field.name in fields]
        for name in given[1:]:
            del fields[name]
    return fields
