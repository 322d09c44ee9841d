# SPDX-License-Identifier: Apache-2.0
"""Consumer groups among real processes, by their messages."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest
from tidemark.client.aio import AdminClient, Producer
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.record_pb2 import PartitionRef

from tests.children import resume, suspend
from tests.integration.harness.group_member import Groups, Member, call, until
from tests.integration.harness.metrics import samples
from tests.refusals import raises_code

SESSION_S = 3.0
SHORT_SESSION = {"zookeeper.session.timeout.ms": str(int(1000 * SESSION_S))}


@pytest.fixture
async def groups(cluster: LocalCluster) -> AsyncIterator[Groups]:
    calls = Groups(cluster.bootstrap.split(","))
    yield calls
    await calls.close()


@pytest.fixture
async def topic(cluster: LocalCluster) -> str:
    return await make_topic(cluster, 4)


async def make_topic(cluster: LocalCluster, partitions: int) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(name, partitions=partitions, replication_factor=3)
    return name


async def commit_once_known(groups: Groups, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit without a member; the group's coordinator may learn of a new topic after its creator."""
    deadline_s = time.monotonic() + 20
    while (codes := await groups.commit(group, topic, offsets)) != dict.fromkeys(offsets, ""):
        assert set(codes.values()) <= {ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION, ""}
        assert time.monotonic() < deadline_s, codes
        await asyncio.sleep(0.05)


async def described_with_lag(groups: Groups, group: str) -> pb.GroupDescription:
    """The group, once all lag of the topic is known: leaders may learn of a new topic after the coordinator."""
    deadline_s = time.monotonic() + 20
    while True:
        found = await groups.describe(group)
        if not any(row.HasField("error") for row in found.partitions):
            return found
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.05)


def of(topic: str, *partitions: int) -> set[tuple[str, int]]:
    return {(topic, partition) for partition in partitions}


@pytest.mark.alone
async def test_a_second_member_takes_half_and_the_first_gets_it_back(groups: Groups, topic: str, group: str) -> None:
    first = Member(groups, group, topic, assignor="range").start()
    await first.until(of(topic, 0, 1, 2, 3))
    second = Member(groups, group, topic, assignor="range").start()
    began_s = time.monotonic()
    await asyncio.gather(
        *(one.until(of(topic, *mine)) for one, mine in zip(_in_order(first, second), ((0, 1), (2, 3)), strict=True))
    )
    assert time.monotonic() - began_s < 2, "a hand-over waits for no heartbeat interval"
    described = await groups.describe(group)
    assert described.state == pb.GROUP_STATE_STABLE
    assert described.assignor == "range"
    assert {member.member_id for member in described.members} == {first.member_id, second.member_id}
    await second.leave()
    await first.until(of(topic, 0, 1, 2, 3))
    await first.leave()
    assert (await groups.describe(group)).state == pb.GROUP_STATE_EMPTY


def _in_order(*members: Member) -> list[Member]:
    return sorted(members, key=lambda member: member.member_id)


async def test_a_reconciliation_revokes_no_partition_that_a_member_keeps(
    groups: Groups, topic: str, group: str
) -> None:
    first = Member(groups, group, topic).start()
    await first.until(of(topic, 0, 1, 2, 3))
    others = [Member(groups, group, topic).start() for _ in range(3)]
    for member in (first, *others):
        deadline_s = time.monotonic() + 10
        while len(member.reading) != 1:
            assert time.monotonic() < deadline_s, member.reading
            await asyncio.sleep(0.01)
    kept = first.reading
    assert not any(lost & kept for lost in first.lost), "sticky: partitions that stay were never revoked"
    assert set().union(*(member.reading for member in (first, *others))) == of(topic, 0, 1, 2, 3)
    for member in (first, *others):
        await member.stop()


