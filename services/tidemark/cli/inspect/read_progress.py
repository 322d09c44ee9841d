# SPDX-License-Identifier: Apache-2.0
"""Progress of a command that reads replicas through their brokers: its throttle, and what a terminal shows."""

from __future__ import annotations

import time

from tidemark.cli.common.progress_line import ProgressLine, bar
from tidemark.cli.common.units import shown_bytes


class ReadProgress:
    """Counts what was read of `count` partitions; `line` shows it.

    Args:
        throttle_bytes_per_s: of all brokers together; 0: no throttle.
    """

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
