# SPDX-License-Identifier: Apache-2.0
"""One round: load, readers, faults, and a time without faults.

Then the round reads and checks all records, and compares all replicas.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidemark.client import AdminClient, Consumer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.groups.state import OffsetKey
from tidemark.core.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.chaos.arena.arena import Arena
from tests.chaos.arena.disks import Disks
from tests.chaos.arena.names import BROKERS
from tests.chaos.checks.checker import REPLICAS, check
from tests.chaos.checks.group_checker import check_group
from tests.chaos.checks.group_history import GroupHistory, Processed, Taken
from tests.chaos.checks.history import History, Outcome
from tests.chaos.checks.replicas import differences
from tests.chaos.checks.transaction_checker import check_transactions
from tests.chaos.checks.transaction_history import End, TransactionHistory
from tests.chaos.checks.typed_checker import check_typed
from tests.chaos.clients import Sender, ask_ends_until, delete_until, read_until
from tests.chaos.group.troop import Troop
from tests.chaos.loads import COMPACTED, HASTY, LOADS, PLAIN, SHARED, SHRINKING, WITH_TOKEN, Load
from tests.chaos.mover import Mover
from tests.chaos.nemesis import Nemesis
from tests.chaos.transactions.troop import PARTITIONS as TRANSACTIONAL_PARTITIONS
from tests.chaos.transactions.troop import TOPIC as TRANSACTIONAL_TOPIC
from tests.chaos.transactions.troop import TransactionTroop
from tests.chaos.typed import troop as of_typed
from tests.chaos.typed.troop import TypedFigures, TypedTroop

CALM_S = 2.0
"""Time for which the load continues after the last fault."""
PEACE_S = 90.0
BEGIN_S = 45.0
"""The faults begin after this time at the latest, even if the load does not run yet."""
CALL_S = 30.0
ROUND_S = 400.0
"""The longest sum of all waits of a round, without its faults."""


class TransactionFigures(NamedTuple):
    """Processes of senders; transactions by their outcome; records that the read_committed reader got.

    `transformed`: input records that are below the offsets committed with records.
    """

    lives: int
    committed: int
    aborted: int
    unknown: int
    polled: int
    transformed: int


class GroupFigures(NamedTuple):
    """Number of processes of members, of assignments, of processed records, and of commits."""

    lives: int
    taken: int
    processed: int
    commits: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a round; `findings` is empty if there are none."""

    seed: int
    faults: list[str]
    findings: list[str]
    acknowledged: int
    unknown: int
    failed: int
    """Records that were not appended, and whose senders got an error."""
    polled: int
    ends: int
    moves: tuple[int, int, int]
    """Reassignments requested, cancelled and refused."""
    covered: int
    """Acknowledged records of the compacted topic that later ones have replaced."""
    let_go: int
    """Offsets below the starts of the topic that shrinks."""
    deletions: int
    group: GroupFigures
    group_told: list[str]
    transactions: TransactionFigures
    transactions_told: list[str]
    typed: TypedFigures
    typed_told: list[str]

    def __str__(self) -> str:
        verdict = "all is well" if not self.findings else "\n  ".join(["WRONG:", *self.findings[:20]])
        return (
            f"seed {self.seed}: {len(self.faults)} faults, {self.acknowledged} acknowledged, {self.unknown} "
            f"unknown, {self.failed} failed, {self.polled} polled, {self.ends} ends asked, "
            f"{self.moves[0]} moves asked, {self.moves[1]} cancelled, {self.moves[2]} refused; "
            f"{self.covered} records compacted away, {self.let_go} let go, {self.deletions} deletions; "
            f"in the group {self.group.lives} lives, {self.group.taken} partitions taken up, "
            f"{self.group.processed} records processed, {self.group.commits} commits; "
            f"{self.transactions.lives} transactional senders, {self.transactions.committed} transactions committed, "
            f"{self.transactions.aborted} aborted, {self.transactions.unknown} unknown, "
            f"{self.transactions.transformed} input records transformed; "
            f"{self.typed.versions} versions of the schema, {self.typed.outrun} changes outrun, "
            f"{self.typed.refused} refused, {self.typed.misfits} rows did not fit\n"
            f"  {'; '.join(self.faults)}\n  the group: {'; '.join(self.group_told)}\n"
            f"  transactions: {'; '.join(self.transactions_told)}\n"
            f"  the schema: {'; '.join(self.typed_told)}\n  {verdict}"
        )


