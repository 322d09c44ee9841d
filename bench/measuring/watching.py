# SPDX-License-Identifier: Apache-2.0
"""Observing running services from outside: metrics, log lines, memory and CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_SCRAPE_TIMEOUT_S = 10.0


def scrape(address: str, *names: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(sample name, label values) -> value of these samples only; empty if the service does not answer."""
    query = "&".join(f"name[]={name}" for name in names)
    try:
        with urllib.request.urlopen(f"http://{address}/metrics?{query}", timeout=_SCRAPE_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return {}
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class LogLines:
    """The lines of a service's log since a moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size if path.exists() else 0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        with self._path.open("rb") as log:
            log.seek(self._start)
            for line in log:
                with contextlib.suppress(ValueError):  # the last line may be incomplete
                    yield json.loads(line)

    def times_s(self, message: str, **fields: object) -> list[float]:
        """Wall-clock times of the lines with this message and these fields, to the millisecond."""
        return [
            datetime.fromisoformat(line["time"]).timestamp()
            for line in self
            if line.get("message") == message and all(line.get(name) == value for name, value in fields.items())
        ]


class Usage(NamedTuple):
    """CPU time and memory of a process."""

    cpu_s: float
    rss_mb: float


def usage(pid: int, thread: int | None = None) -> Usage:
    """Read the usage of a running process from /proc; with `thread` the CPU time is that of this thread alone."""
    fields = (
        Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
        .read_text()
        .rpartition(")")[2]
        .split()
    )
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Usage(cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6)


def wait_until(what: str, is_so: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.02) -> float:
    """The wall-clock time at which the condition became true; RuntimeError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(interval_s)
    return time.time()
