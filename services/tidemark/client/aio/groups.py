# SPDX-License-Identifier: Apache-2.0
"""The async Groups client: lists, describes and deletes consumer groups, and sets their offsets (docs/groups.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc

from tidemark.client.aio.coordinator_admin import LIST_TIMEOUT_S, CoordinatorAdmin
from tidemark.client.argument_types import flag, instances, offsets_of, partitions_of, texts
from tidemark.client.consuming.offset_lookup import Start
from tidemark.client.group.coordinator import Coordinator, group_stub
from tidemark.client.group.offset_commits import commit_positions, refused_in
from tidemark.client.group.offset_reset import OffsetChange, ResetOffsets
from tidemark.client.group.settings import group_settings
from tidemark.client.metadata.coordinator_calls import asks_for_one
from tidemark.core.internal_topics import OFFSETS_TOPIC
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.rpc.request_limits import in_requests
from tidemark.v1 import group_service_pb2 as pb

_UNKNOWN_OUTCOME: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.SHUTTING_DOWN,
    }
)
"""Errors of an attempt that the coordinator may have carried out."""


class GroupListing(NamedTuple):
    """A group in a list; `state`: EMPTY, ASSIGNING, RECONCILING or STABLE; `members`: their number."""

    group: str
    protocol: str
    state: str
    members: int
    coordinator_id: int


class GroupMember(NamedTuple):
    """A member; `state`: STABLE, UNREVOKED (must release partitions), UNRELEASED (waits for other members) or AWAY."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    member_epoch: int
    state: str
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]


class PendingOffset(NamedTuple):
    """An offset that is in force once the transaction of its producer is committed."""

    offset: int
    producer_id: int
    producer_epoch: int


class GroupPartition(NamedTuple):
    """The progress of a group in a partition.

    Attributes:
        partition: the partition.
        member_id: id of the member that reads the partition; "" for none.
        committed: offset of the next record to read; -1 for none.
        committed_at_ms: time of the commit, milliseconds since 1970.
        log_start_offset: first offset of the partition, inclusive; -1 if unknown.
        high_watermark: end of the committed records, exclusive; -1 if unknown.
        lag: records between `committed` and the high watermark, 0 or more; -1 if the high watermark is unknown.
        error: the reason why the high watermark is unknown.
        topic_id: id of the topic that was read.
        incarnation: incarnation of the partition that was read.
        pending: offsets of open transactions, in the order in which they were written.
    """

    partition: TopicPartition
    member_id: str
    committed: int
    committed_at_ms: int
    log_start_offset: int
    high_watermark: int
    lag: int
    error: TidemarkError | None
    topic_id: str
    incarnation: str
    pending: tuple[PendingOffset, ...] = ()


class GroupDescription(NamedTuple):
    """A group, its members, and its progress in each partition."""

    group: str
    protocol: str
    state: str
    group_epoch: int
    assignor: str
    coordinator_id: int
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        """Sum of the known lags of the partitions."""
        return sum(one.lag for one in self.partitions if one.lag > 0)

    @property
    def partitions_of_unknown_lag(self) -> int:
        """Number of partitions that `lag` omits."""
        return sum(one.lag < 0 for one in self.partitions)


