# SPDX-License-Identifier: Apache-2.0
"""Requested elections at the admin service; store and controller are fakes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tidemark.admin.elections import ElectionAdministration, ElectionQuery
from tidemark.admin.requests import AnsweredOnce
from tidemark.admin.servicer import AdminServicer
from tidemark.admin.surveys import Answer, Survey
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
)
from tidemark.ports import ControllerTerm, StateWrite
from tidemark.runtime import slices
from tidemark.runtime.clock import SystemClock
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import record_pb2

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.refusals import raises_code
from tests.turns import counted_turns
from tests.unit.admin.test_configs import Caller

PREFERRED, LAST_KNOWN = ElectionKind.PREFERRED, ElectionKind.LAST_KNOWN
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


class Replicas:
    """The reports of brokers; a broker without an entry does not answer."""

    def __init__(self) -> None:
        self.held: dict[int, ReplicaDescription] = {}
        self.opening: set[int] = set()
        self.asked: list[int] = []
        self.without_controller = 0
        """Number of questions before a controller is active."""

    async def ask(self, broker: BrokerId, epoch: BrokerEpoch, questions: Sequence[ReplicaQuestion]) -> Answer:
        if self.without_controller:
            self.without_controller -= 1
            raise TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, "no controller is active")
        self.asked.append(broker)
        partitions = [question.partition for question in questions]
        if broker in self.opening:
            self.opening.discard(broker)
            return Answer({}, frozenset(partitions))
        if broker not in self.held:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "it does not answer")
        return Answer(dict.fromkeys(partitions, self.held[broker]), frozenset())


class Cluster:
    """Brokers 0 and 1 live, 2 does not; the topic t has three partitions on all of them."""

    store: FakeMetadataStore
    term: ControllerTerm

    def __init__(self) -> None:
        self.zookeeper = FakeZooKeeper()
        self.replicas = Replicas()
        self.topic = TopicDescription(
            "t",
            "id",
            dict.fromkeys(range(3), (BrokerId(0), BrokerId(1), BrokerId(2))),
            {index: f"i{index}" for index in range(3)},
        )

    async def start(self) -> None:
        self.store = self.zookeeper.store()
        await self.store.start()
        for broker in (0, 1):
            registration = BrokerRegistration(BrokerId(broker), "h", 1, directory_ids=(f"d{broker}",), boot_id="b")
            await self.store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
        await self.store.create_topic(self.topic)
        term = await self.store.elect_controller(BrokerId(100), "h:1")
        assert term is not None
        self.term = term

    async def led(self, partition: TopicPartition, leader: int, *isr: int, version: int = -1, lineage: int = 0) -> None:
        entries = tuple(IsrEntry(BrokerId(broker), BrokerEpoch(0)) for broker in isr)
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(version + 5), entries, min_isr=1, lineage=lineage)
        await self.write(partition, state, version)

    async def write(
        self, partition: TopicPartition, state: LeaderAndIsr, version: int, report: UncleanElection | None = None
    ) -> None:
        identity = ReplicaIdentity(self.topic.topic_id, self.topic.incarnations[partition.partition])
        await self.store.write_states(self.term, [StateWrite(partition, identity, state, version, report=report)])

    async def carries_out(self, kind: ElectionKind, *, leader: int | None) -> tuple[TopicPartition, ...]:
        """Act as controller: elect `leader` (None: refuse), then delete the request."""
        news = asyncio.Event()
        self.store.listen(lambda _: news.set())
        while (request := await self.store.requested_elections(kind, watch=True)) is None:
            news.clear()
            await news.wait()
        states = await self.store.states(request.partitions)
        for partition in request.partitions if leader is not None else ():
            old, version = states[partition]
            unclean, elected = kind is LAST_KNOWN, BrokerId(leader or 0)
            state = replace(
                old,
                leader=elected,
                isr=old.isr if elected in old.isr_ids else (*old.isr, IsrEntry(elected, BrokerEpoch(0))),
                leader_epoch=LeaderEpoch(old.leader_epoch + 1),
                lineage=old.lineage + unclean,
            )
            report = UncleanElection(
                partition, "id", state.lineage, state.leader, state.leader_epoch, request_id=request.request_id
            )
            await self.write(partition, state, version, report if unclean else None)
        await self.store.finish_elections(self.term, request)
        return request.partitions

    async def elect(
        self,
        kind: ElectionKind,
        *partitions: TopicPartition,
        topics: Sequence[str] = (),
        validate_only: bool = False,
        request_id: str = "",
        timeout_s: float = 10.0,
    ) -> list[ElectionOutcome]:
        administration = ElectionAdministration(self.store, Survey(self.replicas, deadline_s=5))
        query = ElectionQuery(kind, partitions, topics, request_id)
        return await administration.elect(query, validate_only=validate_only, timeout_s=timeout_s)


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster()
    await made.start()
    return made


def codes(outcomes: Sequence[ElectionOutcome]) -> list[ErrorCode | None]:
    return [None if outcome.error is None else outcome.error.code for outcome in outcomes]


def sentences(outcomes: Sequence[ElectionOutcome]) -> list[str]:
    return [outcome.error.message for outcome in outcomes if outcome.error is not None]


async def nothing_is_asked(cluster: Cluster) -> bool:
    return all([await cluster.store.requested_elections(kind) is None for kind in ElectionKind])


async def test_a_request_for_many_partitions_lets_other_calls_run_and_logs_few(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    cluster, count, absent = Cluster(), 1_000, cast("Any", None)
    cluster.topic = replace(
        cluster.topic,
        partitions=dict.fromkeys(range(count), cluster.topic.partitions[0]),
        incarnations={index: f"i{index}" for index in range(count)},
    )
    await cluster.start()
    servicer = AdminServicer(
        absent,
        ElectionAdministration(cluster.store, Survey(cluster.replicas, deadline_s=5)),
        descriptions=absent,
        configs=absent,
        requests=AnsweredOnce(cluster.store, SystemClock()),
        reassignments=absent,
        partitions=absent,
        brokers=absent,
        log_dirs=absent,
        acls=absent,
        quotas=absent,
        schemas=absent,
        audit_lines=absent,
        of_callers=absent,
        request_timeout_ms=1000,
    )
    request = pb.ElectLeadersRequest(
        type=pb.ELECTION_TYPE_PREFERRED,
        partitions=[record_pb2.PartitionRef(topic="t", partition=index) for index in range(count)],
    )
    caplog.set_level(logging.INFO, "tidemark.audit")
    async with counted_turns() as turns:
        response = await servicer.ElectLeaders(request, Caller())
    assert {result.error.code for result in response.results} == {"LEADER_NOT_AVAILABLE"}
    assert len(turns) > 2.5 * count, "the read, the checks and the response are divided"
    (line,) = [record for record in caplog.records if record.name == "tidemark.audit"]
    assert (len(vars(line)["partitions"]), vars(line)["partitions_count"]) == (100, count)


async def test_a_topic_with_a_damaged_node_is_refused_and_other_topics_are_elected(cluster: Cluster) -> None:
    """Regression: the whole request was refused."""
    await cluster.led(T0, 1, 0, 1)
    await cluster.store.create_topic(replace(cluster.topic, topic="u", topic_id="id-u"))
    cluster.zookeeper.corrupt("/brokers/topics/u", b"\xff")
    hurt = TopicPartition("u", 0)
    for topics in ([], ["u"]):
        outcomes = await cluster.elect(PREFERRED, T0, hurt, topics=topics, validate_only=True)
        assert codes(outcomes) == [None, *[ErrorCode.INTERNAL] * (1 + len(topics))]
    assert "node of topic u" in sentences(outcomes)[0]


async def test_controller_gets_only_partitions_that_need_an_election(
    cluster: Cluster,
) -> None:
    await cluster.led(T0, 1, 0, 1)
    await cluster.led(T1, 0, 0, 1)
    await cluster.led(T2, 1, 1)
    done, outcomes = await asyncio.gather(
        cluster.carries_out(PREFERRED, leader=0), cluster.elect(PREFERRED, topics=["t"])
    )
    assert done == (T0,)
    assert codes(outcomes) == [None, None, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert [(one.leader_before, one.leader, one.changed) for one in outcomes] == [
        (1, 0, True),
        (0, 0, False),
        (1, 1, False),
    ]
    assert sentences(outcomes) == [
        "broker 1 still leads t-2: its preferred replica, broker 0, is not in sync yet (the ISR is 1): "
        "wait until it has caught up"
    ]


async def test_preferred_election_without_names_covers_all_topics(cluster: Cluster) -> None:
    for partition in (T0, T1, T2):
        await cluster.led(partition, 1, 0, 1)
    done, outcomes = await asyncio.gather(cluster.carries_out(PREFERRED, leader=0), cluster.elect(PREFERRED))
    assert done == (T0, T1, T2)
    assert [one.leader for one in outcomes] == [0, 0, 0]


@pytest.mark.parametrize("kind", list(ElectionKind))
async def test_unknown_topics_and_partitions_are_refused_with_code_and_message(
    cluster: Cluster, kind: ElectionKind
) -> None:
    outcomes = await cluster.elect(kind, TopicPartition("nowhere", 0), TopicPartition("t", 3), TopicPartition("t", -1))
    assert codes(outcomes) == [
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_PARTITION,
    ]
    assert sentences(outcomes) == [
        "there is no topic 'nowhere'; `tidemark topic list` shows the topics, `tidemark topic create` makes one",
        "topic t has no partition -1; it has 3, from 0",
        "topic t has no partition 3; it has 3, from 0",
    ]
    assert await nothing_is_asked(cluster)


@pytest.mark.parametrize("name", ["", "..", "t/0", "t/../t", "t\0", "é", "t" * 250])
async def test_invalid_topic_name_is_refused_without_a_lookup(cluster: Cluster, name: str) -> None:
    await cluster.led(T0, 1, 0, 1)
    for kind in ElectionKind:
        assert codes(await cluster.elect(kind, TopicPartition(name, 0))) == [ErrorCode.INVALID_TOPIC_NAME]
    assert codes(await cluster.elect(PREFERRED, topics=[name])) == [ErrorCode.INVALID_TOPIC_NAME]
    with raises_code(ErrorCode.INVALID_TOPIC_NAME):
        await ElectionAdministration(cluster.store, Survey(cluster.replicas)).unclean_elections([name])
    assert await nothing_is_asked(cluster)


async def test_too_long_request_id_is_refused(cluster: Cluster) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await cluster.elect(LAST_KNOWN, T0, request_id="r" * 129)


async def test_topic_being_deleted_is_unknown(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    await cluster.store.request_topic_deletion("t")
    assert codes(await cluster.elect(PREFERRED, T0)) == [ErrorCode.UNKNOWN_TOPIC]
    assert codes(await cluster.elect(PREFERRED, topics=["t"])) == [ErrorCode.UNKNOWN_TOPIC]
    assert await nothing_is_asked(cluster)


async def test_offline_preferred_replica_is_named_in_the_refusal(cluster: Cluster) -> None:
    two_first = replace(cluster.topic, topic="u", topic_id="u", partitions={0: (BrokerId(2), BrokerId(0))})
    await cluster.store.create_topic(two_first)
    cluster.topic = two_first
    u0 = TopicPartition("u", 0)
    await cluster.led(u0, 0, 0, 2)
    outcomes = await cluster.elect(PREFERRED, u0)
    assert codes(outcomes) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert sentences(outcomes) == ["broker 0 still leads u-0: its preferred replica, broker 2, is not live: start it"]
    assert await nothing_is_asked(cluster)


async def test_preferred_election_without_a_leader_is_refused(cluster: Cluster) -> None:
    await cluster.led(T0, NO_LEADER)
    assert codes(await cluster.elect(PREFERRED, T0, T1)) == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
    assert await nothing_is_asked(cluster)


async def test_refusal_of_the_controller_is_the_outcome(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    _, outcomes = await asyncio.gather(cluster.carries_out(PREFERRED, leader=None), cluster.elect(PREFERRED, T0))
    assert codes(outcomes) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    await cluster.led(T1, NO_LEADER)
    _, outcomes = await asyncio.gather(cluster.carries_out(LAST_KNOWN, leader=None), cluster.elect(LAST_KNOWN, T1))
    assert codes(outcomes) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]


async def test_last_known_election_returns_its_loss_report(cluster: Cluster) -> None:
    await cluster.led(T0, NO_LEADER)
    _, (outcome,) = await asyncio.gather(cluster.carries_out(LAST_KNOWN, leader=1), cluster.elect(LAST_KNOWN, T0))
    assert (outcome.leader_before, outcome.leader, outcome.changed, outcome.error) == (NO_LEADER, 1, True, None)
    assert outcome.unclean is not None
    assert (outcome.unclean.lineage, outcome.unclean.leader_epoch) == (1, outcome.leader_epoch)


async def test_retry_with_the_same_request_id_returns_the_stored_report(cluster: Cluster) -> None:
    await cluster.led(T0, NO_LEADER)
    _, first = await asyncio.gather(
        cluster.carries_out(LAST_KNOWN, leader=1), cluster.elect(LAST_KNOWN, T0, request_id="r1")
    )
    assert await cluster.elect(LAST_KNOWN, T0, request_id="r1") == first
    assert codes(await cluster.elect(LAST_KNOWN, T0, request_id="r2")) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert await nothing_is_asked(cluster)


async def test_last_known_election_with_a_leader_or_without_live_replicas_is_refused(cluster: Cluster) -> None:
    lonely = replace(cluster.topic, topic="u", topic_id="u", partitions={0: (BrokerId(2),)})
    await cluster.store.create_topic(lonely)
    await cluster.led(T0, 1, 1)
    cluster.topic = lonely
    await cluster.led(TopicPartition("u", 0), NO_LEADER)
    outcomes = await cluster.elect(LAST_KNOWN, T0, TopicPartition("u", 0))
    assert codes(outcomes) == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert sentences(outcomes) == [
        "broker 1 leads t-0: this election is for partitions without a leader",
        "no replica of u-0 is live: start one of the brokers 2",
    ]
    assert await nothing_is_asked(cluster)


@pytest.mark.parametrize("topics", [(), ("t",)])
async def test_last_known_election_requires_named_partitions(cluster: Cluster, topics: tuple[str, ...]) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await cluster.elect(LAST_KNOWN, topics=topics)


async def test_validate_only_estimates_the_loss_and_changes_nothing(cluster: Cluster) -> None:
    await cluster.led(T0, NO_LEADER)
    cluster.replicas.held = {
        0: ReplicaDescription(LeaderEpoch(3), Offset(40), Offset(55), damaged=True),
        1: ReplicaDescription(LeaderEpoch(3), Offset(50), Offset(50), damaged=False),
    }
    cluster.replicas.opening = {1}
    (outcome,) = await cluster.elect(LAST_KNOWN, T0, validate_only=True)
    report = outcome.unclean
    assert report is not None
    assert (outcome.leader, report.log_end_offset, report.high_watermark, report.records_maybe_lost) == (1, 50, 55, 5)
    assert (report.unheard, report.elected_at_ms) == ((2,), 0)
    assert sorted(cluster.replicas.asked) == [0, 1, 1], "broker 2 does not live, 1 was opening its log"
    assert await nothing_is_asked(cluster)
    assert (await cluster.store.states([T0]))[T0].state.leader == NO_LEADER


async def test_an_estimate_waits_for_the_next_controller(cluster: Cluster) -> None:
    """Regression: the estimate named no leader and all replicas as silent."""
    await cluster.led(T0, NO_LEADER)
    cluster.replicas.held = dict.fromkeys(
        (0, 1), ReplicaDescription(LeaderEpoch(3), Offset(50), Offset(50), damaged=False)
    )
    cluster.replicas.without_controller = 3
    (outcome,) = await cluster.elect(LAST_KNOWN, T0, validate_only=True)
    assert outcome.unclean is not None
    assert (outcome.leader, outcome.unclean.unheard) == (0, (2,))


async def test_without_replies_the_estimate_has_no_leader(cluster: Cluster) -> None:
    await cluster.led(T0, NO_LEADER)
    (outcome,) = await cluster.elect(LAST_KNOWN, T0, validate_only=True)
    assert (outcome.leader, outcome.changed, outcome.error) == (NO_LEADER, False, None)
    assert outcome.unclean is not None
    assert (outcome.unclean.records_maybe_lost, outcome.unclean.unheard) == (None, (0, 1, 2))


async def test_validate_only_preferred_election_changes_nothing(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    (outcome,) = await cluster.elect(PREFERRED, T0, validate_only=True)
    assert (outcome.leader_before, outcome.leader, outcome.changed) == (1, 0, True)
    assert await nothing_is_asked(cluster)


async def test_timeout_without_a_controller_keeps_the_request(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    await cluster.store.resign(cluster.term)
    outcomes = await cluster.elect(PREFERRED, T0, timeout_s=0.05)
    assert codes(outcomes) == [ErrorCode.REQUEST_TIMED_OUT]
    assert sentences(outcomes) == ["the election is requested, but no controller is active; check later"]
    assert not await nothing_is_asked(cluster)


async def test_timeout_behind_another_request_changes_nothing(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    await cluster.store.request_elections(PREFERRED, [T1], "another")
    outcomes = await cluster.elect(PREFERRED, T0, timeout_s=0.05)
    assert codes(outcomes) == [ErrorCode.REQUEST_TIMED_OUT]
    found = await cluster.store.requested_elections(PREFERRED)
    assert found is not None
    assert found.request_id == "another"


async def test_election_request_whose_response_was_lost_is_found(cluster: Cluster) -> None:
    await cluster.led(T0, 1, 0, 1)
    cluster.store.session.lose_answers(1, applied=True)
    _, outcomes = await asyncio.gather(cluster.carries_out(PREFERRED, leader=0), cluster.elect(PREFERRED, T0))
    assert [(one.leader, one.error) for one in outcomes] == [(0, None)]


async def test_loss_reports_are_listed_by_partition_and_topic(cluster: Cluster) -> None:
    administration = ElectionAdministration(cluster.store, Survey(cluster.replicas))
    reports = {}
    for partition in (T1, T0):
        await cluster.led(partition, NO_LEADER)
        reports[partition] = UncleanElection(partition, "id", 1, BrokerId(0), LeaderEpoch(9))
        found = (await cluster.store.states([partition]))[partition]
        await cluster.write(partition, found.state, found.version, reports[partition])
    assert await administration.unclean_elections([]) == [reports[T0], reports[T1]]
    assert await administration.unclean_elections(["t"]) == [reports[T0], reports[T1]]
    with raises_code(ErrorCode.UNKNOWN_TOPIC):
        await administration.unclean_elections(["t", "nowhere"])