async def test_commits_are_kept_and_those_of_old_epochs_refused(groups: Groups, topic: str, group: str) -> None:
    first = Member(groups, group, topic)
    await first.beat_until(of(topic, 0, 1, 2, 3))
    assert await first.commit(topic, {0: 5, 1: 7}) == {0: "", 1: ""}
    assert await groups.committed(group) == {(topic, 0): 5, (topic, 1): 7}
    second = Member(groups, group, topic)
    await second.beat()
    epoch = first.epoch
    await first.beat()  # the answer revokes some partitions
    await first.beat()  # confirms the revocation
    assert first.epoch > epoch
    await second.beat()
    (_, taken), *_ = second.reading
    assert await first.commit(topic, {taken: 1}) == {taken: ErrorCode.PARTITION_NOT_ASSIGNED}
    first.epoch = epoch
    with raises_code(ErrorCode.STALE_MEMBER_EPOCH):
        await first.commit(topic, {0: 1})
    await first.leave()
    with raises_code(ErrorCode.UNKNOWN_MEMBER):
        await first.commit(topic, {0: 1})
    with raises_code(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        await groups.commit(group, topic, {0: 1})
    assert (await groups.committed(group))[topic, 0] == 5


async def test_a_commit_that_was_long_on_its_way_undoes_no_later_one(groups: Groups, topic: str, group: str) -> None:
    await commit_once_known(groups, group, topic, {0: 0})

    async def committed(offset: int, sequence: int, committer_id: str = "me") -> int:
        turn = {"committer_id": committer_id, "sequence": sequence}
        assert await groups.commit(group, topic, {0: offset}, **turn) == {0: ""}
        return (await groups.committed(group))[topic, 0]

    assert await committed(469, 2) == 469
    assert await committed(468, 1) == 469
    assert await committed(400, 3) == 400, "by its own will"
    assert await committed(300, 1, "another") == 300
    for wrong in ({"committer_id": "x" * 129}, {"committer_id": "me", "sequence": -1}):
        with raises_code(ErrorCode.INVALID_REQUEST):
            await groups.commit(group, topic, {0: 7}, **wrong)
    assert (await groups.committed(group))[topic, 0] == 300


async def test_a_static_member_comes_back_without_a_rebalance(groups: Groups, topic: str, group: str) -> None:
    other = Member(groups, group, topic).start()
    static = Member(groups, group, topic, instance_id="one").start()
    for member in (other, static):
        await _has_two(member)
    mine, lost = static.reading, list(other.lost)
    epoch = (await groups.describe(group)).group_epoch
    with raises_code(ErrorCode.UNRELEASED_INSTANCE_ID):
        await Member(groups, group, topic, instance_id="one").beat()
    await static.leave(epoch=-2)
    again = Member(groups, group, topic, instance_id="one").start()
    await again.until(mine)
    described = await groups.describe(group)
    assert (described.group_epoch, described.state) == (epoch, pb.GROUP_STATE_STABLE)
    assert other.lost == lost
    with raises_code(ErrorCode.FENCED_INSTANCE_ID):
        await static.beat()
    await other.stop()
    await again.stop()


async def _has_two(member: Member) -> None:
    deadline_s = time.monotonic() + 10
    while len(member.reading) != 2:
        assert time.monotonic() < deadline_s, member.reading
        await asyncio.sleep(0.01)


async def test_one_answer_contains_the_lag(cluster: LocalCluster, groups: Groups, topic: str, group: str) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for _ in range(10):
            await producer.send(topic, b"x", partition=1)
        await producer.send(topic, b"x", partition=3)
    await commit_once_known(groups, group, topic, {1: 4, 2: 0})
    described = await described_with_lag(groups, group)
    rows = {row.partition: (row.committed_offset, row.high_watermark, row.lag) for row in described.partitions}
    assert rows == {0: (-1, 0, 0), 1: (4, 10, 6), 2: (0, 0, 0), 3: (-1, 1, 1)}


async def test_offsets_are_reset_and_groups_deleted_only_without_members(
    groups: Groups, topic: str, group: str
) -> None:
    member = Member(groups, group, topic)
    while (topic, 0) not in member.reading:  # the coordinator may learn of the topic after the member
        await member.beat(max_wait_ms=200)
    assert await member.commit(topic, {0: 5}) == {0: ""}
    alter = pb.AlterGroupOffsetsRequest(group_id=group, offsets=[pb.OffsetCommit(topic=topic, partition=0, offset=2)])
    for method, request in (
        ("AlterGroupOffsets", alter),
        ("DeleteGroup", pb.DeleteGroupRequest(group_id=group)),
    ):
        with raises_code(ErrorCode.GROUP_NOT_EMPTY):
            await groups.ask(group, method, request)
    forget = pb.DeleteGroupOffsetsRequest(group_id=group, partitions=[PartitionRef(topic=topic, partition=0)])
    answer = await groups.ask(group, "DeleteGroupOffsets", forget)
    assert answer.partitions[0].error.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    await member.leave()
    alter.validate_only = True
    await groups.ask(group, "AlterGroupOffsets", alter)
    assert await groups.committed(group) == {(topic, 0): 5}
    alter.validate_only = False
    await groups.ask(group, "AlterGroupOffsets", alter)
    assert await groups.committed(group) == {(topic, 0): 2}
    kept = await groups.ask(group, "FetchOffsets", pb.FetchOffsetsRequest(group_id=group, member_epoch=-1))
    assert kept.offsets[0].leader_epoch == -1, "the request states no leader epoch"
    await groups.ask(group, "DeleteGroup", pb.DeleteGroupRequest(group_id=group))
    assert await groups.committed(group) == {}
    assert (await groups.describe(group)).error.code == ErrorCode.GROUP_NOT_FOUND


async def test_invalid_requests_have_their_own_error_codes(groups: Groups, topic: str, group: str) -> None:
    await commit_once_known(groups, group, topic, {0: 0})
    assert await groups.commit(group, topic, {9: 1}) == {9: ErrorCode.UNKNOWN_PARTITION}
    assert await groups.commit(group, "no-such-topic", {0: 1}) == {0: ErrorCode.UNKNOWN_TOPIC}
    assert await groups.commit(group, topic, {0: -5}) == {0: ErrorCode.INVALID_REQUEST}
    with raises_code(ErrorCode.UNSUPPORTED_ASSIGNOR):
        await Member(groups, group, topic, assignor="best").beat()
    found = await groups.find(group)
    other = next(address for address in groups.addresses if address != f"{found.host}:{found.port}")
    request = pb.FetchOffsetsRequest(group_id=group, member_epoch=-1)
    with raises_code(ErrorCode.NOT_COORDINATOR) as elsewhere:
        await call(lambda: groups.stub(other).FetchOffsets(request, timeout=30))
    assert elsewhere.value.metadata["coordinator"] == str(found.broker_id)
    with raises_code(ErrorCode.INVALID_GROUP_ID):
        await call(lambda: groups.stub(other).DeleteGroup(pb.DeleteGroupRequest(group_id=""), timeout=30))


async def test_only_coordinators_write_the_offsets_topic(
    cluster: LocalCluster, groups: Groups, topic: str, group: str
) -> None:
    await groups.commit(group, topic, {0: 1})
    async with Producer(cluster.bootstrap) as producer:
        with pytest.raises(TidemarkError) as refused:
            await (await producer.send("__consumer_offsets", b"x", key=b"k", partition=0))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_members_read_partitions_that_are_added(cluster: LocalCluster, groups: Groups, group: str) -> None:
    topic = await make_topic(cluster, 1)
    member = Member(groups, group, topic).start()
    await member.until(of(topic, 0))
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_partitions(topic, 3)
    await member.until(of(topic, 0, 1, 2))
    await member.leave()


async def test_a_recreated_topic_is_read_from_its_start(
    cluster: LocalCluster, groups: Groups, topic: str, group: str
) -> None:
    other = await make_topic(cluster, 2)
    member = Member(groups, group, topic, other).start()
    await member.until(of(topic, 0, 1, 2, 3) | of(other, 0, 1))
    await member.commit(other, {0: 0, 1: 7})
    async with AdminClient(cluster.admin_address) as admin:
        await admin.delete_topic(other)
        await member.until(of(topic, 0, 1, 2, 3))
        assert await groups.committed(group) == {}
        assert {row.topic for row in (await groups.describe(group)).partitions} == {topic}
        await admin.create_topic(other, partitions=2, replication_factor=3)
    await member.until(of(topic, 0, 1, 2, 3) | of(other, 0, 1))
    assert await groups.committed(group) == {}
    rows = (await described_with_lag(groups, group)).partitions
    assert {(row.committed_offset, row.lag) for row in rows if row.topic == other} == {(-1, 0)}
    await member.leave()


@pytest.mark.alone
async def test_another_broker_coordinates_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"broker": {"offsets.topic.num.partitions": "4"}}
    started = LocalCluster(tmp_path_factory.mktemp("killed"), settings=settings)
    async with started as cluster:
        groups = Groups(cluster.bootstrap.split(","))
        topic = await make_topic(cluster, 4)
        members = [Member(groups, "g", topic, assignor="range").start() for _ in range(2)]
        for member, mine in zip(_in_order(*members), ((0, 1), (2, 3)), strict=True):
            await member.until(of(topic, *mine))
        one = _in_order(*members)[0]
        assert await one.commit(topic, {0: 11, 1: 12}) == {0: "", 1: ""}
        before = {member.member_id: (member.epoch, member.reading) for member in members}
        found = await groups.find("g")
        await asyncio.to_thread(cluster.kill, broker_name(found.broker_id))
        began_s = time.monotonic()
        assert await one.commit(topic, {0: 13}) == {0: ""}
        took_s = time.monotonic() - began_s
        assert took_s < 4, f"{took_s:.1f} s until the next commit"
        assert (await groups.find("g")).broker_id != found.broker_id
        assert await groups.committed("g") == {(topic, 0): 13, (topic, 1): 12}
        await asyncio.gather(*(member.beat() for member in members))
        assert {member.member_id: (member.epoch, member.reading) for member in members} == before
        for member in members:
            await member.stop()
            assert not member.refusals
        await groups.close()


