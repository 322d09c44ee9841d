# SPDX-License-Identifier: Apache-2.0
"""Verifies a log directory, or one replica's directory, without opening it: the findings of `tidemark log verify`.

Small files are read before segments. A running broker writes a checkpoint after the log, so the log holds at least the
records of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import TopicPartition, invalid_request
from tidemark.storage.directories.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, CheckpointKey
from tidemark.storage.directories.log_directory import CLEAN_SHUTDOWN_FILE, INCARNATION_FILE, META_FILE
from tidemark.storage.directories.roster import ROSTER_FILE
from tidemark.storage.files import DELETED_SUFFIX, PARTITION_FILE, TEMPORARY_SUFFIX, BadFile, read_json, read_lines
from tidemark.storage.inspect.documents import RosterLine, read_roster
from tidemark.storage.inspect.findings import Finding, FindingKind, ReplicaReport, Severity
from tidemark.storage.inspect.inspection import (
    ReplicaPath,
    base_offset_of,
    is_held,
    replica_paths,
    segment_paths,
    special_files,
)
from tidemark.storage.inspect.verification import LogFacts, SegmentVerifier
from tidemark.storage.recovery.aborted_file import read_aborted
from tidemark.storage.recovery.cleaner_point import CLEANER_FILE
from tidemark.storage.recovery.damage import CUT_FILE, DAMAGE_FILE, read_cut_point, read_damage
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, read_epochs
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, read_snapshot
from tidemark.storage.recovery.segment_swap import CLEANED_SUFFIX, SWAP_NAME, SWAP_SUFFIX
from tidemark.storage.segments.segment import ABORTED_SUFFIX, SET_ASIDE_SUFFIX

_CHECKPOINTS: Final = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS)
_REFETCH: Final = (
    "where another replica is valid, stop this broker, move the replica's directory out of log.dirs, and start the "
    "broker: it fetches all records again"
)
_REPLACE: Final = "stop the broker, restore or remove the file, and verify the directory again"
_ITSELF: Final = "nothing: the broker rewrites the file"


class Options(NamedTuple):
    """Options of a verification.

    Attributes:
        deep: decode every payload too.
        compacted: topics that were compacted once: their logs may have holes without other signs of compaction.
        live: a broker has the directory open, and cannot be detected (in another container).
    """

    deep: bool = False
    compacted: frozenset[str] = frozenset()
    live: bool = False


@dataclass(slots=True)
class DirectoryReport:
    """The report on a log directory; `findings` concern the directory itself.

    Attributes:
        held: whether a broker has the directory open; None where that is unknown.
    """

    path: Path
    held: bool | None
    replicas: list[ReplicaReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    empty_replicas: int = 0

    @property
    def error_count(self) -> int:
        """Errors of the directory and its replicas."""
        own = sum(one.severity is Severity.ERROR for one in self.findings)
        return own + sum(replica.error_count for replica in self.replicas)


class _Points(NamedTuple):
    """The checkpoints of one replica; None for an offset without a checkpoint."""

    high_watermark: int | None = None
    recovery_point: int | None = None
    log_start: int | None = None


_META_FIELDS: Final[Mapping[str, type]] = {
    "cluster_id": str,
    "broker_id": int,
    "directory_id": str,
    "format_version": int,
}


class DirectoryVerifier:
    """Verifies one directory.

    Args:
        path: a log directory, or the directory of one replica.
        options: how to verify.
        on_replica: called before each replica is read, with the bytes of its segments.
        on_bytes: called with the number of bytes read.

    Raises:
        TidemarkError: INVALID_REQUEST for any other path.
    """

    def __init__(
        self,
        path: Path,
        options: Options,
        *,
        on_replica: Callable[[ReplicaPath, int], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._options = options
        self._on_replica = on_replica
        self._on_bytes = on_bytes
        self._home, self.targets = _resolve(path)
        self._whole = self._home == path
        held = is_held(self._home) if (self._home / META_FILE).exists() else False
        self._live = options.live or held is not False
        self.report = DirectoryReport(path, True if options.live else held)
        self.size_bytes = sum(_size_of(one.path) for one in self.targets)

    def run(self) -> DirectoryReport:
        """Verify all replicas, even after one that cannot be read, then the directory itself."""
        if special := special_files(self._home):
            self.report.findings += [_unread(path, _REPLACE) for path in special]
            return self.report
        points = self._checkpoints()
        for target in self.targets:
            self._on_replica(target, _size_of(target.path))
            self.report.replicas.append(self._replica(target, points))
        if self._whole:
            self._meta()
            self._roster(points)
            self._set_aside()
        return self.report

    # -- the directory itself --------------------------------------------------------------------------------------

    def _checkpoints(self) -> dict[CheckpointKey, _Points]:
        points: dict[CheckpointKey, _Points] = {}
        for field_name, name in zip(_Points._fields, _CHECKPOINTS, strict=True):
            path = self._home / name
            try:
                lines = read_lines(path)
                for line in lines or ():
                    topic, partition, incarnation, offset = line.split(" ")
                    key = (TopicPartition(topic, int(partition)), incarnation)
                    points[key] = points.get(key, _Points())._replace(**{field_name: int(offset)})
            except (BadFile, ValueError) as bad:
                self._directory_error(path, f"the checkpoint cannot be used: {bad}")
            else:
                if lines is None and self._whole:
                    self._directory_error(path, "the checkpoint is missing")
        return points

    def _directory_error(self, path: Path, sentence: str) -> None:
        advice = "nothing: the broker checks the logs in full at its start, and rewrites the file"
        self._add(FindingKind.FILE, path, sentence, advice)

    def _meta(self) -> None:
        path = self._home / META_FILE
        if not path.exists():
            sentence = f"there is no {META_FILE}: no broker opens the directory as it is"
            self._add(FindingKind.FILE, path, sentence, "restore the file, or empty the directory")
        for name, advice in (
            (META_FILE, "restore the file, or empty the directory"),
            (CLEAN_SHUTDOWN_FILE, "nothing: the broker starts as after a kill, and checks more"),
            (
                INCARNATION_FILE,
                "nothing: the broker starts as after a power loss, and refetches where it must",
            ),
        ):
            content = _META_FIELDS if name == META_FILE else {}
            try:
                read_json(self._home / name, **content)
            except BadFile as bad:
                self._add(FindingKind.FILE, self._home / name, str(bad), advice)

    def _add(self, kind: FindingKind, path: Path, sentence: str, advice: str, offset: int | None = None) -> None:
        self.report.findings.append(Finding(Severity.ERROR, kind, path, sentence, advice, offset=offset))

    def _roster(self, points: Mapping[CheckpointKey, _Points]) -> None:
        served = {target.partition for target in self.targets if not target.aside}
        named = {target.partition for target in self.targets}
        path = self._home / ROSTER_FILE
        lines = read_roster(path)
        empty: dict[TopicPartition, RosterLine] = {}
        aside: set[CheckpointKey] = set()
        for number, line in enumerate(lines):
            if line.sign == "?":
                torn = number == len(lines) - 1 and self._live
                self.report.findings.append(
                    Finding(
                        Severity.NOTE if torn else Severity.ERROR,
                        FindingKind.FILE,
                        path,
                        "a line is being written" if torn else f"line {number + 2} is damaged",
                        "" if torn else "none: the broker ignores the line when it starts",
                    )
                )
            elif line.sign == "+":
                empty[line.partition] = line
                aside.discard((line.partition, line.incarnation))
            elif line.sign == "-":
                empty.pop(line.partition, None)
            else:
                aside.add((line.partition, line.incarnation))
        self.report.empty_replicas = len(empty.keys() - served)
        if self._live:
            return  # a running broker may add and remove replicas between two reads
        for key, point in points.items():
            lost = key[0] not in named and key not in aside and (point.high_watermark or 0) > 0
            if lost:
                self._add(
                    FindingKind.CHECKPOINT,
                    self._home / HIGH_WATERMARKS,
                    f"{key[0]} (incarnation {key[1]}) has high watermark {point.high_watermark} and no directory",
                    f"if the topic was deleted: nothing; else its directory is lost: {_REFETCH}",
                    point.high_watermark,
                )

    def _set_aside(self) -> None:
        meaning = {
            "future": "an unfinished copy into this directory",
            "delete": "being deleted",
            "stray": "no longer assigned to this broker, which deletes the directory later",
        }
        for one in self.targets:
            if one.aside:
                self.report.findings.append(
                    Finding(Severity.NOTE, FindingKind.LEFTOVER, one.path, f"{one.partition}: {meaning[one.aside]}")
                )

    # -- one replica -----------------------------------------------------------------------------------------------

    def _replica(self, target: ReplicaPath, points: Mapping[CheckpointKey, _Points]) -> ReplicaReport:
        report = ReplicaReport(target.partition, target.path, target.aside)
        try:
            if target.path.is_dir() and target.aside != "delete":  # a directory under deletion is incomplete
                if special := special_files(target.path):
                    for path in special:
                        report.add(_unread(path, _REFETCH))
                    return report
                known = {} if target.aside else points  # checkpoints belong to the served replica
                _ReplicaVerifier(report, self._options, known, self._live, self._on_bytes).run()
        except OSError as error:
            gone = self._live and isinstance(error, FileNotFoundError)
            severity, kind = (Severity.NOTE, FindingKind.GONE) if gone else (Severity.ERROR, FindingKind.FILE)
            sentence = (
                "the broker removed the file while it was being read" if gone else f"cannot be read: {error.strerror}"
            )
            report.add(Finding(severity, kind, Path(error.filename or target.path), sentence))
        return report


class _ReplicaVerifier:
    """Verifies the small files and segments of one replica, and compares them."""

    def __init__(
        self,
        report: ReplicaReport,
        options: Options,
        points: Mapping[CheckpointKey, _Points],
        live: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._report = report
        self._options = options
        self._live = live
        self._on_bytes = on_bytes
        self._path = report.path
        self._points = points.get((report.partition, self._incarnation()), _Points())

    def run(self) -> None:
        """Verify all files and add the findings to the report."""
        names = sorted(path.name for path in self._path.iterdir())
        points = self._after_cut()
        epochs = read_epochs(self._path)
        self._small_files(names, has_epochs=epochs is not None)
        segments = _segments(self._path, names, points.log_start)
        facts = LogFacts(
            live=self._live,
            epochs=epochs,
            recovery_point=max(points.recovery_point or 0, 0),
            compacted=CLEANER_FILE in names or self._report.partition.topic in self._options.compacted,
        )
        verifier = SegmentVerifier(self._report, facts, deep=self._options.deep, on_bytes=self._on_bytes)
        for number, path in enumerate(segments):
            verifier.verify(path, last=number == len(segments) - 1)
        if verifier.met_compacted or self._is_being_compacted():
            kept = [one for one in self._report.findings if one.kind is not FindingKind.HOLE]
            self._report.findings[:] = kept
        first = base_offset_of(segments[0]) if segments else 0
        self._report.log_start = max(first, points.log_start or 0)
        self._report.findings[:] = [_readable(one, self._report.log_start) for one in self._report.findings]
        self._bounds(points, first, bool(segments))
        self._known_damage()
        self._snapshots(names)
        self._aborted(names)

    def _incarnation(self) -> str:
        path = self._path / PARTITION_FILE
        try:
            document = read_json(path, topic_id=str, incarnation=str, generation=int)
        except BadFile as bad:
            sentence = str(bad)
        else:
            if document is not None:
                return str(document["incarnation"])
            sentence = f"there is no {PARTITION_FILE}"
        self._error(FindingKind.FILE, path, f"{sentence}: the owner of the replica is unknown", _REFETCH)
        return ""

    def _after_cut(self) -> _Points:
        """The checkpoints, lowered by a truncation that is newer."""
        cut = read_cut_point(self._path)
        points = self._points
        if cut is None:
            return points
        if cut.resetting:
            self._note(
                FindingKind.LEFTOVER, self._path / CUT_FILE, "a reset was interrupted; the next start finishes it"
            )
            return _Points(None, None, None)
        sentence = "the log was truncated, or trimmed on a full disk, after the last checkpoint"
        self._note(FindingKind.LEFTOVER, self._path / CUT_FILE, sentence)
        end, start = max(cut.end_offset, 0), cut.log_start_with(points.log_start)
        return _Points(
            None if points.high_watermark is None else min(points.high_watermark, end),
            None if points.recovery_point is None else min(points.recovery_point, end),
            start if start >= 0 else None,
        )

    def _small_files(self, names: Iterable[str], *, has_epochs: bool) -> None:
        if not has_epochs and EPOCH_FILE in names:
            self._error(FindingKind.FILE, self._path / EPOCH_FILE, "the epoch file is damaged", _ITSELF)
        for name in names:
            path = self._path / name
            if SET_ASIDE_SUFFIX in name:
                self._note(
                    FindingKind.LEFTOVER,
                    path,
                    "a damaged file that was set aside; the broker deletes it once refetched",
                )
            elif name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX, DELETED_SUFFIX)) and not self._live:
                self._note(FindingKind.LEFTOVER, path, "left by a kill; the next start finishes or removes it")

    def _is_being_compacted(self) -> bool:
        """The log's first cleaning is running, or was killed: there is no cleaner's point yet."""
        return any(
            path.name == CLEANER_FILE or path.name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))
            for path in self._path.iterdir()
        )

    def _known_damage(self) -> None:
        """Damage that the broker has recorded. The next checkpoint removes that mark once the log is refetched."""
        damage, path = read_damage(self._path), self._path / DAMAGE_FILE
        if damage is None:
            return
        if self._report.log_end >= damage.until:
            self._note(FindingKind.DAMAGE, path, f"refetched; the next checkpoint removes this mark: {damage.reason}")
            return
        self._error(
            FindingKind.DAMAGE,
            path,
            f"the broker found damage: {damage.reason}; not refetched up to offset {damage.until} yet",
            "nothing while the broker runs and the partition has a leader: it fetches what is missing again",
            offset=damage.until,
        )

    def _bounds(self, points: _Points, first: int, has_segments: bool) -> None:
        end = self._report.log_end
        if not has_segments:
            if not self._live:
                self._error(FindingKind.OFFSETS, self._path, "there is no segment", _REFETCH)
            return
        home = self._path.parent
        for name, point in (
            ("high watermark", points.high_watermark),
            ("recovery point", points.recovery_point),
            ("log start", points.log_start),
        ):
            if point is not None and point > end:
                path = home / _CHECKPOINTS[("high watermark", "recovery point", "log start").index(name)]
                self._error(
                    FindingKind.CHECKPOINT, path, f"the {name} is {point}, the log ends at {end}", _REFETCH, offset=end
                )
        if points.log_start is not None and 0 <= points.log_start < first:
            sentence = f"the log starts at {first}, the records from {points.log_start} on are missing"
            self._error(FindingKind.OFFSETS, self._path, sentence, _REFETCH, offset=points.log_start)
        self._clean_point(end)

    def _clean_point(self, end: int) -> None:
        path = self._path / CLEANER_FILE
        try:
            lines = read_lines(path)
            point = int(lines[0].split(" ")[0]) if lines else 0
        except (BadFile, ValueError) as bad:
            self._error(FindingKind.FILE, path, str(bad), "nothing: the log is compacted from its start again")
            return
        if point > end:
            advice = "nothing: the broker lowers it when it starts"
            self._error(
                FindingKind.CHECKPOINT,
                path,
                f"the cleaner's point is {point}, the log ends at {end}",
                advice,
                offset=end,
            )

    def _snapshots(self, names: Iterable[str]) -> None:
        for name in names:
            stem = name.removesuffix(SNAPSHOT_SUFFIX)
            if stem == name or not stem.isdecimal():
                continue
            path = self._path / name
            if read_snapshot(self._path, int(stem)) is None and path.exists():
                sentence = "the producer snapshot is damaged, or of another offset than its name states"
                self._error(FindingKind.FILE, path, sentence, _ITSELF, offset=int(stem))

    def _aborted(self, names: Iterable[str]) -> None:
        for name in names:
            if name.endswith(ABORTED_SUFFIX):
                try:
                    read_aborted((self._path / name).with_suffix(""))
                except BadFile as bad:
                    self._error(FindingKind.FILE, self._path / name, str(bad), _ITSELF)

    def _error(self, kind: FindingKind, path: Path, sentence: str, advice: str, *, offset: int | None = None) -> None:
        self._report.add(Finding(Severity.ERROR, kind, path, sentence, advice, None, offset))

    def _note(self, kind: FindingKind, path: Path, sentence: str) -> None:
        self._report.add(Finding(Severity.NOTE, kind, path, sentence))


def _unread(path: Path, advice: str) -> Finding:
    sentence = f"not a regular file, so nothing in {path.parent.name} was verified"
    return Finding(Severity.ERROR, FindingKind.FILE, path, sentence, advice)


def _resolve(path: Path) -> tuple[Path, list[ReplicaPath]]:
    """The log directory, and the replicas to verify."""
    if not path.is_dir():
        raise invalid_request(f"{path} is not a directory: give a log directory, or the directory of a replica")
    path = path.resolve()
    own = [one for one in replica_paths(path.parent) if one.path == path]
    if own and not (path / META_FILE).exists():
        return path.parent, own
    targets = replica_paths(path)
    if not targets and not (path / META_FILE).exists():
        raise invalid_request(
            f"{path} has neither {META_FILE} nor replicas in it: give a directory of log.dirs, or <topic>-<partition>"
        )
    return path, targets


def _readable(finding: Finding, log_start: int) -> Finding:
    """The finding; damage below the log start is a note, since the records are deleted."""
    if finding.kind is not FindingKind.BATCH or finding.end_offset is None or finding.end_offset > log_start:
        return finding
    sentence = f"{finding.sentence}; these records are below the log start, and no reader gets them"
    return replace(finding, severity=Severity.NOTE, sentence=sentence, advice="")


def _segments(directory: Path, names: Iterable[str], log_start: int | None) -> list[Path]:
    """The segments as a start leaves them: replacements finished, segments below the log start deleted."""
    paths = segment_paths(directory)
    for match in filter(None, map(SWAP_NAME.fullmatch, names)):
        base, end = int(match[1]), int(match[2])
        paths = [path for path in paths if not base <= base_offset_of(path) < end]
        paths.append(directory / match[0])
    paths.sort(key=base_offset_of)
    while log_start is not None and len(paths) > 1 and base_offset_of(paths[1]) <= log_start:
        paths.pop(0)
    return paths


def _size_of(directory: Path) -> int:
    """Bytes of the segments of a replica; 0 for a removed directory."""
    total = 0
    try:
        for path in segment_paths(directory):
            total += path.stat().st_size
    except OSError:
        return total
    return total
