# SPDX-License-Identifier: Apache-2.0
"""Requested elections and stored loss reports: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.model import (
    REQUESTED_ELECTIONS,
    BrokerId,
    ElectionKind,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TopicDescription,
    TopicPartition,
    UncleanElection,
)
from tidemark.ports import StoreEvent, WriteOutcome
from tidemark.zookeeper.requested_elections import REPORTS_KEPT
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import STATE, elected, topic_of, write_of
from tests.refusals import raises_code

KINDS = list(REQUESTED_ELECTIONS)
PATHS = {
    ElectionKind.PREFERRED: "/admin/preferred_replica_election",
    ElectionKind.LAST_KNOWN: "/admin/last_known_election",
}
F0, F1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def report_of(topic: TopicDescription, partition: int, lineage: int = 1) -> UncleanElection:
    return UncleanElection(
        partition=TopicPartition(topic.topic, partition),
        topic_id=topic.topic_id,
        lineage=lineage,
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(3),
        elected_at_ms=1_700_000_000_000,
        last_epoch=LeaderEpoch(2),
        log_end_offset=Offset(40),
        high_watermark=Offset(55),
        unheard=(BrokerId(0),),
        request_id="r1",
    )


async def write_report(store: MetadataStore, topic: TopicDescription, version: int, report: UncleanElection) -> None:
    term = await elected(store)
    write = replace(write_of(topic, report.partition.partition, version), report=report)
    (result,) = await store.write_states(term, [write])
    assert result.outcome is WriteOutcome.WRITTEN


@pytest.mark.parametrize("kind", KINDS)
async def test_an_election_request_reads_as_written_and_is_watched(cluster: Cluster, kind: ElectionKind) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(other)
    assert await other.requested_elections(kind, watch=True) is None
    assert await store.request_elections(kind, [F1, F0], "r1")
    await ear.hears(StoreEvent.ELECTIONS)
    found = await other.requested_elections(kind, watch=True)
    assert found is not None
    assert (found.kind, found.partitions, found.request_id, found.error) == (kind, (F1, F0), "r1", None)
    assert found.modified_zxid > 0
    other_kind = next(one for one in KINDS if one is not kind)
    assert await other.requested_elections(other_kind) is None
    await store.finish_elections(await elected(store), found)
    await ear.hears(StoreEvent.ELECTIONS)
    assert await other.requested_elections(kind) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_while_a_request_is_there_another_has_to_wait_and_the_same_is_the_same(
    cluster: Cluster, kind: ElectionKind
) -> None:
    store = await cluster.store()
    assert await store.request_elections(kind, [F0], "r1")
    assert await store.request_elections(kind, [F0], "r1"), "a retry whose first answer was lost"
    assert not await store.request_elections(kind, [F1], "r2")
    assert not await store.request_elections(kind, [F1])
    found = await store.requested_elections(kind)
    assert found is not None
    assert found.partitions == (F0,)


async def test_two_requests_without_an_id_are_never_the_same(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.request_elections(ElectionKind.PREFERRED, [F0])
    assert not await store.request_elections(ElectionKind.PREFERRED, [F0])


async def test_a_request_to_rebuild_states_shares_the_node_of_unclean_elections(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.request_elections(ElectionKind.REBUILD_STATE, [F0], "r1")
    assert not await store.request_elections(ElectionKind.LAST_KNOWN, [F1], "r2")
    found = await store.requested_elections(ElectionKind.LAST_KNOWN)
    assert found is not None
    assert (found.kind, found.partitions, found.request_id) == (ElectionKind.REBUILD_STATE, (F0,), "r1")
    await store.finish_elections(await elected(store), found)
    assert await store.requested_elections(ElectionKind.REBUILD_STATE) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_written_by_hand_in_kafkas_shape_is_understood(cluster: Cluster, kind: ElectionKind) -> None:
    store = await cluster.store()
    await store.request_elections(kind, [F0])
    await cluster.corrupt(
        PATHS[kind],
        b'{"version": 1, "partitions": [{"topic": "flights", "partition": 1}, {"partition": 1, "topic": "flights"}]}',
    )
    found = await store.requested_elections(kind)
    assert found is not None
    assert (found.partitions, found.error) == ((F1,), None)
    assert found.request_id == f"node-{found.modified_zxid:x}", "reports name the request"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version":2,"partitions":[]}',
        b'{"version":1,"partitions":{"flights":0}}',
        b'{"version":1,"partitions":["flights-0"]}',
        b'{"version":1,"partitions":[{"topic":"flights","partition":"0"}]}',
        b'{"version":1,"partitions":[{"topic":"flights"}]}',
        b'{"version":1,"partitions":[{"topic":"","partition":0}]}',
        b'{"version":1,"partitions":[{"topic":"..","partition":0}]}',
        b'{"version":1,"partitions":[{"topic":"flights/../0","partition":0}]}',
        b'{"version":1,"partitions":[{"topic":"flights\\u0000","partition":0}]}',
        b'{"version":1,"partitions":[{"topic":"%s","partition":0}]}' % (b"f" * 250),
        b'{"version":1,"partitions":[{"topic":"flights","partition":-1}]}',
        b'{"version":1,"partitions":[],"request_id":"%s"}' % (b"r" * 129),
    ],
)
async def test_a_malformed_election_request_has_a_reason_and_can_be_removed(cluster: Cluster, data: bytes) -> None:
    store = await cluster.store()
    await store.request_elections(ElectionKind.LAST_KNOWN, [F0], "r1")
    await cluster.corrupt(PATHS[ElectionKind.LAST_KNOWN], data)
    found = await store.requested_elections(ElectionKind.LAST_KNOWN)
    assert found is not None
    assert found.partitions == ()
    assert found.error is not None
    assert PATHS[ElectionKind.LAST_KNOWN] in found.error.message
    await store.finish_elections(await elected(store), found)
    assert await store.requested_elections(ElectionKind.LAST_KNOWN) is None


async def test_a_request_that_took_the_place_of_a_settled_one_is_not_removed_with_it(cluster: Cluster) -> None:
    store = await cluster.store()
    kind = ElectionKind.PREFERRED
    term = await elected(store)
    await store.request_elections(kind, [F0], "r1")
    first = await store.requested_elections(kind)
    assert first is not None
    await store.finish_elections(term, first)
    await store.finish_elections(term, first)
    await store.request_elections(kind, [F1], "r2")
    await store.finish_elections(term, first)
    second = await store.requested_elections(kind)
    assert second is not None
    assert second.request_id == "r2"


async def test_a_deposed_controller_removes_no_request(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(store)
    await store.resign(term)
    await elected(other)
    await store.request_elections(ElectionKind.PREFERRED, [F0], "r1")
    found = await store.requested_elections(ElectionKind.PREFERRED)
    assert found is not None
    with raises_code(ErrorCode.CONTROLLER_NOT_ACTIVE):
        await store.finish_elections(term, found)
    assert await store.requested_elections(ElectionKind.PREFERRED) == found


async def test_a_report_is_kept_by_the_write_that_elects_and_not_without_it(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    report = report_of(topic, 0)
    unwritten = replace(write_of(topic, 0, 7), report=report)
    assert [one.outcome for one in await store.write_states(term, [unwritten])] == [WriteOutcome.CONFLICT]
    assert await other.unclean_elections() == {}
    writes = [replace(write_of(topic, 0, 0), report=report), write_of(topic, 1, 0, replace(STATE, lineage=2))]
    results = await store.write_states(term, writes)
    assert results == [(WriteOutcome.WRITTEN, 1), (WriteOutcome.WRITTEN, 1)]
    assert await other.unclean_elections() == {F0: (report,)}
    assert await other.unclean_elections([F1, F0]) == {F0: (report,)}
    assert await other.unclean_elections([F1]) == {}


async def test_many_partitions_elected_at_once_each_keep_their_report(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=400))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, index, -1) for index in range(400)])
    writes = [replace(write_of(topic, index, 0), report=report_of(topic, index)) for index in range(400)]
    results = await store.write_states(term, writes)
    assert {one.outcome for one in results} == {WriteOutcome.WRITTEN}
    assert len(await store.unclean_elections()) == 400


async def test_the_store_keeps_the_latest_reports_of_a_partition_oldest_first(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    await store.write_states(await elected(store), [write_of(topic, 0, -1)])
    for lineage in range(1, REPORTS_KEPT + 3):
        await write_report(store, topic, lineage - 1, report_of(topic, 0, lineage))
    kept = (await store.unclean_elections([F0]))[F0]
    assert [one.lineage for one in kept] == list(range(3, REPORTS_KEPT + 3))


async def test_a_report_without_figures_is_read_as_it_was_written(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    await store.write_states(await elected(store), [write_of(topic, 0, -1)])
    bare = UncleanElection(F0, topic.topic_id, 1, BrokerId(0), LeaderEpoch(4))
    await write_report(store, topic, 0, bare)
    assert await store.unclean_elections() == {F0: (bare,)}
    assert bare.records_maybe_lost is None


async def test_reports_that_cannot_be_read_stop_neither_the_election_nor_the_others(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    await store.write_states(await elected(store), [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    await write_report(store, topic, 0, report_of(topic, 0))
    await write_report(store, topic, 0, report_of(topic, 1))
    await cluster.corrupt("/admin/unclean_elections/flights-0", b"{}")
    assert await store.unclean_elections() == {F1: (report_of(topic, 1),)}
    await write_report(store, topic, 1, report_of(topic, 0, 2))
    assert (await store.unclean_elections([F0]))[F0] == (report_of(topic, 0, 2),)


async def test_the_reports_of_a_topic_go_with_it_and_no_others(cluster: Cluster) -> None:
    store = await cluster.store()
    topics = [await store.create_topic(topic_of(name, topic_id=name)) for name in ("flights", "flights-0")]
    term = await elected(store)
    for topic in topics:
        await store.write_states(term, [write_of(topic, 0, -1)])
        await write_report(store, topic, 0, report_of(topic, 0))
    await store.delete_topic(term, topics[0])
    assert await store.unclean_elections() == {TopicPartition("flights-0", 0): (report_of(topics[1], 0),)}
