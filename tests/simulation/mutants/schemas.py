# SPDX-License-Identifier: Apache-2.0
"""Known ways to get versions of schemas wrong (rules S1-S3), for `mutants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidemark.broker.node.topic_settings import TopicSchemas, TopicTable
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.zookeeper.multis import Check
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.topic_schemas import nodes

from tests.simulation.plan import Recipe
from tests.simulation.recipes import SCHEMAS


def takes_versions_for_known_when_they_are_sent(monkeypatch: Any) -> None:
    """A version counts as known before the broker acknowledges it."""
    failed = PendingCommands.leader_and_isr_failed

    def fail(self: PendingCommands, now_ms: int) -> None:
        self.schemas.update(self.sent_schemas)
        failed(self, now_ms)

    monkeypatch.setattr(PendingCommands, "leader_and_isr_failed", fail)


def reads_a_schema_once(monkeypatch: Any) -> None:
    """No watch covers the versions."""
    read = nodes.with_schemas

    async def read_once(session: Session, asked: Any) -> Any:
        found = await read(session, asked)
        return [
            replace(topic, schemas=one.known.schemas)
            if one.known is not None and one.known.topic_id == topic.topic_id
            else topic
            for one, topic in zip(asked, found, strict=True)
        ]

    monkeypatch.setattr(nodes, "with_schemas", read_once)


def keeps_versions_of_the_topic_before(monkeypatch: Any) -> None:
    """A broker adds versions to whatever it knows under the name."""

    def update(self: TopicTable, topic_ids: Any, new: Any) -> None:
        for topic, added in new.items():
            known = self.schema_texts(topic)
            self._schemas[topic] = TopicSchemas(added.topic_id, {**known.texts, **added.texts})

    monkeypatch.setattr(TopicTable, "update_schemas", update)


def adds_a_version_to_whatever_has_the_name(monkeypatch: Any) -> None:
    """A version is created without a look at the incarnation."""
    commit = nodes.commit

    async def unchecked(session: Session, operations: Any) -> Any:
        return await commit(session, [one for one in operations if not isinstance(one, Check) or "/i-" not in one.path])

    monkeypatch.setattr(nodes, "commit", unchecked)
    monkeypatch.setattr(nodes, "_understood", lambda path, data, topic_id: nodes.decode(path, data)[1])


RECREATED = replace(
    SCHEMAS, name="recreated", faults=40, weights={"make_topic": 30, "delete_topic": 20, "evolve_topic": 30, "cut": 1}
)
"""A version often takes longer than its topic lives."""

RULES: dict[Callable[[Any], None], tuple[str, Recipe]] = {
    takes_versions_for_known_when_they_are_sent: ("S3", SCHEMAS),
    reads_a_schema_once: ("S3", SCHEMAS),
    keeps_versions_of_the_topic_before: ("S3", RECREATED),
    adds_a_version_to_whatever_has_the_name: ("S2", RECREATED),
}
