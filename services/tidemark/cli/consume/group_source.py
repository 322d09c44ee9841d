# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group as the source of `consume --group`: the group remembers what was written (G7)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from tidemark.cli.common.output import print_warning
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.records import PartitionBatch
from tidemark.client.sync.producer_consumer import Consumer
from tidemark.model import TidemarkError, TopicPartition

COMMIT_INTERVAL_S: Final = 5.0
_CLIENT_ID: Final = "tidemark consume"
_Offsets = dict[TopicPartition | tuple[str, int], int]


class GroupSource:
    """Reads what the group gives it of a topic; a context manager that commits and leaves.

    Committed is what `wrote` was told of: every few seconds, when another member gets a partition, and at the end.

    Args:
        bootstrap: addresses of brokers.
        topic: its name; raises UNKNOWN_TOPIC.
        group: its id.
        reset: "earliest" or "latest", where the group has read nothing of a partition.
        until_end: finished when the group has committed, or this member has read, all that is committed now.
        whole_at_end: what is written can be read only once it is whole: then nothing is committed before the end.
        rack: where this reader is; "": nowhere that brokers know of.
        patience_s: so long brokers may be without an answer.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        reset: str,
        *,
        until_end: bool = False,
        whole_at_end: bool = False,
        rack: str = "",
        patience_s: float,
    ) -> None:
        ends = _ends(bootstrap, topic, patience_s)  # a topic that does not exist is refused, not waited for
        self._ends = ends if until_end else None
        self._whole_at_end = whole_at_end
        self._written: _Offsets = {}
        """The next offset to read of each partition that was written of, as far as it is not committed."""
        self._commit_s = time.monotonic() + COMMIT_INTERVAL_S
        self._consumer = Consumer(
            bootstrap,
            group=group,
            offset_reset=reset,
            auto_commit_interval_ms=0,
            client_id=_CLIENT_ID,
            rack=rack,
            request_timeout_ms=int(patience_s * 1000),
        )
        try:
            self._consumer.subscribe([topic], on_revoked=self._hand_over, on_lost=self._forget)
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or not self._whole_at_end:
                self._commit()
            else:
                self._written.clear()
        finally:
            self._consumer.close()

    @property
    def finished(self) -> bool:
        """Whether the group has read all that there was; False where it reads on for ever."""
        if self._ends is None:
            return False
        mine = {where: health.position for where, health in self._consumer.health().items()}
        if any(position < self._ends.get(where, 0) for where, position in mine.items()):
            return False
        others = self._ends.keys() - mine
        committed = self._consumer.committed(others)
        return all(committed.get(where, 0) >= self._ends[where] for where in others)

    @property
    def lag(self) -> int:
        """Records of this member's partitions that were not given yet, as far as that is known."""
        return sum(max(0, behind) for behind in self._consumer.lag().values())

    def poll(self, timeout_s: float) -> Iterator[PartitionBatch]:
        """The next rows of some partition, if any come within `timeout_s`."""
        found = self._consumer.poll(timeout_s)
        if found is not None:
            yield found

    def wrote(self, batches: Sequence[PartitionBatch]) -> None:
        """These are written: the group goes on behind them."""
        for topic, partition, rows in batches:
            if rows.num_rows:
                self._written[TopicPartition(topic, partition)] = rows.column("offset")[rows.num_rows - 1].as_py() + 1
        if not self._whole_at_end and time.monotonic() >= self._commit_s:
            self._commit_s = time.monotonic() + COMMIT_INTERVAL_S
            try:
                self._commit()
            except TidemarkError as error:  # the next one has it all again
                print_warning(f"not committed yet: {error}")

    def _commit(self) -> None:
        written = dict(self._written)
        if written:
            self._consumer.commit(written)
            for where, offset in written.items():
                if self._written.get(where) == offset:
                    del self._written[where]

    def _hand_over(self, partitions: list[TopicPartition]) -> None:
        """Another member goes on with these, behind what was written."""
        written: _Offsets = {where: self._written.pop(where) for where in partitions if where in self._written}
        if written and not self._whole_at_end:
            try:
                self._consumer.commit(written)
            except TidemarkError as error:
                print_warning(f"others will read again what was written last: {error}")

    def _forget(self, partitions: list[TopicPartition]) -> None:
        """Others may be reading these already, from the last commit on."""
        for where in partitions:
            self._written.pop(where, None)


def _ends(bootstrap: str, topic: str, patience_s: float) -> dict[TopicPartition, int]:
    """The high watermarks of the partitions that hold records."""
    with RangeReader(bootstrap, deadline_s=patience_s) as reader:
        bounds = reader.bounds(topic, sorted(reader.topics([topic])[topic].partitions))
    return {TopicPartition(topic, index): one.latest for index, one in bounds.items() if one.earliest < one.latest}
