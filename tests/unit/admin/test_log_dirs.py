# SPDX-License-Identifier: Apache-2.0
"""Log directories at the admin service: many brokers, refusals, and reassignments that name directories (M3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from tidemark.admin.log_dirs import LogDirAdministration
from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    Offset,
    PartitionReassignment,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs, BrokersFromProto, broker_to_proto
from tidemark.rpc.codecs.alter_log_dirs import Alteration, AlterLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk, Wanted

from tests.refusals import raises_code
from tests.unit.admin.moving import Cluster, Sizes, ids

P0, P1 = TopicPartition("test", 0), TopicPartition("test", 1)


class Disks:
    """Brokers with directories /data/<broker>/0 and 1, the second of which may be offline."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.wanted = Wanted()
        self.offline: set[int] = set()
        self.asked: list[tuple[int, AlterLogDirs]] = []
        self.held: dict[tuple[int, int], list[ReplicaOnDisk]] = {}

    async def describe(self, broker: BrokerRegistration, wanted: Wanted) -> tuple[LogDirectoryContent, ...]:
        self._reach(broker)
        self.wanted = wanted
        number = broker.broker_id
        return tuple(
            LogDirectoryContent(f"u{number}{i}", f"/data/{number}/{i}", 10, 5, None, tuple(held))
            for i, held in enumerate(self.held.get((number, i), []) for i in range(2))
        )

    async def alter(self, broker: BrokerRegistration, wanted: AlterLogDirs) -> Sequence[Alteration]:
        self._reach(broker)
        self.asked.append((broker.broker_id, wanted))
        return [(partition, self._judge(broker.broker_id, log_dir)) for partition, log_dir in wanted.replicas]

    def _reach(self, broker: BrokerRegistration) -> None:
        if broker.broker_id in self.silent:
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer for 10 s")

    def _judge(self, broker: int, log_dir: str) -> TidemarkError | None:
        if log_dir not in {f"{name}{i}" for i in range(2) for name in (f"/data/{broker}/", f"u{broker}")}:
            return TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, f"there are /data/{broker}/0, /data/{broker}/1")
        if broker in self.offline and log_dir.endswith("/1"):
            return TidemarkError(ErrorCode.LOG_DIR_OFFLINE, "its disk is gone")
        return None


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    await made.topic("test", (0, 1), (1, 2))
    yield made
    await made.store.stop()


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def admin(cluster: Cluster, disks: Disks) -> LogDirAdministration:
    return LogDirAdministration(cluster.store, disks)


def place(broker: int, partition: TopicPartition, log_dir: str) -> ReplicaLogDir:
    return ReplicaLogDir(BrokerId(broker), partition, log_dir)


async def test_failing_broker_does_not_hide_other_brokers(admin: LogDirAdministration, disks: Disks) -> None:
    disks.silent = {1}
    found = await admin.describe(())
    assert [(one.broker_id, len(one.log_dirs), one.error and one.error.code) for one in found] == [
        (0, 2, None),
        (1, 0, ErrorCode.REQUEST_TIMED_OUT),
        (2, 2, None),
    ]


async def test_offline_broker_is_described_with_an_error(admin: LogDirAdministration) -> None:
    found = await admin.describe([BrokerId(2), BrokerId(7)], ["test"])
    assert [(one.broker_id, one.error and one.error.code) for one in found] == [
        (2, None),
        (7, ErrorCode.BROKER_NOT_AVAILABLE),
    ]


async def test_brokers_are_asked_for_the_isr_changes_that_the_caller_wants(
    admin: LogDirAdministration, disks: Disks
) -> None:
    await admin.describe([BrokerId(2)], (), [P0], include_isr_changes=True)
    assert disks.wanted == Wanted(frozenset(), frozenset([P0]), include_isr_changes=True)
    await admin.describe([BrokerId(2)], ["test"])
    assert disks.wanted == Wanted(frozenset(["test"]))


async def test_unknown_topic_is_refused(admin: LogDirAdministration) -> None:
    for topics, partitions in ((["none"], []), ([], [TopicPartition("none", 0)])):
        with raises_code(ErrorCode.UNKNOWN_TOPIC, r"no topic .none.;"):
            await admin.describe((), topics, partitions)