@pytest.mark.alone
async def test_requests_below_min_isr_end_and_no_member_is_evicted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {
        "broker": {
            "offsets.topic.num.partitions": "1",
            "group.consumer.session.timeout.ms": str(int(1000 * SESSION_S)),
            "offsets.commit.timeout.ms": "1000",
            **SHORT_SESSION,
        },
        "controller": SHORT_SESSION,
    }
    async with LocalCluster(tmp_path_factory.mktemp("few"), settings=settings) as cluster:
        groups = Groups(cluster.bootstrap.split(","))
        topic = await make_topic(cluster, 2)
        member = Member(groups, "g", topic).start()
        await member.until(of(topic, 0, 1))
        await member.commit(topic, {0: 1})
        epoch = member.epoch
        found = await groups.find("g")
        address = f"{found.host}:{found.port}"
        others = [broker_name(broker_id) for broker_id in range(3) if broker_id != found.broker_id]
        for name in others:
            await asyncio.to_thread(cluster.kill, name)
        request = pb.CommitOffsetsRequest(group_id="g", member_id=member.member_id, member_epoch=member.epoch)
        request.offsets.add(topic=topic, partition=0, offset=2, leader_epoch=-1)
        ends_s, codes = time.monotonic() + 1.5 * SESSION_S, set()
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            with pytest.raises(TidemarkError) as refused:
                await call(lambda: groups.stub(address).CommitOffsets(request, timeout=10))
            assert time.monotonic() - began_s < 3, "a call hangs"
            assert refused.value.retriable, refused.value
            codes.add(refused.value.code)
            await asyncio.sleep(0.1)
        assert codes <= {
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.COORDINATOR_LOADING,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }
        for name in others:
            await asyncio.to_thread(cluster.restart, name)
        assert await member.commit(topic, {0: 3}) == {0: ""}
        assert await groups.committed("g") == {(topic, 0): 3}
        await member.stop()
        await member.beat()
        assert (member.epoch, member.reading) == (epoch, of(topic, 0, 1))
        assert not {ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH} & set(member.refusals)
        await groups.close()


