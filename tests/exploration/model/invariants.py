# SPDX-License-Identifier: Apache-2.0
"""Conditions that hold in every state of an explored cluster, by the names of the guarantees (docs/guarantees.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.exploration.model.brokers import Brokers, Cut, Disk, Record, View, written_epochs
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.state import ALL_BROKERS, DEAD, NO_BROKERS, State

Records = tuple[Record, ...]


class InvariantError(AssertionError):
    """An invariant does not hold."""


class Seen(NamedTuple):
    """The facts seen along the story; as in `State`."""

    committed: Records
    stated: tuple[tuple[int, int], ...]
    led: tuple[int, int, int]


def look(brokers: Brokers, disks: Sequence[Disk], state: State, seen: Seen, acked: Sequence[tuple[int, int]]) -> Seen:
    """Check all invariants; returns the facts that this state adds.

    Args:
        disks: each broker's.
        acked: (offset, label) that the move acknowledged with acks=all.

    Raises:
        InvariantError: with the guarantee's name.
    """
    logs = [disk.records for disk in disks]
    views = [(place, brokers.views[core]) for place, core in enumerate(state.cores) if core != DEAD]
    leaders = [(place, view) for place, view in views if view.leader_epoch is not None]
    committed = seen.committed
    for place, view in leaders:
        committed = _committed_read(place, logs[place][: view.high_watermark], committed)
    for offset, label in acked:
        _require(offset < len(committed) and committed[offset][0] == label, f"ACKED-READABLE: {label} at {offset}")
    _check_node(brokers, disks, state, committed)
    for place, view in views:
        common = min(view.high_watermark, len(committed))
        if logs[place][:common] != committed[:common]:
            raise InvariantError(f"LOG-MATCH: broker {place + 1} holds {logs[place]}, committed is {committed}")
        if (view, logs[place]) not in brokers.sound:
            _check_log(place, view, logs[place])
            brokers.sound.add((view, logs[place]))
    led = seen.led
    for place, view in leaders:
        led = _one_leader(brokers, state, leaders, place, view, led)
    if led[0] < brokers.values[state.node].state.leader_epoch:
        led = NO_BROKERS  # a later registration gets a later epoch
    return Seen(committed, _stated(leaders, seen.stated), led)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantError(sentence)


def _committed_read(place: int, served: Records, committed: Records) -> Records:
    """The records that leaders serve are one sequence that only grows."""
    common = min(len(served), len(committed))
    if served[:common] != committed[:common]:
        raise InvariantError(f"COMMITTED-READ: broker {place + 1} serves {served}, and {committed} was served before")
    return committed if len(committed) >= len(served) else served


def _check_node(brokers: Brokers, disks: Sequence[Disk], state: State, committed: Records) -> None:
    """LEADER-IN-ISR, and every replica eligible for a clean election holds all committed records.

    A log that was cut at a crash may lack some of them on two conditions: its entry is from before the crash, and
    another replica has all.
    """
    node = brokers.values[state.node].state
    if node.leader >= 0 and node.leader not in node.isr_ids:
        raise InvariantError(f"LEADER-IN-ISR: {node}")
    whole = False
    for name, entries in (("ISR", node.isr), ("ELR", node.elr)):
        for entry in entries:
            place = BROKERS.index(entry.broker_id)
            disk = disks[place]
            if disk.records[: len(committed)] == committed:
                whole = True
            elif disk.cut is Cut.NONE or (state.cores[place] != DEAD and entry.broker_epoch == state.epochs[place]):
                sentence = f"broker {place + 1} of it holds {disk.records}, committed is {committed}"
                raise InvariantError(f"STRONG-{name}: {sentence}")
    _require(whole, f"STRONG-ISR: no replica of {node} holds {committed}")


def _check_log(place: int, view: View, log: Records) -> None:
    """VALID-HW, and offsets and epochs that agree with the records."""
    name = f"broker {place + 1}"
    _require(view.high_watermark <= len(log), f"VALID-HW: of {name} it is {view.high_watermark}, past its log end")
    if view.quiet and view.log_end is not None:
        end = view.log_end
        _require(end == len(log), f"R1: the core of {name} takes its log to end at {end}, and it ends at {len(log)}")
        cached = [entry for entry in view.epochs if entry.start_offset < end]
        written = list(written_epochs(log).entries)
        _require(cached == written, f"EPOCHS: {name} knows {cached}, its records say {written}")
        epochs = [epoch for _, epoch in log]
        _require(epochs == sorted(epochs), f"EPOCHS: of {name} they go back: {log}")


def _one_leader(
    brokers: Brokers,
    state: State,
    leaders: Sequence[tuple[int, View]],
    place: int,
    view: View,
    led: tuple[int, int, int],
) -> tuple[int, int, int]:
    """ONE-LEADER in an epoch, and no process leads again in its old epoch (E5); VALID-HW of the leader in the node."""
    epoch = view.leader_epoch
    assert epoch is not None
    others = [other for other, one in leaders if other != place and one.leader_epoch == epoch]
    _require(not others, f"ONE-LEADER: epoch {epoch} is led by brokers {[place + 1, *[one + 1 for one in others]]}")
    me = (epoch, int(BROKERS[place]), state.epochs[place])
    if led[0] == epoch:
        _require(led == me, f"ONE-LEADER: epoch {epoch} is led by {me[1:]} and was by {led[1:]}")
    return max(led, me)


def _stated(leaders: Sequence[tuple[int, View]], stated: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """HW-MONOTONIC: a leader states no less than was stated in its epoch or an older one (rule E6)."""
    known = dict(stated)
    for place, view in leaders:
        epoch = view.leader_epoch
        if epoch is None or not view.states_high_watermark:
            continue
        before = max((one for other, one in known.items() if other <= epoch), default=0)
        _require(
            view.high_watermark >= before,
            f"HW-MONOTONIC: {before} was stated, and broker {place + 1} states {view.high_watermark}",
        )
        known[epoch] = view.high_watermark
    highest = 0
    kept: list[tuple[int, int]] = []
    for epoch, high_watermark in sorted(known.items()):
        if high_watermark > highest:
            kept.append((epoch, high_watermark))
            highest = high_watermark
    return tuple(kept)


def at_rest(brokers: Brokers, logs: Sequence[Records], state: State) -> None:
    """In a state at rest, all brokers live, are in sync, and have the same high watermark.

    Raises:
        InvariantError: CONVERGENCE.
    """
    node = brokers.values[state.node].state
    together = len(set(logs)) == 1 and len(node.isr) == len(BROKERS) and not node.elr
    marks = {brokers.views[core].high_watermark if core != DEAD else None for core in state.cores}
    leading = [BROKERS[place] for place in ALL_BROKERS if brokers.views[state.cores[place]].leader_epoch is not None]
    _require(
        together and marks == {len(logs[0])} and leading == [node.leader],
        f"CONVERGENCE: nothing is left to happen, and {node}, logs {list(logs)}, high watermarks {marks}",
    )
