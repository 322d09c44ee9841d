# SPDX-License-Identifier: Apache-2.0
"""Known defects of compaction, retention, deletion and full disks (rules L1, P3, P4, R1), for `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.broker.clients.delete_records import DeleteRecords, _Start
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import NO_EPOCH, Offset
from tidemark.storage.log import cleaner
from tidemark.storage.log.cleaning import SegmentCleaning

from tests.simulation.disks.machine_logs import MachineLogs
from tests.simulation.recipes import COMPACTED_FILES, DISKS, MIXED, RETAINED, TOMBSTONES_FILES

FULL = replace(DISKS, name="full", idempotent=60, weights={"full_disk": 8, "cut": 2, "depose": 3})
FRONTS = replace(RETAINED, name="fronts", weights={"delete_records": 8, "crash": 4, "isolate": 3, "depose": 6})
CLEANED_FORKS = replace(COMPACTED_FILES, name="cleaned-forks", weights={"depose": 8, "isolate": 4, "crash": 3})
DELETED = replace(RETAINED, name="deleted", retention_bytes=-1, weights={"delete_records": 8, "depose": 5, "cut": 5})


def cleans_past_the_high_watermark(monkeypatch: Any) -> None:
    """An uncommitted record covers a committed one."""
    original = SegmentCleaning.view
    monkeypatch.setattr(
        SegmentCleaning,
        "view",
        lambda self, high_watermark, truncations=None: original(self, 1 << 40, truncations=truncations),
    )


def drops_tombstones_before_their_time(monkeypatch: Any) -> None:
    """The next cleaning removes a tombstone."""
    compact = cleaner.compact
    monkeypatch.setattr(
        cleaner,
        "compact",
        lambda batches, latest, rule: compact(batches, latest, replace(rule, now_s=rule.delete_horizon_s)),
    )


def never_covers_with_tombstones(monkeypatch: Any) -> None:
    """The cleaner removes a tombstone when due; the record that the tombstone deletes stays."""

    def add(self: Any, batches: Any) -> bool:
        kept = [one for one in batches if one.tombstones is None or True not in one.tombstones.to_pylist()]
        return original(self, kept) if kept else True

    original = cleaner.KeyOffsets.add
    monkeypatch.setattr(cleaner.KeyOffsets, "add", add)


def drops_the_last_batches_of_producers(monkeypatch: Any) -> None:
    """The cleaner keeps no batch of a producer when later records cover its records."""

    def view(self: SegmentCleaning, high_watermark: int, truncations: Any = None) -> Any:
        found = original(self, high_watermark, truncations=truncations)
        return None if found is None else found._replace(producers=frozenset())

    original = SegmentCleaning.view
    monkeypatch.setattr(SegmentCleaning, "view", view)


def takes_holes(monkeypatch: Any) -> None:
    """A follower takes a chunk with a gap, though the log was never compacted; a leader sends one."""
    begin, fetch = PartitionFollower.__init__, MachineLogs._fetch

    def init(self: PartitionFollower, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **{**more, "may_hold_holes": True})

    def fetch_with_a_hole(self: MachineLogs, log: Any, effect: Any) -> Any:
        found = fetch(self, log, effect)
        return found[1:] if len(found) > 1 and effect.follower >= 0 else found

    monkeypatch.setattr(PartitionFollower, "__init__", init)
    monkeypatch.setattr(MachineLogs, "_fetch", fetch_with_a_hole)


def deletes_uncommitted_records(monkeypatch: Any) -> None:
    """The log starts at any requested offset, even a higher one than allowed."""

    def advance(self: ReplicaLog, start_offset: Offset) -> None:
        self.high_watermark = max(self.high_watermark, start_offset)
        original(self, start_offset)

    def released(self: BrokerCore, event: ev.LogStartRequested, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is not None and isinstance(replica.role, PartitionLeader):
            log = replica.role.log
            if log.log_end_offset > log.log_start_offset:
                log.advance_log_start(log.log_end_offset)

    original = ReplicaLog.advance_log_start
    monkeypatch.setattr(ReplicaLog, "advance_log_start", advance)
    monkeypatch.setattr(BrokerCore, "_on_log_start_requested", released)


def follows_the_log_start_past_committed_records(monkeypatch: Any) -> None:
    """A follower takes its leader's log start, even above its own committed records."""

    def on_chunk(self: PartitionFollower, chunk: Any, now_ms: int) -> None:
        original(self, chunk, now_ms)
        log = self.log
        if chunk.log_start_offset > log.log_start_offset and not log.truncating:
            log.advance_log_start(chunk.log_start_offset)

    original = PartitionFollower.on_chunk
    monkeypatch.setattr(PartitionFollower, "on_chunk", on_chunk)


def keeps_records_of_an_unknown_epoch(monkeypatch: Any) -> None:
    """A follower continues at the log start after an epoch that its leader no longer has."""
    monkeypatch.setattr(LeaderEpochs, "earliest", property(lambda self: NO_EPOCH))


def answers_before_followers_have_let_go(monkeypatch: Any) -> None:
    """A deletion is acknowledged as soon as the leader has deleted the records."""

    def start(self: DeleteRecords, *arguments: Any) -> _Start:
        return original(self, *arguments)._replace(behind=(), waits=False)

    original = DeleteRecords._start
    monkeypatch.setattr(DeleteRecords, "_start", start)


def appends_behind_a_failed_append(monkeypatch: Any) -> None:
    """An append that follows one without space is written after it."""

    def full(self: ReplicaLog, event: ev.LogFull) -> None:
        before = self.next_offset
        original(self, event)
        self.next_offset = before

    original = ReplicaLog.full
    monkeypatch.setattr(ReplicaLog, "full", full)


def remembers_a_failed_append(monkeypatch: Any) -> None:
    """A producer that retries a batch that found no space gets the answer for a duplicate."""

    def full(self: ReplicaLog, event: ev.LogFull) -> None:
        before = self.producers
        original(self, event)
        self.producers = before

    original = ReplicaLog.full
    monkeypatch.setattr(ReplicaLog, "full", full)


def acknowledges_a_failed_append(monkeypatch: Any) -> None:
    """A batch that found no space is acknowledged."""

    def on_full(self: PartitionLeader, error: Any) -> None:
        for request_id, waiting in list(self._waiting.items()):
            del self._waiting[request_id]
            self._reply(request_id, waiting.base_offset, None)
        original(self, error)

    original = PartitionLeader.on_full
    monkeypatch.setattr(PartitionLeader, "on_full", on_full)


RULES = {
    cleans_past_the_high_watermark: ("L1", CLEANED_FORKS),
    drops_tombstones_before_their_time: ("L1", COMPACTED_FILES),
    never_covers_with_tombstones: ("L1", TOMBSTONES_FILES),
    drops_the_last_batches_of_producers: ("L1, P3", CLEANED_FORKS),
    takes_holes: ("L1", MIXED),
    deletes_uncommitted_records: ("L1", FRONTS),
    follows_the_log_start_past_committed_records: ("L1", FRONTS),
    keeps_records_of_an_unknown_epoch: ("E2, E3", FRONTS),
    answers_before_followers_have_let_go: ("L1", DELETED),
    appends_behind_a_failed_append: ("R1", FULL),
    remembers_a_failed_append: ("P3", FULL),
    acknowledges_a_failed_append: ("R1", FULL),
}
"""Each defect with the rule it breaks and the kind of world that shows it."""