@pytest.mark.alone
@pytest.mark.usefixtures("own_zookeeper")
async def test_groups_continue_while_zookeeper_is_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"broker": SHORT_SESSION, "controller": SHORT_SESSION}
    async with LocalCluster(tmp_path_factory.mktemp("away"), settings=settings) as cluster:
        groups = Groups(cluster.bootstrap.split(","))
        topic = await make_topic(cluster, 2)
        suspend(cluster.zookeeper.pid)
        began_s = time.monotonic()
        request = pb.FindCoordinatorRequest(group_ids=["g"])
        first_use = (
            await call(lambda: groups.stub(groups.addresses[0]).FindCoordinator(request, timeout=10))
        ).coordinators
        assert first_use[0].error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert time.monotonic() - began_s < 5
        resume(cluster.zookeeper.pid)
        member = Member(groups, "g", topic).start()
        await member.until(of(topic, 0, 1))
        suspend(cluster.zookeeper.pid)
        until_s, offset = time.monotonic() + 1.5 * SESSION_S, 0
        while time.monotonic() < until_s:
            offset += 1
            began_s = time.monotonic()
            assert await member.commit(topic, {0: offset}) == {0: ""}
            assert time.monotonic() - began_s < 2
            await asyncio.sleep(0.1)
        second = Member(groups, "g", topic).start()
        await until(lambda: len(second.reading) == 1, lambda: "the second member gets nothing")
        resume(cluster.zookeeper.pid)
        assert (await groups.committed("g"))[topic, 0] == offset
        for one in (member, second):
            await one.stop()
            assert not one.refusals
        await groups.close()


