# SPDX-License-Identifier: Apache-2.0
"""One seed gives the same run in another process, too: `sound_worlds` compares a world of each kind."""

from __future__ import annotations

import pytest

from tests.simulation.replay import OtherProcess
from tests.simulation.sound_worlds import is_replayed

RECIPE = "harsh"


def test_a_world_that_is_another_one_in_another_process_is_found(
    elsewhere: OtherProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    digests = []
    for seed in (0, 1):
        elsewhere.begin(seed, RECIPE)
        digests.append(elsewhere.digest())
    is_replayed(RECIPE, digests[0], digests[0], elsewhere)
    with pytest.raises(AssertionError, match="another one in another process"):
        is_replayed(RECIPE, *digests, elsewhere)