def _keep_records_of_groups(bootstrap: str, admin: AdminClient, patience_s: float) -> None:
    """Create `__consumer_offsets`, and delay its compaction: the checker needs every record of the coordinators.

    A truncation of flushed records rolls a segment, which the cleaner would compact within the round.
    """
    until_s = time.monotonic() + patience_s
    with Consumer(bootstrap, group="first") as consumer:
        consumer.subscribe([SHARED.topic])
        while not consumer.assignment:
            assert time.monotonic() < until_s, "the first group got no partition"
            consumer.poll(timeout_s=0.1)
    admin.alter_configs(ConfigResource(ConfigKind.TOPIC, OFFSETS_TOPIC), {"min.compaction.lag.ms": "3600000"})


def round_s_max(duration_s: float, slowness: float) -> float:
    """Longest time of a round; a longer round hangs."""
    return duration_s + ROUND_S * slowness


def run_round(directory: Path, seed: int, duration_s: float, slowness: float = 1.0, *, secure: bool = False) -> Report:
    """A round in an empty directory, which holds the evidence afterwards.

    Args:
        slowness: of the machine; bounds on liveness are this much longer.
        secure: with TLS, access rules and a closed ZooKeeper; the round then renews certificates and tokens.
    """
    histories = {load.topic: History(hasty=load.patience_ms > 0, readers=load.readers) for load in LOADS}
    with Disks(directory) as disks:
        with Arena(directory, disks, slowness, secure=secure) as arena:
            nemesis, typed = Nemesis(arena, seed), TypedTroop(arena, seed)
            histories[of_typed.LOAD.topic] = typed.history
            with AdminClient(admin=arena.cluster.admin_address, timeout_s=CALL_S * slowness) as admin:
                for load in LOADS:
                    admin.create_topic(
                        load.topic, partitions=load.partitions, replication_factor=3, configs=load.topic_configs
                    )
                admin.create_topic(
                    TRANSACTIONAL_TOPIC,
                    partitions=TRANSACTIONAL_PARTITIONS,
                    replication_factor=3,
                    configs=PLAIN.topic_configs,
                )
                typed.create(admin)
                _keep_records_of_groups(arena.bootstrap, admin, BEGIN_S * slowness)
                mover = Mover(arena.cluster.admin_address, PLAIN.topic, PLAIN.partitions, seed, slowness)
                with (
                    Troop(directory / "troop", arena, SHARED, seed, duration_s) as troop,
                    TransactionTroop(directory / "transactions", arena, PLAIN.topic, seed) as transactions,
                ):
                    _live_through(arena, nemesis, mover, troop, transactions, typed, histories, duration_s)
                    group = troop.end(_ends(histories[SHARED.topic]))
                peace_s = PEACE_S * slowness
                ends = _ends_of_internal_and_transactional(arena.bootstrap, peace_s)
                if group.unfinished:
                    arena.note_state(arena.directory / "when-the-group-failed")
                not_in_sync = mover.bring_home(time.monotonic() + peace_s) or _wait_until_in_sync(admin, peace_s)
            findings = [*nemesis.ended, *not_in_sync]
            for topic, history in histories.items():
                history.killed = nemesis.killed
                findings += [f"{topic}: {finding}" for finding in (*check(history), *_idle(history))]
            findings += map(str, check_group(group))
            findings += map(str, (*check_transactions(transactions.history), *check_typed(typed.typed)))
        if not not_in_sync:
            directories = {int(name.split("-")[1]): disks.seen_from_here(name) for name in BROKERS}
            ends |= {
                TopicPartition(topic, index): end
                for topic, history in histories.items()
                for index, end in _ends(history).items()
            }
            findings += differences(directories, ends, directory, compacted=[COMPACTED.topic, TRANSACTIONS_TOPIC])
    return _report(seed, nemesis, mover, histories, findings, troop.told, group, transactions, typed)


def _idle(history: History) -> list[str]:
    """Loads without an acknowledged record: a round without records tests nothing."""
    acknowledged = any(record.outcome is Outcome.ACKNOWLEDGED for record in history.sent)
    return [] if acknowledged else ["nothing was acknowledged"]


