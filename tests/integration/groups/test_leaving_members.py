# SPDX-License-Identifier: Apache-2.0
"""A member of a group that leaves while its coordinator has just given it another epoch: its last commit is made."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from tidemark.client.aio import AdminClient, Consumer, Producer
from tidemark.client.group.coordinator import Coordinator
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import group_service_pb2 as pb

from tests.integration.harness.group_member import Groups, Member

RECORDS = 40
DEADLINE_S = 40.0


class OnItsWay:
    """Holds answers with a newer epoch back, if asked to, until a commit under the older one is refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holds = False
        self.held = asyncio.Event()
        self.refused = asyncio.Event()
        real = Coordinator.call

        async def call(coordinator: Coordinator, method: Any, request: Any, **options: Any) -> Any:
            try:
                answer = await real(coordinator, method, request, **options)
            except TidemarkError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                    self.refused.set()
                raise
            beat = isinstance(request, pb.GroupHeartbeatRequest)
            if self.holds and beat and 0 < request.member_epoch < answer.member_epoch:
                self.held.set()
                await self.refused.wait()
            return answer

        monkeypatch.setattr(Coordinator, "call", call)


async def made_topic(cluster: LocalCluster) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(name, partitions=1, replication_factor=3)
    return name


async def test_a_member_that_leaves_before_it_heard_of_its_new_epoch_has_all_committed_that_it_processed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"group-{uuid.uuid4().hex[:12]}"
    topic, another = await made_topic(cluster), await made_topic(cluster)
    async with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send(topic, str(number).encode())
        await producer.flush()
    on_its_way = OnItsWay(monkeypatch)
    groups = Groups(cluster.bootstrap.split(","))
    other = Member(groups, group, another)
    try:
        async with asyncio.timeout(DEADLINE_S):
            async with Consumer(cluster.bootstrap, group=group, auto_commit_interval_ms=3_600_000) as leaving:
                await leaving.subscribe([topic])
                for _ in range(RECORDS):
                    await anext(leaving)
                on_its_way.holds = True
                other.start()  # the group epoch changes, and `leaving` reads the same partitions
                await on_its_way.held.wait()
        assert on_its_way.refused.is_set(), "the member tried to commit in its former epoch"
        assert (await groups.committed(group)).get((topic, 0)) == RECORDS
    finally:
        await other.stop()
        await groups.close()
