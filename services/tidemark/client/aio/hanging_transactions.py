# SPDX-License-Identifier: Apache-2.0
"""Joins the open transactions of logs with the transactional ids of coordinators (docs/operations.md)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.client.aio.transaction_admin import (
    OpenInPartition,
    PartitionState,
    TransactionAdmin,
    TransactionDescription,
)
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import TidemarkError, TopicPartition

NO_COMMAND: Final = (
    "no command ends it: its leader does not state the end of its records, and a deletion could remove committed "
    "records behind them. Brokers of version 0.1.0 do not state it: upgrade the leader, and run find-hanging again"
)


class Hanging(NamedTuple):
    """The first open transaction of a partition: the last stable offset cannot pass its first record.

    Attributes:
        transactional_id: "" if no coordinator has a transaction of this producer in the partition.
        since_ms: time of its start, or, without a coordinator's transaction, of its last record; since 1970, UTC.
        records: committed records from the last stable offset on.
        end_offset: end of the transaction's last committed batch, exclusive; None: the leader does not state it.
    """

    partition: TopicPartition
    first_offset: int
    records: int
    producer: ProducerIdentity
    transactional_id: str
    since_ms: int
    end_offset: int | None

    @property
    def remedy(self) -> str:
        """The command that ends the transaction, or why there is none."""
        return NO_COMMAND if self.command is None else f"to end it: {self.command}"

    @property
    def command(self) -> str | None:
        """The command that ends the transaction; None: a deletion would also delete committed records after it."""
        if self.transactional_id:
            return f"tidemark transaction abort {shlex.quote(self.transactional_id)}"
        if self.end_offset is None:
            return None
        topic, index = self.partition
        return f"tidemark topic delete-records {topic} --partition {index} --before {self.end_offset}"

    def as_json(self) -> dict[str, object]:
        """The transaction as JSON; null for a transaction without a coordinator, and for no command."""
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
    """The transactions that keep a last stable offset from rising, and the errors of unknown partitions and
    transactions.

    The transaction that has been open longest is first. A transaction may end between the calls to its partitions and
    to its coordinator. So the partitions of transactions without a coordinator are read again.
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
    found, more = await _without_ended(admin, found)
    long = [_shown(one, now_ms) for one in found if _is_long(one, open_longer_than_ms, now_ms)]
    return sorted(long, key=lambda one: (one.since_ms, one.partition)), [*unknown, *missing, *more]


async def _without_ended(admin: TransactionAdmin, found: list[Hanging]) -> tuple[list[Hanging], list[TidemarkError]]:
    """Omit the transactions without a coordinator that have ended meanwhile; also returns the errors of this read."""
    topics = {one.partition.topic for one in found if not one.transactional_id}
    if not topics:
        return found, []
    try:
        states, failed = await admin.partition_states(sorted(topics))
    except TidemarkError as error:
        states, failed = {}, [error]
    still = {(where, one.producer, one.first_offset) for where, state in states.items() for one in state.open}
    kept = [one for one in found if one.transactional_id or (one.partition, one.producer, one.first_offset) in still]
    return kept, failed


def _is_long(one: Hanging, open_longer_than_ms: int, now_ms: int) -> bool:
    """Whether a transaction is open for that time; the time of one with later records is not known."""
    open_ms = now_ms - one.since_ms
    return open_ms >= open_longer_than_ms or (open_ms < 0 and not one.transactional_id)


def _shown(one: Hanging, now_ms: int) -> Hanging:
    """The transaction with a time up to now: producers choose the timestamps of records."""
    return one if one.transactional_id else one._replace(since_ms=min(max(0, one.since_ms), now_ms))


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
        None if first.end_offset is None else min(first.end_offset, state.high_watermark),
    )
