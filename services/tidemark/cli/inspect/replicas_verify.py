# SPDX-License-Identifier: Apache-2.0
"""Work and output of `tidemark replicas verify`: differences and notes of each partition, and a verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidemark.cli.common.output import Output, counted, print_json, print_line, print_warning
from tidemark.cli.common.progress_line import ProgressLine, bar
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.replicas.comparison import Layouts
from tidemark.client.replicas.reader import ReplicaReader, addresses
from tidemark.client.replicas.verifier import Difference, PartitionVerifier, Verified, partitions_of
from tidemark.client.units import shown_bytes
from tidemark.core.cluster_view import ClusterView
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

_NEXT = (
    "find the wrong broker (`tidemark log verify` on its log directory, or the one that differs from all others). "
    "Stop that broker, move the replica's directory out of log.dirs, and start the broker: it fetches all records again"
)
_NEXT_DAMAGED = (
    "`tidemark replicas verify --repair` has brokers fetch damaged batches from other replicas. "
    "If no replica has a good copy, docs/operations.md has the next steps under 'All copies of a batch are damaged'"
)

_VIEW_S = 10.0
"""Seconds until the metadata (leaders and ISRs) is fetched again."""


_SCHEMAS_S: Final = 10.0
"""Deadline of the request for the schema of a topic."""


class ReadProgress:
    """Counts the bytes read of `count` partitions, under the throttle of all brokers together; 0: no throttle."""

    def __init__(self, throttle_bytes_per_s: int) -> None:
        self.line = ProgressLine(self._text)
        self.read_bytes = 0
        self.done = 0
        self.count = 0
        self.partition = ""
        self._throttle_bytes_per_s = throttle_bytes_per_s

    def on_read(self, count: int) -> None:
        """A broker read `count` bytes; sleeps where that was above the throttle."""
        self.read_bytes += count
        if self._throttle_bytes_per_s:
            early_s = self.read_bytes / self._throttle_bytes_per_s - self.line.elapsed_s
            if early_s > 0:
                time.sleep(early_s)

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes of log per second, of all brokers together."""
        return self.read_bytes / self.line.elapsed_s

    def _text(self) -> str:
        part = self.done / self.count if self.count else 0.0
        rate = shown_bytes(self.rate_bytes_per_s)
        return f"{bar(part)}  {self.done} of {self.count} partitions  {rate}/s  {self.partition}"


def run(
    bootstrap: str,
    topics: Sequence[str],
    partitions: Sequence[int],
    shape: Output,
    *,
    whole: bool,
    throttle_bytes_per_s: int,
    repair: bool,
) -> None:
    """Compare and print; raises LOG_DIVERGED if replicas differ, after all partitions were compared."""
    progress = ReadProgress(throttle_bytes_per_s)
    results = []
    layouts = _Layouts(bootstrap)
    with ReplicaReader(bootstrap, repair=repair) as reader:
        view = reader.view(topics)
        wanted = list(_wanted(view, topics, partitions))
        progress.count = len(wanted)
        if not wanted:
            print_warning("no partition was compared: there is no topic that you may DESCRIBE")
        seen_s = time.monotonic()
        for one in wanted:
            progress.partition = str(one)
            if time.monotonic() - seen_s > _VIEW_S:
                view, seen_s = reader.view(), time.monotonic()
            with progress.line:
                found = layouts.of(view, one.topic)
                verified = _verify(reader, view, one, progress, layouts=found, whole=whole)
            progress.done += 1
            results.append(verified)
            if shape is Output.JSON:
                print_json(verified_json(verified))
            else:
                for line in verified_lines(verified):
                    print_line(line)
    if shape is Output.TEXT:
        _sum_up(results, progress)
    wrong = [one for one in results if one.differences]
    if wrong:
        sys.stdout.flush()
        raise TidemarkError(
            ErrorCode.LOG_DIVERGED, f"replicas of {counted(len(wrong), 'partition')} differ, listed above"
        )


