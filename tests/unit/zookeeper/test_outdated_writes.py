# SPDX-License-Identifier: Apache-2.0
"""Writes of states that others have changed meanwhile: a few requests, and only these writes fail (rule Z2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from kazoo.exceptions import BadVersionError, RolledBackError, RuntimeInconsistency
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    StateWrite,
    TopicPartition,
)
from tidemark.ports import ControllerTerm, WriteOutcome, WriteResult
from tidemark.zookeeper import paths
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.states import write_of_controller, write_of_leader

COUNT = 200
TERM = ControllerTerm(BrokerId(100), ControllerEpoch(1), 7)
STATE = LeaderAndIsr(BrokerId(0), LeaderEpoch(3), (IsrEntry(BrokerId(0), BrokerEpoch(0)),))
IDENTITY = ReplicaIdentity("t" * 32, "a" * 32)
WRITES = [StateWrite(TopicPartition("flights", index), IDENTITY, STATE, 4) for index in range(COUNT)]


class Znodes:
    """Versions of states; a multi sets all of them or none, as ZooKeeper's."""

    def __init__(self, versions: dict[str, int]) -> None:
        self.versions = versions
        self.multis = self.reads = 0

    async def commit(self, build: Callable[[Any], None]) -> Sequence[Any]:
        """Answers of one multi."""
        self.multis += 1
        asked: list[tuple[str, int] | None] = []
        build(
            SimpleNamespace(
                set_data=lambda path, _, version: asked.append((path, version)), check=lambda *_: asked.append(None)
            )
        )
        wrong = [index for index, one in enumerate(asked) if one is not None and self.versions.get(one[0]) != one[1]]
        if wrong:
            after = [RuntimeInconsistency()] * (len(asked) - wrong[0] - 1)
            return [*([RolledBackError()] * wrong[0]), BadVersionError(), *after]
        self.versions |= {path: version + 1 for path, version in filter(None, asked)}
        return [True if one is None else SimpleNamespace(version=one[1] + 1) for one in asked]

    async def read_many(self, wanted: Sequence[str]) -> list[Any]:
        """The stats of these states."""
        self.reads += 1
        return [
            (b"", SimpleNamespace(version=self.versions[path])) if path in self.versions else None for path in wanted
        ]

    async def gather(self, calls: Sequence[Any]) -> list[Any]:
        """Run the calls one after the other."""
        return [await call for call in calls]


async def test_a_read_finds_all_outdated_writes_of_a_failed_multi() -> None:
    versions = {paths.state(one.partition): 4 if one.partition.partition % 2 else 5 for one in WRITES}
    del versions[paths.state(WRITES[11].partition)]
    znodes = Znodes(versions)
    results = await write_of_leader(cast("Session", znodes), WRITES)
    stands = [bool(index % 2) and index != 11 for index in range(COUNT)]
    written, conflict = WriteResult(WriteOutcome.WRITTEN, 5), WriteResult(WriteOutcome.CONFLICT)
    assert results == [written if one else conflict for one in stands]
    assert (znodes.multis, znodes.reads) == (2, 1)


async def test_a_conflict_of_the_controller_leaves_the_other_writes_of_its_multi() -> None:
    """Otherwise ISR changes of one broker would make every multi of a failover fail, repeatedly."""
    versions = {paths.state(one.partition): 4 if one.partition.partition % 10 else 5 for one in WRITES}
    znodes = Znodes(versions)
    results = await write_of_controller(cast("Session", znodes), TERM, WRITES)
    assert [result.outcome is WriteOutcome.WRITTEN for result in results] == [
        bool(index % 10) for index in range(COUNT)
    ]
    assert (znodes.multis, znodes.reads) == (2, 1)


async def test_a_read_finds_that_every_write_is_outdated() -> None:
    znodes = Znodes({paths.state(one.partition): 5 for one in WRITES})
    results = await write_of_leader(cast("Session", znodes), WRITES)
    assert results == [WriteResult(WriteOutcome.CONFLICT)] * COUNT
    assert (znodes.multis, znodes.reads) == (1, 1)
