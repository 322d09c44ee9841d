# SPDX-License-Identifier: Apache-2.0
"""Codecs of cold paths as tables: one `Field` for each attribute that is not simply copied.

Hot messages (produce, fetch, replication) and messages with special checks have functions instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto

Model = TypeVar("Model")
Proto = TypeVar("Proto", bound=Message)
_Enum = TypeVar("_Enum")


def _same(value: Any) -> Any:
    return value


class Field(NamedTuple):
    """The fields of a message that represent one attribute of a model.

    Attributes:
        to_proto: returns the value of the message's field; for several fields, their values in order.
        from_proto: takes the values of the message's fields.
        is_optional: whether an unset field decodes to None.
        names: the message's fields; empty: the field with the attribute's name.
    """

    to_proto: Callable[[Any], Any] = _same
    from_proto: Callable[..., Any] = _same
    is_optional: bool = False
    names: tuple[str, ...] = ()


COPIED: Final = Field()
OPTIONAL: Final = Field(is_optional=True)
LIST: Final = Field(from_proto=tuple)
PARTITION: Final = Field(ref_to_proto, ref_from_proto)
SPREAD_PARTITION: Final = Field(from_proto=TopicPartition, names=TopicPartition._fields)
SPREAD_IDENTITY: Final = Field(from_proto=ReplicaIdentity, names=ReplicaIdentity._fields)
ERROR: Final = Field(errors.to_proto, errors.from_proto)
OPTIONAL_ERROR: Final = ERROR._replace(is_optional=True)


def enum(numbers: Mapping[_Enum, int], otherwise: _Enum) -> Field:
    """An enumeration; numbers of later versions are read as `otherwise`."""
    members = {number: member for member, number in numbers.items()}
    return Field(numbers.__getitem__, lambda number: members.get(number, otherwise))


class Codec(Generic[Model, Proto]):
    """Translates between a model (dataclass or NamedTuple) and its message.

    The table is checked at import: every field of the message is written, and every attribute has its fields.

    Args:
        table: attributes that are not copied unchanged.
        computed: properties of the model that are written and never read.
        omitted: attributes that are not part of the message; read as their defaults.
    """

    def __init__(
        self,
        model: type[Model],
        message: type[Proto],
        *,
        computed: Collection[str] = (),
        omitted: Collection[str] = (),
        **table: Field,
    ) -> None:
        self._model, self._message, self._computed = model, message, tuple(computed)
        attributes = [name for name in _attributes(model) if name not in omitted]
        assert table.keys() <= set(attributes), f"{model.__name__} lacks attributes of its table"
        self._fields: dict[str, Field] = {}
        for name in attributes:
            field = table.get(name, COPIED)
            self._fields[name] = field if field.names else field._replace(names=(name,))
        written = [name for field in self._fields.values() for name in field.names] + list(computed)
        assert sorted(written) == sorted(message.DESCRIPTOR.fields_by_name), f"{message.__name__} has other fields"

    def to_proto(self, model: Model) -> Proto:
        """Encode a model as its message."""
        values: dict[str, Any] = {name: getattr(model, name) for name in self._computed}
        for attribute, field in self._fields.items():
            value = getattr(model, attribute)
            if value is not None or not field.is_optional:
                written = field.to_proto(value)
                values.update(zip(field.names, written if len(field.names) > 1 else (written,), strict=True))
        return self._message(**values)

    def from_proto(self, message: Proto) -> Model:
        """Decode a message to its model."""
        return self._model(
            **{
                attribute: None
                if field.is_optional and not message.HasField(field.names[0])
                else field.from_proto(*(getattr(message, name) for name in field.names))
                for attribute, field in self._fields.items()
            }
        )

    def to_protos(self, models: Iterable[Model]) -> list[Proto]:
        """Encode each model of a list."""
        return [self.to_proto(model) for model in models]

    def from_protos(self, messages: Iterable[Proto]) -> list[Model]:
        """Decode each message of a list."""
        return [self.from_proto(message) for message in messages]


def _attributes(model: type) -> tuple[str, ...]:
    if is_dataclass(model):
        return tuple(field.name for field in fields(model))
    names: tuple[str, ...] = model._fields  # type: ignore[attr-defined]
    return names