def _report(
    seed: int,
    nemesis: Nemesis,
    mover: Mover,
    histories: dict[str, History],
    findings: list[str],
    group_told: list[str],
    group: GroupHistory,
    transactions: TransactionTroop,
    typed: TypedTroop,
) -> Report:
    history = histories[PLAIN.topic]
    outcomes = Counter(record.outcome for record in history.sent)
    compacted, shrinking = histories[COMPACTED.topic], histories[SHRINKING.topic]
    acknowledged = sum(record.outcome is Outcome.ACKNOWLEDGED for record in compacted.sent)
    return Report(
        seed,
        nemesis.told,
        findings,
        outcomes[Outcome.ACKNOWLEDGED],
        outcomes[Outcome.UNKNOWN],
        sum(record.outcome is Outcome.FAILED for record in histories[HASTY.topic].sent),
        len(history.polled),
        len(history.ends),
        (mover.asked, mover.cancelled, mover.refused),
        acknowledged - sum(map(len, compacted.final.values())),
        sum(shrinking.starts.values()),
        len(shrinking.deleted),
        _figures_of(group),
        group_told,
        _figures_of_transactions(transactions.history, transactions.lives),
        transactions.told,
        typed.figures(),
        typed.told,
    )


def _figures_of(group: GroupHistory) -> GroupFigures:
    events = [event for journal in group.journals.values() for event in journal]
    return GroupFigures(
        len(group.journals),
        sum(len(one.partitions) for one in events if isinstance(one, Taken)),
        sum(one.end - one.first for one in events if isinstance(one, Processed)),
        sum(isinstance(one.key, OffsetKey) for one in group.coordinator),
    )


def _figures_of_transactions(history: TransactionHistory, lives: int) -> TransactionFigures:
    ends = Counter(one.end for one in history.transactions)
    transformed = sum(history.input_offsets.values())
    return TransactionFigures(
        lives, ends[End.COMMITTED], ends[End.ABORTED], ends[End.UNKNOWN], len(history.polled), transformed
    )


def _live_through(
    arena: Arena,
    nemesis: Nemesis,
    mover: Mover,
    troop: Troop,
    transactions: TransactionTroop,
    typed: TypedTroop,
    histories: dict[str, History],
    duration_s: float,
) -> None:
    ended, asked_enough, moved_enough, abandoned = (threading.Event() for _ in range(4))
    finals: dict[str, dict[int, int]] = {}
    deadline_s = time.monotonic() + duration_s + 3 * PEACE_S * arena.slowness

    def at_end(topic: str, positions: dict[int, int]) -> bool:
        if time.monotonic() > deadline_s:
            histories[topic].add_failure(f"a reader was at {positions} when it should have been at {finals}")
            return True
        return bool(finals) and all(positions.get(partition, 0) >= end for partition, end in finals[topic].items())

    plain, shrinking = histories[PLAIN.topic], histories[SHRINKING.topic]
    sending, others = [], []
    for life in (mover.move_until, troop.live_until):
        others.append(_thread(plain, life, moved_enough))
    others.append(_thread(plain, transactions.read_until_ended, arena.bootstrap))
    troubling = _thread(plain, transactions.live_until, moved_enough)
    for load in LOADS:
        history = histories[load.topic]
        senders = [_sender(name, load, arena, troop, abandoned) for name in load.senders]
        sending += [_thread(history, sender.send_until, ended, history) for sender in senders]
        for name in load.readers:
            reading = (name, arena.bootstrap, load, partial(at_end, load.topic), history, arena.slowness)
            others.append(_thread(history, read_until, *reading))
    sending += [_thread(typed.history, sender.send_until, ended, typed.history) for sender in typed.senders(abandoned)]
    others.append(_thread(typed.history, typed.read_until, partial(at_end, of_typed.LOAD.topic)))
    evolving = _thread(typed.history, typed.evolve_until, ended)
    asking = (arena.bootstrap, PLAIN.topic, PLAIN.partitions, asked_enough, plain)
    others.append(_thread(plain, ask_ends_until, *asking))
    deleting = _thread(shrinking, delete_until, arena.cluster.admin_address, SHRINKING, ended, nemesis.seed, shrinking)
    for thread in (*sending, *others, deleting, troubling, evolving):
        thread.start()
    try:
        _wait_for_load(histories, transactions, BEGIN_S * arena.slowness)
        nemesis.strike_until(time.monotonic() + duration_s)
        time.sleep(CALM_S)
    except BaseException:
        abandoned.set()
        raise
    finally:
        moved_enough.set()
        ended.set()
        for thread in (*sending, deleting, troubling, evolving):
            thread.join()
        try:
            if any(history.failures for history in histories.values()):
                arena.note_state(arena.directory / "when-sending-failed")
            for load in () if abandoned.is_set() else LOADS:
                _read_back(arena.bootstrap, load, histories[load.topic], PEACE_S * arena.slowness)
            transactions.end(abandoned)
            typed.read_back(abandoned, PEACE_S * arena.slowness)
        finally:
            transactions.give_up()
            finals.update({topic: _ends(history) for topic, history in histories.items()})
            asked_enough.set()
            for thread in others:
                thread.join()


