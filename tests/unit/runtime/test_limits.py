# SPDX-License-Identifier: Apache-2.0
"""The limit of open files is raised as far as it may be, and never lowered."""

from __future__ import annotations

import resource

import pytest
from tidemark.runtime import limits

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "limit"),
    [
        (1024, 4096, True, 4096),
        (1024, 1 << 20, True, 65_536),
        (1024, INFINITY, True, 65_536),
        (1024, 4096, False, 1024),
        (100_000, 200_000, True, 100_000),
        (INFINITY, INFINITY, True, 65_536),
    ],
)
def test_the_soft_limit_goes_up_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: bool, limit: int
) -> None:
    current = [(soft, hard)]

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        if not allowed:
            raise ValueError("not allowed to")
        current[0] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: current[0])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert limits.raise_open_files() == limit
