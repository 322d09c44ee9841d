# SPDX-License-Identifier: Apache-2.0
"""The records of internal topics: keys and values as canonical JSON, by one table for each topic (docs/formats.md).

A later version may add fields and kinds of keys; readers ignore unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

from tidemark.model import ErrorCode, TidemarkError

ChangeT = TypeVar("ChangeT", bound=tuple[Any, Any])

PartitionsOfTopic = tuple[str, str, list[int]]
"""Topic, topic id, and partition indexes."""


class Form(NamedTuple):
    """The JSON of a value, both ways."""

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]


def object_of(kind: type[Any], *, optional: Collection[str] = (), sparse: Collection[str] = (), **forms: Form) -> Form:
    """The form of a dataclass: an object with a member for each field, in the order of the fields, sparse ones last.

    Args:
        kind: the dataclass.
        optional: fields that earlier versions did not write; without a member they have their defaults.
        sparse: optional fields that are not written either while they have their defaults.
        forms: forms of the fields that are not plain JSON.
    """
    lacking = {*optional, *sparse}
    names = [field.name for field in fields(kind)]
    always = [name for name in names if name not in sparse]
    defaults = {field.name: field.default for field in fields(kind) if field.name in sparse}

    def to_json(value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in always}
        found |= {name: one for name, default in defaults.items() if (one := getattr(value, name)) != default}
        for name in forms.keys() & found.keys():
            found[name] = forms[name].to_json(found[name])
        return found

    def from_json(found: Any) -> Any:
        members = {name: found[name] for name in names if name in found or name not in lacking}
        for name in forms.keys() & members.keys():
            members[name] = forms[name].from_json(members[name])
        return kind(**members)

    return Form(to_json, from_json)


class StateRecords(Generic[ChangeT]):
    """Translates between the changes of a state and their records.

    Args:
        change: makes a change of a key and a value, which is None for a deletion.
        kinds: class of the key, and form of the value, by the name of the kind.
        what: the owner of the records in a sentence, such as "a consumer group".
    """

    def __init__(
        self, change: Callable[[Any, Any], ChangeT], kinds: Mapping[str, tuple[type[Any], Form]], what: str
    ) -> None:
        self._change = change
        self._kinds = kinds
        self._names = {key: (name, form) for name, (key, form) in kinds.items()}
        self._what = what

    def encode(self, change: ChangeT) -> tuple[bytes, bytes | None]:
        """Key and value of a record; the value is None for a tombstone."""
        key, value = change
        name, form = self._names[type(key)]
        return _dump([name, *key]), None if value is None else _dump(form.to_json(value))

    def decode(self, key: bytes, value: bytes | None) -> ChangeT | None:
        """The change of a record; None for a kind of key of a later version.

        Raises:
            TidemarkError: INVALID_PAYLOAD if the record is not valid.
        """
        try:
            name, *parts = json.loads(key)
            if name not in self._kinds:
                return None
            kind, form = self._kinds[name]
            return self._change(kind(*parts), None if value is None else form.from_json(json.loads(value)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TidemarkError(
                ErrorCode.INVALID_PAYLOAD, f"{key!r} is not a record of {self._what}: {type(error).__name__}: {error}"
            ) from error


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def by_topic(partitions: Iterable[tuple[str, str, int]]) -> list[PartitionsOfTopic]:
    """Topics, topic ids and indexes of partitions, grouped by topic, all sorted."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for topic, topic_id, partition in sorted(partitions):
        grouped.setdefault((topic, topic_id), []).append(partition)
    return [(topic, topic_id, indexes) for (topic, topic_id), indexes in grouped.items()]


def one_by_one(grouped: Iterable[PartitionsOfTopic]) -> Iterator[tuple[str, str, int]]:
    """The partitions of `by_topic`."""
    return ((topic, topic_id, index) for topic, topic_id, indexes in grouped for index in indexes)
