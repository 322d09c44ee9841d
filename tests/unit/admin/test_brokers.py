# SPDX-License-Identifier: Apache-2.0
"""Brokers added, drained and removed by the admin service; the tests write what a controller would write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

import pytest
from tidemark.admin.brokers import BrokerAdministration, PlanQuery, RemovalUpdate
from tidemark.admin.planning import TopicRequest
from tidemark.admin.reassignments import ReassignmentAdministration
from tidemark.admin.restart_claims import CLAIM_MS
from tidemark.admin.topics import TopicAdministration
from tidemark.core.planning.restart_safety import Obstacle
from tidemark.core.security.acls import Operation, allow_rule, topic
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.core.security.principals import Principal
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, SchemaText, TidemarkError, TopicPartition
from tidemark.rpc.security.access import CURRENT, Access
from tidemark.rpc.security.audit import Audit

from tests.refusals import code_of, raises_code
from tests.unit.admin.moving import Cluster, Sizes, ids


@pytest.fixture
async def cluster() -> Cluster:
    """Three brokers with two topics, and an empty fourth broker."""
    cluster = Cluster()
    await cluster.start(brokers=4)
    await cluster.topic("t", (0, 1), (1, 2), (2, 0))
    await cluster.topic("u", (0, 2))
    return cluster


@pytest.fixture
def sizes() -> Sizes:
    return Sizes()


class WallClock:
    """A clock that the tests set."""

    now_s = 1_700_000_000.0

    def now_ms(self) -> int:
        return self.wall_us() // 1000

    def wall_us(self) -> int:
        return round(self.now_s * 1_000_000)


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def brokers(cluster: Cluster, sizes: Sizes, clock: WallClock) -> BrokerAdministration:
    return BrokerAdministration(cluster.store, ReassignmentAdministration(cluster.store, sizes), sizes, clock)


async def carry_out(cluster: Cluster) -> None:
    """Complete every requested reassignment."""
    assert cluster.term is not None
    wanted = (await cluster.store.move_requests()).moves
    for move in wanted:
        topic = (await cluster.store.topics([move.partition.topic]))[move.partition.topic]
        await cluster.rewrite(
            replace(topic, partitions={**topic.partitions, move.partition.partition: move.replicas}, original={})
        )
        await cluster.lead(topic, move.partition.partition, move.replicas[0], *move.replicas)
    await cluster.store.finish_moves(cluster.term, wanted, [])


async def held_by(cluster: Cluster, broker: int) -> list[str]:
    topics = await cluster.store.topics()
    return [
        f"{topic.topic}-{index}"
        for topic in topics.values()
        for index, replicas in topic.partitions.items()
        if BrokerId(broker) in replicas
    ]


async def remove(
    brokers: BrokerAdministration, *removed: int, validate_only: bool = False, throttle: int = 0
) -> list[RemovalUpdate]:
    return [
        update
        async for update in brokers.remove(
            ids(*removed),
            throttle_bytes_per_s=throttle,
            validate_only=validate_only,
            request_id="r",
            interval_s=0.0,
        )
    ]


async def drained(cluster: Cluster, removal: AsyncIterator[RemovalUpdate]) -> RemovalUpdate:
    """Complete the reassignments of a removal; returns its last update."""
    last = RemovalUpdate()
    async for update in removal:
        last = update
        await carry_out(cluster)
    return last


async def test_plan_reports_its_cost_and_the_number_of_unknown_sizes(
    cluster: Cluster, brokers: BrokerAdministration, sizes: Sizes
) -> None:
    for broker in (1, 2):
        sizes.say(broker, TopicPartition("t", 1), 100)
    costed = await brokers.plan(PlanQuery(remove=ids(1)))
    assert {move.partition for move in costed.plan.moves} == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert all(BrokerId(1) not in move.replicas for move in costed.plan.moves)
    assert (costed.plan.moved_replicas, costed.plan.moved_bytes, costed.unknown_sizes) == (2, 100, 1)
    assert (await cluster.store.move_requests()).version == -1
    assert await cluster.store.draining_brokers() == frozenset()


async def test_new_broker_gets_its_share_of_replicas(cluster: Cluster, brokers: BrokerAdministration) -> None:
    costed, begun = await brokers.add(ids(3), throttle_bytes_per_s=500, validate_only=False, request_id="r")
    assert begun == len(costed.plan.moves) > 0
    wanted = (await cluster.store.move_requests()).moves
    assert {(move.throttle_bytes_per_s, move.request_id) for move in wanted} == {(500, "r")}
    again, more = await brokers.add(ids(3), throttle_bytes_per_s=500, validate_only=False, request_id="r")
    assert (again.plan.moves, more) == ((), 0), "the wanted state counts as done: a retry is harmless"
    await carry_out(cluster)
    assert len(await held_by(cluster, 3)) == 2


async def test_validate_only_addition_changes_nothing(cluster: Cluster, brokers: BrokerAdministration) -> None:
    await cluster.store.begin_draining(ids(3))
    costed, begun = await brokers.add(ids(3), throttle_bytes_per_s=0, validate_only=True, request_id="")
    assert costed.plan.moves
    assert begun == 0
    assert await cluster.store.draining_brokers() == {BrokerId(3)}
    assert (await cluster.store.move_requests()).version == -1


async def test_adding_an_offline_broker_or_none_is_refused(brokers: BrokerAdministration) -> None:
    def add(*added: int) -> object:
        return brokers.add(ids(*added), throttle_bytes_per_s=0, validate_only=False, request_id="")

    assert await code_of(add(9)) is ErrorCode.BROKER_NOT_AVAILABLE
    assert await code_of(add()) is ErrorCode.INVALID_REQUEST
    assert await code_of(add(3, 3)) is ErrorCode.INVALID_REQUEST


async def test_removed_broker_is_drained_deregistered_and_gets_no_replicas_until_added_again(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    seen: list[RemovalUpdate] = []
    async for update in brokers.remove(
        ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0
    ):
        seen.append(update)
        if len(seen) == 2:
            assert await cluster.store.draining_brokers() == {BrokerId(1)}
            # A partition placed before the draining mark was visible is reassigned too.
            await cluster.topic("late", (1, 0))
        if len(seen) > 1:
            await carry_out(cluster)
    assert seen[0].plan is not None
    assert seen[0].partitions_left == 2
    assert seen[-1].removed == ids(1)
    assert await held_by(cluster, 1) == []
    assert await cluster.store.draining_brokers() == {BrokerId(1)}
    topics = TopicAdministration(cluster.store, default_replication_factor=3)
    view = await topics.create_topic(TopicRequest("new", 6), validate_only=True, timeout_s=0)
    assert all(BrokerId(1) not in one.assigned_replicas for one in view.partitions.values())
    assert (
        await code_of(topics.create_topic(TopicRequest("four", 1, 4), validate_only=True, timeout_s=0))
        is ErrorCode.INVALID_REPLICATION_FACTOR
    )
    await brokers.add(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="")
    assert await cluster.store.draining_brokers() == frozenset()


async def test_repeated_call_resumes_an_interrupted_removal(cluster: Cluster, brokers: BrokerAdministration) -> None:
    first = brokers.remove(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0)
    await anext(first)
    await anext(first)
    await first.aclose()  # type: ignore[attr-defined]
    assert (await cluster.store.move_requests()).moves, "a running move continues"
    await carry_out(cluster)
    assert (await remove(brokers, 1))[-1].removed == ids(1)
    assert (await remove(brokers, 1))[-1].removed == ids(1), "and once more"


async def test_removal_waits_for_partitions_requested_before_the_draining_mark(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    added = TopicPartition("u", 1)
    await cluster.store.request_partitions({added: ids(3, 0)})
    looks = 0
    async for update in brokers.remove(
        ids(3), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0
    ):
        looks += update.plan is None and not update.removed
        if looks == 5:
            topic = (await cluster.store.topics(["u"]))["u"]
            assert cluster.term is not None
            await cluster.rewrite(
                replace(
                    topic,
                    partitions={**topic.partitions, 1: ids(3, 0)},
                    incarnations={**topic.incarnations, 1: "u1"},
                )
            )
            await cluster.store.finish_partition_requests(cluster.term, added=[added])
        await carry_out(cluster)
    assert looks > 5
    assert await held_by(cluster, 3) == []
    assert "u-1" in await held_by(cluster, 0)


async def test_removal_fails_when_the_broker_is_added_again(cluster: Cluster, brokers: BrokerAdministration) -> None:
    removal = brokers.remove(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0)
    await anext(removal)
    await anext(removal)
    await cluster.store.end_draining(ids(1))
    with raises_code(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "a request added the broker again"):
        await anext(removal)


async def test_removal_ends_with_an_error_while_the_node_of_a_topic_is_unreadable(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    """The broker may hold the last replica of that topic, and its disk may be wiped after the removal."""
    removal = brokers.remove(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0)
    await anext(removal)
    node = cluster.ensemble.nodes["/brokers/topics/u"].data
    cluster.ensemble.corrupt("/brokers/topics/u", b"garbage")
    with pytest.raises(TidemarkError, match="broker 1 may hold replicas of u") as ended:
        await drained(cluster, removal)
    assert (ended.value.code, ended.value.metadata) == (ErrorCode.INTERNAL, {"topics": "u"})
    assert await code_of(remove(brokers, 1, validate_only=True)) is ErrorCode.INTERNAL
    cluster.ensemble.corrupt("/brokers/topics/u", node)
    again = brokers.remove(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0)
    assert (await drained(cluster, again)).removed == ids(1)


async def test_offline_broker_can_be_removed(cluster: Cluster, brokers: BrokerAdministration) -> None:
    await cluster.kill_broker(1)
    update = await remove(brokers, 1, validate_only=True)
    assert [one.partitions_left for one in update] == [2]
    assert update[0].plan is not None
    assert update[0].plan.plan.moved_replicas == 2


async def removal(brokers: BrokerAdministration, broker: int) -> AsyncIterator[RemovalUpdate]:
    """The updates of a removal that ends within ten polls."""
    looks = 0
    async for update in brokers.remove(
        ids(broker), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0
    ):
        looks += 1
        assert looks < 10, "the removal makes no progress"
        yield update


@pytest.mark.parametrize("is_begun", [False, True], ids=["queued", "copying"])
async def test_removal_of_an_offline_broker_cancels_the_reassignments_that_add_replicas_to_it(
    cluster: Cluster, brokers: BrokerAdministration, is_begun: bool
) -> None:
    """For example, reassignments of an addition during which the new broker failed permanently."""
    assert cluster.term is not None
    moved, other = TopicPartition("t", 0), TopicPartition("t", 1)
    await cluster.store.submit_moves(
        [PartitionReassignment(moved, ids(0, 3)), PartitionReassignment(other, ids(1, 0), request_id="other")]
    )
    topic = (await cluster.store.topics(["t"]))["t"]
    if is_begun:
        copying = {**topic.partitions, 0: ids(0, 3, 1)}
        await cluster.rewrite(
            replace(topic, partitions=copying, adding={0: ids(3)}, removing={0: ids(1)}, original={0: ids(0, 1)})
        )
    await cluster.kill_broker(3)
    ended = RemovalUpdate()
    async for update in removal(brokers, 3):
        ended = update
        wanted = {move.partition: move for move in (await cluster.store.move_requests()).moves}
        assert not wanted[other].cancel
        if moved in wanted and wanted[moved].cancel:
            now = (await cluster.store.topics(["t"]))["t"]
            await cluster.rewrite(replace(now, partitions=topic.partitions, adding={}, removing={}, original={}))
            await cluster.store.finish_moves(cluster.term, [wanted[moved]], [])
    assert ended.removed == ids(3)


async def test_removal_of_an_offline_broker_cancels_a_move_between_its_log_directories(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    """The entry stays until the broker knows the directory, and this broker never does."""
    assert cluster.term is not None
    moved = TopicPartition("t", 1)
    await cluster.store.submit_moves([PartitionReassignment(moved, ids(1, 2), ("any", "/disk2"))])
    await cluster.kill_broker(2)
    ended = RemovalUpdate()
    async for update in removal(brokers, 2):
        ended = update
        wanted = {move.partition: move for move in (await cluster.store.move_requests()).moves}
        if moved in wanted and wanted[moved].cancel:
            await cluster.store.finish_moves(cluster.term, [wanted[moved]], [])
        if moved not in wanted or "/disk2" not in wanted[moved].log_dirs:
            await carry_out(cluster)
    assert ended.removed == ids(2)


@pytest.mark.parametrize(
    ("removed", "code"),
    [
        ((), ErrorCode.INVALID_REQUEST),
        ((1, 1), ErrorCode.INVALID_REQUEST),
        ((9,), ErrorCode.UNKNOWN_BROKER),
        ((0, 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        ((0, 1, 2, 3), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_refused_removal_writes_no_draining_mark_and_no_reassignment(
    cluster: Cluster, brokers: BrokerAdministration, removed: tuple[int, ...], code: ErrorCode
) -> None:
    assert await code_of(remove(brokers, *removed)) is code
    assert await cluster.store.draining_brokers() == frozenset()
    assert (await cluster.store.move_requests()).version == -1


async def test_removal_with_too_low_throttle_is_refused(
    cluster: Cluster, brokers: BrokerAdministration, sizes: Sizes
) -> None:
    sizes.say(0, TopicPartition("t", 0), 10, bytes_in_per_s=300)
    assert await code_of(remove(brokers, 1, throttle=200)) is ErrorCode.THROTTLE_TOO_LOW


async def test_removal_that_needs_a_newer_version_of_a_broker_ends_with_an_error(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    """The brokers of this cluster registered no features, so no other broker may get a replica of a typed topic."""
    topic = (await cluster.store.topics(["u"]))["u"]
    assert await cluster.store.add_schema(topic, 1, SchemaText("{}"))
    removal = brokers.remove(ids(2), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0)
    with raises_code(ErrorCode.INVALID_REQUEST, "u-0 is of a typed topic: .* upgrade that broker first"):
        for _ in range(10):
            await anext(removal)
    begun = [move.partition for move in (await cluster.store.move_requests()).moves]
    assert sorted(begun) == [TopicPartition("t", 1), TopicPartition("t", 2)]


async def test_refused_addition_does_not_end_a_removal(
    cluster: Cluster, brokers: BrokerAdministration, sizes: Sizes
) -> None:
    await cluster.store.begin_draining(ids(3))
    for partition, leader in ((0, 0), (1, 1), (2, 2)):
        sizes.say(leader, TopicPartition("t", partition), 10, bytes_in_per_s=300)
    sizes.say(0, TopicPartition("u", 0), 10, bytes_in_per_s=300)
    adding = brokers.add(ids(3), throttle_bytes_per_s=200, validate_only=False, request_id="")
    assert await code_of(adding) is ErrorCode.THROTTLE_TOO_LOW
    assert await cluster.store.draining_brokers() == {BrokerId(3)}


async def test_addition_is_planned_again_without_a_topic_that_was_deleted_meanwhile(
    cluster: Cluster, brokers: BrokerAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await cluster.topic("gone", *[(0, 1)] * 4)
    end_draining = cluster.store.end_draining

    async def deleted_meanwhile(added: Collection[BrokerId]) -> None:
        assert cluster.term is not None
        await cluster.store.delete_topic(cluster.term, gone)
        await end_draining(added)

    monkeypatch.setattr(cluster.store, "end_draining", deleted_meanwhile)
    costed, begun = await brokers.add(ids(3), throttle_bytes_per_s=0, validate_only=False, request_id="r")
    assert begun == len(costed.plan.moves) > 0
    assert {move.partition.topic for move in costed.plan.moves} <= {"t", "u"}


async def test_topics_are_placed_again_on_the_named_brokers(brokers: BrokerAdministration) -> None:
    costed = await brokers.plan(PlanQuery(topics=("u",), spread=ids(3, 1)))
    assert [sorted(move.replicas) for move in costed.plan.moves] == [[1, 3]]
    assert await code_of(brokers.plan(PlanQuery(topics=("nowhere",)))) is ErrorCode.UNKNOWN_TOPIC
    assert await code_of(brokers.plan(PlanQuery(add=ids(3), remove=ids(1)))) is ErrorCode.INVALID_REQUEST


async def test_restart_of_a_never_registered_broker_is_refused(brokers: BrokerAdministration) -> None:
    assert await code_of(brokers.obstacles_to_restart(BrokerId(9))) is ErrorCode.UNKNOWN_BROKER


async def test_obstacles_to_a_restart_follow_from_zookeeper_state(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    assert await brokers.obstacles_to_restart(BrokerId(1)) == []
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.lead(topic, 1, 1, 1, min_isr=1)
    (obstacle,) = await brokers.obstacles_to_restart(BrokerId(1))
    assert (obstacle.reason, obstacle.partitions) == (Obstacle.NO_IN_SYNC_HEIR, (TopicPartition("t", 1),))
    await cluster.kill_broker(1)
    assert (await brokers.obstacles_to_restart(BrokerId(1)))[0].reason is Obstacle.BROKER_NOT_LIVE


async def test_restart_is_not_safe_while_the_node_of_a_topic_is_unreadable(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    cluster.ensemble.corrupt("/brokers/topics/u", b"garbage")
    (obstacle,) = await brokers.obstacles_to_restart(BrokerId(1))
    assert obstacle.reason is Obstacle.TOPIC_UNREADABLE
    assert "broker 1 may hold replicas of u" in obstacle.message


async def test_answers_name_no_topic_that_the_caller_may_not_describe(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    authorizer = Authorizer()
    authorizer.use(Rules([allow_rule("User:alice", Operation.DESCRIBE, topic("t"))]))
    reset = CURRENT.set(Access(authorizer, Audit(), Principal("User:alice"), "10.0.0.1", ""))
    try:
        with raises_code(ErrorCode.INVALID_REPLICATION_FACTOR) as refused:
            await brokers.plan(PlanQuery(remove=ids(0, 1, 3)))
        assert (refused.value.metadata, "of t and 1 more;" in refused.value.message) == ({"topics": "t"}, True)
        cluster.ensemble.corrupt("/brokers/topics/u", b"garbage")
        (obstacle,) = await brokers.obstacles_to_restart(BrokerId(1))
        assert "may hold replicas of 1 topic, because" in obstacle.message
    finally:
        CURRENT.reset(reset)


async def test_one_of_two_brokers_that_claim_a_restart_at_once_may_restart(
    cluster: Cluster, brokers: BrokerAdministration, clock: WallClock
) -> None:
    both = await asyncio.gather(*(brokers.obstacles_to_restart(BrokerId(one), claim=True) for one in (0, 1)))
    (first,) = (BrokerId(one) for one in (0, 1) if not both[one])
    second = BrokerId(1 - first)
    for claim in (True, False):
        assert (await reasons(brokers, second, claim=claim)) == [Obstacle.OTHER_BROKER_RESTARTS]
    assert await reasons(brokers, first, claim=True) == [], "the first may ask again"
    clock.now_s += CLAIM_MS / 1000
    assert await reasons(brokers, second, claim=True) == [], "a claim ends, even if its broker never stops"
    await cluster.kill_broker(second)
    assert Obstacle.OTHER_BROKER_AWAY in await reasons(brokers, first, claim=True)


@pytest.mark.parametrize("ahead_s", [-3600, -60, 60, 240])
async def test_a_claim_holds_at_an_admin_service_whose_clock_differs(
    cluster: Cluster, brokers: BrokerAdministration, sizes: Sizes, clock: WallClock, ahead_s: int
) -> None:
    other_clock = WallClock()
    other_clock.now_s += ahead_s
    other = BrokerAdministration(cluster.store, ReassignmentAdministration(cluster.store, sizes), sizes, other_clock)
    assert await reasons(brokers, BrokerId(0), claim=True) == []
    assert await reasons(other, BrokerId(1), claim=True) == [Obstacle.OTHER_BROKER_RESTARTS]
    other_clock.now_s += CLAIM_MS / 1000
    assert await reasons(other, BrokerId(1), claim=True) == [], "a claim ends after its time at each service"


async def test_a_claim_of_yesterday_blocks_no_broker_at_a_service_that_has_just_started(
    cluster: Cluster, brokers: BrokerAdministration, sizes: Sizes, clock: WallClock
) -> None:
    assert await reasons(brokers, BrokerId(0), claim=True) == []
    clock.now_s += 24 * 3600
    other = BrokerAdministration(cluster.store, ReassignmentAdministration(cluster.store, sizes), sizes, clock)
    assert await reasons(other, BrokerId(1), claim=True) == []


async def test_a_claim_ends_with_the_registration_of_its_broker(
    cluster: Cluster, brokers: BrokerAdministration
) -> None:
    assert await reasons(brokers, BrokerId(1), claim=True) == []
    await cluster.kill_broker(1)
    await cluster.start_broker(1)
    assert Obstacle.OTHER_BROKER_RESTARTS not in await reasons(brokers, BrokerId(0), claim=True)


async def test_a_claim_that_gets_no_yes_is_given_up(cluster: Cluster, brokers: BrokerAdministration) -> None:
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.lead(topic, 1, 1, 1, min_isr=1)
    assert await reasons(brokers, BrokerId(1), claim=True) == [Obstacle.NO_IN_SYNC_HEIR]
    assert await reasons(brokers, BrokerId(0), claim=True) == []


async def reasons(brokers: BrokerAdministration, broker: BrokerId, *, claim: bool) -> list[Obstacle]:
    return [one.reason for one in await brokers.obstacles_to_restart(broker, claim=claim)]


async def test_reassignments_beyond_the_znode_limit_start_as_earlier_ones_end(
    cluster: Cluster, brokers: BrokerAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.topic("many", *[(1, 2)] * 6)
    submit, sizes_at_once = cluster.store.submit_moves, []

    async def one_or_two(moves: Sequence[PartitionReassignment]) -> None:
        there = len((await cluster.store.move_requests()).moves)
        if there + len(moves) > 2:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, "too many", {"moves_max": "2"})
        sizes_at_once.append(len(moves))
        await submit(moves)

    monkeypatch.setattr(cluster.store, "submit_moves", one_or_two)
    async for update in brokers.remove(
        ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="r", interval_s=0.0
    ):
        if update.plan is None:
            assert len((await cluster.store.move_requests()).moves) <= 2
            await carry_out(cluster)
    assert await held_by(cluster, 1) == []
    assert sizes_at_once == [2, 2, 2, 2]
    costed, begun = await brokers.add(ids(1), throttle_bytes_per_s=0, validate_only=False, request_id="s")
    assert (begun, len(costed.plan.moves) > 2) == (2, True), "the caller feeds in the rest"
