# SPDX-License-Identifier: Apache-2.0
"""Work on a thread of its own, while a test does something else."""

from __future__ import annotations

import threading
from typing import Self


class Beside:
    """Calls `run` on a thread, from the beginning of a block to its end; `run` returns once `stopping` is set."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def run(self) -> None:
        raise NotImplementedError
