# SPDX-License-Identifier: Apache-2.0
"""Cleaning one log: keep the latest record of each key, with bounded memory and disk traffic (rule L1).

A pass reads keys of the dirty segments into a map until the map is full. Then the pass rewrites every segment up to
that offset, from the first segment of the log, and swaps it in (`recovery/segment_swap.py`). Segments are rewritten in
rising order: a tombstone's horizon is set only after the records that it deletes are removed. Some batches stay even
without records: the last batches of each producer, and the first of each leader epoch. The last batch of each segment
stays too, so that segments still join without a gap.

A pass ends at the last stable offset. Records of aborted transactions are removed, and do not replace other records. A
marker stays while a batch of its transaction stays, or while the marker is the last batch of a known producer (rule
X6).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.producer_state import ProducerStates
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.arrow_message import check_message
from tidemark.record.checks import bytes_layout
from tidemark.record.compacted_transactions import CompactedTransactions
from tidemark.record.compaction import CleaningRule, KeyOffsets, Layouts, compact, decode, no_layouts
from tidemark.record.envelope import DELETE_HORIZON_MAX_S, ENVELOPE_BYTES, Batch, Codec, cut, unpack_envelope
from tidemark.record.markers import may_be_marker
from tidemark.record.transactions import AbortedBatches
from tidemark.record.typed.batch import declared_bytes
from tidemark.storage.files import Descriptor, read_exactly, storage_error, write_all
from tidemark.storage.log.cleaning import CleaningView, SegmentCleaning
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.cleaner_point import NO_HORIZON, CleanPoint
from tidemark.storage.recovery.segment_swap import cleaned_path
from tidemark.storage.segments.index import SegmentIndex
from tidemark.storage.segments.scan import marker_at
from tidemark.storage.segments.segment import WALK_BYTES, Damage, Segment, checked_header, skip_to, walk

_NEVER_S: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Settings of a topic and of the cleaner, with Apache Kafka's defaults except `io_buffer_bytes`.

    Attributes:
        dedupe_buffer_bytes: bound of the map of keys.
        io_buffer_bytes: bytes read and looked up in the map at a time; one lookup scans the whole map.
    """

    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    dedupe_buffer_bytes: int = 128 << 20
    io_buffer_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Dirt:
    """The dirty part of a log.

    Attributes:
        first_dirty_offset, end_offset: the range of records that may be cleaned and are not clean, [first, end).
        clean_bytes, dirty_bytes: bytes of the segments up to `end_offset`.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        """Share of the dirty bytes, 0 to 1."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


@dataclass(slots=True)
class CleaningDone:
    """The result of a cleaning; from `earliest_horizon_s` on the first of the kept tombstones and markers may be
    deleted."""

    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    passes: int = 0
    clean_point: int = 0
    earliest_horizon_s: int = _NEVER_S


Pace = Callable[[int], None]
"""Called with the bytes of each read and write; returns when the next one may start, raises to end the cleaning."""


def dirt_of(view: CleaningView, settings: CleanerSettings, *, now_us: int) -> Dirt:
    """The part of a log that is not clean, up to the first segment with a record newer than
    `min.compaction.lag.ms`.
    """
    young_us = now_us - settings.min_compaction_lag_ms * 1000
    first = view.segments[0].base_offset if view.segments else view.clean_point
    point = max(view.clean_point, first)
    end, clean, dirty = first, 0, 0
    for segment in view.segments:
        if settings.min_compaction_lag_ms and segment.max_timestamp_us > young_us:
            break
        if segment.next_offset <= point:
            clean += segment.size_bytes
        else:
            dirty += segment.size_bytes
        end = segment.next_offset
    return Dirt(min(point, end), end, clean, dirty)


def is_horizon_over(view: CleaningView, dirt: Dirt, *, now_us: int) -> bool:
    """Whether a cleaning deletes tombstones or markers of the clean part, all of which may be cleaned."""
    is_over = NO_HORIZON < view.horizon_s <= now_us // 1_000_000
    return is_over and bool(view.segments) and dirt.end_offset >= view.clean_point


