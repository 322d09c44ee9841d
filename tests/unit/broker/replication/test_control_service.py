# SPDX-License-Identifier: Apache-2.0
"""Commands of the controller that name log directories: recorded before the core opens logs (rules M1, M3)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.broker.replication.control_service import SLICE_PARTITIONS, BrokerControl
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.messages import LeaderAndIsrCommand, NewSchemas, PartitionCommand
from tidemark.core.reassignment.log_dir_placement import LOG_DIR_PENDING
from tidemark.core.replication.effects import ReplyToControl
from tidemark.core.replication.events import LeaderAndIsrArrived
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    ErrorCode,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.codecs.control import leader_and_isr_to_proto, refusals_from_proto
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.v1 import controller_service_pb2 as pb

from tests.fakes.contexts import PlainContext
from tests.refusals import raises_code

EPOCH = BrokerEpoch(3)


class Core:
    """Records the order of its calls, and refuses those that the test states."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.refuses: tuple[tuple[TopicPartition, TidemarkError], ...] = ()
        self.without: frozenset[str] = frozenset()
        self.kept = True
        self.overtaken_after: int | None = None
        self.topics = TopicTable()
        self.core: Any = None
        self.control = BrokerControl(
            cast(BrokerDriver, self),
            self.topics,
            MetadataCache(""),
            OwnEpoch(EPOCH),
            directories=self,
            on_disk=dict,
            offline_directories=tuple,
            on_ping=lambda may_shut_down: None,
        )

    def submit(self, event: Any) -> None:
        assert isinstance(event, LeaderAndIsrArrived)
        if self.overtaken_after is not None and len(self.order) >= self.overtaken_after:
            error = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "a newer command came first")
            self.control.reply(ReplyToControl(event.request_id, error))
            return
        self.order += [f"adopt {one.partition}" for one in event.command.partitions]
        self.control.reply(ReplyToControl(event.request_id, None, self.refuses))

    def want(self, partition: TopicPartition, log_dir: str, identity: ReplicaIdentity) -> None:
        """The assignment to log directories."""
        if log_dir in self.without:
            raise TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, f"there is no {log_dir}")
        self.order.append(f"hold {partition} in {log_dir}")

    async def without_copy(self, partitions: Collection[TopicPartition]) -> list[tuple[TopicPartition, TidemarkError]]:
        """The log directory moves whose copies are not made."""
        return [] if self.kept else [(one, TidemarkError(LOG_DIR_PENDING, "no copy yet")) for one in partitions]

    async def command(self, **log_dirs: str) -> dict[str, ErrorCode]:
        """Send a command for partitions p0, p1... of topic "t"; returns the refusals."""
        command = LeaderAndIsrCommand(
            BrokerId(9),
            ControllerEpoch(1),
            EPOCH,
            tuple(_command(int(name[1:]), log_dir) for name, log_dir in log_dirs.items()),
        )
        answer = await self.control.LeaderAndIsr(leader_and_isr_to_proto(command), PlainContext())
        return {f"p{one.partition}": error.code for one, error in refusals_from_proto(answer.errors)}


def _command(index: int, log_dir: str) -> PartitionCommand:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(0), (), (), (), 1, 0, False, ControllerEpoch(1))
    identity = ReplicaIdentity("id", "incarnation")
    return PartitionCommand(TopicPartition("t", index), identity, (BrokerId(1),), state, 0, log_dir=log_dir)


async def test_directories_are_recorded_before_replicas_are_created() -> None:
    core = Core()
    assert await core.command(p0="", p1="/data/1") == {}
    assert core.order == ["hold t-1 in /data/1", "adopt t-0", "adopt t-1"]


async def test_a_missing_directory_is_refused_and_the_partition_adopted() -> None:
    core = Core()
    core.without = frozenset({"/none"})
    assert await core.command(p0="/none", p1="/data/1") == {"p0": ErrorCode.LOG_DIR_NOT_FOUND}
    assert core.order == ["hold t-1 in /data/1", "adopt t-0", "adopt t-1"]


