# SPDX-License-Identifier: Apache-2.0
"""The work of a cluster between two readings, though processes start and end in between."""

from __future__ import annotations

from bench.measuring.cluster_counters import between, table


def test_a_process_that_started_counts_from_zero_and_one_that_ended_is_left_out() -> None:
    before = {(1, "joined"): 5.0, (2, "joined"): 100.0, (3, "left"): 7.0}
    after = {(1, "joined"): 8.0, (4, "joined"): 2.0, (3, "left"): 7.0}
    assert between(before, after) == {"joined": 5.0}


def test_a_table_has_the_means_of_each_event() -> None:
    lines = table(
        {"restart_s": [{"joined": 2.0}, {"joined": 4.0, "left": 1.0}], "failure_s": [{"left": 3.0}]}
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["restart_s", "failure_s"],
        ["joined", "3.0", "0.0"],
        ["left", "0.5", "3.0"],
    ]


def test_a_table_without_events_is_empty() -> None:
    assert table({}).strip() == ""
