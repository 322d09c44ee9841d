# SPDX-License-Identifier: Apache-2.0
"""Known defects of schema versions and typed batches (rules S1-S6), for `mutants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidemark.broker.clients import typed_batches
from tidemark.broker.clients.topic_schemas import SchemaReads
from tidemark.broker.node.topic_settings import TopicSchemas, TopicTable
from tidemark.broker.node.typed_layouts import TypedLayouts
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.typed.batch import CheckedBatch
from tidemark.zookeeper.multis import Check, Delete
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.topic_schemas import nodes

from tests.simulation.plan import Recipe
from tests.simulation.recipes import ROWS, SCHEMAS


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
    """A broker adds versions to those of an older topic with the same name."""

    def update(self: TopicTable, topic_ids: Any, new: Any) -> None:
        for topic, added in new.items():
            known = self.schema_texts(topic)
            self._schemas[topic] = TopicSchemas(added.topic_id, {**known.texts, **added.texts})

    monkeypatch.setattr(TopicTable, "update_schemas", update)


def adds_a_version_to_any_topic_of_the_name(monkeypatch: Any) -> None:
    """A version is created without a check of the incarnation."""
    is_committed = nodes.is_committed

    async def unchecked(session: Session, operations: Any) -> Any:
        left = [one for one in operations if not isinstance(one, Check) or "/i-" not in one.path]
        return await is_committed(session, left)

    monkeypatch.setattr(nodes, "is_committed", unchecked)
    monkeypatch.setattr(nodes, "_understood", lambda path, data, topic_id: nodes.decode(path, data)[1])


def writes_over_a_version(monkeypatch: Any) -> None:
    """The later one of two concurrent changes replaces the version of the first."""
    is_committed = nodes.is_committed

    async def over(session: Session, operations: Any) -> Any:
        again = [*operations[:-1], Delete(operations[-1].path), operations[-1]]
        return await is_committed(session, operations) or await is_committed(session, again)

    monkeypatch.setattr(nodes, "is_committed", over)


def answers_with_versions_of_the_topic_before(monkeypatch: Any) -> None:
    """A broker gives clients the versions of an older topic, though metadata has another topic id by now."""
    monkeypatch.setattr(SchemaReads, "_sent", lambda self, view: self._topics.schema_texts(view.topic).texts)


def takes_batches_of_unknown_versions(monkeypatch: Any) -> None:
    """A leader checks a batch only if it knows the batch's version."""
    check = typed_batches.check_fits_topic

    def if_known(batch: Any, *others: Any) -> None:
        try:
            check(batch, *others)
        except TidemarkError as error:
            if error.code is not ErrorCode.UNKNOWN_SCHEMA_VERSION:
                raise

    monkeypatch.setattr(typed_batches, "check_fits_topic", if_known)


def believes_the_version_that_a_batch_states(monkeypatch: Any) -> None:
    """A leader does not compare the columns with those of the version."""
    unchecked = CheckedBatch(None, 0, 0)
    monkeypatch.setattr(typed_batches, "check_typed", lambda batch, layout: unchecked)


def takes_bytes_in_a_typed_topic(monkeypatch: Any) -> None:
    """A leader checks the columns of typed batches, and no batch of bytes."""
    check = typed_batches.check_fits_topic

    def if_typed(batch: Any, *others: Any) -> None:
        if batch.envelope.is_typed:
            check(batch, *others)

    monkeypatch.setattr(typed_batches, "check_fits_topic", if_typed)


def leaves_out_columns_by_the_first_batch(monkeypatch: Any) -> None:
    """The batches of a fetch all keep the columns that its first batch keeps."""
    prune = typed_batches._pruned

    def as_the_first(batch: bytes, layout: Any, column_ids: Any, asked: dict[int, Any], times: Any) -> bytes:
        if layout is not None and asked:
            asked.setdefault(layout.version, next(iter(asked.values())))
        return prune(batch, layout, column_ids, asked, times)

    monkeypatch.setattr(typed_batches, "_pruned", as_the_first)


def prunes_by_the_newest_version(monkeypatch: Any) -> None:
    """A broker omits columns by the layout of the newest version, also from batches of older versions."""
    prune = typed_batches.prune_batches

    def newest(data: bytes, topic: str, layouts: TypedLayouts, *others: Any) -> bytes:
        version = max(layouts._schemas(topic))
        made = TypedLayouts(layouts._schemas, layouts.is_typed)
        made.known = lambda topic, _: layouts.known(topic, version)  # type: ignore[method-assign]
        return prune(data, topic, made, *others)

    monkeypatch.setattr(typed_batches, "prune_batches", newest)


RECREATED = replace(
    SCHEMAS, name="recreated", faults=40, weights={"make_topic": 30, "delete_topic": 20, "evolve_topic": 30, "cut": 1}
)
"""A version often takes longer than its topic lives."""
ROWS_OF_TOPICS = replace(RECREATED, name="rows-of-topics", weights={**RECREATED.weights, "write_row": 40})
"""Writers ask for the versions of topics that are created and deleted."""

RULES: dict[Callable[[Any], None], tuple[str, Recipe]] = {
    takes_versions_for_known_when_they_are_sent: ("S3", SCHEMAS),
    reads_a_schema_once: ("S3", SCHEMAS),
    keeps_versions_of_the_topic_before: ("S3", RECREATED),
    adds_a_version_to_any_topic_of_the_name: ("S2", RECREATED),
    writes_over_a_version: ("S1", SCHEMAS),
    answers_with_versions_of_the_topic_before: ("S4", ROWS_OF_TOPICS),
    takes_batches_of_unknown_versions: ("S5", ROWS),
    believes_the_version_that_a_batch_states: ("S5", ROWS),
    takes_bytes_in_a_typed_topic: ("S5", ROWS),
    leaves_out_columns_by_the_first_batch: ("S6", ROWS),
    prunes_by_the_newest_version: ("S6", ROWS),
}
