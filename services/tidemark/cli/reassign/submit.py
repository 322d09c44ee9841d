# SPDX-License-Identifier: Apache-2.0
"""Starts reassignments, at most as many as fit into a ZooKeeper node at a time; follows and cancels them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import typer

from tidemark.cli.common.output import raise_all
from tidemark.cli.common.process import EXIT_INTERRUPTED
from tidemark.cli.reassign.views import MoveView
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition
from tidemark.rpc.request_limits import in_requests

if TYPE_CHECKING:
    from tidemark.client import AdminClient

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0
_INTERVAL_MS: Final = 500
_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
_TRIES_MAX: Final = 5

Originals = Mapping[TopicPartition, tuple[BrokerId, ...]]
"""Replicas before each reassignment; empty if the partition was unknown."""


class MoveFeed:
    """Reassignments of one command, from start to end, in their order; `throttle_bytes_per_s` 0: no throttle."""

    def __init__(
        self, client: AdminClient, moves: Sequence[PartitionReassignment], throttle_bytes_per_s: int, request_id: str
    ) -> None:
        self._client = client
        self._waiting = list(moves)
        self._throttle_bytes_per_s = throttle_bytes_per_s
        self._request_id = request_id
        self._at_once = max(1, len(self._waiting))
        self._running: set[TopicPartition] = set()
        self._in_doubt = False
        self._targets = {move.partition: move.replicas for move in moves}

    @property
    def has_begun(self) -> bool:
        """Whether a reassignment was started, or may have been started by a call without outcome."""
        return self._in_doubt or bool(self._running) or len(self._waiting) < len(self._targets)

    def begin(self) -> int:
        """Start as many reassignments as fit; returns the number of the remaining ones.

        Raises:
            TidemarkError: a refusal of the service; INVALID_REQUEST if not a single one fits.
        """
        while self._waiting:
            some = in_requests(self._waiting[: self._at_once])[0]
            self._in_doubt = True
            try:
                answer = self._client.alter_partition_reassignments(
                    some, throttle_bytes_per_s=self._throttle_bytes_per_s, request_id=self._request_id
                )
            except TidemarkError as error:
                self._in_doubt = error.retriable
                fitting = _fitting(error)
                if fitting is None:
                    raise
                room = fitting - len(self._client.list_partition_reassignments().moves)
                if room < 1 or len(some) == 1:
                    if self._running:
                        return len(self._waiting)
                    raise
                self._at_once = max(1, min(room, len(some) - 1))
                continue
            self._in_doubt = False
            raise_refused(answer.outcomes)
            self._running |= {move.partition for move in some}
            self._waiting = self._waiting[len(some) :]
        return 0

    def follow(self, view: MoveView) -> list[EndedReassignment]:
        """Wait until all ended, and start the remaining ones meanwhile; returns how each ended."""
        ended: list[EndedReassignment] = []
        patience = Patience()
        while self._running or self._waiting:
            try:
                self.begin()
            except TidemarkError as error:
                patience.wait_after(error)
                continue
            ended += self._follow_some(view)
            patience = Patience()
        return ended

    def _follow_some(self, view: MoveView) -> list[EndedReassignment]:
        """Wait until all running reassignments ended, or enough of them that waiting reassignments can start."""
        ended: list[EndedReassignment] = []
        begun = len(self._running)
        patience = Patience()
        while self._running:
            try:
                updates = self._client.watch_partition_reassignments(
                    sorted(self._running), interval_ms=_INTERVAL_MS, request_id=self._request_id
                )
                for moves, found in updates:
                    patience = Patience()
                    ends = [_as_it_ended(one, self._targets[one.partition]) for one in found]
                    ended += ends
                    self._running -= {one.partition for one in ends}
                    view.show(moves, ends, f", {len(self._waiting)} not started" if self._waiting else "")
                    if self._waiting and len(self._running) <= begun // 2:
                        return ended
            except TidemarkError as error:
                patience.wait_after(error)
        return ended


class Patience:
    """Time for an outage of the service or of ZooKeeper; the reassignments continue meanwhile. `pause` sleeps."""

    def __init__(self, pause: Callable[[float], None] | None = None) -> None:
        self._pause = pause or time.sleep
        self._until_s = time.monotonic() + _PATIENCE_S

    def wait_after(self, error: TidemarkError) -> None:
        """Pause before the next call; raises the error if a retry cannot help, or at the end of the patience."""
        if not error.retriable or time.monotonic() > self._until_s:
            raise error
        self._pause(_PAUSE_S)


def _as_it_ended(ended: EndedReassignment, target: tuple[BrokerId, ...]) -> EndedReassignment:
    """Add the error that the service cannot know: it keeps the latest refusals only, and may have been down."""
    if ended.error is not None or ended.replicas == target:
        return ended
    listed = ",".join(str(broker) for broker in ended.replicas)
    sentence = f"{ended.partition} was not reassigned: its replicas are {listed}; see tidemark reassign list"
    return replace(ended, error=TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence))


def cancel(
    client: AdminClient, named: Sequence[TopicPartition], found: Originals
) -> tuple[set[TopicPartition], dict[TopicPartition, TidemarkError]]:
    """Cancel these reassignments; returns the reassignments of `found` that had ended before, and the refusals.

    A reassignment of `found`, by topic or --all, may end first; the other reassignments are still cancelled.

    Raises:
        TidemarkError: an element of `named` is refused; nothing is cancelled.
    """
    if named:
        raise_refused(client.alter_partition_reassignments(cancel=named).outcomes)
    outcomes = _cancel_found(client, sorted(found)) if found else []
    refused = {one.partition: one.error for one in outcomes if one.error is not None}
    ended = {partition for partition, error in refused.items() if _has_ended(error, found[partition])}
    return ended, {partition: error for partition, error in refused.items() if partition not in ended}


def _cancel_found(client: AdminClient, found: Sequence[TopicPartition]) -> Sequence[ReassignmentOutcome]:
    tries = 1
    while True:
        try:
            return client.alter_partition_reassignments(cancel=found, allow_partial=True).outcomes
        except TidemarkError as error:
            # A reassignment ended during the call, so the service cancelled none.
            if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS or tries == _TRIES_MAX:
                raise
        tries += 1


def ended_meanwhile(found: Originals, ended: Sequence[EndedReassignment]) -> set[TopicPartition]:
    """Reassignments of `found` that completed before the cancellation."""
    return {
        one.partition
        for one in ended
        if one.partition in found
        and tuple(one.replicas) != found[one.partition]
        and (one.error is None or _has_ended(one.error, found[one.partition]))
    }


def _has_ended(error: TidemarkError, original: tuple[BrokerId, ...]) -> bool:
    gone = error.code in _GONE and bool(original)
    return gone or error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def raise_refused(outcomes: Sequence[ReassignmentOutcome]) -> None:
    """Raise the refusals among the outcomes, if any."""
    raise_all([outcome.error for outcome in outcomes if outcome.error is not None])


def interrupted(what: str) -> typer.Exit:
    """Exit after Ctrl-C; the cluster continues the reassignments that were started."""
    typer.echo(
        f"{what} continues in the cluster; tidemark reassign list shows its progress, tidemark reassign cancel "
        "cancels it",
        err=True,
    )
    return typer.Exit(EXIT_INTERRUPTED)


def _fitting(error: TidemarkError) -> int | None:
    """Number of reassignments that fit into the node, if that was the error."""
    fitting = error.metadata.get("moves_max", "")
    return int(fitting) if error.code is ErrorCode.INVALID_REQUEST and fitting.isdecimal() else None
