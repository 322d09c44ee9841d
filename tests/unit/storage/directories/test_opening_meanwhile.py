# SPDX-License-Identifier: Apache-2.0
"""Threads open logs, and set them aside, while others list them.

A garbage collection can pass the interpreter from one thread to the other.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidemark.model import TopicPartition
from tidemark.storage.directories.checkpoint_files import CheckpointOffsets, Checkpoints
from tidemark.storage.directories.log_manager import LogManager

from tests.unit.storage.batches import IDENTITY, memory_directory, open_one

COUNT = 50
KEPT_TUPLES = 2000
"""CPython keeps this number of freed pairs; the creation of another one may begin a collection."""


@contextmanager
def at_each_collection(act: Callable[[int], object]) -> Iterator[list[int]]:
    """Call `act` with 0, 1, ... at the start of a garbage collection, which runs after each few objects."""
    done: list[int] = []
    is_acting = False

    def act_again(phase: str, _: object) -> None:
        nonlocal is_acting
        if phase == "start" and not is_acting and len(done) < COUNT:
            is_acting = True
            done.append(len(done))
            act(done[-1])
            is_acting = False

    before = gc.get_threshold()
    gc.callbacks.append(act_again)
    gc.set_threshold(5)
    try:
        yield done
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(act_again)


@pytest.mark.parametrize("use", [lambda logs: logs.checkpoint({}), lambda logs: logs.logs_in(0)])
def test_a_log_that_opens_meanwhile_does_not_disturb(use: Callable[[LogManager], object]) -> None:
    with memory_directory() as path:
        logs = open_one(Path(path))
        for index in range(COUNT):
            logs.open(TopicPartition("flights", index), IDENTITY, {})
        with at_each_collection(lambda number: logs.open(TopicPartition("later", number), IDENTITY, {})) as opened:
            for _ in range(COUNT):
                use(logs)
        assert opened
        assert len(logs.logs_in(0)) == COUNT + len(opened)
        logs.close()


def test_a_log_that_is_set_aside_meanwhile_does_not_disturb_a_checkpoint(tmp_path: Path) -> None:
    points = Checkpoints()
    keys = [(TopicPartition("flights", index), "i") for index in range(KEPT_TUPLES + COUNT)]
    for key in keys:
        points.put(key, CheckpointOffsets(1, 1, 0))
    with at_each_collection(lambda number: points.forget(keys[number])) as gone:
        points.write_temporaries(tmp_path, {})
    assert gone