async def test_replicas_of_several_brokers_are_moved_independently(admin: LogDirAdministration, disks: Disks) -> None:
    disks.silent, disks.offline = {2}, {0}
    placed = await admin.alter(
        [
            place(1, P1, "/data/1/1"),
            place(0, P0, "/data/0/1"),
            place(2, P1, "/data/2/0"),
            place(1, P0, "/none"),
            place(2, P0, "/data/2/0"),
            place(0, TopicPartition("test", 9), "/data/0/0"),
            place(0, TopicPartition("none", 0), "/data/0/0"),
        ],
        throttle_bytes_per_s=7,
        validate_only=False,
    )
    assert [(one.broker_id, one.partition, one.error and one.error.code) for one in placed] == [
        (1, P1, None),
        (0, P0, ErrorCode.LOG_DIR_OFFLINE),
        (2, P1, ErrorCode.REQUEST_TIMED_OUT),
        (1, P0, ErrorCode.LOG_DIR_NOT_FOUND),
        (2, P0, ErrorCode.NOT_A_REPLICA),
        (0, TopicPartition("test", 9), ErrorCode.UNKNOWN_PARTITION),
        (0, TopicPartition("none", 0), ErrorCode.UNKNOWN_TOPIC),
    ]
    assert {wanted.throttle_bytes_per_s for _, wanted in disks.asked} == {7}
    assert not any(wanted.validate_only for _, wanted in disks.asked)
    assert placed[3].error is not None
    assert "test-0 on broker 1" in placed[3].error.message
    assert "/data/1/0, /data/1/1" in placed[3].error.message


@pytest.mark.parametrize(
    ("places", "throttle"),
    [
        ([], 0),
        ([place(0, P0, "/data/0/1")], -1),
        ([place(0, P0, "/data/0/1"), place(0, P0, "/data/0/0")], 0),
    ],
)
async def test_invalid_log_dir_request_is_refused_as_a_whole(
    admin: LogDirAdministration, disks: Disks, places: list[ReplicaLogDir], throttle: int
) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await admin.alter(places, throttle_bytes_per_s=throttle, validate_only=False)
    assert not disks.asked


async def test_reassignment_to_an_unknown_directory_is_refused_after_a_check_only(
    cluster: Cluster, admin: LogDirAdministration, disks: Disks
) -> None:
    moves = ReassignmentAdministration(cluster.store, Sizes(), log_dirs=admin)
    disks.offline = {2}
    query = MovesQuery(
        [
            PartitionReassignment(P0, ids(0, 2), ("any", "/data/2/1")),
            PartitionReassignment(P1, ids(1, 0), ("/data/0/0", "/data/0/1")),
        ],
        allow_partial=True,
    )
    answer = await moves.alter(query, validate_only=False)
    codes = {one.partition: one.error and one.error.code for one in answer.outcomes}
    assert codes == {P0: ErrorCode.LOG_DIR_OFFLINE, P1: ErrorCode.LOG_DIR_NOT_FOUND}
    assert all(wanted.validate_only for _, wanted in disks.asked)
    assert not (await cluster.store.move_requests()).moves


async def test_reassignment_that_only_names_directories_is_stored(
    cluster: Cluster, admin: LogDirAdministration
) -> None:
    moves = ReassignmentAdministration(cluster.store, Sizes(), log_dirs=admin)
    wanted = PartitionReassignment(P0, ids(0, 1), ("any", "/data/1/1"), request_id="mine")
    same = PartitionReassignment(P1, ids(1, 2), ("any", "any"))
    await moves.alter(MovesQuery([wanted, same], request_id="mine"), validate_only=False)
    assert (await cluster.store.move_requests()).moves == (wanted,)


def test_descriptions_of_many_replicas_survive_encoding() -> None:
    zero = Offset(0)
    replicas = tuple(
        ReplicaOnDisk(
            TopicPartition("t", index), ReplicaIdentity("id", "i"), index, zero, zero, zero, False, 3, 0.0, False,
            future=index == 4_500,
        )
        for index in range(5_000)
    )  # fmt: skip
    sent = [
        BrokerLogDirs(
            BrokerId(1),
            (
                LogDirectoryContent("u0", "/data/0", 10, 5, None, replicas[:4_000]),
                LogDirectoryContent("u1", "/data/1", 10, 5, TidemarkError(ErrorCode.STORAGE_ERROR, "gone"), ()),
                LogDirectoryContent("u2", "/data/2", 10, 5, None, replicas[4_000:]),
            ),
        ),
        BrokerLogDirs(BrokerId(2), error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away")),
    ]
    arrived = BrokersFromProto()
    messages = [message for one in sent for message in broker_to_proto(one)]
    assert len(messages) > 3
    for message in messages:
        arrived.add(message)
    assert _told(arrived.result()) == _told(sent)


def _told(brokers: Sequence[BrokerLogDirs]) -> list[object]:
    return [
        (
            one.broker_id,
            one.error and one.error.code,
            [(part.directory_id, part.path, part.error and part.error.code, part.replicas) for part in one.log_dirs],
        )
        for one in brokers
    ]


async def test_many_replicas_are_requested_in_several_calls(
    cluster: Cluster, admin: LogDirAdministration, disks: Disks
) -> None:
    await cluster.topic("many", *[(0,)] * 250)
    places = [place(0, TopicPartition("many", index), "/data/0/1") for index in range(250)]
    placed = await admin.alter(places, throttle_bytes_per_s=0, validate_only=False)
    assert [one.error for one in placed] == [None] * 250
    assert [len(wanted.replicas) for _, wanted in disks.asked] == [100, 100, 50]
