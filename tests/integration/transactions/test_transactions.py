# SPDX-License-Identifier: Apache-2.0
"""Transactions among real processes: decisions reach every partition after any fault of the coordinator (X10-X16)."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator

import pytest
from tidemark.cli.app import app
from tidemark.client.aio import AdminClient
from tidemark.client.metadata.cluster import Cluster
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.markers import EndMarker
from typer.testing import CliRunner

from tests.integration.harness.transactional import WAIT_S, Transactional


@pytest.fixture
async def calls(cluster: LocalCluster) -> AsyncIterator[Transactional]:
    client = Cluster(cluster.bootstrap.split(","))
    await client.start()
    yield Transactional(client)
    await client.close()


async def partitions(cluster: LocalCluster, count: int) -> list[TopicPartition]:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(name, partitions=count, replication_factor=3)
    return [TopicPartition(name, index) for index in range(count)]


async def phase_becomes(calls: Transactional, transactional_id: str, phase: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while (found := (await calls.describe(transactional_id)).summary.phase) != phase:
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.02)


async def refusal_of(call: object) -> ErrorCode:
    with pytest.raises(TidemarkError) as refused:
        await call  # type: ignore[misc]
    return refused.value.code


@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_reaches_every_partition_and_the_next_transaction_follows(
    cluster: LocalCluster, calls: Transactional, commit: bool
) -> None:
    written = await partitions(cluster, 3)
    coordinator, started = await calls.start()
    for partition in written:
        await calls.write(coordinator.transactional_id, started.identity, partition, b"a", b"b")
        assert await calls.open_in(partition) == [started.identity]
    following = await coordinator.end(started.identity, commit=commit)
    assert following.producer_epoch == started.identity.producer_epoch + 1
    assert await coordinator.end(started.identity, commit=commit) == following, "a repeated call has the same answer"
    await calls.closed(*written)
    late = calls.write(coordinator.transactional_id, started.identity, written[1], b"late", first=2)
    assert await refusal_of(late) is ErrorCode.PRODUCER_FENCED
    await calls.write(coordinator.transactional_id, following, written[0], b"c")
    for partition in written[1:]:
        a, b, marker = await calls.log(partition)
        assert (a, b) == (b"a", b"b")
        assert isinstance(marker, EndMarker)
        assert marker.commit is commit
    await coordinator.end(following, commit=True)
    await calls.closed(written[0])


async def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_is_fenced(
    cluster: LocalCluster, calls: Transactional
) -> None:
    (partition,) = await partitions(cluster, 1)
    coordinator, started = await calls.start(timeout_ms=500)
    await calls.write(coordinator.transactional_id, started.identity, partition, b"a")
    await calls.closed(partition)
    await phase_becomes(calls, coordinator.transactional_id, "COMPLETE_ABORT")
    assert await refusal_of(coordinator.end(started.identity, commit=True)) is ErrorCode.PRODUCER_FENCED
    goes_on = await coordinator.init(500, started.identity)
    assert goes_on.identity.producer_id == started.identity.producer_id


async def test_a_new_producer_of_an_id_fences_the_earlier_one_and_aborts_its_transaction(
    cluster: LocalCluster, calls: Transactional
) -> None:
    (partition,) = await partitions(cluster, 1)
    zombie, started = await calls.start()
    await calls.write(zombie.transactional_id, started.identity, partition, b"a")
    successor = await calls.coordinator(zombie.transactional_id).init(60_000)
    assert await calls.open_in(partition) == []
    late = calls.write(zombie.transactional_id, started.identity, partition, b"late", first=1)
    assert await refusal_of(late) is ErrorCode.PRODUCER_FENCED
    assert await refusal_of(zombie.end(started.identity, commit=True)) is ErrorCode.PRODUCER_FENCED
    await calls.write(zombie.transactional_id, successor.identity, partition, b"b")
    await zombie.end(successor.identity, commit=True)
    await calls.closed(partition)
    a, aborted, b, committed = await calls.log(partition)
    assert (a, b) == (b"a", b"b")
    assert isinstance(aborted, EndMarker)
    assert isinstance(committed, EndMarker)
    assert (aborted.commit, committed.commit) == (False, True)


async def test_named_members_are_committed_and_all_others_aborted_once_for_each_sequence(
    cluster: LocalCluster, calls: Transactional
) -> None:
    written = await partitions(cluster, 2)
    coordinator, started = await calls.start()
    members = [await coordinator.join(started.generation) for _ in written]
    for member, partition in zip(members, written, strict=True):
        await calls.write(coordinator.transactional_id, member, partition, b"a")
    await coordinator.keep(started.generation)
    named = [members[0].producer_id]
    assert await coordinator.commit_members(started.generation, named, sequence=0) is False
    assert await coordinator.commit_members(started.generation, named, sequence=0) is True
    await calls.closed(*written)
    markers = [(await calls.log(partition))[-1] for partition in written]
    assert [isinstance(one, EndMarker) and one.commit for one in markers] == [True, False]
    assert (await calls.coordinator(coordinator.transactional_id).init(60_000)).last_sequence == 0


async def test_a_transaction_ends_although_a_topic_of_it_is_deleted(
    cluster: LocalCluster, calls: Transactional
) -> None:
    (kept,), (deleted,) = await partitions(cluster, 1), await partitions(cluster, 1)
    coordinator, started = await calls.start()
    for partition in (kept, deleted):
        await calls.write(coordinator.transactional_id, started.identity, partition, b"a")
    async with AdminClient(cluster.admin_address) as admin:
        await admin.delete_topic(deleted.topic)
    await coordinator.end(started.identity, commit=True)
    await phase_becomes(calls, coordinator.transactional_id, "COMPLETE_COMMIT")
    await calls.closed(kept)


async def test_the_command_names_the_transaction_that_holds_a_stable_offset_back_and_ends_it(
    cluster: LocalCluster, calls: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await partitions(cluster, 1)
    coordinator, started = await calls.start()
    name = coordinator.transactional_id
    await calls.write(name, started.identity, partition, b"a")
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", cluster.bootstrap)

    async def run(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["transaction", *arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    first, *_ = (await run("find-hanging", "--topic", partition.topic, "--open-longer-than", "0")).splitlines()
    assert first.startswith(f"transactional id {name} holds {partition.topic}:0 at offset 0 since ")
    assert first.endswith(f"to end it: tidemark transaction abort {name}")
    listed = json.loads(await run("list", "--phase", "ongoing", "--output", "json"))
    assert name in [one["transactional_id"] for one in listed["transactions"]]
    assert f"{partition.topic}:0" in await run("describe", name)
    assert await run("abort", name, "--yes") == f"aborted the transaction of {name}\n"
    await calls.closed(partition)
    found = await run("find-hanging", "--topic", partition.topic, "--open-longer-than", "0")
    assert found == "no transaction has held a stable offset back for 0 s or longer\n"
    assert await refusal_of(coordinator.end(started.identity, commit=True)) is ErrorCode.PRODUCER_FENCED


async def test_a_commit_is_completed_by_the_next_coordinator_when_the_first_is_killed(
    cluster: LocalCluster, calls: Transactional
) -> None:
    written = await partitions(cluster, 6)
    coordinator, started = await calls.start()
    for partition in written:
        await calls.write(coordinator.transactional_id, started.identity, partition, b"a")
    first = await calls.coordinator_id(coordinator.transactional_id)
    ending = asyncio.create_task(coordinator.end(started.identity, commit=True))
    await asyncio.sleep(0)
    cluster.kill(broker_name(first))
    try:
        following = await ending
        assert following.producer_epoch == started.identity.producer_epoch + 1
        await calls.closed(*written)
        for partition in written:
            _, marker = await calls.log(partition)
            assert isinstance(marker, EndMarker)
            assert marker.commit
        await calls.write(coordinator.transactional_id, following, written[0], b"b")
        await coordinator.end(following, commit=True)
    finally:
        cluster.restart(broker_name(first))
        cluster.wait_until_serving()
