# SPDX-License-Identifier: Apache-2.0
"""A group while its coordinators are killed and stopped, and members come and go: no acknowledged commit is lost, no
commit of a former reader counts, members read disjoint partitions, and no call hangs.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tidemark.client.aio import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TidemarkError
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.record_pb2 import PartitionRef

from tests.integration.harness.group_member import Groups, Member, until

TOPIC = "followed"
PARTITIONS = 6
LASTS_S = 15.0
GAP_MAX_S = 30.0
"""A call that hangs never ends; on a slow machine two absences of a coordinator may have no commit between them."""


class Reader:
    """Commits each partition one offset further, repeatedly; all readers share `acknowledged`."""

    def __init__(self, member: Member, acknowledged: dict[int, int]) -> None:
        self.member = member.start()
        self._acknowledged = acknowledged
        self._at: dict[int, int] = {}
        self.last_commit_s = time.monotonic()
        self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.member.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except TidemarkError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)

    async def _step(self) -> None:
        mine = {partition for _, partition in self.member.reading}
        self._at = {partition: offset for partition, offset in self._at.items() if partition in mine}
        if not mine:
            self.last_commit_s = time.monotonic()
        for partition in sorted(mine - self._at.keys()):
            before = self._acknowledged.get(partition, -1)
            request = pb.FetchOffsetsRequest(
                group_id="g",
                member_id=self.member.member_id,
                member_epoch=self.member.epoch,
                partitions=[PartitionRef(topic=TOPIC, partition=partition)],
            )
            found = (await self.member.groups.ask("g", "FetchOffsets", request)).offsets[0].offset
            assert found >= before, f"partition {partition}: {before} was acknowledged, {found} is remembered"
            self._at[partition] = found
        wanted = {partition: offset + 1 for partition, offset in self._at.items()}
        if not wanted:
            return
        for partition, code in (await self.member.commit(TOPIC, wanted)).items():
            if code:
                self._at.pop(partition, None)
                continue
            self._at[partition] = wanted[partition]
            # The thread may handle its answer after the answer to a commit of the next reader.
            self._acknowledged[partition] = max(self._acknowledged.get(partition, -1), wanted[partition])
            self.last_commit_s = time.monotonic()


async def _commit_once(groups: Groups, over: asyncio.Event) -> list[str]:
    """Groups with one acknowledged commit each, so that no later commit hides a loss."""
    remembered: list[str] = []
    for number in range(100_000):
        if over.is_set():
            break
        group_id = f"once-{number}"
        try:
            await groups.commit(group_id, TOPIC, {0: number})
        except TidemarkError:
            continue  # the commit may be stored or not
        remembered.append(group_id)
        await asyncio.sleep(0.02)
    return remembered


async def _hurt(cluster: LocalCluster, groups: Groups, dice: random.Random, over: asyncio.Event) -> None:
    """Kill or stop a coordinator, and start or resume it, repeatedly."""
    while not over.is_set():
        name = broker_name((await groups.find("g")).broker_id)
        if dice.random() < 0.5:
            await asyncio.to_thread(cluster.kill, name)
            await asyncio.sleep(dice.uniform(0.5, 2))
            await asyncio.to_thread(cluster.restart, name)
        else:
            await asyncio.to_thread(cluster.pause, name)
            await asyncio.sleep(dice.uniform(1, 5))
            cluster.resume(name)
        await asyncio.sleep(dice.uniform(1, 2))


def _have_committed_since(readers: list[Reader], since_s: float) -> bool:
    for reader in readers:
        if reader.task.done():
            reader.task.result()
    return all(reader.last_commit_s > since_s for reader in readers)


def _check_exclusive(readers: list[Reader]) -> None:
    read = [partition for reader in readers for partition in reader.member.reading]
    assert len(read) == len(set(read)), f"read by two: {sorted(read)}"


async def test_no_commit_is_lost_and_no_partition_read_twice_while_coordinators_die(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dice = random.Random(7)
    settings = {"broker": {"offsets.topic.num.partitions": "2"}}
    async with LocalCluster(tmp_path_factory.mktemp("adversity"), settings=settings) as cluster:
        groups = Groups(cluster.bootstrap.split(","))
        async with AdminClient(cluster.admin_address) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        acknowledged: dict[int, int] = {}
        readers = [Reader(Member(groups, "g", TOPIC), acknowledged) for _ in range(3)]
        await until(lambda: len(acknowledged) == PARTITIONS, lambda: f"committed: {acknowledged}")
        over = asyncio.Event()
        nemesis = asyncio.create_task(_hurt(cluster, groups, dice, over))
        once = asyncio.create_task(_commit_once(groups, over))
        until_s, next_change_s = time.monotonic() + LASTS_S, time.monotonic() + 3
        while time.monotonic() < until_s:
            await asyncio.sleep(0.02)
            _check_exclusive(readers)
            for reader in readers:
                if reader.task.done():
                    reader.task.result()
                assert time.monotonic() - reader.last_commit_s < GAP_MAX_S, "a member hangs"
            assert not nemesis.done()
            if time.monotonic() > next_change_s:
                next_change_s = time.monotonic() + 4
                if len(readers) > 2:
                    leaving = readers.pop(0)
                    leaving.task.cancel()
                    await leaving.member.leave()
                else:
                    readers.append(Reader(Member(groups, "g", TOPIC), acknowledged))
        over.set()
        await nemesis
        await once
        peace_s = time.monotonic()
        await until(
            lambda: _have_committed_since(readers, peace_s) and min(acknowledged.values()) > 50,
            lambda: f"a member hangs, or hardly anything is committed: {acknowledged}",
            GAP_MAX_S,
        )
        for reader in readers:
            await reader.stop()
        remembered = await asyncio.gather(*(groups.committed(group_id) for group_id in once.result()))
        lost = [group_id for group_id, offsets in zip(once.result(), remembered, strict=True) if not offsets]
        assert not lost, f"of {len(remembered)} acknowledged commits {len(lost)} are lost: {lost[:5]}"
        committed = await groups.committed("g")
        assert all(committed[TOPIC, partition] >= offset for partition, offset in acknowledged.items())
        await groups.close()
