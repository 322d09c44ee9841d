# SPDX-License-Identifier: Apache-2.0
"""Threads open logs while others list them; a garbage collection can pass the interpreter from one to the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidemark.model import TopicPartition
from tidemark.storage.directories.log_manager import LogManager

from tests.unit.storage.batches import IDENTITY, memory_directory, open_one

COUNT = 50


@contextmanager
def opening_at_each_collection(logs: LogManager) -> Iterator[list[TopicPartition]]:
    """Open a new log at the start of each garbage collection, which runs after each few objects."""
    opened: list[TopicPartition] = []
    is_opening = False

    def open_another(phase: str, _: object) -> None:
        nonlocal is_opening
        if phase == "start" and not is_opening and len(opened) < COUNT:
            is_opening = True
            opened.append(TopicPartition("later", len(opened)))
            logs.open(opened[-1], IDENTITY, {})
            is_opening = False

    before = gc.get_threshold()
    gc.callbacks.append(open_another)
    gc.set_threshold(5)
    try:
        yield opened
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(open_another)


@pytest.mark.parametrize("use", [lambda logs: logs.checkpoint({}), lambda logs: logs.logs_in(0)])
def test_a_log_that_opens_meanwhile_does_not_disturb(use: Callable[[LogManager], object]) -> None:
    with memory_directory() as path:
        logs = open_one(Path(path))
        for index in range(COUNT):
            logs.open(TopicPartition("flights", index), IDENTITY, {})
        with opening_at_each_collection(logs) as opened:
            for _ in range(COUNT):
                use(logs)
        assert opened
        assert len(logs.logs_in(0)) == COUNT + len(opened)
        logs.close()
