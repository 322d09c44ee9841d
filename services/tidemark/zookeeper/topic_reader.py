# SPDX-License-Identifier: Apache-2.0
"""Reads all topics repeatedly; only changed topics are parsed and watched again.

A znode with an unchanged mzxid has unchanged data, and the watch on it is still set. So a thousand topics that are
created one by one need a thousand parses and watches, not half a million. A watch event without a path (a lost
connection), or a new session, clears the known watches. A typed topic costs one more watch: on the versions of its
schema, which are read once each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidemark.model import TidemarkError, TopicDescription
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.session_port import NodeRead, Session, Watch
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes

_SLICE: Final = 100
"""Topics that are parsed before other tasks run."""
_TOLD_BYTES_MAX: Final = 16_384
"""Bytes of a deleted znode that are written into the log."""
_log = logging.getLogger(__name__)

Nodes = tuple[NodeRead | None, NodeRead | None]
"""The znodes of a topic and of its configs."""
_Version = tuple[int, int, int]
"""Mzxids of the znodes of a topic and of its configs, and the number of changes of its schema's versions."""


class _Known(NamedTuple):
    version: _Version
    topic: TopicDescription


class TopicReader:
    """Reads `/brokers/topics` through one session port; `fire` is the watch that reports a change."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[str, _Known] = {}
        self._watched: dict[str, _Version] = {}
        self._session_id = 0
        self._watches: dict[Watch, Watch] = {}
        """One watch for each `fire`: the client keeps a watch only once, even if it is set again."""

    async def read(
        self, fire: Watch | None = None, unreadable: set[str] | None = None
    ) -> Mapping[str, TopicDescription]:
        """Every topic with its configs; `fire` watches the list and every topic.

        A topic that does not parse, or whose znode was deleted manually, is logged, omitted and added to `unreadable`.
        So all other topics stay manageable, and no replica of the unreadable topic becomes a stray.
        """
        watch = None if fire is None else self._watch(fire)
        names = sorted(await self._session.children(paths.TOPICS, watch))
        found: dict[str, TopicDescription] = {}
        nodes = await self._nodes(names)
        versions: dict[str, Sequence[str]] = {}
        if watch is not None:
            nodes |= await self._watch_changed(nodes, watch, versions)
        changed: list[str] = []
        for number, name in enumerate(names):
            if number % _SLICE == _SLICE - 1:
                await self._session.give_way()
            known = self._known.get(name)
            same = known is not None and nodes[name][0] is not None and known.version == _version(nodes[name])
            # a write to the node of a damaged version changes no number of its parent
            if known is not None and same and all(schema.text for schema in known.topic.schemas.values()):
                found[name] = known.topic
                continue
            topic = self._understood(name, nodes[name], unreadable)
            if topic is not None:
                found[name] = topic
                changed.append(name)
        found |= await self._with_schemas({name: found[name] for name in changed}, nodes, versions)
        orphans = set() if unreadable is None else await self._orphans(names, watch)
        if unreadable is not None:
            unreadable |= orphans
        for name in self._known.keys() - set(names) - orphans:
            self._known.pop(name, None)
        for name in self._watched.keys() - set(names):
            self._watched.pop(name, None)
        return found

    async def _orphans(self, names: Sequence[str], watch: Watch | None) -> set[str]:
        """Topics whose znode was deleted manually. One multi creates the znode and its config, and one multi deletes
        both. So a config without a topic znode belongs to a topic without a deletion request: brokers still have its
        records.
        """
        configured = await self._session.children(paths.TOPIC_CONFIGS)
        alone = sorted(set(configured) - set(names))
        orphans = set()
        for start in range(0, len(alone), _SLICE):
            some = alone[start : start + _SLICE]
            nodes = await self._nodes(some)  # read both again, at the same time, because topics are created and deleted
            # meanwhile
            orphans |= {name for name in some if nodes[name][0] is None and nodes[name][1] is not None}
        for name in sorted(orphans):
            if watch is not None:
                await self._session.get(paths.topic_config(name), watch)
            known = self._known.get(name)
            _log.error(
                "topic skipped: its node was deleted manually; restore it, or delete the node of its config if its "
                "records are no longer needed",
                extra={
                    "topic": name,
                    "path": paths.topic(name),
                    "config_path": paths.topic_config(name),
                    "was": "" if known is None else codecs.encode_topic(known.topic)[:_TOLD_BYTES_MAX].decode(),
                },
            )
        return orphans

    def _watch(self, fire: Watch) -> Watch:
        if self._session_id != self._session.session_id:
            self._watched.clear()
            self._session_id = self._session.session_id

        def on_watch(event: Any) -> None:
            if getattr(event, "path", None) is None:
                self._watched = {}
            fire(event)

        return self._watches.setdefault(fire, on_watch)

    async def _nodes(self, names: Sequence[str]) -> dict[str, Nodes]:
        read = await self._session.read_many(
            [path for name in names for path in (paths.topic(name), paths.topic_config(name))]
        )
        return {name: (read[2 * index], read[2 * index + 1]) for index, name in enumerate(names)}

    async def _watch_changed(
        self, nodes: Mapping[str, Nodes], watch: Watch, versions: dict[str, Sequence[str]]
    ) -> dict[str, Nodes]:
        """Read and watch the topics that have no watch yet, or a watch on older data. For typed topics, also read
        the names of the versions, into `versions`.
        """
        watched = self._watched
        changed = [name for name, both in nodes.items() if None in both or watched.get(name) != _version(both)]
        found: dict[str, Nodes] = {}
        for start in range(0, len(changed), _SLICE):
            some = changed[start : start + _SLICE]
            read = await self._session.gather(
                [
                    self._session.get(path, watch)
                    for name in some
                    for path in (paths.topic(name), paths.topic_config(name))
                ]
            )
            for index, name in enumerate(some):
                found[name] = (read[2 * index], read[2 * index + 1])
            typed = [name for name in some if _is_typed(found[name])]
            children = [self._session.children(paths.topic_config(name), watch) for name in typed]
            versions.update(zip(typed, await self._session.gather(children), strict=True))
            watched.update((name, _version(found[name])) for name in some)
        return found

    def _understood(self, name: str, nodes: Nodes, unreadable: set[str] | None) -> TopicDescription | None:
        node, config = nodes
        if node is None:
            return None
        try:
            return topic_of(name, node, config)
        except TidemarkError as error:
            _log.error("topic skipped: its node cannot be read", extra={"topic": name, "why": error.message})
            if unreadable is not None:
                unreadable.add(name)
            return None

    async def _with_schemas(
        self,
        topics: Mapping[str, TopicDescription],
        nodes: Mapping[str, Nodes],
        versions: Mapping[str, Sequence[str]],
    ) -> dict[str, TopicDescription]:
        """The changed topics, with the versions of their schemas."""
        asked = []
        for name, topic in topics.items():
            known = self._known.get(name)
            before = None if known is None else known.topic
            asked.append(schema_nodes.Asked(topic, nodes[name][1], before, versions.get(name)))
        read = dict(zip(topics, await schema_nodes.with_schemas(self._session, asked), strict=True))
        self._known.update((name, _Known(_version(nodes[name]), topic)) for name, topic in read.items())
        return read


def topic_of(name: str, node: NodeRead, config: NodeRead | None) -> TopicDescription:
    """The topic in its two znodes, without the versions of its schema; raises the refusals of `codecs`."""
    return replace(
        codecs.decode_topic(paths.topic(name), node[0], name),
        configs={} if config is None else codecs.decode_configs(paths.topic_config(name), config[0]),
        created_zxid=node[1].czxid,
        modified_zxid=node[1].mzxid,
        configs_zxid=-1 if config is None else config[1].mzxid,
        configs_version=-1 if config is None else config[1].version,
        version=node[1].version,
    )


def _version(nodes: Nodes) -> _Version:
    node, config = nodes
    return (
        -1 if node is None else node[1].mzxid,
        -1 if config is None else config[1].mzxid,
        -1 if config is None else config[1].cversion,
    )


def _is_typed(nodes: Nodes) -> bool:
    config = nodes[1]
    return config is not None and config[1].numChildren > 0
