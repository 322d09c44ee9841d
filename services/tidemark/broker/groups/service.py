# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""GroupService: translates requests about groups, and calls the group coordinators (docs/groups.md)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

from tidemark.broker.coordination.state_log import InTransaction
from tidemark.broker.groups.coordinators import GroupCoordinators
from tidemark.broker.groups.group_shard import GroupShard
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, Refusals, check_committer
from tidemark.core.groups.state import JOINING, NO_MEMBER_EPOCH, Committed
from tidemark.core.pending_writes import Writer
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc import errors
from tidemark.rpc.codecs.group import (
    description_to_proto,
    heartbeat_from_proto,
    listing_to_proto,
    partitions_to_proto,
    results_to_proto,
    state_to_proto,
    turn_from_proto,
)
from tidemark.rpc.codecs.refs import ref_from_proto
from tidemark.rpc.request_limits import check_named
from tidemark.rpc.security.access import audited
from tidemark.rpc.security.callers import address_for_caller, host_of
from tidemark.runtime.clock import timeout
from tidemark.runtime.slices import InSlices, Pace
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.group_service_pb2_grpc import GroupServiceServicer

_HELD_BACK_MS_MAX: Final = 30_000

Verify = Callable[[InTransaction, TopicPartition], Awaitable[None]]
"""Adds a partition that this broker leads to a transaction, unless it was added before (rule X11); raises the refusal.
"""


