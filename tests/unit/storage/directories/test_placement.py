# SPDX-License-Identifier: Apache-2.0
"""The choice of the log directory of a new replica (rule C8)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tidemark.model import ErrorCode, ReplicaIdentity, TopicPartition
from tidemark.storage.directories import placement as placement_module
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.directories.placement import FEWEST_REPLICAS, MOST_FREE_BYTES

from tests.refusals import raises_code
from tests.unit.storage.batches import BROKER, CLUSTER, lead, make_batch


class Space(NamedTuple):
    """A result of statvfs(2)."""

    f_bavail: int
    f_frsize: int = 4096


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Free blocks by directory name, set by the tests."""
    blocks = {"a": 1000, "b": 1000, "c": 1000}

    def look(directory: Path) -> Space:
        if blocks[directory.name] < 0:
            raise OSError
        return Space(blocks[directory.name])

    monkeypatch.setattr(placement_module, "os", type("Os", (), {"statvfs": staticmethod(look)}))
    return blocks


def opened(path: Path, choice: str, names: str = "abc") -> LogManager:
    return open_logs([path / name for name in names], cluster_id=CLUSTER, broker_id=BROKER, directory_choice=choice)


def partition(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


def make(logs: LogManager, *numbers: int) -> list[int | None]:
    for number in numbers:
        logs.open(partition(number), ReplicaIdentity("topic", f"i{number}"), {})
    return [logs.directory_of(partition(number)) for number in numbers]


def test_new_replicas_go_where_there_are_fewest_also_after_deletions_and_a_restart(directory: Path) -> None:
    logs = opened(directory, FEWEST_REPLICAS)
    assert Counter(make(logs, *range(9))) == {0: 3, 1: 3, 2: 3}
    gone = [number for number in range(9) if logs.directory_of(partition(number)) == 1][:2]
    for number in gone:
        logs.set_aside(partition(number), "delete")
    assert make(logs, 10, 11) == [1, 1]
    logs.close()
    logs = opened(directory, FEWEST_REPLICAS, "abcd")
    assert make(logs, 20, 21, 22) == [3, 3, 3]
    logs.close()


def test_new_replicas_go_where_most_bytes_are_free_if_configured(directory: Path, free: dict[str, int]) -> None:
    logs = opened(directory, MOST_FREE_BYTES)
    free.update(a=1000, b=3000, c=2000)
    assert make(logs, 0) == [1]
    free["c"] = 9000
    assert make(logs, 1) == [2]
    free["a"] = -1
    free["b"] = -1
    assert make(logs, 2) == [2]
    logs.close()


def test_a_thousand_new_replicas_share_the_free_bytes(directory: Path, free: dict[str, int]) -> None:
    logs = opened(directory, MOST_FREE_BYTES)
    free.update(a=1000, b=3000, c=6000)
    counts = Counter(make(logs, *range(1000)))
    assert counts[0] == pytest.approx(100, abs=2)
    assert counts[1] == pytest.approx(300, abs=2)
    assert counts[2] == pytest.approx(600, abs=2)
    # Replicas with records claim no share: statvfs counts their bytes.
    for number in range(1000):
        if logs.directory_of(partition(number)) == 0:
            log, _ = logs.open(partition(number), ReplicaIdentity("topic", f"i{number}"), {})
            lead(log, make_batch(["x"]))
    assert make(logs, 1000) == [0]
    logs.close()


@pytest.mark.parametrize("choice", [FEWEST_REPLICAS, MOST_FREE_BYTES])
def test_an_offline_directory_gets_no_replica(directory: Path, choice: str) -> None:
    logs = opened(directory, choice, "ab")
    make(logs, 0)
    first = logs.directory_of(partition(0))
    assert first is not None
    fail(logs, first)
    assert make(logs, 1, 2, 3) == [1 - first] * 3
    fail(logs, 1 - first)
    with raises_code(ErrorCode.STORAGE_ERROR) as caught:
        make(logs, 4)
    assert "no log directory is online" in caught.value.message
    logs.close()


def fail(logs: LogManager, directory: int) -> None:
    fails: Callable[[str], None] = logs._directories[directory].fail
    fails("a disk is broken")


def test_making_thousands_of_replicas_never_recounts_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = opened(directory, FEWEST_REPLICAS)
    make(logs, 0)
    placement = logs._placement
    monkeypatch.setattr(placement, "_places", None)  # a count would fail
    assert Counter(make(logs, *range(1, 3000))) == {0: 999, 1: 1000, 2: 1000}
    assert os.listdir(directory / "a") == os.listdir(directory / "b")  # no replica has a directory yet
    logs.close()
