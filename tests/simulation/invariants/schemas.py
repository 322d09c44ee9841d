# SPDX-License-Identifier: Apache-2.0
"""The invariants of the versions of schemas (rules S1-S3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.topic_schemas.nodes import decode

from tests.simulation.invariants.moment import Moment
from tests.simulation.invariants.replication import Invariant

if TYPE_CHECKING:
    from tests.simulation.world import World

OTHER_TOPIC: Final = "cargo"
"""The topic that comes and goes."""

Versions = Mapping[int, str]


class SchemaFixed(Invariant):
    """A version of a topic never changes, in ZooKeeper or at a broker, and belongs to the topic that it was made for
    (rule S1)."""

    name = "SCHEMA-FIXED"

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], str] = {}
        self._looked_at = -1

    def check(self, world: World, moment: Moment) -> None:
        if not world.recipe.typed:
            return
        if self._looked_at != world.ensemble.zxid:
            self._looked_at = world.ensemble.zxid
            for topic_id, texts in _in_zookeeper(world).values():
                self._see("ZooKeeper", topic_id, texts)
        for process in world.brokers.values():
            known = process.table.schema_texts(OTHER_TOPIC)
            self._see(f"broker {process.broker_id}", known.topic_id, known.texts)

    def _see(self, where: str, topic_id: str, texts: Versions) -> None:
        for version, text in texts.items():
            first = self._texts.setdefault((topic_id, version), text)
            self.require(text == first, f"version {version} of {topic_id} is {text} in {where}, and was {first}")
            made_for = json.loads(text)["topic_id"]
            self.require(made_for == topic_id, f"{where} has {text} as a version of {topic_id}")


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
