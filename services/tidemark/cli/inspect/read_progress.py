# SPDX-License-Identifier: Apache-2.0
"""How fast replicas are read by a command, and what a terminal shows of it."""

from __future__ import annotations

import time

from tidemark.cli.common.progress_line import Progress, bar
from tidemark.cli.common.units import shown_bytes


class Pace:
    """How fast logs are read, and how far it has come."""

    def __init__(self, bytes_per_s: int) -> None:
        self.progress = Progress()
        self.read_bytes = 0
        self.done = 0
        self.count = 0
        self._bytes_per_s = bytes_per_s
        self._what = ""

    def begin(self, what: str) -> None:
        """A partition is being compared."""
        self._what = what
        self.progress.tell(self._line)

    def end(self) -> None:
        """It is."""
        self.done += 1

    def on_read(self, count: int) -> None:
        """A broker has read so much; waits where that was too fast."""
        self.read_bytes += count
        self.progress.tell(self._line)
        if self._bytes_per_s:
            early_s = self.read_bytes / self._bytes_per_s - self.progress.elapsed_s
            if early_s > 0:
                time.sleep(early_s)

    @property
    def rate(self) -> float:
        """Bytes of log a second, of all brokers together."""
        return self.read_bytes / self.progress.elapsed_s

    def _line(self) -> str:
        part = self.done / self.count if self.count else 0.0
        return f"{bar(part)}  {self.done} of {self.count} partitions  {shown_bytes(self.rate)}/s  {self._what}"