def _cleaned_least(cluster: LocalCluster) -> float:
    """The number of compactions of the broker that compacted least."""
    return min(_cleaned(cluster, broker_id) for broker_id in range(3))


def _cleaned(cluster: LocalCluster, broker_id: int) -> float:
    return samples(cluster, broker_name(broker_id))["tidemark_broker_log_cleaner_runs_total"]


async def test_compaction_of_the_offsets_topic_keeps_the_state_of_groups(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"broker": {"offsets.topic.num.partitions": "1", "log.cleaner.backoff.ms": "50"}}
    started = LocalCluster(tmp_path_factory.mktemp("compacted"), settings=settings)
    async with started as cluster:
        groups = Groups(cluster.bootstrap.split(","))
        topic = await make_topic(cluster, 4)
        member = Member(groups, "g", topic)
        await member.beat_until(of(topic, 0, 1, 2, 3))
        await groups.commit("gone", topic, {0: 1})
        await groups.ask("gone", "DeleteGroup", pb.DeleteGroupRequest(group_id="gone"))
        async with AdminClient(cluster.admin_address) as admin:
            resource = ConfigResource(ConfigKind.TOPIC, "__consumer_offsets")
            small = {"segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
            await admin.alter_configs(resource, set_=small)
        offset, deadline_s = 0, time.monotonic() + 40
        while await asyncio.to_thread(_cleaned_least, cluster) < 3:
            assert time.monotonic() < deadline_s, "nothing is compacted"
            for _ in range(50):
                offset += 1
                await member.commit(topic, {0: offset, 1: 2 * offset})
        found = await groups.find("g")
        await asyncio.to_thread(cluster.kill, broker_name(found.broker_id))
        assert await groups.committed("g") == {(topic, 0): offset, (topic, 1): 2 * offset}
        assert await groups.committed("gone") == {}
        assert (await member.beat()).member_epoch == member.epoch
        assert member.reading == of(topic, 0, 1, 2, 3)
        await groups.close()
