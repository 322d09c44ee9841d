# SPDX-License-Identifier: Apache-2.0
"""Joins the open transactions of logs with the transactional ids of coordinators (docs/operations.md)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tidemark.client.aio.transaction_admin import (
    OpenInPartition,
    PartitionState,
    TransactionAdmin,
    TransactionDescription,
)
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import TidemarkError, TopicPartition


class Hanging(NamedTuple):
    """The first open transaction of a partition: the last stable offset cannot pass its first record.

    Attributes:
        transactional_id: "" if no coordinator has a transaction of this producer in the partition.
        since_ms: its begin, or, without a coordinator's transaction, the time of its last record; since 1970, UTC.
        records: committed records behind the last stable offset.
    """

    partition: TopicPartition
    first_offset: int
    records: int
    producer: ProducerIdentity
    transactional_id: str
    since_ms: int

    @property
    def command(self) -> str:
        """The command that ends the transaction."""
        if self.transactional_id:
            return f"tidemark transaction abort {shlex.quote(self.transactional_id)}"
        end_offset = self.first_offset + self.records
        topic, index = self.partition
        return f"tidemark topic delete-records {topic} --partition {index} --before {end_offset}"

    def as_json(self) -> dict[str, object]:
        """The transaction as JSON; null for a transaction without a coordinator."""
        return {
            **self.partition._asdict(),
            **self.producer._asdict(),
            "last_stable_offset": self.first_offset,
            "records_behind": self.records,
            "transactional_id": self.transactional_id or None,
            "since_ms": self.since_ms,
            "command": self.command,
        }


async def find_hanging(
    admin: TransactionAdmin, topics: Collection[str], open_longer_than_ms: int, now_ms: int
) -> tuple[list[Hanging], list[TidemarkError]]:
    """The transactions that hold a last stable offset back, and the errors of unknown partitions and transactions.

    The transaction that has been open longest is first.
    """
    states, unknown = await admin.partition_states(topics)
    holders = {partition: state for partition, state in states.items() if state.open}
    if not holders:
        return [], unknown
    listed, missing = await admin.list_transactions()
    described, undescribed = await admin.describe_listed(one for one in listed if one.started_at_ms > 0)
    missing += undescribed
    found = hanging_in(holders, described)
    if missing:  # their ids may have the transactions that no coordinator seems to have
        found = [one for one in found if one.transactional_id]
    long = [one for one in found if now_ms - one.since_ms >= open_longer_than_ms]
    return sorted(long, key=lambda one: (one.since_ms, one.partition)), [*unknown, *missing]


def hanging_in(
    states: Mapping[TopicPartition, PartitionState], described: Iterable[TransactionDescription]
) -> list[Hanging]:
    """The first open transaction of each partition."""
    owners = {(partition, producer.producer_id): one for one in described for partition, producer in one.partitions}
    return [_hanging(state.open[0], state, owners) for state in states.values() if state.open]


def _hanging(
    first: OpenInPartition,
    state: PartitionState,
    owners: Mapping[tuple[TopicPartition, int], TransactionDescription],
) -> Hanging:
    owner = owners.get((first.partition, first.producer.producer_id))
    return Hanging(
        first.partition,
        first.first_offset,
        max(0, state.high_watermark - first.first_offset),
        first.producer,
        "" if owner is None else owner.transactional_id,
        first.last_timestamp_us // 1000 if owner is None else owner.started_at_ms,
    )