class GroupService(GroupServiceServicer):
    """The RPCs of consumer groups; the server's interceptor maps the errors of unary calls."""

    def __init__(self, groups: GroupCoordinators, offsets: GroupOffsets, verify: Verify) -> None:
        self._groups = groups
        self._offsets = offsets
        self._verify = verify

    async def FindCoordinator(self, request: pb.FindCoordinatorRequest, context: Any) -> pb.FindCoordinatorResponse:
        """Return the coordinator of each group, or the error of that group."""
        check_named(request.group_ids, "groups")
        response, wait = pb.FindCoordinatorResponse(), True
        async for group_id in InSlices(request.group_ids):
            found = await self._located(group_id, wait=wait)
            wait &= found.error.code == ErrorCode.INVALID_GROUP_ID
            response.coordinators.append(found)
        return response

    async def GroupHeartbeat(self, request: pb.GroupHeartbeatRequest, context: Any) -> pb.GroupHeartbeatResponse:
        """Join a group, stay in it, confirm revocations, or leave it."""
        beat = heartbeat_from_proto(request, host_of(context.peer()))
        try:
            answer = await self._beat(beat, request.max_wait_ms)
        except TidemarkError as error:
            self._groups.metrics.fenced.labels(str(error.code)).inc()
            raise
        self._groups.metrics.heartbeats.inc()
        settings = self._groups.settings
        return pb.GroupHeartbeatResponse(
            member_id=beat.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
            assignment=None if answer.assignment is None else partitions_to_proto(answer.assignment),
        )

    async def CommitOffsets(self, request: pb.CommitOffsetsRequest, context: Any) -> pb.CommitOffsetsResponse:
        """Commit offsets of a member, or of a transaction if the request has a transactional id."""
        began_s = time.perf_counter()
        check_named(request.offsets, "partitions")
        shard = self._groups.shard_of(request.group_id)
        turn = turn_from_proto(request)
        asked, refused = await self._offsets.resolve(request.offsets)
        commit = Commit(request.group_id, request.member_id, request.member_epoch, request.instance_id, asked, turn)
        try:
            if request.transactional_id:
                more = await self._commit_in_transaction(shard, request, commit)
            else:
                more = await shard.change(lambda coordinator, now: coordinator.commit(commit, now))
        except TidemarkError as error:
            self._groups.metrics.fenced.labels(str(error.code)).inc()
            raise
        self._groups.metrics.commit_seconds.observe(time.perf_counter() - began_s)
        response = pb.CommitOffsetsResponse()
        await _add_results(response.partitions, request.offsets, {**refused, **more})
        return response

    async def FetchOffsets(self, request: pb.FetchOffsetsRequest, context: Any) -> pb.FetchOffsetsResponse:
        """The committed offsets of a group."""
        check_named(request.partitions, "partitions")
        wanted = list(dict.fromkeys(map(ref_from_proto, request.partitions))) or None

        def read(coordinator: GroupCoordinator) -> dict[TopicPartition, Committed]:
            group = coordinator.find(request.group_id) or Group(request.group_id)
            if request.require_stable:
                coordinator.check_stable(request.group_id, wanted)
            if request.member_id:
                check_committer(group, request.member_id, request.member_epoch, "")
            return dict(group.offsets)

        found = await self._groups.shard_of(request.group_id).read(read)
        partitions = sorted(found) if wanted is None else wanted
        response = pb.FetchOffsetsResponse()
        async for partition in InSlices(partitions):
            to_proto = self._offsets.to_proto if wanted is None else self._offsets.fetched
            offset = to_proto(partition, found.get(partition))
            if wanted is not None or offset.offset >= 0:
                response.offsets.append(offset)
        return response

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        """The groups that this broker coordinates."""
        states = set(request.states)

        def listed(shard: GroupShard) -> Awaitable[list[pb.GroupListing]]:
            return shard.read(
                lambda coordinator: [
                    listing_to_proto(group, shard.log.partition.partition)
                    for group in (*coordinator.groups, *coordinator.pending_groups)
                    if not states or state_to_proto(group.state) in states
                ]
            )

        found, missing = await self._groups.read_each(listed)
        found.sort(key=lambda group: group.group_id)
        return pb.ListGroupsResponse(groups=found, loading_partitions=missing)

    async def DescribeGroups(self, request: pb.DescribeGroupsRequest, context: Any) -> pb.DescribeGroupsResponse:
        """Describe groups: their members, and unless `without_offsets`, committed offsets and lag."""
        check_named(request.group_ids, "groups")
        groups, pace = [], Pace()
        for group_id in dict.fromkeys(request.group_ids):  # each once, even if named repeatedly
            if pace.is_due:
                await pace.give_way()
            groups.append(await self._describe(group_id, request.without_offsets))
        if not request.without_offsets:
            await self._offsets.add_lag(groups)
        response = pb.DescribeGroupsResponse()
        async for group in InSlices(groups, pace):
            response.groups.append(group)
        return response

    async def AlterGroupOffsets(
        self, request: pb.AlterGroupOffsetsRequest, context: Any
    ) -> pb.AlterGroupOffsetsResponse:
        """Set offsets of a group without members."""
        check_named(request.offsets, "partitions")
        facts: dict[str, object] = {"group": request.group_id, "partitions": len(request.offsets)}
        with nullcontext() if request.validate_only else audited("AlterGroupOffsets", context, facts):
            shard = self._groups.shard_of(request.group_id)
            asked, refused = await self._offsets.resolve(request.offsets)
            commit = Commit(request.group_id, "", NO_MEMBER_EPOCH, "", asked)

            def alter(coordinator: GroupCoordinator, now: Situation) -> Outcome[Refusals]:
                return coordinator.alter_offsets(commit, now, validate_only=request.validate_only)

            more = await shard.change(alter)
            facts["partitions"] = len(asked) - len(more)
        response = pb.AlterGroupOffsetsResponse()
        await _add_results(response.partitions, request.offsets, {**refused, **more})
        return response

    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Any) -> pb.DeleteGroupResponse:
        """Delete a group without members."""
        with audited("DeleteGroup", context, {"group": request.group_id}):
            shard = self._groups.shard_of(request.group_id)
            await shard.change(lambda coordinator, now: coordinator.delete_group(request.group_id))
        return pb.DeleteGroupResponse()

    async def DeleteGroupOffsets(
        self, request: pb.DeleteGroupOffsetsRequest, context: Any
    ) -> pb.DeleteGroupOffsetsResponse:
        """Delete committed offsets of a group, with a result for each partition."""
        check_named(request.partitions, "partitions")
        partitions = [ref_from_proto(one) for one in request.partitions]
        facts: dict[str, object] = {"group": request.group_id, "partitions": len(partitions)}
        with audited("DeleteGroupOffsets", context, facts):
            shard = self._groups.shard_of(request.group_id)
            refused = await shard.change(
                lambda coordinator, now: coordinator.delete_offsets(request.group_id, partitions)
            )
            facts["partitions"] = len(partitions) - len(refused)
        return pb.DeleteGroupOffsetsResponse(partitions=results_to_proto(partitions, refused))

    async def _commit_in_transaction(
        self, shard: GroupShard, request: pb.CommitOffsetsRequest, commit: Commit
    ) -> Refusals:
        """Add the shard's partition to the transaction (rule X11), and write the offsets as its records (rule X17)."""
        if request.producer_id < 0 or request.producer_epoch < 0:
            raise invalid_request("a commit in a transaction must name the producer id and epoch of the transaction")
        transaction = InTransaction(request.transactional_id, Writer(request.producer_id, request.producer_epoch))
        await self._verify(transaction, shard.log.partition)
        return await shard.commit_in_transaction(commit, transaction)

    async def _located(self, group_id: str, *, wait: bool) -> pb.GroupCoordinator:
        """The coordinator of a group; with `wait`, creates a missing offsets topic and waits until the topic exists."""
        try:
            found = await self._groups.find(group_id) if wait else self._groups.located(group_id)
            address = address_for_caller(found.broker)
        except TidemarkError as error:
            answer = pb.GroupCoordinator(group_id=group_id, broker_id=-1, partition=-1, leader_epoch=-1)
            answer.error.CopyFrom(errors.to_proto(error))
            return answer
        return pb.GroupCoordinator(
            group_id=group_id,
            broker_id=found.broker.broker_id,
            host=address.host,
            port=address.port,
            partition=found.partition,
            leader_epoch=found.leader_epoch,
        )

    async def _beat(self, beat: Heartbeat, max_wait_ms: int) -> HeartbeatAnswer:
        """Answer now, or when the answer changes; the member's session is renewed during the wait."""
        held_back_ms = min(max(max_wait_ms, 0), _HELD_BACK_MS_MAX, self._groups.settings.session_timeout_ms // 3)
        until_s = time.monotonic() + held_back_ms / 1000
        while True:
            shard = self._groups.shard_of(beat.group_id)
            changed = shard.event_of(beat.group_id)
            answer = await self._answer(shard, beat)
            left_s = until_s - time.monotonic()
            # the coordinator does not know the topics yet
            waits_to_join = beat.member_epoch == answer.member_epoch == JOINING
            is_news = answer.is_news and not waits_to_join
            if is_news or answer.member_epoch != beat.member_epoch or beat.member_epoch < JOINING or left_s <= 0:
                return answer
            beat = replace(beat, waited=True)
            if not waits_to_join:  # the request was applied; later rounds only ask for changes
                beat = replace(beat, topics=None, owned=None, assignor="", rebalance_timeout_ms=0)
            try:
                async with timeout(left_s):
                    await changed.wait()
            except TimeoutError:
                shard.touch(beat.group_id, beat.member_id)
                return answer

    async def _answer(self, shard: GroupShard, beat: Heartbeat) -> HeartbeatAnswer:
        try:
            return await shard.change(lambda coordinator, now: coordinator.heartbeat(beat, now))
        except TidemarkError as error:
            if error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
                shard.touch(beat.group_id, beat.member_id)  # the member did not cause the missing replicas
            raise

    async def _describe(self, group_id: str, without_offsets: bool) -> pb.GroupDescription:
        def read(coordinator: GroupCoordinator) -> pb.GroupDescription:
            group = coordinator.group(group_id)
            described = description_to_proto(group, self._groups.broker_id)
            if not without_offsets:
                described.partitions.extend(self._offsets.rows(group, coordinator.pending_offsets(group_id)))
            return described

        try:
            return await self._groups.shard_of(group_id).read(read)
        except TidemarkError as error:
            return pb.GroupDescription(group_id=group_id, coordinator_id=-1, error=errors.to_proto(error))


async def _add_results(
    results: MutableSequence[pb.GroupPartitionResult],
    offsets: Sequence[pb.OffsetCommit],
    refused: Mapping[TopicPartition, TidemarkError],
) -> None:
    """Add a result for each offset, in the order of the offsets; other tasks may run in between."""
    async for one in InSlices(offsets):
        results.extend(results_to_proto([TopicPartition(one.topic, one.partition)], refused))
