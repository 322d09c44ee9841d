# SPDX-License-Identifier: Apache-2.0
"""Reassignments checked, submitted, listed and watched by the admin service; the store is a fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tidemark.admin.move_tracker import MoveTracker
from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration, ReassignmentUpdate
from tidemark.core.reassignment.progress import ReassignmentPhase
from tidemark.model import ErrorCode, PartitionReassignment, Refusal, SchemaText, TidemarkError, TopicPartition

from tests.refusals import raises_code
from tests.unit.admin.moving import Cluster, Sizes, ids

T0, T1, T2 = (TopicPartition("test", index) for index in range(3))


@pytest.fixture
async def cluster() -> Cluster:
    """Four brokers and a topic of three partitions with two replicas each."""
    cluster = Cluster()
    await cluster.start(brokers=4)
    await cluster.topic("test", (0, 1), (2, 0), (1, 2))
    return cluster


@pytest.fixture
def sizes() -> Sizes:
    return Sizes()


@pytest.fixture
def moves(cluster: Cluster, sizes: Sizes) -> ReassignmentAdministration:
    return ReassignmentAdministration(cluster.store, sizes)


def move(partition: TopicPartition, *replicas: int) -> PartitionReassignment:
    return PartitionReassignment(partition, ids(*replicas))


async def codes(
    moves: ReassignmentAdministration, query: MovesQuery, *, validate_only: bool = False
) -> dict[TopicPartition, ErrorCode | None]:
    answer = await moves.alter(query, validate_only=validate_only)
    return {one.partition: None if one.error is None else one.error.code for one in answer.outcomes}


async def test_reassignment_is_stored_with_throttle_and_request_id(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    answer = await moves.alter(MovesQuery([move(T2, 2, 1)], (), 500, "r"), validate_only=False)
    assert [(one.partition, one.before, one.error) for one in answer.outcomes] == [(T2, ids(1, 2), None)]
    assert (await cluster.store.move_requests()).moves == (
        PartitionReassignment(T2, ids(2, 1), throttle_bytes_per_s=500, request_id="r"),
    )


async def test_one_refusal_prevents_all_reassignments_unless_partial_is_allowed(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    query = MovesQuery([move(T0, 1, 0), move(T1, 2, 2)])
    assert await codes(moves, query) == {T0: None, T1: ErrorCode.DUPLICATE_REPLICA}
    assert (await cluster.store.move_requests()).moves == ()
    await codes(moves, replace(query, allow_partial=True))
    assert [one.partition for one in (await cluster.store.move_requests()).moves] == [T0]


async def test_reassignment_that_ends_during_a_request_does_not_fail_the_others(
    cluster: Cluster, moves: ReassignmentAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    await moves.alter(MovesQuery([move(T0, 1, 0), move(T1, 0, 2)]), validate_only=False)
    cancel = cluster.store.cancel_moves

    async def first_ends(partitions: Sequence[TopicPartition]) -> None:
        monkeypatch.setattr(cluster.store, "cancel_moves", cancel)
        assert cluster.term is not None
        await cluster.store.finish_moves(cluster.term, (await cluster.store.move_requests()).moves[:1], [])
        await cancel(partitions)

    monkeypatch.setattr(cluster.store, "cancel_moves", first_ends)
    answered = await codes(moves, MovesQuery(cancel=[T0, T1], allow_partial=True))
    assert answered == {T0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, T1: None}
    assert [(one.partition, one.cancel) for one in (await cluster.store.move_requests()).moves] == [(T1, True)]


async def test_validate_only_reassignment_changes_nothing(cluster: Cluster, moves: ReassignmentAdministration) -> None:
    assert await codes(moves, MovesQuery([move(T2, 2, 1)]), validate_only=True) == {T2: None}
    assert (await cluster.store.move_requests()).version == -1


async def test_retry_is_accepted_and_a_second_reassignment_is_refused(
    moves: ReassignmentAdministration,
) -> None:
    query = MovesQuery([move(T2, 2, 1)], request_id="r")
    assert await codes(moves, query) == {T2: None}
    assert await codes(moves, query) == {T2: None}
    assert await codes(moves, replace(query, request_id="s")) == {T2: ErrorCode.REASSIGNMENT_IN_PROGRESS}


async def test_partition_with_its_target_replicas_is_not_reassigned(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    assert await codes(moves, MovesQuery([move(T2, 1, 2)])) == {T2: None}
    assert (await cluster.store.move_requests()).moves == ()


async def test_each_invalid_reassignment_is_refused_with_its_code(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    await cluster.store.begin_draining(ids(3))
    await cluster.kill_broker(0)
    nowhere, beyond = TopicPartition("nowhere", 0), TopicPartition("test", 7)
    query = MovesQuery(
        [move(nowhere, 1), move(beyond, 1), move(T0, 0, 1), move(T1, 3, 2), move(T2)], cancel=[TopicPartition("x", 0)]
    )
    assert await codes(moves, query) == {
        nowhere: ErrorCode.UNKNOWN_TOPIC,
        beyond: ErrorCode.UNKNOWN_PARTITION,
        T0: ErrorCode.BROKER_NOT_AVAILABLE,
        T1: ErrorCode.BROKER_NOT_AVAILABLE,
        T2: ErrorCode.EMPTY_REPLICAS,
        TopicPartition("x", 0): ErrorCode.UNKNOWN_TOPIC,
    }


async def test_a_replica_of_a_typed_topic_is_not_added_to_a_broker_of_an_older_version(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    """The brokers of this cluster registered no features; those that hold replicas keep them."""
    topic = (await cluster.store.topics(["test"]))["test"]
    assert await cluster.store.add_schema(topic, 1, SchemaText("{}"))
    answer = await moves.alter(MovesQuery([move(T0, 1, 0), move(T1, 3, 2)], allow_partial=True), validate_only=True)
    refused = {one.partition: one.error for one in answer.outcomes}
    assert refused[T0] is None
    error = refused[T1]
    assert error is not None
    assert (error.code, error.metadata["broker"]) == (ErrorCode.INVALID_REQUEST, "3")
    assert "upgrade that broker first" in error.message


@pytest.mark.parametrize(
    "query",
    [
        MovesQuery(),
        MovesQuery([move(T2, 2, 1)], throttle_bytes_per_s=-1),
        MovesQuery([move(T2, 2, 1)], request_id="x" * 129),
    ],
)
async def test_invalid_reassignment_request_is_refused_as_a_whole(
    moves: ReassignmentAdministration, query: MovesQuery
) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await moves.alter(query, validate_only=False)


async def test_reassignments_of_thousands_of_partitions_are_listed_without_a_search_for_each(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    """Otherwise a removal of a broker with 20,000 replicas would block the event loop at each check."""

    class Unsearched(list[TopicPartition]):
        def __contains__(self, one: object) -> bool:
            raise AssertionError("a list is searched from its beginning")

    await cluster.store.submit_moves([move(T0, 1, 0), move(T1, 3, 2)])
    found, _ = await moves.list_moves(Unsearched([T1]))
    assert [one.partition for one in found] == [T1]


async def test_only_a_running_reassignment_can_be_cancelled(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    assert await codes(moves, MovesQuery(cancel=[T2])) == {T2: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    await moves.alter(MovesQuery([move(T2, 2, 1)]), validate_only=False)
    assert await codes(moves, MovesQuery(cancel=[T2])) == {T2: None}
    assert [one.cancel for one in (await cluster.store.move_requests()).moves] == [True]
    (listed,), _ = await moves.list_moves()
    assert listed.target == ids(1, 2)


async def test_throttle_below_the_highest_inbound_rate_is_refused(
    moves: ReassignmentAdministration, sizes: Sizes
) -> None:
    sizes.say(0, T0, 10, bytes_in_per_s=300)
    sizes.say(1, T2, 10, bytes_in_per_s=200)
    both = [move(T0, 3, 2), move(T2, 2, 1)]
    answer = await moves.alter(MovesQuery(both, throttle_bytes_per_s=600), validate_only=True)
    (first, second) = answer.outcomes
    assert first.error is not None
    assert (first.error.code, first.error.metadata["inbound_bytes_per_s"]) == (ErrorCode.THROTTLE_TOO_LOW, "600")
    assert second.error is None, "nothing is copied for it"
    assert answer.inbound_bytes_per_s == 600, "two replicas are added"
    assert await codes(moves, MovesQuery(both, throttle_bytes_per_s=601), validate_only=True) == {T0: None, T2: None}
    assert await codes(moves, MovesQuery(both), validate_only=True) == {T0: None, T2: None}, "no limit"


async def under_way(cluster: Cluster, moves: ReassignmentAdministration) -> None:
    """Start the reassignment of partition 2 from 1,2 to 3,1."""
    await moves.alter(MovesQuery([move(T2, 3, 1)], request_id="r"), validate_only=False)
    topic = (await cluster.store.topics(["test"]))["test"]
    await cluster.rewrite(
        replace(
            topic,
            partitions={**topic.partitions, 2: ids(3, 1, 2)},
            original={2: ids(1, 2)},
            adding={2: ids(3)},
            removing={2: ids(2)},
        )
    )


async def end_it(cluster: Cluster, *replicas: int) -> None:
    topic = (await cluster.store.topics(["test"]))["test"]
    await cluster.rewrite(
        replace(topic, partitions={**topic.partitions, 2: ids(*replicas)}, original={}, adding={}, removing={})
    )
    assert cluster.term is not None
    await cluster.store.finish_moves(cluster.term, (await cluster.store.move_requests()).moves, [])


async def test_progress_has_a_rate_from_the_second_sample(cluster: Cluster, sizes: Sizes) -> None:
    now_s = 0.0

    async def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += 2.0
        sizes.say(3, T2, 300)

    moves = ReassignmentAdministration(cluster.store, sizes, MoveTracker(lambda: now_s), pause)
    await under_way(cluster, moves)
    sizes.say(1, T2, 1000)
    sizes.say(3, T2, 100)
    (first,), _ = await moves.list_moves([T2])
    assert (first.phase, first.bytes_done, first.bytes_total) == (ReassignmentPhase.COPYING, 300, 1000)
    assert (first.rate_bytes_per_s, first.eta_s, first.waiting_for) == (100, 7, "")
    assert now_s == 2.0, "the first list takes two looks, a later one takes one"
    await moves.list_moves()
    assert now_s == 2.0
    now_s = 20.0
    (third,), _ = await moves.list_moves()
    assert "nothing was copied for 18 s" in third.waiting_for
    assert await moves.list_moves([T0]) == ([], ())


async def test_running_reassignment_without_an_entry_is_listed(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    await under_way(cluster, moves)
    assert cluster.term is not None
    await cluster.store.finish_moves(cluster.term, (await cluster.store.move_requests()).moves, [])
    (listed,), _ = await moves.list_moves()
    assert (listed.partition, listed.target) == (T2, ids(3, 1))
    assert await codes(moves, MovesQuery([move(T2, 2, 1)])) == {T2: ErrorCode.REASSIGNMENT_IN_PROGRESS}
    assert await codes(moves, MovesQuery(cancel=[T2])) == {T2: None}
    assert (await cluster.store.move_requests()).moves == (PartitionReassignment(T2, ids(3, 1), cancel=True),)


async def watched(
    moves: ReassignmentAdministration, *partitions: TopicPartition, request_id: str = ""
) -> list[ReassignmentUpdate]:
    return [update async for update in moves.watch(partitions, interval_s=0.0, request_id=request_id)]


async def test_watch_reports_the_end_and_stops(cluster: Cluster, moves: ReassignmentAdministration) -> None:
    await under_way(cluster, moves)
    seen: list[ReassignmentUpdate] = []
    async for update in moves.watch([], interval_s=0.0):
        seen.append(update)
        if len(seen) == 1:
            await end_it(cluster, 3, 1)
    assert [one.partition for one in seen[0].moves] == [T2]
    assert seen[-1].moves == []
    (ended,) = seen[-1].ended
    assert (ended.partition, ended.replicas, ended.error) == (T2, ids(3, 1), None)


async def test_watch_of_a_completed_reassignment_stops_at_once(moves: ReassignmentAdministration) -> None:
    (update,) = await watched(moves, T2)
    assert [(one.partition, one.replicas, one.error) for one in update.ended] == [(T2, ids(1, 2), None)]
    (nothing,) = await watched(moves)
    assert (nothing.moves, nothing.ended) == ([], [])


async def test_reassignment_cancelled_by_another_client_ends_with_an_error(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    await under_way(cluster, moves)
    seen: list[ReassignmentUpdate] = []
    async for update in moves.watch([T2], interval_s=0.0):
        seen.append(update)
        if len(seen) == 1:
            await end_it(cluster, 1, 2)
    (ended,) = seen[-1].ended
    assert ended.replicas == ids(1, 2)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_reassignment_cancelled_by_this_client_ends_without_error(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    await under_way(cluster, moves)
    await moves.alter(MovesQuery(cancel=[T2]), validate_only=False)
    seen: list[ReassignmentUpdate] = []
    async for update in moves.watch([T2], interval_s=0.0):
        seen.append(update)
        if len(seen) == 1:
            await end_it(cluster, 1, 2)
    assert [one.phase for one in seen[0].moves] == [ReassignmentPhase.CANCELLING]
    assert [(one.replicas, one.error) for one in seen[-1].ended] == [(ids(1, 2), None)]


async def test_reassignment_refused_by_the_controller_ends_with_that_error(
    cluster: Cluster, moves: ReassignmentAdministration
) -> None:
    assert cluster.term is not None
    error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "gone")
    await cluster.store.finish_moves(cluster.term, [], [Refusal("reassign", T2, error, "mine")])
    (update,) = await watched(moves, T2, request_id="mine")
    assert [one.error and one.error.code for one in update.ended] == [ErrorCode.BROKER_NOT_AVAILABLE]
    (update,) = await watched(moves, T2, request_id="another")
    assert [one.error for one in update.ended] == [None], "an old refusal of another request is not reported"
    _, refusals = await moves.list_moves()
    assert [(one.kind, one.partition) for one in refusals] == [("reassign", T2)]


async def test_removed_partition_ends_its_reassignment(cluster: Cluster, moves: ReassignmentAdministration) -> None:
    (update,) = await watched(moves, TopicPartition("nowhere", 0))
    (ended,) = update.ended
    assert ended.error is not None
    assert ended.error.code is ErrorCode.UNKNOWN_TOPIC
