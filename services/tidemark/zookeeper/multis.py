# SPDX-License-Identifier: Apache-2.0
"""Writes as ZooKeeper's multis: operations as values, batches within its limits (rule Z2), outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency

from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper.session_port import NodeRead, Session

OPERATIONS_MAX: Final = 500
BYTES_MAX: Final = 512 << 10
"""Largest multi, and largest znode of a new topic, apart from `MANY_PARTITIONS`."""

_OVERHEAD_BYTES: Final = 64
"""Size of one operation without its path and data: headers, lengths, version, ACL."""

ANY_VERSION: Final = -1

LOST_RACES: Final = (BadVersionError, NodeExistsError, NoNodeError)
"""Causes of a refusal because another writer was faster."""


class Limits(NamedTuple):
    """The most operations of a multi, and its largest size in bytes."""

    operations: int
    size_bytes: int


USUAL: Final = Limits(OPERATIONS_MAX, BYTES_MAX)
MANY_PARTITIONS: Final = Limits(30_000, 6 << 20)
"""Limits of rare multis about thousands of partitions, which cannot be divided. ZooKeeper drops the connection above
`jute.maxbuffer`, 8 MiB."""


@dataclass(frozen=True, slots=True)
class Check:
    """Check that the znode exists at this version."""

    path: str
    version: int = ANY_VERSION

    data: ClassVar[bytes] = b""

    def add_to(self, transaction: Any) -> None:
        """Add this operation to a kazoo transaction."""
        transaction.check(self.path, self.version)


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode, which must not exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False

    def add_to(self, transaction: Any) -> None:
        """Add this operation to a kazoo transaction."""
        transaction.create(self.path, self.data, ephemeral=self.ephemeral)


@dataclass(frozen=True, slots=True)
class Set:
    """Set the data of a znode, which must exist at this version."""

    path: str
    data: bytes
    version: int

    def add_to(self, transaction: Any) -> None:
        """Add this operation to a kazoo transaction."""
        transaction.set_data(self.path, self.data, self.version)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode, which must exist at this version, without children."""

    path: str
    version: int = ANY_VERSION

    data: ClassVar[bytes] = b""

    def add_to(self, transaction: Any) -> None:
        """Add this operation to a kazoo transaction."""
        transaction.delete(self.path, self.version)


Operation = Check | Create | Set | Delete

Item = TypeVar("Item")


def written(path: str, data: bytes, version: int) -> Create | Set:
    """The operation that writes a znode at this version; -1: creates the znode."""
    return Create(path, data) if version < 0 else Set(path, data, version)


def version_of(node: NodeRead | None) -> int:
    """The version of a znode; -1: the znode is missing."""
    return -1 if node is None else node[1].version


class MultiFailed(Exception):  # noqa: N818 - an outcome, not an error
    """A multi that ZooKeeper refused as a whole: `index` of the failed operation, and ZooKeeper's error as `cause`."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(f"operation {index}: {type(cause).__name__}")
        self.index = index
        self.cause = cause

    @property
    def error(self) -> TidemarkError:
        """The error of a caller that did not expect this cause."""
        return TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refused the write: {self}")


async def commit(session: Session, operations: Sequence[Operation], limits: Limits = USUAL) -> list[Any]:
    """Commit all operations or none; results in order, a ZnodeStat for a Set.

    Raises:
        MultiFailed: ZooKeeper refused the multi.
        TidemarkError: COORDINATION_UNAVAILABLE; the multi may have been committed unless metadata has sent="false".
    """
    check_size(operations, limits)

    def build(transaction: Any) -> None:
        for operation in operations:
            operation.add_to(transaction)

    results = await session.commit(build)
    failures = [(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    for index, failure in failures:
        # Operations before the failed one report RolledBack; those after it report RuntimeInconsistency.
        if not isinstance(failure, RolledBackError | RuntimeInconsistency):
            raise MultiFailed(index, failure)
    if failures:
        raise MultiFailed(0, RuntimeInconsistency())
    return results


async def is_committed(
    session: Session,
    operations: Sequence[Operation],
    lost: tuple[type[Exception], ...] = LOST_RACES,
    limits: Limits = USUAL,
) -> bool:
    """Commit all operations; False if one of the causes in `lost` prevented that. Raises INTERNAL for other causes."""
    try:
        await commit(session, operations, limits)
    except MultiFailed as failed:
        if not isinstance(failed.cause, lost):
            raise failed.error from failed
        return False
    return True


def size_bytes(*operations: Operation) -> int:
    """Upper bound of the bytes that the operations add to a request."""
    contents = sum([len(one.path.encode()) + len(one.data) for one in operations])
    return contents + _OVERHEAD_BYTES * len(operations)


def check_size(operations: Sequence[Operation], limits: Limits = USUAL) -> None:
    """Refuse a request that is so large that ZooKeeper would drop the connection."""
    total = size_bytes(*operations)
    if len(operations) > limits.operations or total > limits.size_bytes:
        largest = max(operations, key=size_bytes)
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a write of {len(operations)} operations and {total} bytes is beyond ZooKeeper's limits of "
            f"{limits.operations} and {limits.size_bytes}; the largest is {largest.path} with {len(largest.data)} "
            "bytes",
            {"path": largest.path},
        )


def batches(
    items: Sequence[tuple[Item, Sequence[Operation]]], *, reserved: Sequence[Operation] = ()
) -> Iterator[list[tuple[Item, Sequence[Operation]]]]:
    """Divide `items` into multis within both limits, in order; an item's operations stay together.

    Every multi also carries `reserved`. An item beyond the limits gets a separate multi, which `commit` refuses.
    """
    base_bytes = size_bytes(*reserved)
    batch: list[tuple[Item, Sequence[Operation]]] = []
    count, total = len(reserved), base_bytes
    for item, operations in items:
        item_bytes = size_bytes(*operations)
        if batch and (count + len(operations) > OPERATIONS_MAX or total + item_bytes > BYTES_MAX):
            yield batch
            batch, count, total = [], len(reserved), base_bytes
        batch.append((item, operations))
        count += len(operations)
        total += item_bytes
    if batch:
        yield batch