def clean_log(
    log: PartitionLog,
    end_offset: int,
    settings: CleanerSettings,
    *,
    now_us: int,
    horizons_from_us: int = 0,
    pace: Pace,
    truncations: int | None = None,
    layouts: Layouts = no_layouts,
) -> CleaningDone:
    """Clean the log in as many passes as the map needs; ends early when the log is truncated or closed.

    Args:
        end_offset: the last stable offset (exclusive): every transaction with a batch below has ended.
        now_us: wall clock, microseconds since 1970.
        horizons_from_us: time from which `delete.retention.ms` counts, if later than `now_us`.
        truncations: `LogSegments.truncations` when `end_offset` was taken; a later truncation invalidates it.
        layouts: layouts of the schema versions of a typed topic.

    Raises:
        TidemarkError: STORAGE_ERROR: the disk does not answer, or a batch is damaged; DISK_FULL;
            UNKNOWN_SCHEMA_VERSION. Segments swapped in before are complete.
    """
    done = CleaningDone()
    now_s = now_us // 1_000_000
    horizons_from_s = max(now_s, horizons_from_us // 1_000_000)
    while (view := log.cleaning.view(end_offset, truncations=truncations)) is not None:
        dirt = dirt_of(view, settings, now_us=now_us)
        if done.passes and dirt.first_dirty_offset >= dirt.end_offset:
            break
        try:
            reached = _Pass(log.cleaning, view, dirt, settings, now_s, horizons_from_s, pace, done, layouts).run()
        except FileNotFoundError:
            break  # a segment was removed meanwhile: the log was truncated, trimmed or deleted
        except OSError as error:
            raise storage_error(f"clean {view.path.name}", error) from error
        except Damage as error:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"clean {view.path.name}: {error}") from error
        if not reached:
            break
        done.passes += 1
    return done


