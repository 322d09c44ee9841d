# SPDX-License-Identifier: Apache-2.0
"""The znodes of schemas: /config/topics/<topic>/<version>, created once and never written again (rules S1, S2).

The settings' znode of a typed topic has children, the settings' znode of any other topic has none. So a read of the
settings shows whether a topic is typed, and only typed topics cost further reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tidemark.model import ErrorCode, SchemaText, TidemarkError, TopicDescription, TopicPartition
from tidemark.ports import AdminRequest
from tidemark.zookeeper import codecs, paths, requests
from tidemark.zookeeper.multis import BYTES_MAX, Check, Create, Delete, Operation, is_committed
from tidemark.zookeeper.session_port import NodeRead, Session

_log = logging.getLogger(__name__)

VERSIONS_MAX: Final = 2047
"""Versions of one topic: a batch names its version in eleven bits."""
TEXT_BYTES_MAX: Final = BYTES_MAX - 65_536
"""Longest text of a version: the limit of a multi, less room for the topic's other znodes."""
_READ_AT_ONCE: Final = 100
_UNREAD: Final = SchemaText("")


def path_of(topic: str, version: int) -> str:
    """Path of the znode of a version."""
    return f"{paths.topic_config(topic)}/{version}"


def encode(topic_id: str, schema: SchemaText) -> bytes:
    """A version's znode. The topic id keeps the version from a topic that is created again under the name.

    Raises:
        TidemarkError: INVALID_SCHEMA for a text that is not a JSON object, or too long for a znode.
    """
    try:
        fields = json.loads(schema.text)
        data = codecs.encode({"topic_id": topic_id, "created_at_ms": schema.created_at_ms, "schema": fields})
    except (ValueError, RecursionError) as error:  # an unpaired surrogate is a ValueError, too
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, "the schema is not JSON that ZooKeeper can store") from error
    if not isinstance(fields, dict):
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, "the schema is not a JSON object")
    if len(data) > TEXT_BYTES_MAX:
        raise TidemarkError(
            ErrorCode.INVALID_SCHEMA,
            f"the schema has {len(data)} bytes as JSON, and a ZooKeeper node has room for {TEXT_BYTES_MAX}: use fewer "
            "columns, or shorter doc texts",
            {"size_bytes": str(len(data)), "size_bytes_max": str(TEXT_BYTES_MAX)},
        )
    return data


def decode(path: str, data: bytes) -> tuple[str, SchemaText]:
    """Inverse of `encode`: the topic id and the version; raises INTERNAL."""
    return codecs.decode(
        path,
        data,
        lambda fields: (
            codecs.name_of(fields["topic_id"]),
            SchemaText(_text_of(fields["schema"]), codecs.int64_of(fields.get("created_at_ms", 0))),
        ),
    )


def _text_of(fields: object) -> str:
    if not isinstance(fields, dict):
        raise TypeError
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


class Asked(NamedTuple):
    """A topic whose versions are wanted.

    Attributes:
        topic: the topic without its schema versions.
        config: the settings' znode, read together with `topic`.
        known: the topic as an earlier read had it, with versions that are not read again.
        names: children of the settings' znode, read after `config`; None: not read yet.
    """

    topic: TopicDescription
    config: NodeRead | None
    known: TopicDescription | None = None
    names: Sequence[str] | None = None


async def with_schemas(session: Session, asked: Sequence[Asked]) -> list[TopicDescription]:
    """The topics with their versions, pipelined. A topic without a schema needs no request.

    The text of a damaged version is empty. A version of another topic id is omitted: the topic was deleted, or created
    again, during the read.
    """
    found = [one.topic for one in asked]
    typed = [index for index, one in enumerate(asked) if one.config is not None and one.config[1].numChildren]
    for start in range(0, len(typed), _READ_AT_ONCE):
        some = typed[start : start + _READ_AT_ONCE]
        unread = [index for index in some if asked[index].names is None]
        read = await session.gather([session.children(paths.topic_config(found[index].topic)) for index in unread])
        names = dict(zip(unread, read, strict=True))
        versions = {index: _known(asked[index], names.get(index, asked[index].names or ())) for index in some}
        await _fill(session, [(found[index], versions[index]) for index in some])
        for index, schemas in versions.items():
            found[index] = replace(found[index], schemas=schemas) if schemas else found[index]
    return found


def _known(one: Asked, names: Iterable[str]) -> dict[int, SchemaText]:
    """The versions with these names; a version that is not read yet has no text."""
    same = one.known is not None and one.known.topic_id == one.topic.topic_id
    known = one.known.schemas if one.known is not None and same else {}
    return {version: known.get(version, _UNREAD) for version in sorted(filter(None, map(_version_in, names)))}


async def _fill(session: Session, topics: Sequence[tuple[TopicDescription, dict[int, SchemaText]]]) -> None:
    """Read the versions without a text into the dicts."""
    missing = [
        (topic, version, of_topic)
        for topic, of_topic in topics
        for version, schema in of_topic.items()
        if not schema.text
    ]
    for start in range(0, len(missing), _READ_AT_ONCE):
        some = missing[start : start + _READ_AT_ONCE]
        nodes = await session.read_many([path_of(topic.topic, version) for topic, version, _ in some])
        for (topic, version, of_topic), node in zip(some, nodes, strict=True):
            schema = None if node is None else _understood(path_of(topic.topic, version), node[0], topic.topic_id)
            if schema is None:
                del of_topic[version]
            else:
                of_topic[version] = schema


def _version_in(name: str) -> int:
    """The version with this name; 0 for another name."""
    number = paths.number_in(name)
    return number if number is not None and number <= VERSIONS_MAX else 0


def _understood(path: str, data: bytes, topic_id: str) -> SchemaText | None:
    try:
        of, schema = decode(path, data)
    except TidemarkError as error:
        _log.error("the version of a schema is damaged; restore it", extra={"path": path, "why": str(error)})
        return _UNREAD
    return schema if of == topic_id else None


def creations(topic: TopicDescription) -> list[Operation]:
    """The operations that create the versions of a new topic, after its settings' znode."""
    return [
        Create(path_of(topic.topic, version), encode(topic.topic_id, schema))
        for version, schema in sorted(topic.schemas.items())
    ]


def deletions(topic: str, names: Iterable[str]) -> list[Delete]:
    """The operations that delete these children of the settings' znode, the newest version last.

    A deletion in several multis therefore never makes a typed topic look like one without a schema.
    """
    ordered = sorted(names, key=lambda name: (_version_in(name), name))
    return [Delete(f"{paths.topic_config(topic)}/{name}") for name in ordered]


async def add(
    session: Session, topic: TopicDescription, version: int, schema: SchemaText, *, receipt: AdminRequest | None = None
) -> bool:
    """Create a version in one multi, which checks the topic and its settings as they were read (rule S2).

    False: the topic, its settings or its versions changed since then, the controller has not initialised the topic yet,
    or the request was answered. Then there was no write. Raises INVALID_SCHEMA.
    """
    operations: list[Operation] = [
        Check(paths.incarnation(TopicPartition(topic.topic, 0), topic.incarnations[0])),
        Check(paths.topic_config(topic.topic), topic.configs_version),
        Create(path_of(topic.topic, version), encode(topic.topic_id, schema)),
    ]
    if receipt is not None:
        operations.append(requests.creation(receipt))
    return await is_committed(session, operations)