async def test_a_directory_without_a_copy_yet_is_reported_and_the_partition_adopted() -> None:
    core = Core()
    core.kept, core.without = False, frozenset({"/none"})
    assert await core.command(p0="/none", p1="/data/1", p2="") == {
        "p0": ErrorCode.LOG_DIR_NOT_FOUND,
        "p1": LOG_DIR_PENDING,
    }
    assert core.order == ["hold t-1 in /data/1", "adopt t-0", "adopt t-1", "adopt t-2"]


async def test_a_refusal_of_the_core_is_reported_once() -> None:
    core = Core()
    core.without = frozenset({"/none"})
    core.refuses = ((TopicPartition("t", 0), TidemarkError(ErrorCode.STORAGE_ERROR, "its disk is gone")),)
    assert await core.command(p0="/none") == {"p0": ErrorCode.STORAGE_ERROR}


async def test_a_command_of_thousands_of_partitions_yields_to_the_event_loop_regularly() -> None:
    core = Core()
    turns: list[int] = []

    async def another_task() -> None:
        while True:
            turns.append(len(core.order))
            await asyncio.sleep(0)

    beside = asyncio.create_task(another_task())
    assert await core.command(**{f"p{index}": "" for index in range(2345)}) == {}
    beside.cancel()
    assert core.order == [f"adopt t-{index}" for index in range(2345)]
    assert max(after - before for before, after in itertools.pairwise(turns)) <= SLICE_PARTITIONS


async def test_a_refusal_of_any_slice_is_reported() -> None:
    core = Core()
    core.refuses = ((TopicPartition("t", 5), TidemarkError(ErrorCode.STORAGE_ERROR, "its disk is gone")),)
    assert await core.command(**{f"p{index}": "" for index in range(150)}) == {"p5": ErrorCode.STORAGE_ERROR}


async def test_a_superseded_slice_refuses_the_whole_command() -> None:
    core = Core()
    core.overtaken_after = 2 * SLICE_PARTITIONS
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        await core.command(**{f"p{index}": "" for index in range(300)})


