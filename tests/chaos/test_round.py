# SPDX-License-Identifier: Apache-2.0
"""A round of real faults on a secure cluster of real processes, from a new seed each time; a failing one can be run
again by its seed, with `python -m tests.chaos --seed N --secure yes`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.loads import SHARED
from tests.chaos.machine import computing_s, other_load, slowness
from tests.chaos.rounds import run_round
from tests.chaos.transactions.troop import NAMES

ROUND_S = 30.0
MANY = 40


@pytest.mark.timeout(900)
def test_a_round_of_faults_loses_doubles_and_reorders_no_record(tmp_path: Path) -> None:
    slow = slowness(other_load(), computing_s())
    report = run_round(tmp_path, random.randrange(1 << 31), ROUND_S, slow, secure=True)
    assert not report.findings, f"{report}\n  slowness {slow:.1f}"
    assert report.faults, "no fault was injected"
    assert {"certificates", "authority", "token"} <= set(" ".join(report.faults).split()), "each was renewed"
    assert report.acknowledged > 1000 / slow, report
    assert report.ends > 0, report
    assert report.covered > 0, "the compacted topic was compacted"
    assert report.let_go > 0, "the topic that shrinks did"
    assert report.group.lives > 4, "members came and went"
    assert report.group.taken > SHARED.partitions, "and with them partitions"
    assert report.group.processed > 1000 / slow**2, report  # divides the number of records that senders send
    assert report.group.commits > 0, report
    assert report.transactions.lives - len(NAMES) > 2 / slow, "transactional senders came and went"
    many = report.transactions.committed >= MANY  # a slow machine has few faults of senders, and few transactions
    assert report.transactions.committed > 10 / slow, report
    assert report.transactions.aborted > 0 or not many, report
    assert report.transactions.polled > 25 / slow, report
    assert report.transactions.transformed > 0 or not many, report
    assert report.typed.versions > 3, "the schema changed"
    assert report.typed.outrun > 0, "one of two concurrent changes is refused with the other"
    assert report.typed.refused > 0, report
