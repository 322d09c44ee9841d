# SPDX-License-Identifier: Apache-2.0
"""The transaction of a write as its tasks know it, and the members that the driver commits. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

NO_PRODUCER = -1


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """The transaction of one batch write or micro-batch; the driver begins it, and every task has a copy.

    Attributes:
        transactional_id: the id at the coordinator.
        generation: generation that InitTransactions returned; a later generation fences this generation.
        timeout_ms: the coordinator aborts the transaction when no task has kept it for this time.
        query_id: Spark's id of the streaming query, by the checkpoint; "": a batch write, or not read.
        sequence: number of a batch write; None: the number of the micro-batch is used.
        last_sequence: the last sequence that was committed before this transaction; -1: none.
    """

    transactional_id: str
    generation: int
    timeout_ms: int
    query_id: str = ""
    sequence: int | None = None
    last_sequence: int = -1


@dataclass(frozen=True, slots=True)
class Membership:
    """The transaction that a task wrote in; part of the commit message that the driver gets.

    Attributes:
        transaction: see `WriteTransaction`.
        producer_id: producer id of the task's writes; NO_PRODUCER: the task had no rows.
    """

    transaction: WriteTransaction
    producer_id: int = NO_PRODUCER


class Decision(NamedTuple):
    """A call of the driver: commit the writes of these producers, and abort the writes of all other members."""

    transaction: WriteTransaction
    producer_ids: tuple[int, ...]


class MixedTransactionsError(RuntimeError):
    """The tasks of one write were in different transactions; no row is committed."""


def decide(memberships: Iterable[Membership | None]) -> Decision | None:
    """Choose the members to commit by the messages of all tasks; None: the tasks wrote without a transaction.

    Args:
        memberships: of each message, in any order; None: the task wrote without a transaction.

    Raises:
        MixedTransactionsError: the messages name several transactions, or some messages name none.
    """
    found = list(memberships)
    transactions = {one.transaction if one is not None else None for one in found}
    if not transactions - {None}:
        return None
    if len(transactions) > 1:
        names = sorted("none" if one is None else f"{one.transactional_id} ({one.generation})" for one in transactions)
        raise MixedTransactionsError(f"the tasks of one write were in different transactions: {', '.join(names)}")
    named = {one.producer_id for one in found if one is not None and one.producer_id != NO_PRODUCER}
    transaction = next(one.transaction for one in found if one is not None)
    return Decision(transaction, tuple(sorted(named)))
