# SPDX-License-Identifier: Apache-2.0
"""All brokers crash and one log loses its last batch: no acknowledged record is lost by an election (rule T7).

This test walks every state in which faults occur while no message is in flight; `make explore` walks every order.
"""

from __future__ import annotations

import pytest

from tests.exploration.__main__ import summary
from tests.exploration.known import Known
from tests.exploration.model.state import Scope
from tests.exploration.mutants import CUT_MUTANTS, Mutant
from tests.exploration.outline import SECONDS_MAX
from tests.exploration.story import tell


@pytest.mark.parametrize("unnoticed", [False, True], ids=["a torn batch", "whole batches"])
def test_a_log_cut_at_a_crash_of_all_brokers_loses_no_acknowledged_record(unnoticed: bool, known: Known) -> None:
    walk = known.walk(Scope(batches=1, cuts=1, unnoticed=unnoticed), delays=0, surprises_count=True, parents=True)
    report = walk.run(seconds=SECONDS_MAX)
    assert report.violation is None, "\n".join(tell(walk.cluster, report.story))
    assert report.complete, summary(report)
    assert report.at_rest > 0, "some story ends with all replicas in sync"


@pytest.mark.parametrize("mutant", CUT_MUTANTS, ids=lambda one: one.patch.__name__)
def test_a_mutant_that_elects_a_cut_log_is_caught(
    mutant: Mutant, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.patch(monkeypatch)
    walk = known.walk(mutant.scope, at_once="zookeeper", parents=True)
    report = walk.run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report)
    assert report.violation.startswith(mutant.guarantee)
    assert "has lost its last batch" in "\n".join(tell(walk.cluster, report.story))