class Groups(CoordinatorAdmin):
    """Manages consumer groups through the brokers; needs no admin service.

    async with Groups("127.0.0.1:9192") as groups:
        for group in await groups.describe_groups(["readers"]):
            ...

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        timeout_s: timeout of each call.
        tls: the TLS files; None: the files that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
    """

    async def list_groups(self) -> tuple[list[GroupListing], list[TidemarkError]]:
        """List all groups, by id.

        Returns:
            The groups, and errors of brokers whose groups may be missing: BROKER_NOT_AVAILABLE, or
            COORDINATOR_LOADING for partitions of `__consumer_offsets` that no broker coordinates, or still reads.

        Example: `found, unanswered = await groups.list_groups()`
        """
        timeout_s = min(LIST_TIMEOUT_S, self._timeout_s)
        return await self._lists(
            lambda address: group_stub(self._cluster, address).ListGroups(
                pb.ListGroupsRequest(), timeout=timeout_s, metadata=self._cluster.headers
            ),
            lambda broker_id, answer: (_listing(one, broker_id) for one in answer.groups),
            what="groups",
            topic=OFFSETS_TOPIC,
        )

    async def describe_groups(self, groups: Sequence[str], *, offsets: bool = True) -> list[GroupDescription]:
        """Describe groups in the order of `groups`.

        Args:
            groups: group ids.
            offsets: include the progress in each partition.

        Raises:
            TidemarkError: GROUP_NOT_FOUND, INVALID_GROUP_ID, REQUEST_TIMED_OUT.

        Example: `(group,) = await groups.describe_groups(["billing"])`
        """
        flag("offsets", offsets)
        return await asyncio.gather(*(self._describe(group, offsets) for group in texts("groups", groups)))

    async def _describe(self, group: str, offsets: bool) -> GroupDescription:
        request = pb.DescribeGroupsRequest(group_ids=[group], without_offsets=not offsets)
        ask = asks_for_one(lambda stub: stub.DescribeGroups, lambda answer: answer.groups)
        return _description(await self._call(group, ask, request))

    async def set_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | Sequence[OffsetChange],
        *,
        validate_only: bool = False,
    ) -> dict[TopicPartition, TidemarkError]:
        """Set committed offsets of a group without members.

        Args:
            group: group id.
            offsets: offset of the next record to read, by partition; or the plan of `plan_reset`.
            validate_only: check the request, change nothing.

        Returns:
            Errors of the refused partitions: UNKNOWN_PARTITION; UNKNOWN_TOPIC_ID if a partition was deleted and created
            again since the plan.

        Raises:
            TidemarkError: GROUP_NOT_EMPTY, INVALID_GROUP_ID, UNKNOWN_TOPIC, REQUEST_TIMED_OUT.

        Example: `await groups.set_offsets("billing", {TopicPartition("orders", 0): 42})`
        """
        group_settings(group)  # checks the id
        deadline_s = time.monotonic() + self._timeout_s
        if isinstance(offsets, Mapping):
            plan = await self._identified(offsets_of("offsets", offsets), deadline_s)
        else:
            plan = instances("offsets", offsets, OffsetChange)
        positions = [(one.partition, one.offset, NO_EPOCH, one.topic_id, one.incarnation) for one in plan]
        flag("validate_only", validate_only)
        refused: dict[TopicPartition, TidemarkError] = {}
        for some in in_requests(positions):
            request = pb.AlterGroupOffsetsRequest(
                group_id=group, offsets=commit_positions(some), validate_only=validate_only
            )
            refused |= refused_in(await self._call(group, lambda stub: stub.AlterGroupOffsets, request, deadline_s))
        return refused

    async def plan_reset(
        self,
        group: str,
        start: Start,
        *,
        topics: Sequence[str] = (),
        partitions: Iterable[TopicPartition | tuple[str, int]] = (),
    ) -> list[OffsetChange]:
        """Compute and check the offsets that a reset would set, without a change. `set_offsets` carries the reset out.

        An offset below the log start becomes the log start, one above the high watermark the high watermark. The group
        need not exist.

        Args:
            group: group id.
            start: "earliest", "latest", an offset, or a Timestamp.
            topics: all partitions of these topics.
            partitions: TopicPartition, or pairs of topic and index.

        Raises:
            TidemarkError: GROUP_NOT_EMPTY, INVALID_GROUP_ID, UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_REQUEST.

        Example: `await groups.plan_reset("billing", "earliest", topics=["orders"])`
        """
        reset = ResetOffsets(self._cluster, self._timeout_s)
        wanted = await reset.find(texts("topics", topics), partitions_of("partitions", partitions), start)
        plan = await self._identified(wanted, time.monotonic() + self._timeout_s)
        before = await self._committed(group)
        for where, error in sorted((await self.set_offsets(group, plan, validate_only=True)).items()):
            raise TidemarkError(error.code, f"nothing was changed: {where}: {error.message}", error.metadata)
        return [one._replace(before=before.get(one.partition, -1)) for one in plan]

    async def _identified(self, offsets: Mapping[TopicPartition, int], deadline_s: float) -> list[OffsetChange]:
        """The offsets, with the ids of the partitions as they are now."""
        found = []
        for where, offset in sorted(offsets.items()):
            view = await self._cluster.topic(where.topic, timeout_s=max(0.05, deadline_s - time.monotonic()))
            partition = view.partitions.get(where.partition)
            incarnation = "" if partition is None else partition.incarnation
            found.append(OffsetChange(where, -1, offset, view.topic_id, incarnation))
        return found

    async def _committed(self, group: str) -> dict[TopicPartition, int]:
        """Committed offsets; none for a group that does not exist."""
        try:
            (found,) = await self.describe_groups([group])
        except TidemarkError as error:
            if error.code is ErrorCode.GROUP_NOT_FOUND:
                return {}
            raise
        return {one.partition: one.committed for one in found.partitions if one.committed >= 0}

    async def delete(self, group: str) -> None:
        """Delete a group without members.

        If an attempt has no answer, and the next one finds no group, the first one has deleted the group.

        Args:
            group: group id.

        Raises:
            TidemarkError: GROUP_NOT_EMPTY, GROUP_NOT_FOUND, INVALID_GROUP_ID, REQUEST_TIMED_OUT.

        Example: `await groups.delete("billing")`
        """
        maybe_deleted = False

        def delete_at(stub: Any) -> Callable[..., Any]:
            async def ask(request: pb.DeleteGroupRequest, **options: Any) -> Any:
                nonlocal maybe_deleted
                try:
                    return await stub.DeleteGroup(request, **options)
                except grpc.RpcError as failure:
                    maybe_deleted |= _may_be_done(errors.from_rpc_error(failure, address=""))
                    raise

            return ask

        try:
            await self._call(group, delete_at, pb.DeleteGroupRequest(group_id=group))
        except TidemarkError as error:
            if error.code is not ErrorCode.GROUP_NOT_FOUND or not maybe_deleted:
                raise

    async def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, TidemarkError]:
        """Delete the committed offsets of a group in these partitions.

        Args:
            group: group id.
            partitions: TopicPartition, or pairs of topic and index.

        Returns:
            Errors of the refused partitions: GROUP_SUBSCRIBED_TO_TOPIC.

        Raises:
            TidemarkError: GROUP_NOT_FOUND, INVALID_GROUP_ID, REQUEST_TIMED_OUT.

        Example: `await groups.delete_offsets("billing", [TopicPartition("orders", 0)])`
        """
        refused: dict[TopicPartition, TidemarkError] = {}
        for some in in_requests(partitions_of("partitions", partitions)):
            request = pb.DeleteGroupOffsetsRequest(group_id=group, partitions=map(ref_to_proto, some))
            refused |= refused_in(await self._call(group, lambda stub: stub.DeleteGroupOffsets, request))
        return refused

    async def _call(
        self,
        group: str,
        method: Callable[[Any], Callable[..., Any]],
        request: Any,
        deadline_s: float | None = None,
    ) -> Any:
        group_settings(group)  # checks the id
        timeout_s = self._timeout_s if deadline_s is None else deadline_s - time.monotonic()
        return await Coordinator(self._cluster, group).call(method, request, timeout_s=timeout_s)