class _Layouts:
    """The layouts of typed topics; each version is fetched once."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._known: dict[tuple[str, int], Layouts] = {}

    def of(self, view: ClusterView, topic: str) -> Layouts:
        """The layouts of a topic; none for a topic without a schema.

        Without an answer of the brokers, only offsets and times of its cleaned rows are compared, with a warning.
        """
        found = view.topics.get(topic)
        if found is None or not found.schema_version:
            return {}
        version = (found.topic_id, found.schema_version)
        if version not in self._known:
            try:
                with RangeReader(self._bootstrap, deadline_s=_SCHEMAS_S) as reader:
                    schemas = reader.schemas(topic)
                self._known[version] = {number: layout_of(schema) for number, schema in schemas.items()}
            except TidemarkError as error:
                print_warning(f"the schema of {topic} is not known, so only offsets and times are compared: {error}")
                self._known[version] = {}
        return self._known[version]


def _verify(
    reader: ReplicaReader,
    view: ClusterView,
    partition: TopicPartition,
    progress: ReadProgress,
    *,
    layouts: Layouts,
    whole: bool,
) -> Verified:
    """Compare the replicas of a partition in the current metadata; a deleted partition has none."""
    topic = view.topics.get(partition.topic)
    found = topic.partitions.get(partition.partition) if topic is not None else None
    if topic is None or found is None:
        return Verified(partition)
    return PartitionVerifier(
        reader,
        partition,
        topic.topic_id,
        found,
        addresses(view),
        compacted="compact" in topic.configs.get("cleanup.policy", ""),
        layouts=layouts,
        whole_bytes=whole,
        on_read=progress.on_read,
    ).run()


def _wanted(view: ClusterView, topics: Sequence[str], partitions: Sequence[int]) -> Iterator[TopicPartition]:
    for topic in topics or sorted(view.topics):
        found = view.topics[topic]
        if not topics:
            indexes: Sequence[int] = sorted(found.partitions)
        else:
            indexes = list(partitions_of(len(found.partitions), partitions))
        for index in indexes:
            yield TopicPartition(topic, index)


def verified_lines(verified: Verified) -> list[str]:
    """Differences and notes of a partition; none if all replicas were compared and are the same."""
    name = verified.partition
    lines = [
        f"repaired: {name} offset {offset}: broker {broker} fetched damaged batches from another replica"
        for broker, offset in verified.repaired
    ]
    lines += [f"error: {name} offset {one.offset}: {_brokers(one)}: {one.sentence}" for one in verified.differences]
    if any(one.measure < 0 for one in verified.differences):
        lines.append(f"  next: {_NEXT_DAMAGED}")
    if any(one.measure >= 0 for one in verified.differences):
        lines.append(f"  next: {_NEXT}")
    lines += [f"note: {name}: broker {broker} is unavailable: {why}" for broker, why in sorted(verified.away.items())]
    lines += [
        f"note: {name}: broker {broker} lags, compared up to {end} of {verified.end}"
        for broker, end in sorted(verified.behind.items())
    ]
    lines += [
        f"note: {name}: broker {broker} has no batch at offset {holes[0]} and {len(holes) - 1} others above its "
        "cleaner's checkpoint: normal while the cleaner runs; verify again afterwards"
        for broker, holes in sorted(verified.holes.items())
    ]
    return lines


def _brokers(one: Difference) -> str:
    return f"broker {one.broker}" if one.measure < 0 else f"brokers {one.measure} and {one.broker}"


def _sum_up(results: Sequence[Verified], progress: ReadProgress) -> None:
    wrong = sum(bool(one.differences) for one in results)
    alone = sum(len(one.compared) < 2 and not one.differences for one in results)
    partial = sum(bool(one.away) and len(one.compared) > 1 for one in results)
    same = len(results) - wrong - alone
    line = f"{counted(same, 'partition')} the same on all replicas that answered"
    if partial:
        line += f" ({partial} with replicas unavailable)"
    if alone:
        line += f", {alone} with no two replicas to compare"
    if wrong:
        line += f", {wrong} with differences"
    print_line(line)
    print_line(
        f"{sum(one.batches for one in results)} batches, {shown_bytes(progress.read_bytes)} read from all replicas "
        f"in {progress.line.elapsed_s:.1f} s, {shown_bytes(progress.rate_bytes_per_s)}/s"
    )


def verified_json(verified: Verified) -> Mapping[str, object]:
    """The result for a partition as JSON."""
    return {
        **verified.partition._asdict(),
        "start_offset": verified.start,
        "end_offset": verified.end,
        "batches": verified.batches,
        "read_bytes": verified.read_bytes,
        "compared": verified.compared,
        "behind": [{"broker": broker, "end_offset": end} for broker, end in sorted(verified.behind.items())],
        "away": [{"broker": broker, "why": why} for broker, why in sorted(verified.away.items())],
        "repaired": [{"broker": broker, "offset": offset} for broker, offset in verified.repaired],
        "holes": [{"broker": broker, "offsets": holes} for broker, holes in sorted(verified.holes.items())],
        "differences": [
            {
                "offset": one.offset,
                "brokers": [one.broker] if one.measure < 0 else [one.measure, one.broker],
                "sentence": one.sentence,
            }
            for one in verified.differences
        ],
    }