class _Pass:
    """One map of keys, and the rewrite of every segment that it covers."""

    def __init__(
        self,
        log: SegmentCleaning,
        view: CleaningView,
        dirt: Dirt,
        settings: CleanerSettings,
        now_s: int,
        horizons_from_s: int,
        pace: Pace,
        done: CleaningDone,
        layouts: Layouts,
    ) -> None:
        self._log = log
        self._view = view
        self._dirt = dirt
        self._settings = settings
        self._now_s = now_s
        self._horizons_from_s = horizons_from_s
        self._pace = pace
        self._done = done
        self._layouts = layouts
        self._aborted = AbortedBatches(())
        self._markers: list[int] = []
        """Base offsets of the markers in the group's new segment."""

    def run(self) -> bool:
        """Whether the pass was completed; if not, the log has changed and the view is obsolete."""
        latest = KeyOffsets(self._settings.dedupe_buffer_bytes)
        aborted = self._log.aborted(0, self._dirt.end_offset)
        self._aborted = AbortedBatches(aborted)
        reached = self._read_keys(latest)
        segments = [segment for segment in self._view.segments if segment.base_offset < reached]
        groups = list(_groups(segments, self._view.segment_bytes))
        rule = CleaningRule(
            end_offset=reached,
            now_s=self._now_s,
            delete_horizon_s=min(
                self._horizons_from_s - (-self._settings.delete_retention_ms // 1000), DELETE_HORIZON_MAX_S
            ),
            kept=self._kept(groups),
            transactions=CompactedTransactions(aborted),
        )
        self._done.earliest_horizon_s = _NEVER_S
        for group in groups:
            with self._log.rewriting:
                if not self._clean(group, latest, rule):
                    return False
        horizon_s = self._done.earliest_horizon_s
        point = CleanPoint(reached, NO_HORIZON if horizon_s == _NEVER_S else horizon_s)
        if not self._log.note_clean_point(self._view, point):
            return False
        self._done.clean_point = reached
        return True

    def _read_keys(self, latest: KeyOffsets) -> int:
        """Fill the map from the first dirty offset on; returns the end offset (exclusive) of the map."""
        reached, end = self._dirt.first_dirty_offset, self._dirt.end_offset
        for segment in self._view.segments:
            if segment.next_offset <= reached or segment.base_offset >= end:
                continue
            opened = self._log.open(segment)
            start = skip_to(opened.number, reached, start=0, end=segment.size_bytes)
            for batches in self._read(opened, start, segment.size_bytes):
                counted = [batch for batch in batches if batch.envelope not in self._aborted]
                if not latest.add([decode(batch, self._layouts) for batch in counted]):
                    return reached
                reached = batches[-1].envelope.next_offset
            reached = segment.next_offset
        return reached

    def _kept(self, groups: Sequence[Sequence[Segment]]) -> frozenset[int]:
        """Base offsets of the batches that stay even without records: see the module."""
        kept: set[int] = set()
        producers, epoch = ProducerStates(), -1
        last_markers: dict[int, int] = {}
        for group in groups:
            last = -1
            for segment in group:
                opened = self._log.open(segment)
                for position, envelope in walk(opened.number, 0, segment.size_bytes):
                    self._pace(min(envelope.batch_length, WALK_BYTES))
                    last = envelope.base_offset
                    if envelope.leader_epoch > epoch:
                        kept.add(last)
                        epoch = envelope.leader_epoch
                    if envelope.producer_id in self._view.producers:
                        marker = marker_at(opened.number, position, envelope)
                        producers.observe(envelope, marker=marker)
                        last_markers.pop(envelope.producer_id, None)
                        if marker is not None:
                            last_markers[envelope.producer_id] = last
            kept.add(last)
        for entry in producers.entries.values():
            kept.update(batch.first_offset for batch in entry.batches)
        return frozenset(kept.union(last_markers.values()))

    def _clean(self, group: Sequence[Segment], latest: KeyOffsets, rule: CleaningRule) -> bool:
        """Rewrite a group of neighbours as one segment and swap it in, if the result differs."""
        base, end = group[0].base_offset, group[-1].next_offset
        path = cleaned_path(self._view.path, base, end)
        cleaned = Segment(self._view.path, base)
        cleaned.index = SegmentIndex()
        target = Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        changed = len(group) > 1
        self._markers.clear()
        try:
            for segment in group:
                changed = self._clean_segment(segment, cleaned, target, latest, rule) or changed
            assert cleaned.next_offset <= end, f"{path.name} ends at {cleaned.next_offset}"
            cleaned.next_offset = end  # a log truncated in a hole ends past its last batch
            before = sum(segment.size_bytes for segment in group)
            if changed:
                self._log.make_durable(target)
                if not self._log.replace(self._view, group, cleaned, path, markers=self._markers):
                    return False
            self._done.bytes_before += before
            self._done.bytes_after += cleaned.size_bytes
        finally:
            path.unlink(missing_ok=True)
        return True

    def _clean_segment(
        self, segment: Segment, cleaned: Segment, target: Descriptor, latest: KeyOffsets, rule: CleaningRule
    ) -> bool:
        changed = False
        opened = self._log.open(segment)
        for batches in self._read(opened, 0, segment.size_bytes):
            parts: list[bytes] = []
            position = cleaned.size_bytes
            decoded = [decode(batch, self._layouts) for batch in batches]
            for batch, data in zip(batches, compact(decoded, latest, rule), strict=True):
                changed = changed or data is not batch.data
                if data is None:
                    continue
                envelope = batch.envelope
                if may_be_marker(envelope):
                    self._markers.append(envelope.base_offset)
                cleaned.note(
                    base_offset=envelope.base_offset,
                    next_offset=envelope.next_offset,
                    length=len(data),
                    timestamp_us=envelope.max_timestamp_us,
                    interval_bytes=self._view.interval_bytes,
                )
                parts.append(data)
                self._note_horizon(data)
            content = b"".join(parts)
            write_all(target.number, content, position)
            self._pace(len(content))
        return changed

    def _note_horizon(self, data: bytes) -> None:
        horizon_s = unpack_envelope(data).delete_horizon_s
        if horizon_s >= self._now_s:  # a marker with an earlier horizon stays for another reason
            self._done.earliest_horizon_s = min(self._done.earliest_horizon_s, horizon_s)

    def _read(self, opened: Descriptor, start: int, end: int) -> Iterator[list[Batch]]:
        """Lists of the batches in [start, end), each list within the buffer when uncompressed, or a single batch."""
        limit = self._settings.io_buffer_bytes
        position = start
        while position < end:
            data = read_exactly(opened.number, min(max(limit, ENVELOPE_BYTES), end - position), position)
            first = checked_header(data, 0, position=position, end=end)
            if first.batch_length > len(data):
                data = read_exactly(opened.number, first.batch_length, position)
            if len(data) < first.batch_length:
                raise Damage(position, f"{len(data)} of {first.batch_length} bytes of a batch are left in the file")
            batches = _whole_batches(data, position=position, end=end, limit=limit)
            read = sum(len(batch.data) for batch in batches)
            position += read
            self._done.bytes_read += read
            self._pace(read)
            yield batches


def _whole_batches(data: bytes, *, position: int, end: int, limit: int) -> list[Batch]:
    """The batches at the start of the data, up to `limit` uncompressed bytes; at least one."""
    batches: list[Batch] = []
    at, total = 0, 0
    while at + ENVELOPE_BYTES <= len(data):
        envelope = checked_header(data, at, position=position + at, end=end)
        length = envelope.batch_length
        if at + length > len(data):
            break
        batch = Batch(envelope, cut(data, at, length))
        total += _content_bytes(batch)
        if batches and total > limit:
            break
        batches.append(batch)
        at += length
    return batches


def _content_bytes(batch: Batch) -> int:
    envelope = batch.envelope
    if envelope.codec == Codec.NONE:
        return len(batch.data)
    if envelope.is_typed:
        return declared_bytes(batch)
    facts = check_message(batch.data, ENVELOPE_BYTES, codec=envelope.codec, layout=bytes_layout(envelope))
    return facts.uncompressed_bytes


def _groups(segments: Sequence[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size_bytes > segment_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size_bytes
    if group:
        yield group
