# SPDX-License-Identifier: Apache-2.0
"""Reassignments and changes of partition counts, requested through /admin: the real store, and the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ErrorCode,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    Refusal,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import StoreEvent, WriteOutcome
from tidemark.zookeeper.multis import Create, commit
from tidemark.zookeeper.refusals import KEPT
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import code_of, elected, topic_of, write_of
from tests.fakes.metadata_store import FakeMetadataStore

F0, F1, F2, F3 = (TopicPartition("flights", index) for index in range(4))
B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
MOVE = PartitionReassignment(F0, (B1, B2), ("any", "any"), throttle_bytes_per_s=5_000_000, request_id="r1")
OTHER = PartitionReassignment(F1, (B3,))
PLACED = PartitionReassignment(F2, (B3, B1), ("/data/größer 1", "any"))
MOVES = "/admin/reassign_partitions"


def refusal_of(kind: str, partition: TopicPartition | None, sentence: str = "no such broker") -> Refusal:
    error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, sentence)
    return Refusal(kind, partition, error, "r1", 1_700_000_000_000)


async def refused_sentences(store: MetadataStore) -> list[str]:
    return [one.error.message for one in await store.refusals()]


async def test_moves_are_read_as_they_were_submitted_and_watched(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(other)
    assert await other.move_requests(watch=True) == ReassignmentRequests()
    await store.submit_moves([MOVE])
    await ear.hears(StoreEvent.MOVES)
    assert (await other.move_requests(watch=True)).moves == (MOVE,)
    await store.submit_moves([OTHER, MOVE])
    await ear.hears(StoreEvent.MOVES)
    assert (await other.move_requests()).moves == (MOVE, OTHER), "a request that is there already is not added again"
    await store.submit_moves([PLACED])
    assert (await other.move_requests()).moves == (MOVE, OTHER, PLACED)
    with pytest.raises(TidemarkError) as refused:
        await store.submit_moves([replace(PLACED, log_dirs=("any", "any"))])
    assert code_of(refused) is ErrorCode.REASSIGNMENT_IN_PROGRESS


async def test_concurrent_submissions_lose_no_request(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(3)]
    moves = [PartitionReassignment(TopicPartition("flights", index), (B1,)) for index in range(12)]
    await asyncio.gather(*(stores[index % 3].submit_moves([move]) for index, move in enumerate(moves)))
    assert set((await stores[0].move_requests()).moves) == set(moves)


async def test_a_partition_that_is_moved_elsewhere_already_is_refused_and_nothing_is_submitted(
    cluster: Cluster,
) -> None:
    store = await cluster.store()
    await store.submit_moves([MOVE])
    with pytest.raises(TidemarkError) as refused:
        await store.submit_moves([OTHER, replace(MOVE, replicas=(B3,))])
    assert code_of(refused) is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert (await store.move_requests()).moves == (MOVE,)


async def test_more_moves_than_a_node_holds_are_refused_with_the_number_that_fits(cluster: Cluster) -> None:
    store = await cluster.store()
    many = [PartitionReassignment(TopicPartition("flights" * 30, index), (B1, B2, B3)) for index in range(10_000)]
    with pytest.raises(TidemarkError) as refused:
        await store.submit_moves(many)
    assert code_of(refused) is ErrorCode.INVALID_REQUEST
    await store.submit_moves(many[: int(refused.value.metadata["moves_max"])])
    assert (await store.move_requests()).malformed == ()


async def test_a_cancelled_move_stays_until_it_is_finished(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.submit_moves([MOVE, OTHER])
    await store.cancel_moves([F0])
    await store.cancel_moves([F0])
    assert (await store.move_requests()).moves == (replace(MOVE, cancel=True), OTHER)
    with pytest.raises(TidemarkError) as refused:
        await store.cancel_moves([F1, F2])
    assert code_of(refused) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert (await store.move_requests()).moves == (replace(MOVE, cancel=True), OTHER), "all or none"


async def test_finished_moves_go_and_with_the_last_one_the_node(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    await store.submit_moves([MOVE, OTHER])
    await store.finish_moves(term, [MOVE], [])
    assert (await store.move_requests()).moves == (OTHER,)
    await store.finish_moves(term, [MOVE, OTHER], [])
    assert await store.move_requests() == ReassignmentRequests()
    await store.finish_moves(term, [MOVE], [])
    assert list(await store.refusals()) == []


async def test_a_reassignment_requested_again_meanwhile_is_not_finished(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.submit_moves([MOVE])
    await store.cancel_moves([F0])
    await store.finish_moves(await elected(store), [MOVE], [])
    assert (await store.move_requests()).moves == (replace(MOVE, cancel=True),)


async def test_a_malformed_request_is_removed_with_the_next_answer_and_kept_as_refused(
    cluster: Cluster,
) -> None:
    store = await cluster.store()
    term = await elected(store)
    await store.submit_moves([MOVE])
    await cluster.corrupt(
        MOVES,
        b'{"version":1,"partitions":[{"topic":"flights","partition":1,"replicas":[3]},'
        b'{"topic":"flights","partition":"one","replicas":[1]}]}',
    )
    found = await store.move_requests()
    assert found.moves == (OTHER,)
    (malformed,) = found.malformed
    with pytest.raises(TidemarkError) as refused:
        await store.submit_moves([MOVE])
    assert code_of(refused) is ErrorCode.INVALID_REQUEST, "no request is added to a node that does not parse"
    await store.finish_moves(term, [], [malformed])
    assert (await store.move_requests()).moves == (OTHER,)
    assert await refused_sentences(store) == [malformed.error.message]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"version":2,"partitions":[]}', b"[" * 100_000])
async def test_a_node_that_cannot_be_understood_at_all_is_one_refusal_and_goes(cluster: Cluster, data: bytes) -> None:
    store = await cluster.store()
    await store.submit_moves([MOVE])
    await cluster.corrupt(MOVES, data)
    found = await store.move_requests()
    assert found.moves == ()
    assert len(found.malformed) == 1
    await store.finish_moves(await elected(store), [], list(found.malformed))
    assert await store.move_requests() == ReassignmentRequests()
    assert len(await store.refusals()) == 1


async def test_the_latest_refusals_are_kept_with_any_text(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    await store.submit_moves([MOVE])
    for start in range(0, KEPT + 20, 40):
        refused = [refusal_of("reassign", F0, f"{index} {'x' * 3_000}") for index in range(start, start + 40)]
        await store.finish_moves(term, [], refused)
    kept = await store.refusals()
    assert len(kept) == KEPT
    assert [int(one.error.message.split()[0]) for one in kept] == list(range(20, KEPT + 20))
    assert (kept[0].kind, kept[0].partition, kept[0].request_id, kept[0].at_ms) == (
        "reassign",
        F0,
        "r1",
        1_700_000_000_000,
    )


async def test_every_reassignment_of_a_full_node_can_be_cancelled_at_once(cluster: Cluster) -> None:
    """The mark of a cancellation makes an entry longer."""
    store = await cluster.store()
    term = await elected(store)
    many = [PartitionReassignment(TopicPartition("flights", index), (B1, B2)) for index in range(20_000)]
    with pytest.raises(TidemarkError) as refused:
        await store.submit_moves(many)
    fitting = many[: int(refused.value.metadata["moves_max"])]
    await store.submit_moves(fitting)
    await store.cancel_moves([move.partition for move in fitting])
    cancelled = [replace(move, cancel=True) for move in fitting]
    assert list((await store.move_requests()).moves) == cancelled
    await store.finish_moves(term, cancelled[:1], [])
    assert list((await store.move_requests()).moves) == cancelled[1:]


async def test_only_the_controller_in_office_answers(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(store)
    topic = await store.create_topic(topic_of())
    await store.submit_moves([MOVE])
    await store.request_partitions({F2: (B1,)})
    await store.resign(term)
    await elected(other, 101)
    for late in (
        store.finish_moves(term, [MOVE], []),
        store.write_topic(term, replace(topic, original={0: (B1,)})),
        store.finish_partition_requests(term, added=[F2]),
    ):
        with pytest.raises(TidemarkError) as refused:
            await late
        assert code_of(refused) is ErrorCode.CONTROLLER_NOT_ACTIVE
    assert (await other.move_requests()).moves == (MOVE,)
    assert (await other.partition_requests()).added == {F2: (B1,)}


async def test_a_topics_node_is_written_at_the_version_it_was_read_at(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    topic = await store.create_topic(topic_of())
    changed = replace(
        topic, partitions={**topic.partitions, 0: (B1, B2)}, adding={0: (B1,)}, removing={0: (B2,)}, original={0: (B2,)}
    )
    written = await store.write_topic(term, changed)
    assert written is not None
    assert written.version == topic.version + 1
    assert written.modified_zxid > topic.modified_zxid
    assert await store.topics(["flights"]) == {"flights": written}
    assert await store.write_topic(term, changed) is None, "it is at another version"
    assert await store.topics(["flights"]) == {"flights": written}


async def test_every_partition_of_the_largest_topic_can_be_reassigned_at_once(cluster: Cluster) -> None:
    """The node grows by the lists of each reassignment, and a node that cannot be written ends none of them."""
    store = await cluster.store()
    term = await elected(store)
    count = 8_400
    original = dict.fromkeys(range(count), (BrokerId(10), BrokerId(11), BrokerId(12)))
    target = (BrokerId(20), BrokerId(21), BrokerId(22), BrokerId(23), BrokerId(24))
    incarnations = {index: f"{index:032x}" for index in range(count)}
    topic = await store.create_topic(replace(topic_of(), partitions=original, incarnations=incarnations))
    moving = replace(
        topic,
        partitions={index: (*target, *before) for index, before in original.items()},
        adding=dict.fromkeys(original, target),
        removing=original,
        original=original,
    )
    written = await store.write_topic(term, moving)
    assert written is not None
    ended = await store.write_topic(
        term, replace(written, partitions=moving.adding, adding={}, removing={}, original={})
    )
    assert ended is not None
    assert (await store.topics(["flights"]))["flights"].partitions == moving.adding


async def test_partitions_are_asked_for_seen_and_answered(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(other)
    await store.create_topic(topic_of())
    assert await other.partition_requests(watch=True) == PartitionRequests()
    await store.request_partitions({F2: (B1, B2), F3: (B2, B3)})
    await ear.hears(StoreEvent.PARTITION_REQUESTS)
    assert (await other.partition_requests(watch=True)).added == {F2: (B1, B2), F3: (B2, B3)}
    await store.request_partitions({F2: (B1, B2), F3: (B2, B3)})
    with pytest.raises(TidemarkError) as refused:
        await store.request_partitions({F3: (B1, B3)})
    assert code_of(refused) is ErrorCode.INVALID_REQUEST
    await store.request_partition_removal({F1: True, F0: False})
    await ear.hears(StoreEvent.PARTITION_REQUESTS)
    assert (await other.partition_requests()).removed == {F1: True, F0: False}
    term = await elected(store)
    await store.finish_partition_requests(term, added=[F2], removed={F1: True})
    found = await other.partition_requests()
    assert (found.added, found.removed) == ({F3: (B2, B3)}, {F0: False})
    refusal = refusal_of("partitions_add", F3)
    await store.finish_partition_requests(term, removed={F0: False, F1: True}, refused=[refusal])
    assert await other.partition_requests() == PartitionRequests()
    assert [one.partition for one in await store.refusals()] == [F3]
    await store.finish_partition_requests(term, added=[F2])
    await store.request_partitions({F2: (B1,)})
    assert (await other.partition_requests()).added == {F2: (B1,)}, "their parent is made again"


async def test_requests_for_thousands_of_partitions_are_made_and_removed_together(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    await store.create_topic(topic_of())
    added = {TopicPartition("flights", index): (B1, B2) for index in range(10, 3_010)}
    await store.request_partitions(added)
    assert (await store.partition_requests()).added == added
    await store.finish_partition_requests(term, added=list(added))
    assert await store.partition_requests() == PartitionRequests()
    await store.request_partition_removal(dict.fromkeys(added, False))
    forced = dict.fromkeys(added, True)
    await store.request_partition_removal(forced)
    assert (await store.partition_requests()).removed == forced
    await store.finish_partition_requests(term, removed=forced)
    assert await store.partition_requests() == PartitionRequests()


async def test_a_forced_removal_replaces_one_that_is_not_forced(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(other)
    await store.create_topic(topic_of())
    await store.request_partition_removal({F2: False, F3: False})
    assert (await other.partition_requests(watch=True)).removed == {F2: False, F3: False}
    await store.request_partition_removal({F2: True, F3: True})
    await ear.hears(StoreEvent.PARTITION_REQUESTS)
    assert (await other.partition_requests()).removed == {F2: True, F3: True}
    with pytest.raises(TidemarkError) as refused:
        await store.request_partition_removal({F2: False, F3: False})
    assert code_of(refused) is ErrorCode.INVALID_REQUEST


async def test_a_forced_removal_is_not_removed_with_the_refused_one_that_it_replaces(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(store)
    await store.create_topic(topic_of())
    await store.request_partition_removal({F2: False, F3: False})
    await other.request_partition_removal({F2: True, F3: True})
    refusals = [refusal_of("partitions_remove", one) for one in (F2, F3)]
    await store.finish_partition_requests(term, removed={F2: False, F3: False}, refused=refusals)
    assert (await store.partition_requests()).removed == {F2: True, F3: True}
    assert [one.partition for one in await store.refusals()] == [F2, F3]
    await store.finish_partition_requests(term, removed={F2: True, F3: True})
    assert await store.partition_requests() == PartitionRequests()


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_forced_removal_that_comes_while_the_refused_one_is_removed_stays(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    assert isinstance(store, FakeMetadataStore)
    term = await elected(store)
    await store.create_topic(topic_of())
    await store.request_partition_removal({F3: False})

    async def forced() -> None:
        await other.request_partition_removal({F3: True})

    store.session.before_commit(forced)
    await store.finish_partition_requests(term, removed={F3: False})
    assert (await store.partition_requests()).removed == {F3: True}


Request = Callable[[MetadataStore, str], Awaitable[None]]
"""A request about partitions of the topic flights with that id."""
CHANGES: dict[str, Request] = {
    "add": lambda store, topic_id: store.request_partitions(
        {TopicPartition("flights", 4): (B1,)}, {"flights": topic_id}
    ),
    "remove": lambda store, topic_id: store.request_partition_removal({F1: True}, {"flights": topic_id}),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_request_for_one_topic_changes_no_partition_of_the_next_topic_of_the_name(
    cluster: Cluster, kind: str
) -> None:
    store = await cluster.store()
    term = await elected(store)
    before = await store.create_topic(topic_of())
    await store.write_states(term, [write_of(before, 0, -1)])
    await CHANGES[kind](store, before.topic_id)
    await store.delete_topic(term, before)
    after = await store.create_topic(topic_of(topic_id="id-2"))
    await store.write_states(term, [write_of(after, 0, -1)])
    with pytest.raises(TidemarkError) as refused:
        await CHANGES[kind](store, before.topic_id)
    assert code_of(refused) is ErrorCode.UNKNOWN_TOPIC
    assert await store.partition_requests() == PartitionRequests()
    await CHANGES[kind](store, after.topic_id)
    assert await store.partition_requests() != PartitionRequests()


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_request_does_not_reach_a_topic_that_is_created_again_at_that_moment(
    cluster: Cluster, kind: str
) -> None:
    store, other = await cluster.store(), await cluster.store()
    assert isinstance(store, FakeMetadataStore)
    term = await elected(other)
    before = await other.create_topic(topic_of())
    await other.write_states(term, [write_of(before, 0, -1)])

    async def recreated() -> None:
        await other.delete_topic(term, before)
        after = await other.create_topic(topic_of(topic_id="id-2"))
        await other.write_states(term, [write_of(after, 0, -1)])

    store.session.before_commit(recreated)
    with pytest.raises(TidemarkError) as refused:
        await CHANGES[kind](store, before.topic_id)
    assert code_of(refused) is ErrorCode.UNKNOWN_TOPIC
    assert await store.partition_requests() == PartitionRequests()


async def test_partitions_of_a_topic_that_has_no_states_yet_can_be_removed(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    await store.request_partition_removal({F1: True}, {"flights": topic.topic_id})
    assert (await store.partition_requests()).removed == {F1: True}


async def test_the_deletion_of_a_topic_removes_requests_about_its_partitions(cluster: Cluster) -> None:
    store = await cluster.store()
    topic, other = await store.create_topic(topic_of()), await store.create_topic(topic_of("other"))
    kept = TopicPartition(other.topic, 1)
    await store.request_partition_removal({F3: True, kept: True})
    await store.request_partitions({TopicPartition("flights", index): (B1,) for index in range(4, 6)})
    await store.delete_topic(await elected(store), topic)
    assert await store.topics(["flights"]) == {}
    assert await store.partition_requests() == PartitionRequests({}, {kept: True})


async def test_partitions_of_a_topic_that_is_not_there_cannot_be_asked_for(cluster: Cluster) -> None:
    store = await cluster.store()
    for asked in (store.request_partitions({F0: (B1,)}), store.request_partition_removal({F0: True})):
        with pytest.raises(TidemarkError) as refused:
            await asked
        assert code_of(refused) is ErrorCode.UNKNOWN_TOPIC
    assert await store.partition_requests() == PartitionRequests()


@pytest.mark.parametrize(("name", "data"), [("2", b"[1]"), ("2", b"{}"), ("two", b'{"replicas":[1]}'), ("02", b"{}")])
async def test_a_malformed_request_for_a_partition_is_reported_and_removed(
    cluster: Cluster, name: str, data: bytes
) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of())
    await store.request_partitions({F3: (B1,)})
    await commit(store._session, [Create(f"/admin/partitions_add/flights/{name}", data)])
    found = await store.partition_requests()
    assert found.added == {F3: (B1,)}
    (malformed,) = found.malformed
    assert malformed.error.code is ErrorCode.INVALID_REQUEST
    await store.finish_partition_requests(await elected(store), refused=[malformed])
    assert await store.partition_requests() == PartitionRequests(added={F3: (B1,)})


async def test_the_nodes_of_a_removed_partition_go_and_those_of_the_others_stay(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    results = await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    assert [one.outcome for one in results] == [WriteOutcome.WRITTEN] * 2
    await store.delete_partitions(term, topic, [1])
    await store.delete_partitions(term, topic, [1])
    assert set(await store.states([F0, F1])) == {F0}
    nobody_leads = replace(write_of(topic, 1, -1).state, leader=NO_LEADER)
    (again,) = await store.write_states(term, [write_of(topic, 1, -1, nobody_leads)])
    assert again.outcome is WriteOutcome.WRITTEN, "the partition can be added again"