class Controller(PlainContext):
    """The broker's end of a heartbeat stream; its connection may break during a write."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answers: list[pb.HeartbeatResponse] = []
        self.answered = asyncio.Event()
        self._error = error
        self._pings = [pb.HeartbeatRequest(header=pb.ControlHeader(broker_epoch=EPOCH), sequence=1)]

    async def read(self) -> pb.HeartbeatRequest:
        """The first call returns a ping; later ones wait."""
        if self._pings:
            return self._pings.pop()
        await asyncio.Event().wait()
        raise AssertionError("the stream is cancelled first")

    async def write(self, response: pb.HeartbeatResponse) -> None:
        """Fail after the first answer if the test requires it."""
        if self.answers and self._error is not None:
            raise self._error
        self.answers.append(response)
        self.answered.set()


@pytest.mark.parametrize(
    "error",
    [
        grpc.aio.InternalError("execute_batch"),
        grpc.aio.UsageError("the stream has ended"),
        grpc.aio.AbortError("a newer controller is active"),
        asyncio.InvalidStateError(),
        grpc.RpcError(),
    ],
)
async def test_a_stopping_broker_informs_every_controller_even_if_a_stream_to_another_one_breaks(
    error: Exception,
) -> None:
    control = Core().control
    controllers = [Controller(error), Controller(), Controller(error)]
    streams = [asyncio.create_task(control.Heartbeat(None, one)) for one in controllers]
    for one in controllers:
        await one.answered.wait()
    await control.want_shutdown()
    assert [one.wants_shutdown for one in controllers[1].answers] == [False, True]
    control.stop()
    await asyncio.wait(streams)


async def test_an_overtaken_command_brings_back_no_older_settings() -> None:
    core = Core()
    newer, older = ({"flush.policy": policy} for policy in ("group-commit", "os"))
    for sequence, configs in ((1, older), (3, newer)):
        await core.control.LeaderAndIsr(leader_and_isr_to_proto(_settings(sequence, configs)), PlainContext())
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        await core.control.LeaderAndIsr(leader_and_isr_to_proto(_settings(2, older)), PlainContext())
    assert core.topics.configs("t") == newer


async def test_schemas_come_with_any_part_of_a_command_and_an_overtaken_one_changes_none() -> None:
    core = Core()
    for sequence, topic_id, texts in ((1, "first", {1: "{}"}), (3, "first", {2: "{}"})):
        alone = replace(_settings(sequence, {}), partitions=(), schemas={"t": NewSchemas(topic_id, texts)})
        await core.control.LeaderAndIsr(leader_and_isr_to_proto(alone), PlainContext())
    assert core.topics.schema_texts("t").texts == {1: "{}", 2: "{}"}
    late = replace(_settings(2, {}), partitions=(), schemas={"t": NewSchemas("older id", {1: "{}"})})
    with pytest.raises(TidemarkError):
        await core.control.LeaderAndIsr(leader_and_isr_to_proto(late), PlainContext())
    assert core.topics.schema_texts("t").topic_id == "first"
    await core.control.LeaderAndIsr(leader_and_isr_to_proto(_settings(4, {})), PlainContext())
    assert core.topics.schema_texts("t").texts == {}, "the partition of that command has another topic id"


async def test_a_broker_forgets_settings_and_schema_of_a_deleted_topic_without_a_replica_here() -> None:
    core = Core()
    core.topics.update({"t": {"flush.policy": "group-commit"}})
    held: list[TopicPartition] = []
    core.core = SimpleNamespace(queries=SimpleNamespace(partitions=lambda: tuple(held)))
    schemas = {"t": NewSchemas("first", {1: "{}"})}
    await core.control.LeaderAndIsr(
        leader_and_isr_to_proto(replace(_settings(1, {}), partitions=(), topic_configs={}, schemas=schemas)),
        PlainContext(),
    )

    async def metadata(*ids: str, gone: tuple[str, ...] = ()) -> dict[int, str]:
        views = [TopicView("t", one, created_zxid=int(one == "second")) for one in ids]
        topics = {one.topic: one for one in views}
        view = ClusterView(controller_epoch=ControllerEpoch(1), topics=topics, deleted_topics=gone)
        header = pb.ControlHeader(controller_id=9, controller_epoch=1, broker_epoch=EPOCH)
        await core.control.UpdateMetadata(
            pb.UpdateMetadataRequest(header=header, metadata=view_to_proto(view)), PlainContext()
        )
        return dict(core.topics.schema_texts("t").texts)

    assert await metadata() == {1: "{}"}, "metadata has not named the topic yet"
    assert await metadata("first") == {1: "{}"}
    held.append(TopicPartition("t", 0))
    assert await metadata(gone=("t",)) == {1: "{}"}, "a replica is still here"
    assert core.topics.configs("t")
    held.clear()
    assert await metadata("first") == {1: "{}"}
    assert await metadata("second") == {}
    await core.control.LeaderAndIsr(
        leader_and_isr_to_proto(
            replace(_settings(2, {}), partitions=(), schemas={"t": NewSchemas("second", {1: "{}"})})
        ),
        PlainContext(),
    )
    assert await metadata("second") == {1: "{}"}
    assert await metadata(gone=("t",)) == {}
    assert not core.topics.configs("t")


def _settings(sequence: int, configs: dict[str, str]) -> LeaderAndIsrCommand:
    partitions = (_command(0, ""),)
    return LeaderAndIsrCommand(
        BrokerId(9), ControllerEpoch(1), EPOCH, partitions, sequence=sequence, topic_configs={"t": configs}
    )
