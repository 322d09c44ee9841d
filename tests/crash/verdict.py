# SPDX-License-Identifier: Apache-2.0
"""Checks a start after a crash against the life that crashed (rules R3, E1, P3, T5, X3-X5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import Offset
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch
from tidemark.storage.log.partition_log import PartitionLog

from tests.crash.disk import Crash
from tests.crash.lives import CONFIGS, Note, Version, batches_of, directories_of, named, open_directories
from tests.crash.transactions import aborts, compare_readers, compare_states
from tests.unit.storage.batches import IDENTITY, PARTITION, latest_epoch, lead, make_batch


class Moment(NamedTuple):
    """The moment of the crash: the notes before and after that operation, and all versions of the log."""

    before: Note
    after: Note
    versions: Sequence[Version]
    crash: Crash
    seed: int

    @property
    def killed(self) -> bool:
        return self.crash in (Crash.KILL, Crash.TORN_KILL)

    @property
    def possible(self) -> Sequence[Version]:
        first = self.before.version if self.killed else self.before.promised_version
        return self.versions[first : self.after.version + 1]


class Found(NamedTuple):
    """The log of a start; `history`: with all batches that the log ever had below its end.

    None for a log that the life may have damaged.
    """

    batches: tuple[Batch, ...]
    history: tuple[Batch, ...] | None


def judge(path: Path, moment: Moment) -> None:
    """Start, compare the log with the moment, append, kill the process, and start again."""
    if moment.crash is Crash.LOOSE and moment.before.cut_unsynced:
        _judge_promised(path, moment)
        return
    found = _start(path, moment)
    again = _start(path, moment._replace(crash=Crash.KILL), expected=found)
    assert again.batches[: len(found.batches)] == found.batches, "a second start finds the same log"


def _judge_promised(path: Path, moment: Moment) -> None:
    """The lowest offset that may differ: a truncation may reach the disk before its mark."""
    logs = open_directories(path, moment.seed)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    promised = min(moment.before.promised_end, moment.after.promised_end)
    assert log.log_end_offset >= promised or moment.before.may_doubt
    found = batches_of(log, until=min(promised, int(log.log_end_offset)))
    bodies = {bytes(one.data) for version in moment.possible for one in version.batches}
    assert all(bytes(one.data) in bodies for one in found)
    assert not found or found[-1].envelope.next_offset == promised or moment.before.may_doubt
    logs.close()


def _start(path: Path, moment: Moment, expected: Found | None = None) -> Found:
    """Start, append a record and abort the open transactions.

    Returns the log as it was before these steps, for the check of a second start.
    """
    logs = open_directories(path, moment.seed)
    try:
        log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
        batches = batches_of(log)
        for batch in batches:
            check_batches(bytes(batch.data))
        if expected is None:
            history = _compare(log, recovered, batches, moment)
        else:
            assert recovered.damaged is None or moment.before.may_doubt or moment.crash is not Crash.STRICT
            history = expected.history
            if history is not None:
                _compare_transactions(log, recovered, batches, [history])
        start = log.log_end_offset
        lead(log, make_batch(["after"]), *aborts(recovered.producers), epoch=max(1000, latest_epoch(log)))
        after = batches_of(log)
        assert after[: len(batches)] == batches
        assert after[len(batches)].envelope.base_offset == start
        if history is not None:
            history += after[len(batches) :]
            compare_states(log, log.state().producers, history, after, exactly=False)
        return Found(batches if expected is None else after, history)
    finally:
        logs.close()


def _compare(
    log: PartitionLog, recovered: RecoveredLog, batches: tuple[Batch, ...], moment: Moment
) -> tuple[Batch, ...] | None:
    """The history whose last part the log has; None for a log with damage that the life may have caused."""
    before, after = moment.before, moment.after
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    if moment.killed:
        assert recovered.damaged is None, recovered.damaged
    if moment.crash is Crash.STRICT:
        assert recovered.damaged is None or before.may_doubt or _doubts_cut(moment), recovered.damaged
    promised = min(before.promised_end, after.promised_end)
    assert end >= promised or before.may_doubt, f"the log ends at {end}, {promised} was promised"
    fitting = [one for one in moment.possible if _fits(batches, start, end, one, moment.possible)]
    assert fitting, f"no version of the log holds [{start}, {end}) of {[named(one) for one in batches]}"
    if moment.killed and not before.may_doubt:
        _compare_after_kill(recovered, end, fitting, moment)
    if recovered.damaged is None:
        vouched = min(before.high_watermark, after.high_watermark, end)
        if not moment.killed:  # the mark of a truncation may come back
            vouched = 0 if _doubts_cut(moment) else min(vouched, before.lowest_cut, after.lowest_cut)
        assert vouched <= recovered.high_watermark, f"high watermark {recovered.high_watermark}, {vouched} was on disk"
    highest = max(after.last_high_watermark, before.last_high_watermark, 0)
    assert recovered.high_watermark <= highest, f"high watermark {recovered.high_watermark}, none above {highest} was"
    if recovered.damaged and before.may_doubt:
        return None
    _compare_epochs(recovered, batches, start)
    exactly = moment.killed and directories_of(moment.seed) == 1  # a copy lacks batches below its log start
    _compare_producers(recovered, batches, end, fitting, exactly=exactly)
    return _compare_transactions(log, recovered, batches, [one.history_below(end) for one in fitting], exactly=exactly)


def _compare_transactions(
    log: PartitionLog,
    recovered: RecoveredLog,
    batches: tuple[Batch, ...],
    histories: Sequence[tuple[Batch, ...]],
    *,
    exactly: bool = False,
) -> tuple[Batch, ...]:
    """Check that one of these histories has exactly the transactions of the log; returns that history."""
    wrong: list[str] = []
    for history in dict.fromkeys(histories):
        try:
            compare_states(log, recovered.producers, history, batches, exactly=exactly)
            compare_readers(log, recovered, history, batches)
        except AssertionError as error:
            wrong.append(str(error))
        else:
            return history
    raise AssertionError("; ".join(wrong))


def _doubts_cut(moment: Moment) -> bool:
    """An empty mark of a truncation, with only its name on disk, marks the replica damaged."""
    return moment.before.cut_unsynced and not moment.killed


def _fits(batches: Sequence[Batch], start: int, end: int, version: Version, possible: Sequence[Version]) -> bool:
    """Whether all batches belong to this history of the log, and only compaction removed some.

    The cleaner syncs cleaned segments, independently of later truncations and appends. So each batch may come from any
    version of this history.
    """
    history = {named(one) for one in version.history if start < one.envelope.next_offset <= end}
    found = {named(one) for one in batches}
    if not found <= history or end > max(version.end, start):
        return False
    bodies = {bytes(one.data) for other in possible for one in other.batches}
    missing = history - found
    return all(bytes(one.data) in bodies for one in batches) and all(
        any(other.first <= one[0] < other.end and one not in other.names for other in possible) for one in missing
    )


def _compare_after_kill(recovered: RecoveredLog, end: int, fitting: Sequence[Version], moment: Moment) -> None:
    least = min(moment.versions[moment.before.version].end, moment.versions[moment.after.version].end)
    assert end >= least, f"ends at {end}, a kill loses nothing"
    least, most = moment.before.log_start, max(one.start for one in fitting)
    assert least <= recovered.log_start_offset <= most, f"starts at {recovered.log_start_offset}, not {least} to {most}"


def _compare_epochs(recovered: RecoveredLog, batches: Sequence[Batch], start: int) -> None:
    epochs = LeaderEpochs(recovered.epochs)
    assert epochs.entries == recovered.epochs, "in order"
    for batch in batches:
        offset = Offset(max(batch.envelope.base_offset, start))
        assert epochs.epoch_at(offset) == batch.envelope.leader_epoch, (recovered.epochs, named(batch))


def _compare_producers(
    recovered: RecoveredLog, batches: Sequence[Batch], end: int, fitting: Sequence[Version], *, exactly: bool
) -> None:
    """After a power loss, states of producers with trimmed batches may be missing."""
    found = recovered.producers.entries
    in_log = {batch.envelope.producer_id for batch in batches if batch.envelope.producer_id >= 0}
    wrong = []
    for version in fitting:
        expected = version.producers_at(end).entries
        if exactly and found == expected:
            return
        wrong = [one for one in found if found[one].batches[-1:] != expected[one].batches[-1:]] + [
            one for one in in_log if one not in found
        ]
        if not wrong and not exactly:
            return
    raise AssertionError(f"of producers {wrong} it knows {found}, expected {expected}")
