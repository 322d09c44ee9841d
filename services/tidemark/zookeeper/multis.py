# SPDX-License-Identifier: Apache-2.0
"""Writes as ZooKeeper's multis: operations as values, batches within its limits (rule Z2), outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency

from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper.session_port import Session

OPERATIONS_MAX: Final = 500
BYTES_MAX: Final = 512 << 10
"""Of one multi, and of one node: beyond 1 MiB ZooKeeper drops the connection."""

_OVERHEAD_BYTES: Final = 64
"""Of one operation besides its path and data: headers, lengths, version, ACL."""

ANY_VERSION: Final = -1


@dataclass(frozen=True, slots=True)
class Check:
    """The node must exist, at this version."""

    path: str
    version: int = ANY_VERSION

    data: ClassVar[bytes] = b""

    def add_to(self, transaction: Any) -> None:
        """As kazoo wants it."""
        transaction.check(self.path, self.version)


@dataclass(frozen=True, slots=True)
class Create:
    """The node must not exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False

    def add_to(self, transaction: Any) -> None:
        """As kazoo wants it."""
        transaction.create(self.path, self.data, ephemeral=self.ephemeral)


@dataclass(frozen=True, slots=True)
class Set:
    """The node must exist, at this version."""

    path: str
    data: bytes
    version: int

    def add_to(self, transaction: Any) -> None:
        """As kazoo wants it."""
        transaction.set_data(self.path, self.data, self.version)


@dataclass(frozen=True, slots=True)
class Delete:
    """The node must exist, at this version, without children."""

    path: str
    version: int = ANY_VERSION

    data: ClassVar[bytes] = b""

    def add_to(self, transaction: Any) -> None:
        """As kazoo wants it."""
        transaction.delete(self.path, self.version)


Operation = Check | Create | Set | Delete

Item = TypeVar("Item")


class MultiFailed(Exception):  # noqa: N818 - an outcome, not an error
    """A multi of which nothing was done: `index` is the operation that failed, `cause` what ZooKeeper said of it."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(f"operation {index}: {type(cause).__name__}")
        self.index = index
        self.cause = cause


async def commit(session: Session, operations: Sequence[Operation]) -> list[Any]:
    """Do all or nothing; the results in order: a ZnodeStat for a Set.

    Raises:
        MultiFailed: nothing was done.
        TidemarkError: COORDINATION_UNAVAILABLE; it may have been done unless metadata says sent="false".
    """
    check_size(operations)

    def build(transaction: Any) -> None:
        for operation in operations:
            operation.add_to(transaction)

    results = await session.commit(build)
    for index, result in enumerate(results):
        # Operations around the failed one say RolledBack (before it) and RuntimeInconsistency (after it).
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            raise MultiFailed(index, result)
    if any(isinstance(result, KazooException) for result in results):
        raise MultiFailed(0, RuntimeInconsistency())
    return results


def size_bytes(operation: Operation) -> int:
    """What it adds to a request, at most."""
    return len(operation.path.encode()) + len(operation.data) + _OVERHEAD_BYTES


def check_size(operations: Sequence[Operation]) -> None:
    """Refuse what ZooKeeper would answer by dropping the connection."""
    total = sum(size_bytes(operation) for operation in operations)
    if len(operations) > OPERATIONS_MAX or total > BYTES_MAX:
        largest = max(operations, key=size_bytes)
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a write of {len(operations)} operations and {total} bytes is beyond ZooKeeper's limits of "
            f"{OPERATIONS_MAX} and {BYTES_MAX}; the largest is {largest.path} with {len(largest.data)} bytes",
            {"path": largest.path},
        )


def batches(
    items: Sequence[tuple[Item, Sequence[Operation]]], *, reserved: Sequence[Operation] = ()
) -> Iterator[list[tuple[Item, Sequence[Operation]]]]:
    """Cut `items` into multis within both limits, in order; an item's operations stay together.

    `reserved` goes into every multi besides. One item beyond the limits gets a batch of its own, which
    `commit` refuses.
    """
    base_bytes = sum(size_bytes(operation) for operation in reserved)
    batch: list[tuple[Item, Sequence[Operation]]] = []
    count, total = len(reserved), base_bytes
    for item, operations in items:
        item_bytes = sum(size_bytes(operation) for operation in operations)
        if batch and (count + len(operations) > OPERATIONS_MAX or total + item_bytes > BYTES_MAX):
            yield batch
            batch, count, total = [], len(reserved), base_bytes
        batch.append((item, operations))
        count += len(operations)
        total += item_bytes
    if batch:
        yield batch
