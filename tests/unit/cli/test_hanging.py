# SPDX-License-Identifier: Apache-2.0
"""Each transaction that holds a last stable offset back, since when, and the command that ends it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
from tidemark.cli.transaction.commands import sentence_of
from tidemark.client.aio.hanging_transactions import find_hanging
from tidemark.client.aio.transaction_admin import (
    OpenInPartition,
    PartitionState,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

NOW_MS = 1_800_000_000_000
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
OWN, MEMBER = ProducerIdentity(7, 2), ProducerIdentity(9, 0)


class Cluster:
    """One id, "loader", with a transaction that is open for five minutes; A1 has another producer's."""

    def __init__(self) -> None:
        self.missing: list[TidemarkError] = []
        self.ended: set[TopicPartition] = set()
        """Partitions whose transaction ends while the coordinators are asked."""
        self.states = {
            A0: PartitionState(40, 100, (at(A0, MEMBER, 40), at(A0, OWN, 60))),
            A1: PartitionState(5, 5, (at(A1, OWN, 5)._replace(end_offset=6),)),
        }

    async def partition_states(self, topics: Any) -> Any:
        return self.states, []

    async def list_transactions(self) -> Any:
        return [
            TransactionListing("idle", "COMPLETE_COMMIT", 3, 0, 0, 0),
            TransactionListing("loader", "ONGOING", *OWN, NOW_MS - 300_000, 0),
        ], self.missing

    async def describe_listed(self, listed: Iterable[TransactionListing]) -> Any:
        ids = [one.transactional_id for one in listed]
        assert ids == ["loader"], "ids without an open transaction are not described"
        self.states = {where: one for where, one in self.states.items() if where not in self.ended}
        partitions = ((A0, MEMBER), (A0, OWN))
        return [TransactionDescription("loader", "ONGOING", *OWN, NOW_MS - 300_000, 60_000, 0, 1, -1, partitions)], []


def at(partition: TopicPartition, producer: ProducerIdentity, first_offset: int) -> OpenInPartition:
    return OpenInPartition(partition, producer, first_offset, (NOW_MS - 20_000) * 1000)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def sentences(cluster: Cluster, open_longer_than_ms: int = 0) -> list[str]:
    found, _ = await find_hanging(cast(TransactionAdmin, cluster), (), open_longer_than_ms, NOW_MS)
    return [sentence_of(one, NOW_MS) for one in found]


async def test_the_first_sentence_names_the_longest_transaction_and_the_command_that_ends_it(cluster: Cluster) -> None:
    assert await sentences(cluster) == [
        "transactional id loader holds a:0 at offset 40 since 2027-01-15 07:55:00 (5 min); to end it: tidemark "
        "transaction abort loader",
        "a transaction without coordinator holds a:1 at offset 5 since 2027-01-15 07:59:40 (20 s); to end it: tidemark "
        "topic delete-records a --partition 1 --before 5",
    ]


@pytest.mark.parametrize(("end", "before"), [(60, 60), (101, 100)])
async def test_the_command_deletes_no_record_behind_a_transaction_without_coordinator(
    cluster: Cluster, end: int, before: int
) -> None:
    """Records above the high watermark cannot be deleted."""
    cluster.states = {A1: PartitionState(5, 100, (at(A1, OWN, 5)._replace(end_offset=end),))}
    (found,), _ = await find_hanging(cast(TransactionAdmin, cluster), (), 0, NOW_MS)
    assert found.command == f"tidemark topic delete-records a --partition 1 --before {before}"


async def test_no_command_deletes_committed_records_behind_a_transaction_whose_end_is_not_known(
    cluster: Cluster,
) -> None:
    """A leader of version 0.1.0 does not state the end."""
    cluster.states = {A1: PartitionState(5, 100, (at(A1, OWN, 5),))}
    (found,), _ = await find_hanging(cast(TransactionAdmin, cluster), (), 0, NOW_MS)
    assert found.as_json()["command"] is None
    assert "delete-records" not in sentence_of(found, NOW_MS)
    assert "no command ends it: its leader does not state the end of its records" in sentence_of(found, NOW_MS)


async def test_only_transactions_that_are_open_for_long_are_named(cluster: Cluster) -> None:
    assert len(await sentences(cluster, 60_000)) == 1
    assert await sentences(cluster, 301_000) == []


async def test_no_records_are_to_be_deleted_while_a_coordinator_does_not_answer(cluster: Cluster) -> None:
    cluster.missing = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 1 does not answer")]
    found, missing = await find_hanging(cast(TransactionAdmin, cluster), (), 0, NOW_MS)
    assert [one.transactional_id for one in found] == ["loader"]
    assert missing == cluster.missing


async def test_no_records_of_a_transaction_that_ends_meanwhile_are_to_be_deleted(cluster: Cluster) -> None:
    """Its coordinator does not list the transaction any more, and the records may be committed."""
    cluster.ended = {A1}
    assert [one.partition("holds ")[2][:3] for one in await sentences(cluster)] == ["a:0"]


async def test_a_topic_that_is_deleted_meanwhile_is_an_unknown_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no topic a")

    async def partition_states(topics: Any) -> Any:
        if topics:
            raise gone
        return cluster.states, []

    monkeypatch.setattr(cluster, "partition_states", partition_states)
    found, missing = await find_hanging(cast(TransactionAdmin, cluster), (), 0, NOW_MS)
    assert ([one.transactional_id for one in found], missing) == (["loader"], [gone])


@pytest.mark.parametrize("timestamp_us", [(NOW_MS + 1) * 1000, (1 << 63) - 1, -(1 << 63) + 1])
async def test_timestamps_that_no_clock_has_hide_no_transaction(cluster: Cluster, timestamp_us: int) -> None:
    """Producers choose the timestamps of their records: of a future event, or in nanoseconds by mistake."""
    cluster.states[A1] = PartitionState(5, 5, (OpenInPartition(A1, OWN, 5, timestamp_us),))
    named = await sentences(cluster, 60_000)
    assert sorted(one.partition("holds ")[2][:3] for one in named) == ["a:0", "a:1"]
