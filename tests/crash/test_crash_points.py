"""A sample of the crash points; `make soak` tries every one (python -m tests.crash)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.points import Lived, lived, points_of, try_points
from tests.unit.storage.batches import memory_directory

STEPS = 40
SAMPLE = 100


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


@pytest.mark.parametrize("seed", range(6))
def test_a_start_after_any_crash_finds_what_was_promised_and_nothing_that_never_was(directory: Path, seed: int) -> None:
    life: Lived = lived(seed, STEPS, directory)
    points = list(points_of(life, draws=1))
    chosen = sorted(random.Random(seed).sample(range(len(points)), SAMPLE))
    assert try_points(life, [points[number] for number in chosen], directory) == SAMPLE
