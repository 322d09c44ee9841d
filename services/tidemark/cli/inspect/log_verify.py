# SPDX-License-Identifier: Apache-2.0
"""Output of `tidemark log verify`: findings, a table of replicas, a verdict for each directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidemark.cli.common.output import Output, counted, print_json, print_line, print_table
from tidemark.cli.common.progress_line import ProgressLine, bar
from tidemark.client.units import shown_bytes, shown_duration
from tidemark.model import ErrorCode, TidemarkError
from tidemark.storage.inspect.directory_verification import DirectoryReport, DirectoryVerifier, Options
from tidemark.storage.inspect.findings import Finding, ReplicaReport, Severity
from tidemark.storage.inspect.inspection import ReplicaPath

_HELD = {
    True: "a broker has it open",
    False: "no broker has it open",
    None: "a broker may have it open: this cannot be determined here",
}

_ROWS_MAX: Final = 100
"""With more replicas, the table has only those with findings."""


def run(directories: Sequence[Path], options: Options, shape: Output) -> None:
    """Verify the directories and print the reports; raises STORAGE_ERROR for errors, after all are printed."""
    seen = _Seen()
    try:
        with seen.line:
            verifiers = [
                DirectoryVerifier(path, options, on_replica=seen.on_replica, on_bytes=seen.on_bytes)
                for path in directories
            ]
            seen.total_bytes = sum(one.size_bytes for one in verifiers)
            reports = [verifier.run() for verifier in verifiers]
    except OSError as error:
        sentence = f"{error.filename} cannot be read: {error.strerror}"
        raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence) from error
    if shape is Output.JSON:
        print_json(
            {
                "directories": [_directory_json(report) for report in reports],
                "error_count": sum(report.error_count for report in reports),
                "read_bytes": seen.read_bytes,
                "seconds": round(seen.line.elapsed_s, 3),
            }
        )
    else:
        _show(reports, seen)
    wrong = sum(report.error_count for report in reports)
    if wrong:
        sys.stdout.flush()
        raise TidemarkError(ErrorCode.STORAGE_ERROR, f"{counted(wrong, 'error')} found, listed above")


class _Seen:
    def __init__(self) -> None:
        self.line = ProgressLine(self._text)
        self.read_bytes = 0
        self.total_bytes = 0
        self._replica = ""

    def on_replica(self, target: ReplicaPath, size_bytes: int) -> None:
        self._replica = target.path.name

    def on_bytes(self, count: int) -> None:
        self.read_bytes += count

    def _text(self) -> str:
        rate = self.read_bytes / self.line.elapsed_s
        part = self.read_bytes / self.total_bytes if self.total_bytes else 0.0
        left = shown_duration((self.total_bytes - self.read_bytes) / rate) if rate else "unknown"
        return f"{bar(part)}  {shown_bytes(self.read_bytes)}  {shown_bytes(rate)}/s  {left} left  {self._replica}"


def _show(reports: Sequence[DirectoryReport], seen: _Seen) -> None:
    for report in reports:
        findings = [*report.findings, *(one for replica in report.replicas for one in replica.findings)]
        for finding in sorted(findings, key=lambda one: one.severity is Severity.ERROR):
            for line in finding_lines(finding):
                print_line(line)
        for replica in report.replicas:
            if replica.suppressed:
                print_line(f"{replica.path}: {replica.suppressed} more findings")
    replicas = [replica for report in reports for replica in report.replicas]
    rows = replicas if len(replicas) <= _ROWS_MAX else [replica for replica in replicas if replica.findings]
    if rows:
        print_table(("replica", "size", "batches", "records", "start", "end", "errors"), map(_row, rows))
    if len(rows) < len(replicas):
        print_line(f"{len(replicas) - len(rows)} more replicas without findings")
    for report in reports:
        wrong = counted(report.error_count, "error") if report.error_count else "no error"
        empty = f", {report.empty_replicas} that never held a record" if report.empty_replicas else ""
        print_line(f"{report.path}: {counted(len(report.replicas), 'replica')}{empty}; {_HELD[report.held]}; {wrong}")
    rate = seen.read_bytes / seen.line.elapsed_s
    print_line(f"{shown_bytes(seen.read_bytes)} read in {seen.line.elapsed_s:.1f} s, {shown_bytes(rate)}/s")


def finding_lines(finding: Finding) -> list[str]:
    """A finding with its place, and the next step for the operator."""
    where = str(finding.path)
    if finding.position is not None:
        where += f" byte {finding.position}"
    if finding.offset is not None and finding.end_offset is not None:
        where += f" offsets [{finding.offset}, {finding.end_offset})"
    elif finding.offset is not None:
        where += f" offset {finding.offset}"
    lines = [f"{finding.severity} {finding.kind}: {where}: {finding.sentence}"]
    return [*lines, f"  next: {finding.advice}"] if finding.advice else lines


def _row(replica: ReplicaReport) -> tuple[object, ...]:
    return (
        replica.path.name,
        shown_bytes(replica.size_bytes),
        replica.batches,
        replica.records,
        replica.log_start,
        replica.log_end,
        replica.error_count or "-",
    )


def _directory_json(report: DirectoryReport) -> Mapping[str, object]:
    return {
        "path": str(report.path),
        "held": report.held,
        "empty_replicas": report.empty_replicas,
        "error_count": report.error_count,
        "findings": [_finding_json(one) for one in report.findings],
        "replicas": [
            {
                **replica.partition._asdict(),
                "path": str(replica.path),
                "aside": replica.aside or None,
                "segments": replica.segments,
                "size_bytes": replica.size_bytes,
                "batches": replica.batches,
                "records": replica.records,
                "log_start_offset": replica.log_start,
                "log_end_offset": replica.log_end,
                "error_count": replica.error_count,
                "suppressed": replica.suppressed,
                "findings": [_finding_json(one) for one in replica.findings],
            }
            for replica in report.replicas
        ],
    }


def _finding_json(finding: Finding) -> Mapping[str, object]:
    return {
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "file": str(finding.path),
        "position": finding.position,
        "offset": finding.offset,
        "end_offset": finding.end_offset,
        "sentence": finding.sentence,
        "advice": finding.advice,
    }
