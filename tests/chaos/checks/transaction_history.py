# SPDX-License-Identifier: Apache-2.0
"""The transactions of a round, as their clients report them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.chaos.checks.history import Offset, Partition, Polled


class End(StrEnum):
    """The last outcome of a transaction that its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The client requested the commit and got no answer."""


@dataclass(slots=True)
class Transaction:
    """One transaction.

    Attributes:
        tag: unique in the round.
        name: the transactional id.
        began_s: monotonic, before its first request.
        ended_s: monotonic, after the answer; None: the client never had one.
        end: ABORTED until the client requests the commit; no other process may commit the transaction.
        sent: its records (partition, value), in the order in which they were sent; values are unique in the round.
        seen: values that its client had read before it sent: the transaction depends on theirs.
        covers: the input that it was made from (partition, first offset, end), whose offsets commit with its records.
    """

    tag: str
    name: str
    began_s: float
    ended_s: float | None = None
    end: End = End.ABORTED
    sent: list[tuple[Partition, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    covers: list[tuple[Partition, Offset, Offset]] = field(default_factory=list)


@dataclass(slots=True)
class TransactionHistory:
    """One topic of one round.

    Attributes:
        polled: records that read_committed readers were given, in that order.
        readers: the readers that read everything from the first record to the last.
        final: the records of each partition at the end for read_committed, by offset.
        input_offsets: the offsets that the group of the input has committed at the end, by partition of the input.
        failures: errors of clients that should have waited, and steps that did not end in time.
    """

    transactions: list[Transaction] = field(default_factory=list)
    polled: list[Polled] = field(default_factory=list)
    readers: tuple[str, ...] = ()
    final: dict[Partition, list[tuple[Offset, str]]] = field(default_factory=dict)
    input_offsets: dict[Partition, Offset] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class TransactionJournal:
    """Writes the transactions of one process; a line is in the file even if the process is killed right after."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, kind: str, tag: str, **facts: Any) -> None:
        os.write(self._file, json.dumps([kind, tag, facts]).encode() + b"\n")


def read_transactions(paths: Sequence[Path]) -> tuple[list[Transaction], list[str]]:
    """The transactions in journals, and the failures; a line that a kill cut short does not count."""
    found: dict[str, Transaction] = {}
    failures: list[str] = []
    for path in paths:
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            kind, tag, facts = json.loads(line)
            if kind == "failed":
                failures.append(f"{path.stem}: {facts['why']}")
            elif kind == "begin":
                found[tag] = Transaction(tag, facts["name"], facts["at_s"], seen=facts["seen"])
            elif kind == "cover":
                found[tag].covers.append((facts["partition"], facts["first"], facts["end"]))
            elif kind == "send":
                found[tag].sent += [(partition, value) for partition, value in facts["records"]]
            elif kind == "committing":
                found[tag].end = End.UNKNOWN
            else:
                found[tag].end, found[tag].ended_s = End(kind), facts["at_s"]
    return list(found.values()), failures
