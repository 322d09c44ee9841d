# SPDX-License-Identifier: Apache-2.0
"""The invariants of the versions of schemas and of typed batches (rules S1-S6)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemark.core.schemas.text import from_text
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import TidemarkError
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.typed.batch import read_pruned, read_typed
from tidemark.record.typed.layout import TypedLayout
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.topic_schemas.nodes import decode

from tests.simulation.invariants.moment import Moment
from tests.simulation.invariants.replication import Invariant

if TYPE_CHECKING:
    from tests.simulation.plan import Recipe
    from tests.simulation.world import World

OTHER_TOPIC: Final = "cargo"
"""The topic that is created and deleted repeatedly."""

Versions = Mapping[int, str]


@lru_cache(maxsize=256)
def made_for(text: str) -> str:
    """The topic id that a version was made for: the doc text of its first column."""
    return from_text(text).columns[0].doc


@lru_cache(maxsize=256)
def _layout_of(text: str) -> TypedLayout:
    return layout_of(from_text(text))


class SchemaFixed(Invariant):
    """A version of a topic never changes, in ZooKeeper or at a broker, and belongs to the topic that it was made for
    (rule S1)."""

    name = "SCHEMA-FIXED"

    def __init__(self) -> None:
        self.texts: dict[tuple[str, int], str] = {}
        """Each version of each topic id that was seen."""
        self._looked_at = -1

    def is_checked(self, recipe: Recipe) -> bool:
        return recipe.typed

    def check(self, world: World, moment: Moment) -> None:
        if self._looked_at != world.ensemble.zxid:
            self._looked_at = world.ensemble.zxid
            for topic_id, texts in _in_zookeeper(world).values():
                self.see("ZooKeeper", topic_id, texts)
        for process in world.brokers.values():
            known = process.table.schema_texts(OTHER_TOPIC)
            self.see(f"broker {process.broker_id}", known.topic_id, known.texts)

    def see(self, where: str, topic_id: str, texts: Versions) -> None:
        """A broker or ZooKeeper has these versions, or a broker gives them to a client."""
        for version, text in texts.items():
            first = self.texts.setdefault((topic_id, version), text)
            self.require(text == first, f"version {version} of {topic_id} is {text} in {where}, and was {first}")
            self.require(made_for(text) == topic_id, f"{where} has {text} as a version of {topic_id}")


class TypedBatches(Invariant):
    """A stored batch fits a version of its topic, and a reader of some columns gets their values (rules S5, S6)."""

    name = "TYPED"

    def __init__(self, versions: SchemaFixed) -> None:
        self._versions = versions

    def stored(self, topic_id: str, data: bytes) -> None:
        """A leader took the batch."""
        batch = Batch(parse_envelope(data), data)
        self.require(batch.envelope.is_typed, f"topic {topic_id} has a batch of bytes")
        try:
            read_typed(batch, self._layout(topic_id, batch.envelope.schema_version))
        except TidemarkError as error:
            self.require(False, f"topic {topic_id} has a batch that does not fit its version: {error}")

    def read(self, topic_id: str, stored: bytes, got: bytes, column_ids: frozenset[int]) -> None:
        """A broker sent `got` of a stored batch to a reader of these columns."""
        envelope = parse_envelope(stored)
        layout = self._layout(topic_id, envelope.schema_version)
        try:
            rows = read_pruned(got, layout, layout.known_ids(column_ids)).columns
        except TidemarkError as error:
            self.require(False, f"topic {topic_id}: a reader of columns {sorted(column_ids)} got no rows: {error}")
            return
        whole = read_typed(Batch(envelope, stored), layout).columns
        self.require(rows.equals(whole.select(rows.schema.names)), f"topic {topic_id}: {rows} is not of {whole}")

    def _layout(self, topic_id: str, version: int) -> TypedLayout:
        text = self._versions.texts.get((topic_id, version))
        self.require(text is not None, f"topic {topic_id} has a batch of version {version}, which no operator created")
        return _layout_of(text or "")


class SchemaKnown(Invariant):
    """At peace each broker with a replica knows every version of the topic, and no other (rule S3)."""

    name = "SCHEMA-KNOWN"

    def at_the_end(self, world: World) -> None:
        missing = unknown_versions(world)
        self.require(not missing, f"versions are not known: {missing}")


def unknown_versions(world: World) -> list[str]:
    """Brokers that know other versions than ZooKeeper has, of topics that they have replicas of."""
    found = []
    for topic, (topic_id, texts) in _in_zookeeper(world).items():
        assigned = codecs.decode_topic(
            paths.topic(topic), world.ensemble.nodes[paths.topic(topic)].data, topic
        ).partitions
        for process in world.brokers.values():
            known = process.table.schema_texts(topic)
            hosts = any(process.broker_id in replicas for replicas in assigned.values())
            if hosts and (known.topic_id, dict(known.texts)) != (topic_id if texts else "", texts):
                found.append(f"broker {process.broker_id} has {known.topic_id} {known.texts}, not {topic_id} {texts}")
    return found


def _in_zookeeper(world: World) -> dict[str, tuple[str, Versions]]:
    """Topic id and versions by topic."""
    nodes, found = world.ensemble.nodes, {}
    for topic in world.ensemble.children(paths.TOPICS):
        topic_id = codecs.decode_topic(paths.topic(topic), nodes[paths.topic(topic)].data, topic).topic_id
        texts = {}
        for name in world.ensemble.children(paths.topic_config(topic)):
            path = f"{paths.topic_config(topic)}/{name}"
            _, schema = decode(path, nodes[path].data)
            texts[int(name)] = schema.text
        found[topic] = (topic_id, texts)
    return found
