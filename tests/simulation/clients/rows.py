# SPDX-License-Identifier: Apache-2.0
"""Writers and readers of the typed topic, during changes of its schema (rules S4-S6).

A writer learns the versions from one broker, and offers a batch to the leader some time later; the batch may state a
version that it does not have. Batches that a leader accepts are stored here: the topic has no writes to its log. A
reader of two columns gets all batches from one broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from tidemark.broker.clients import typed_batches
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.text import from_text
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import BrokerId, TidemarkError
from tidemark.record.checks import ProduceLimits, check_batch
from tidemark.record.envelope import parse_envelope
from tidemark.record.payload import build_batch, from_columns
from tidemark.record.typed.batch import build_typed_batch
from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest

from tests.simulation.admin_requests import OTHER
from tests.simulation.invariants.schemas import SchemaFixed, TypedBatches

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World

_LIMITS: Final = ProduceLimits()
_MAX_BYTES: Final = 1 << 20
_VALUES: Final[dict[str, Any]] = {"int32": 7, "string": "seven", "float64": 7.5}


class Rows:
    """Carries out the plan's row items."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._versions = next(one for one in world.invariants if isinstance(one, SchemaFixed))
        self._batches = next(one for one in world.invariants if isinstance(one, TypedBatches))
        self._kept: defaultdict[str, list[bytes]] = defaultdict(list)
        """The batches that leaders appended, by topic id."""
        self._asking: set[BrokerNode] = set()
        """Outside of an event loop a broker reads schemas for one client at a time."""
        self.actions: dict[str, Callable[..., None]] = {"write_row": self._write, "read_rows": self._read}

    def _process(self, broker: int) -> BrokerNode | None:
        found = self._world.brokers.get(self._world.leader() if broker == -2 else BrokerId(broker))
        return None if found is None or found.paused else found

    def _write(self, broker: int, how: str) -> None:
        process, dice = self._process(broker), self._world.engine.dice("rows")
        if process is None or process in self._asking:
            return

        async def write() -> None:
            try:
                answer = await process.schema_reads.get(GetTopicSchemasRequest(topic=OTHER.topic))
            except TidemarkError:
                self._world.counts["schema not told"] += 1
                return
            finally:
                self._asking.discard(process)
            texts = {one.version: one.text for one in answer.schemas}
            self._versions.see(f"an answer of broker {process.broker_id}", answer.topic_id, texts)
            await process.sleep(dice.choice((1, 20, 200)))
            self._offer(answer.topic_id, {version: from_text(text) for version, text in texts.items()}, how)

        self._asking.add(process)
        process.spawn(write())

    def _offer(self, topic_id: str, versions: dict[int, TopicSchema], how: str) -> None:
        """Produce as in broker/clients/produce.py, which compares the topic id too."""
        for process in self._world.brokers.values():
            replica = process.replica(OTHER)
            if replica is None or process.leading(OTHER) is None or replica.identity.topic_id != topic_id:
                continue
            data = _batch(versions, how)
            try:
                typed_batches.check_fits_topic(check_batch(data), OTHER.topic, process.table.layouts, _LIMITS)
            except TidemarkError:
                self._world.counts[f"row refused: {how}"] += 1
                continue
            self._world.counts[f"row stored: {how}"] += 1
            self._batches.stored(topic_id, data)
            self._kept[topic_id].append(data)

    def _read(self, broker: int) -> None:
        """Read as broker/clients/fetch.py does: the broker has versions of this topic, possibly not the newest."""
        process = self._process(broker)
        topic_id = "" if process is None else process.table.schema_texts(OTHER.topic).topic_id
        kept = self._kept.get(topic_id)
        if process is None or not kept:
            return
        newest = max(version for topic, version in self._versions.texts if topic == topic_id)
        columns = from_text(self._versions.texts[topic_id, newest]).columns
        column_ids = frozenset(column.id for column in columns)
        got = typed_batches.prune_batches(b"".join(kept), OTHER.topic, process.table.layouts, column_ids, _MAX_BYTES)
        at = 0
        for stored in kept:
            length = parse_envelope(got, at).batch_length
            self._batches.read(topic_id, stored, got[at : at + length], column_ids)
            at += length
        self._world.counts["rows read"] += 1


def _batch(versions: dict[int, TopicSchema], how: str) -> bytes:
    """One batch of one row.

    Args:
        how: the newest or the earliest version; "later": the newest, under the next number; "other": the columns of the
            earliest, under the number of the newest; "bytes": not typed.
    """
    if how == "bytes":
        return build_batch(from_columns(None, [b"seven"], [7]))
    newest, earliest = versions[max(versions)], versions[min(versions)]
    match how:
        case "later":
            schema = replace(newest, version=newest.version + 1)
        case "other":
            schema = replace(earliest, version=newest.version)
        case _:
            schema = newest if how == "newest" else earliest
    layout = layout_of(schema)
    values = [["row"], [_VALUES[str(schema.columns[1].type)]]]
    rows = layout.arrangement(0).schema
    arrays = [pa.array(one, field.type) for one, field in zip(values, rows, strict=True)]
    return build_typed_batch(pa.RecordBatch.from_arrays(arrays, schema=rows), layout)
