# SPDX-License-Identifier: Apache-2.0
"""A mirror of the znodes that describe the cluster: a read costs one sync, and a request for each changed znode.

A read is as fresh as a read of ZooKeeper after a sync. First the session syncs and delivers every event of a watch that
ZooKeeper sent before its answer. Then the mirror reads the changed znodes. So a change that was committed before the
read, through any server, is in the result. Without an answer of ZooKeeper the read fails; it never returns the old
copy.

The server forgets the watches when a connection ends. The session reports the loss before it delivers later answers.
The next read then sets the watches and reads all nodes again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Final

from tidemark.model import TidemarkError, TopicPartition, VersionedState
from tidemark.ports import ClusterSnapshot, StoreEvent, TopicSnapshot
from tidemark.zookeeper import brokers, draining, election, paths, states
from tidemark.zookeeper.mirror.changes import ROOTS, Changes
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topic_reader import topic_of
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes

_SLICE: Final = 100
"""Topics that are parsed before other tasks run."""
_log = logging.getLogger(__name__)


class ClusterMirror:
    """Reads are not concurrent: the store shares one among its callers.

    Args:
        session: the session port.
        complaints: logs unreadable states.

    Attributes:
        _watched_by: id of the session whose present connection has the watches; None: no connection has them.
    """

    def __init__(self, session: Session, complaints: states.Complaints) -> None:
        self._session = session
        self._complaints = complaints
        self._changes = Changes(everything=True)
        self._watched_by: int | None = None
        self._snapshot = ClusterSnapshot()

    def on_event(self, event: StoreEvent) -> None:
        """A listener of the store's events."""
        if event in (StoreEvent.SESSION_SUSPENDED, StoreEvent.SESSION_EXPIRED):
            self._watched_by = None

    async def read(self) -> ClusterSnapshot:
        """The cluster, no older than this call; the same object as before if there is no change.

        Raises:
            TidemarkError: COORDINATION_UNAVAILABLE.
        """
        while True:
            session_id = self._session.session_id
            await self._session.deliver_events()
            if self._watched_by != session_id:
                await self._watch(session_id)
            changes, self._changes = self._changes, Changes()
            try:
                snapshot = await self._read(changes)
            except BaseException:
                self._changes.add(changes)
                raise
            self._snapshot = snapshot
            # The server of a new session may lag behind the server that has synced.
            if self._session.session_id == session_id:
                return snapshot

    async def _watch(self, session_id: int) -> None:
        self._watched_by = session_id  # set first, because the connection may end during this call
        try:
            for root in ROOTS:
                await self._session.watch_below(root, self._on_change)
        except BaseException:
            self._watched_by = None
            raise
        self._changes = Changes(everything=True)

    def _on_change(self, path: str) -> None:
        self._changes.note(path)

    async def _read(self, changes: Changes) -> ClusterSnapshot:
        known, session = self._snapshot, self._session
        if not changes:
            return known
        everything = changes.everything
        return ClusterSnapshot(
            cluster_id=known.cluster_id if known.cluster_id and not everything else await election.cluster_id(session),
            brokers=await brokers.live(session, None) if everything or changes.brokers else known.brokers,
            controller=await election.current(session, None) if everything or changes.controller else known.controller,
            draining=await draining.read(session) if everything or changes.draining else known.draining,
            topics=await self._topics(changes),
        )

    async def _topics(self, changes: Changes) -> Mapping[str, TopicSnapshot]:
        if changes.everything:
            return _sorted(await self._read_topics(await self._session.children(paths.TOPICS)))
        if not changes.topics and not changes.states:
            return self._snapshot.topics
        read = await self._read_topics(changes.topics)
        known = self._snapshot.topics
        topics = {name: one for name, one in known.items() if name not in changes.topics} | read
        known_states = [
            one for one in changes.states if one.topic not in changes.topics and _has(known.get(one.topic), one)
        ]
        topics |= await self._read_states(known_states)
        return topics if topics.keys() == known.keys() and not changes.topics else _sorted(topics)

    async def _read_topics(self, names: Collection[str]) -> dict[str, TopicSnapshot]:
        """The topics that exist, with all their states."""
        ordered = sorted(names)
        nodes = await self._session.read_many(
            [path for name in ordered for path in (paths.topic(name), paths.topic_config(name))]
        )
        found: dict[str, TopicSnapshot] = {}
        asked: list[schema_nodes.Asked] = []
        for number, name in enumerate(ordered):
            if number % _SLICE == _SLICE - 1:
                await self._session.give_way()
            node, config = nodes[2 * number], nodes[2 * number + 1]
            if node is not None:
                found[name] = snapshot = _topic(name, node, config)
                known = self._snapshot.topics.get(name)
                if snapshot.topic is not None:
                    asked.append(schema_nodes.Asked(snapshot.topic, config, None if known is None else known.topic))
        for topic in await schema_nodes.with_schemas(self._session, asked):
            found[topic.topic] = TopicSnapshot(topic)
        wanted = [
            TopicPartition(name, index)
            for name, one in found.items()
            if one.topic is not None
            for index in one.topic.partitions
        ]
        unreadable: set[TopicPartition] = set()
        read = await states.read(self._session, wanted, unreadable, self._complaints)
        of_topic: dict[str, dict[TopicPartition, VersionedState]] = {name: {} for name in found}
        for partition, state in read.items():
            of_topic[partition.topic][partition] = state
        hidden = _by_topic(unreadable)
        return {
            name: TopicSnapshot(one.topic, of_topic[name], one.error, hidden.get(name, frozenset()))
            for name, one in found.items()
        }

    async def _read_states(self, partitions: Collection[TopicPartition]) -> dict[str, TopicSnapshot]:
        """The topics of these partitions with their new states."""
        if not partitions:
            return {}
        unreadable: set[TopicPartition] = set()
        read = await states.read(self._session, sorted(partitions), unreadable, self._complaints)
        found: dict[str, dict[TopicPartition, VersionedState]] = {}
        for partition in partitions:
            of_topic = found.setdefault(partition.topic, dict(self._snapshot.topics[partition.topic].states))
            of_topic.pop(partition, None)
            if partition in read:
                of_topic[partition] = read[partition]
        before, hidden = self._snapshot.topics, _by_topic(unreadable)
        return {
            name: TopicSnapshot(
                before[name].topic,
                new,
                unreadable=before[name].unreadable.difference(partitions) | hidden.get(name, frozenset()),
            )
            for name, new in found.items()
        }


def _has(known: TopicSnapshot | None, partition: TopicPartition) -> bool:
    """Whether the partition is known; the states of an unknown one are read when its topic's znode changes."""
    return known is not None and known.topic is not None and partition.partition in known.topic.partitions


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, frozenset[TopicPartition]]:
    return {
        topic: frozenset(of_topic) for topic, of_topic in groupby(sorted(partitions), lambda partition: partition.topic)
    }


def _sorted(topics: Mapping[str, TopicSnapshot]) -> dict[str, TopicSnapshot]:
    return {name: topics[name] for name in sorted(topics)}


def _topic(name: str, node: NodeRead, config: NodeRead | None) -> TopicSnapshot:
    try:
        return TopicSnapshot(topic_of(name, node, config))
    except TidemarkError as error:
        _log.error("topic not described: its node cannot be read", extra={"topic": name, "why": error.message})
        return TopicSnapshot(None, error=error)