def _may_be_done(error: TidemarkError) -> bool:
    """Whether the coordinator may have carried out an attempt: a broker that was deposed meanwhile names no other."""
    is_deposed = error.code is ErrorCode.NOT_COORDINATOR and "host" not in error.metadata
    return is_deposed or error.code in _UNKNOWN_OUTCOME


def _listing(found: pb.GroupListing, broker_id: int) -> GroupListing:
    state = _short(pb.GroupState, found.state, "GROUP_STATE_")
    return GroupListing(found.group_id, found.protocol, state, found.member_count, broker_id)


def _description(found: pb.GroupDescription) -> GroupDescription:
    return GroupDescription(
        group=found.group_id,
        protocol=found.protocol,
        state=_short(pb.GroupState, found.state, "GROUP_STATE_"),
        group_epoch=found.group_epoch,
        assignor=found.assignor,
        coordinator_id=found.coordinator_id,
        members=tuple(map(_member, found.members)),
        partitions=tuple(map(_partition, found.partitions)),
    )


def _member(found: pb.GroupMember) -> GroupMember:
    return GroupMember(
        member_id=found.member_id,
        instance_id=found.instance_id,
        client_id=found.client_id,
        host=found.client_host,
        member_epoch=found.member_epoch,
        state=_short(pb.GroupMemberState, found.state, "GROUP_MEMBER_STATE_"),
        topics=tuple(found.subscribed_topics),
        assigned=tuple(
            TopicPartition(part.topic, index) for part in found.assignment.topics for index in part.partitions
        ),
    )


def _partition(found: pb.GroupPartition) -> GroupPartition:
    return GroupPartition(
        partition=TopicPartition(found.topic, found.partition),
        member_id=found.member_id,
        committed=found.committed_offset,
        committed_at_ms=found.committed_at_ms,
        log_start_offset=found.log_start_offset,
        high_watermark=found.high_watermark,
        lag=found.lag,
        error=errors.error_in(found),
        topic_id=found.topic_id,
        incarnation=found.incarnation,
        pending=tuple(PendingOffset(one.offset, one.producer_id, one.producer_epoch) for one in found.pending),
    )


def _short(states: Any, number: int, prefix: str) -> str:
    """Return the name of a state; the number of a state that only a later version defines."""
    known = states.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else str(known.name).removeprefix(prefix)
