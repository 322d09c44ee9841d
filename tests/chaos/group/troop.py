# SPDX-License-Identifier: Apache-2.0
"""The members of a round's consumer group: they join, leave, are killed and stopped, while their topic grows."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemark.client import AdminClient
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.core.groups.records import decode
from tidemark.core.groups.state import Change
from tidemark.core.internal_topics import OFFSETS_TOPIC, partition_of
from tidemark.local.process import ServiceProcess
from tidemark.model import TidemarkError

from tests.chaos.arena.arena import Arena
from tests.chaos.arena.names import BROKERS
from tests.chaos.arena.proxy import Trouble
from tests.chaos.checks.group_history import GroupHistory, Processed, read_journal
from tests.chaos.group.member import Plan
from tests.chaos.loads import Load

GROUP = "troop"
SLOTS: tuple[dict[str, Any], ...] = (
    {},
    {"by_hand": True, "assignor": "uniform"},
    {"one_by_one": True, "instance_id": "fixed"},
)
"""Differences between the members."""
WITH_TOKEN = (0, 1)
"""Slots whose members have a token in a secure round; the others have a certificate."""
_CALL_S = 5.0
_PAUSE_S = (0.5, 3.5)
_STOP_S = (0.5, 6.0)
_LEAVE_S = 30.0
_SETTLED_S = 90.0


class Troop:
    """One group on one topic; its methods are called from one thread at a time.

    Args:
        faults_s: length of the round's faults, in seconds.
    """

    def __init__(self, directory: Path, arena: Arena, load: Load, seed: int, faults_s: float) -> None:
        self.told: list[str] = []
        self.lives = 0
        self._directory = directory
        self._plan = Plan(arena.bootstrap, GROUP, load.topic, "", slowness=arena.slowness, faults_s=faults_s)
        self._arena = arena
        self._slowness = arena.slowness
        self._load = load
        self._chance = random.Random(seed)
        self._members: dict[int, ServiceProcess] = {}
        self._leaving: list[ServiceProcess] = []
        self._asleep: dict[ServiceProcess, float] = {}
        """The time until which each member is stopped."""
        self._cuts: dict[tuple[str, str], float] = {}
        self._failures: list[str] = []
        self.partitions = load.partitions
        """Partitions of the topic, as far as known."""

    def __enter__(self) -> Troop:
        """All members join."""
        self._directory.mkdir()
        for slot in range(len(SLOTS)):
            self._join(slot)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill every member that is left, even after an error in the round."""
        for member in (*self._members.values(), *self._leaving):
            member.kill()

    def live_until(self, ended: threading.Event) -> None:
        """Make one change after the other, in shuffled order, so that each kind occurs often.

        At the return, all members run.
        """
        acts = [self._kill, self._stop, self._stop, self._cut, self._cut, self._leave, self._leave, self._grow]
        dealt: list[Callable[[], None]] = []
        next_s = time.monotonic()
        while not ended.wait(0.05):
            self._wake(time.monotonic())
            if time.monotonic() < next_s:
                continue
            dealt = dealt or self._chance.sample(acts, len(acts))
            dealt.pop()()
            for slot in range(len(SLOTS)):
                if slot not in self._members and self._chance.random() < 0.7:
                    self._join(slot)
            next_s = time.monotonic() + self._chance.uniform(*_PAUSE_S)
        self._wake(float("inf"))
        for slot in range(len(SLOTS)):
            if slot not in self._members:
                self._join(slot)

    def _wake(self, now_s: float) -> None:
        """Continue the members that were stopped or disconnected for long enough."""
        for way, until_s in tuple(self._cuts.items()):
            if now_s >= until_s:
                del self._cuts[way]
                self._arena.network.end(*way)
        for member, until_s in tuple(self._asleep.items()):
            if now_s >= until_s:
                del self._asleep[member]
                member.signal(signal.SIGCONT)

    def end(self, ends: dict[int, int]) -> GroupHistory:
        """Let the members process all records and leave; returns the history. Brokers must serve."""
        settled_s = _SETTLED_S * self._slowness
        deadline_s = time.monotonic() + settled_s
        while True:
            reached = self._reached()
            if all(reached.get(index, 0) >= end for index, end in ends.items()):
                break
            if time.monotonic() > deadline_s:
                self._failures.append(f"after {settled_s:.0f} s of peace the group is at {reached} of {ends}")
                break
            time.sleep(0.2)
        while self._members:
            self._leave()
        for member in self._leaving:
            self._await_leave(member)
        history = GroupHistory(self._load.topic, unfinished=self._failures)
        history.journals = {path.stem: read_journal(path) for path in self._journals}
        history.final = {index: range(end) for index, end in ends.items()}
        history.coordinator = read_coordinators(self._plan.bootstrap, deadline_s=60.0 * self._slowness)
        return history

    @property
    def _journals(self) -> Sequence[Path]:
        return sorted(self._directory.glob("*.journal"))

    def _reached(self) -> dict[int, int]:
        """The highest end of the processed records of each partition, of any member."""
        reached: dict[int, int] = {}
        for path in self._journals:
            for one in read_journal(path):
                if isinstance(one, Processed):
                    reached[one.partition] = max(reached.get(one.partition, 0), one.end)
        return reached

    # -- the changes

    def _join(self, slot: int) -> None:
        life = f"member-{slot}-{self.lives:03}"
        self.lives += 1
        plan = replace(self._plan, journal=str(self._directory / f"{life}.journal"), **SLOTS[slot])
        environment = {}
        if slot in WITH_TOKEN:
            plan, environment = replace(plan, bootstrap=self._arena.token_bootstrap), self._arena.token_environment
        Path(plan.journal).touch()
        module, argument = plan.command
        log = self._directory / f"{life}.log"
        member = self._members[slot] = ServiceProcess(life, module, [argument], log=log, environment=environment)
        member.start()
        self._arena.guests[life] = member.pid
        self.told.append(f"{life} joins")

    def _one(self) -> int | None:
        return self._chance.choice(sorted(self._members)) if self._members else None

    def _kill(self) -> None:
        slot = self._one()
        if slot is not None:
            member = self._members.pop(slot)
            self._note_end_of(member)
            del self._arena.guests[member.name]
            member.kill()
            self.told.append(f"kill -9 {member.name}")

    def _stop(self) -> None:
        slot = self._one()
        if slot is not None:
            member = self._members[slot]
            member.pause()
            self._asleep[member] = time.monotonic() + self._chance.uniform(*_STOP_S)
            self.told.append(f"SIGSTOP {member.name}")

    def _cut(self) -> None:
        """Disconnect a member from one broker, possibly its coordinator.

        The member continues to read from the others.
        """
        slot = self._one()
        if slot is not None:
            name, broker = self._members[slot].name, self._chance.choice(BROKERS)
            until_s = time.monotonic() + self._chance.uniform(*_STOP_S)
            for way in self._chance.choice((((name, broker), (broker, name)), ((name, broker),), ((broker, name),))):
                self._arena.network.disturb(*way, Trouble(silent=True))
                self._cuts[way] = until_s
            self.told.append(f"{name} cut off {broker}")

    def _leave(self) -> None:
        """Ask a member to leave; another one may join before it has left."""
        slot = self._one()
        if slot is not None:
            member = self._members.pop(slot)
            self._note_end_of(member)
            member.signal(signal.SIGTERM)
            self._leaving.append(member)
            self.told.append(f"{member.name} leaves")

    def _await_leave(self, member: ServiceProcess) -> None:
        leave_s = _LEAVE_S * self._slowness
        if not member.wait(leave_s):
            self._failures.append(f"{member.name} did not leave within {leave_s:.0f} s")
            member.kill()
        elif member.exit_status == -signal.SIGTERM and not read_journal(self._directory / f"{member.name}.journal"):
            pass  # the member had not begun
        elif member.exit_status != 0:
            self._failures.append(f"{member.name} ended with {member.exit_status}: {member.tail()}")

    def _note_end_of(self, member: ServiceProcess) -> None:
        if not member.running:
            self._failures.append(f"{member.name} had ended by itself: {member.tail()}")

    def _grow(self) -> None:
        """Add a partition, up to the limit; the answer may be lost."""
        try:
            with AdminClient(admin=self._arena.cluster.admin_address, timeout_s=_CALL_S * self._slowness) as admin:
                self.partitions = len(admin.describe_topics([self._load.topic])[0].partitions)
                if self.partitions < self._load.grows_to:
                    admin.create_partitions(self._load.topic, total_count=self.partitions + 1)
                    self.partitions += 1
                    self.told.append(f"{self._load.topic} grows to {self.partitions}")
        except TidemarkError as error:
            self.told.append(f"{self._load.topic} does not grow: {error.code}")


def read_coordinators(bootstrap: str, *, deadline_s: float = 60.0) -> list[Change]:
    """All records of the group in `__consumer_offsets`, in order."""
    with RangeReader(bootstrap, deadline_s=deadline_s) as reader:
        count = len(reader.topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
        index = partition_of(GROUP, count)
        bounds = reader.bounds(OFFSETS_TOPIC, [index])[index]
        rows = [
            row
            for batch in reader.read(OFFSETS_TOPIC, index, bounds.earliest, bounds.latest)
            for row in batch.select(["offset", "key", "value"]).to_pylist()
        ]
    assert [row["offset"] for row in rows] == list(range(bounds.latest)), "compacted: old records are gone"
    changes = [decode(row["key"], row["value"]) for row in rows]
    return [one for one in changes if one is not None and one.key.group_id == GROUP]