def _sender(name: str, load: Load, arena: Arena, troop: Troop, abandoned: threading.Event) -> Sender:
    count = partial(getattr, troop, "partitions") if load.grows_to else None
    bootstrap, identity = arena.bootstrap, {}
    if name in WITH_TOKEN:
        bootstrap, identity = arena.token_bootstrap, arena.with_token
    return Sender(name, bootstrap, load, count, arena.slowness, abandoned, identity)


def _thread(history: History, work: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread; an error that ends it is a finding."""

    def run() -> None:
        try:
            work(*arguments)
        except Exception:  # noqa: BLE001 - each error is a finding
            history.add_failure(f"a thread of the round ended with an error: {traceback.format_exc()}")

    return threading.Thread(target=run, name=getattr(work, "__name__", ""))


def _wait_for_load(histories: dict[str, History], transactions: TransactionTroop, patience_s: float) -> None:
    until_s = time.monotonic() + patience_s
    read: dict[str, History | TransactionHistory] = {**histories, TRANSACTIONAL_TOPIC: transactions.history}
    while any(history.readers and not history.polled for history in read.values()):
        if time.monotonic() > until_s:
            silent = [topic for topic, history in read.items() if history.readers and not history.polled]
            failures = [failure for history in histories.values() for failure in history.failures]
            raise AssertionError(f"within {patience_s:.0f} s nothing was read of {silent}; {failures}")
        time.sleep(0.1)


def _ends(history: History) -> dict[int, int]:
    return {partition: log[-1][0] + 1 for partition, log in history.final.items() if log}


def _ends_of_internal_and_transactional(bootstrap: str, patience_s: float) -> dict[TopicPartition, int]:
    """Log ends of partitions that have records: of coordinators, and of the topic with markers."""
    found: dict[TopicPartition, int] = {}
    with RangeReader(bootstrap, deadline_s=patience_s) as reader:
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TRANSACTIONAL_TOPIC):
            count = len(reader.topics([topic])[topic].partitions)
            ends = {
                TopicPartition(topic, index): bounds.latest
                for index, bounds in reader.bounds(topic, range(count)).items()
                if bounds.latest
            }
            assert ends, f"nothing is in {topic}"
            found |= ends
    return found


def _read_back(bootstrap: str, load: Load, history: History, patience_s: float) -> None:
    """Read all records; read again if retention deleted records during the read."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            with RangeReader(bootstrap, deadline_s=patience_s) as reader:
                count = range(len(reader.topics([load.topic])[load.topic].partitions))
                for partition, bounds in reader.bounds(load.topic, count).items():
                    records = history.final[partition] = []
                    history.starts[partition] = bounds.earliest
                    for rows in reader.read(load.topic, partition, bounds.earliest, bounds.latest):
                        for row in rows.select(["offset", "value"]).to_pylist():
                            records.append((row["offset"], row["value"].decode()))
        except TidemarkError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or not load.shrinks or time.monotonic() > deadline_s:
                raise
        else:
            return


def _wait_until_in_sync(admin: AdminClient, patience_s: float) -> list[str]:
    deadline_s = time.monotonic() + patience_s
    topics = [
        OFFSETS_TOPIC,
        TRANSACTIONS_TOPIC,
        TRANSACTIONAL_TOPIC,
        of_typed.LOAD.topic,
        *(one.topic for one in LOADS),
    ]
    while True:
        behind = {
            f"{topic.topic}-{index}": one.in_sync_replicas
            for topic in admin.describe_topics(topics)
            for index, one in topic.partitions.items()
            if len(one.in_sync_replicas) < REPLICAS
        }
        if not behind:
            return []
        if time.monotonic() > deadline_s:
            return [f"not in sync {patience_s:.0f} s after the last fault: {behind}"]
        time.sleep(0.2)
