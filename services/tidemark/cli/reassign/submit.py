# SPDX-License-Identifier: Apache-2.0
"""Begins moves, as many as a ZooKeeper node takes, feeds in the rest as earlier ones end, follows all to their end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from tidemark.cli.common.output import print_error
from tidemark.cli.reassign.progress_view import MoveView
from tidemark.core.reassignment.progress import EndedReassignment
from tidemark.model import ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient

EXIT_INTERRUPTED: Final = 130
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0
_INTERVAL_MS: Final = 500


class MoveFeed:
    """Some moves, from their beginning to their end.

    Args:
        client: of the admin service.
        moves: in the order in which they are begun.
        throttle_bytes_per_s: of all of them; 0 for none.
        request_id: of all of them.
    """

    def __init__(
        self, client: AdminClient, moves: Sequence[PartitionReassignment], throttle_bytes_per_s: int, request_id: str
    ) -> None:
        self._client = client
        self._waiting = list(moves)
        self._throttle_bytes_per_s = throttle_bytes_per_s
        self._request_id = request_id
        self._at_once = max(1, len(self._waiting))
        self._running: set[TopicPartition] = set()

    def begin(self) -> int:
        """Begin what fits; gives how many are left.

        Raises:
            TidemarkError: what the service refuses; INVALID_REQUEST says how many fit where not a single one does.
        """
        while self._waiting:
            some = self._waiting[: self._at_once]
            try:
                answer = self._client.alter_partition_reassignments(
                    some, throttle_bytes_per_s=self._throttle_bytes_per_s, request_id=self._request_id
                )
            except TidemarkError as error:
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
            refused = [outcome.error for outcome in answer.outcomes if outcome.error is not None]
            if refused:
                raise_all(refused)
            self._running |= {move.partition for move in some}
            self._waiting = self._waiting[len(some) :]
        return 0

    def follow(self, view: MoveView) -> list[EndedReassignment]:
        """How each ended, when all have; begins those that are left."""
        ended: list[EndedReassignment] = []
        while self._running or self._waiting:
            self.begin()
            ended += self._follow_some(view)
        return ended

    def _follow_some(self, view: MoveView) -> list[EndedReassignment]:
        """Until all that run have ended, or so many that others can begin."""
        ended: list[EndedReassignment] = []
        begun = len(self._running)
        patience_until_s = time.monotonic() + _PATIENCE_S
        while self._running:
            try:
                news = self._client.watch_partition_reassignments(
                    sorted(self._running), interval_ms=_INTERVAL_MS, request_id=self._request_id
                )
                for moves, ends in news:
                    patience_until_s = time.monotonic() + _PATIENCE_S
                    ended += ends
                    self._running -= {one.partition for one in ends}
                    view.show(moves, ends, f", {len(self._waiting)} not begun" if self._waiting else "")
                    if self._waiting and len(self._running) <= begun // 2:
                        return ended
            except TidemarkError as error:
                # The service, or ZooKeeper, is away for a while: the moves are not.
                if not error.retriable or time.monotonic() > patience_until_s:
                    raise
                time.sleep(_PAUSE_S)
        return ended


def raise_all(refused: Sequence[TidemarkError]) -> None:
    """Every refusal is told, the last by what is raised."""
    for error in refused[:-1]:
        print_error(error)
    raise refused[-1]


def interrupted(what: str) -> typer.Exit:
    """What Ctrl-C means: nothing that was begun is given up."""
    typer.echo(
        f"{what} goes on in the cluster; tidemark reassign list shows how far it is, tidemark reassign cancel gives "
        "moves up",
        err=True,
    )
    return typer.Exit(EXIT_INTERRUPTED)


def _fitting(error: TidemarkError) -> int | None:
    """How many moves the node takes, where that was what is wrong."""
    fitting = error.metadata.get("moves_max", "")
    return int(fitting) if error.code is ErrorCode.INVALID_REQUEST and fitting.isdecimal() else None
