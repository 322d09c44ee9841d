"""One round: load, readers, misfortunes, peace; then everything is read back, checked, and all replicas compared."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.client.ranges import RangeReader
from tidemark.model import TopicPartition

from tests.chaos.arena import BROKERS, Arena
from tests.chaos.checker import check
from tests.chaos.clients import Sender, ask_ends_until, read_until
from tests.chaos.history import History, Outcome
from tests.chaos.mover import Mover
from tests.chaos.nemesis import Nemesis
from tests.chaos.replicas import differences

TOPIC = "round"
PARTITIONS = 6
SENDERS = ("a", "b")
READERS = ("x", "y")
CALM_S = 2.0
"""The load goes on so long after the last misfortune."""
PEACE_S = 90.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a round came to; `findings` is empty where all is well."""

    seed: int
    faults: list[str]
    findings: list[str]
    acknowledged: int
    unknown: int
    polled: int
    ends: int
    moves: tuple[int, int, int]
    """Asked for, cancelled, refused."""

    def __str__(self) -> str:
        verdict = "all is well" if not self.findings else "\n  ".join(["WRONG:", *self.findings[:20]])
        return (
            f"seed {self.seed}: {len(self.faults)} misfortunes, {self.acknowledged} acknowledged, {self.unknown} "
            f"unknown, {self.polled} polled, {self.ends} ends asked, "
            f"{self.moves[0]} moves asked, {self.moves[1]} cancelled, {self.moves[2]} refused\n"
            f"  {'; '.join(self.faults)}\n  {verdict}"
        )


def run_round(directory: Path, seed: int, duration_s: float) -> Report:
    """A round in an empty directory, which holds the evidence afterwards."""
    history = History()
    with Arena(directory) as arena:
        nemesis = Nemesis(arena, seed)
        with AdminClient(arena.cluster.admin_address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
            mover = Mover(arena.cluster.admin_address, TOPIC, PARTITIONS, seed)
            _live_through(arena, nemesis, mover, history, duration_s)
            not_in_sync = mover.bring_home(time.monotonic() + PEACE_S) or _wait_until_in_sync(admin)
        findings = [str(finding) for finding in check(history)] + not_in_sync
    if not not_in_sync:
        directories = {int(name.split("-")[1]): directory / name for name in BROKERS}
        ends = {TopicPartition(TOPIC, index): log[-1][0] + 1 for index, log in history.final.items() if log}
        findings += differences(directories, ends, directory)
    outcomes = Counter(record.outcome for record in history.sent)
    return Report(
        seed,
        nemesis.told,
        findings,
        outcomes[Outcome.ACKNOWLEDGED],
        outcomes[Outcome.UNKNOWN],
        len(history.polled),
        len(history.ends),
        (mover.asked, mover.cancelled, mover.refused),
    )


def _live_through(arena: Arena, nemesis: Nemesis, mover: Mover, history: History, duration_s: float) -> None:
    ended, asked_enough, moved_enough = threading.Event(), threading.Event(), threading.Event()
    finals: dict[int, int] = {}
    deadline_s = time.monotonic() + duration_s + 3 * PEACE_S

    def at_end(positions: dict[int, int]) -> bool:
        if time.monotonic() > deadline_s:
            history.add_failure(f"a reader was at {positions} when it should have been at {finals}")
            return True
        return bool(finals) and all(positions.get(partition, 0) >= end for partition, end in finals.items())

    senders = [Sender(name, arena.bootstrap, TOPIC, PARTITIONS) for name in SENDERS]
    sending = [threading.Thread(target=sender.send_until, args=(ended, history)) for sender in senders]
    reading = [
        threading.Thread(target=read_until, args=(name, arena.bootstrap, TOPIC, at_end, history)) for name in READERS
    ]
    asking = threading.Thread(target=ask_ends_until, args=(arena.bootstrap, TOPIC, PARTITIONS, asked_enough, history))
    moving = threading.Thread(target=mover.move_until, args=(moved_enough,))
    everybody = [*sending, *reading, asking, moving]
    for thread in everybody:
        thread.start()
    try:
        nemesis.strike_until(time.monotonic() + duration_s)
        time.sleep(CALM_S)
    finally:
        moved_enough.set()
        ended.set()
        for thread in sending:
            thread.join()
        try:
            history.final = _read_back(arena.bootstrap)
        finally:
            finals.update({partition: end[-1][0] + 1 for partition, end in history.final.items() if end} or {-1: 0})
            asked_enough.set()
            for thread in (*reading, asking, moving):
                thread.join()


def _read_back(bootstrap: str) -> dict[int, list[tuple[int, str]]]:
    final: dict[int, list[tuple[int, str]]] = {}
    with RangeReader(bootstrap, deadline_s=PEACE_S) as reader:
        for partition, bounds in reader.bounds(TOPIC, range(PARTITIONS)).items():
            records = final[partition] = []
            for rows in reader.read(TOPIC, partition, bounds.earliest, bounds.latest):
                for row in rows.select(["offset", "value"]).to_pylist():
                    records.append((row["offset"], row["value"].decode()))
    return final


def _wait_until_in_sync(admin: AdminClient) -> list[str]:
    deadline_s = time.monotonic() + PEACE_S
    while True:
        partitions = admin.describe_topics([TOPIC])[0].partitions
        behind = {index: one.in_sync_replicas for index, one in partitions.items() if len(one.in_sync_replicas) < 3}
        if not behind:
            return []
        if time.monotonic() > deadline_s:
            return [f"not in sync {PEACE_S:.0f} s after the last misfortune: {behind}"]
        time.sleep(0.2)
