# SPDX-License-Identifier: Apache-2.0
"""Estimates the records that an unclean election would lose, from reports of the replicas (rule T4).

The active controller forwards the questions, because brokers answer only the controller.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidemark.core.controller.leader_election import BrokerFacts, PartitionFacts
from tidemark.core.controller.log_comparison import elect_furthest, live_replicas, loss_report
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ErrorCode,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    UncleanElection,
)
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.control import (
    HELD,
    descriptions_from_proto,
    held_from_proto,
    questions_to_proto,
    refusals_from_proto,
)
from tidemark.rpc.receiver import receiver_headers
from tidemark.runtime.clock import timeout
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceStub
from tidemark.zookeeper.store import MetadataStore

_DEADLINE_S: Final = 3.0
_ASK_AGAIN_S: Final = 0.2
_QUESTIONS_MAX: Final = 10_000

Asked = Mapping[TopicPartition, tuple[ReplicaIdentity, PartitionFacts]]


class Answer(NamedTuple):
    """One broker's answer: described replicas, and replicas whose logs are still being opened, for another request."""

    described: Mapping[TopicPartition, ReplicaDescription]
    again: frozenset[TopicPartition]


class ThroughController:
    """Sends questions through the active controller.

    Args:
        store: has the controller's address.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def ask(self, broker: BrokerId, epoch: BrokerEpoch, questions: Sequence[ReplicaQuestion]) -> Answer:
        """Send one request; raises refusals of the broker or the controller."""
        controller = await self._store.controller()
        if controller is None:
            raise TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, "no controller is active")
        headers = receiver_headers(await self._store.cluster_id())
        request = pb.AskReplicasRequest(broker_id=broker, broker_epoch=epoch, replicas=questions_to_proto(questions))
        async with channel_for_call(controller.address, f"controller {controller.controller_id}") as channel:
            stub: Any = ControllerServiceStub(channel)
            response = await stub.AskReplicas(request, timeout=_DEADLINE_S, metadata=headers)
        refused = refusals_from_proto(response.errors)
        again = {
            partition
            for partition, error in refused
            if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and HELD not in error.metadata
        }
        held = {one: known.log for one, known in held_from_proto(response.held).items() if known.log is not None}
        return Answer({**descriptions_from_proto(response.replicas), **held}, frozenset(again))


class Survey:
    """Estimates the losses of unclean elections.

    Args:
        asking: sends the questions.
        deadline_s: time limit of a whole survey; the loss reports name brokers that have not answered by then.
    """

    def __init__(self, asking: ThroughController, *, deadline_s: float = _DEADLINE_S) -> None:
        self._asking = asking
        self._deadline_s = deadline_s

    async def foresee(self, asked: Asked, brokers: BrokerFacts) -> dict[TopicPartition, UncleanElection]:
        """Return the loss report of an election of each partition now; without leader if no replica answers.

        Args:
            asked: partitions with a state and without a leader.
            brokers: live brokers.
        """
        questions: defaultdict[BrokerId, dict[TopicPartition, ReplicaQuestion]] = defaultdict(dict)
        for partition, (identity, facts) in asked.items():
            assert facts.state is not None, "those without a state are refused"
            for broker in live_replicas(facts, brokers):
                questions[broker][partition] = ReplicaQuestion(partition, identity, facts.state.leader_epoch)
        answers: dict[BrokerId, dict[TopicPartition, ReplicaDescription]] = {broker: {} for broker in questions}
        rounds = [
            self._ask_one(broker, brokers.live[broker], of_broker, answers[broker])
            for broker, of_broker in questions.items()
        ]
        await asyncio.gather(*rounds)
        return {
            partition: _foreseen(
                partition,
                identity,
                facts,
                brokers,
                {broker: said[partition] for broker, said in answers.items() if partition in said},
            )
            for partition, (identity, facts) in asked.items()
        }

    async def _ask_one(
        self,
        broker: BrokerId,
        epoch: BrokerEpoch,
        questions: Mapping[TopicPartition, ReplicaQuestion],
        said: dict[TopicPartition, ReplicaDescription],
    ) -> None:
        """Fill in the broker's answers until the deadline; stop at its first failure, but wait for a controller."""
        open_questions = dict(questions)
        try:
            async with timeout(self._deadline_s):
                while open_questions:
                    answer = await self._answer(broker, epoch, list(open_questions.values())[:_QUESTIONS_MAX])
                    said.update(answer.described)
                    asked = list(open_questions)[:_QUESTIONS_MAX]
                    for partition in asked:
                        if partition not in answer.again:
                            del open_questions[partition]
                    if answer.again:
                        await asyncio.sleep(_ASK_AGAIN_S)
        except (TimeoutError, TidemarkError):
            return

    async def _answer(self, broker: BrokerId, epoch: BrokerEpoch, questions: Sequence[ReplicaQuestion]) -> Answer:
        while True:
            try:
                return await self._asking.ask(broker, epoch, questions)
            except TidemarkError as error:
                if error.code is not ErrorCode.CONTROLLER_NOT_ACTIVE:
                    raise
            await asyncio.sleep(_ASK_AGAIN_S)


def _foreseen(
    partition: TopicPartition,
    identity: ReplicaIdentity,
    facts: PartitionFacts,
    brokers: BrokerFacts,
    answers: Mapping[BrokerId, ReplicaDescription],
) -> UncleanElection:
    assert facts.state is not None
    if not answers:
        lineage = facts.state.lineage + 1
        return UncleanElection(partition, identity.topic_id, lineage, NO_LEADER, NO_EPOCH, unheard=facts.assigned)
    high_watermark = max(held.high_watermark for held in answers.values())
    return loss_report(partition, identity.topic_id, elect_furthest(facts, brokers, answers, high_watermark), "")
