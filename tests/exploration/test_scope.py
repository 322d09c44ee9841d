"""Every state of small scopes is right, and the explorer finds what is wrong where something is."""

from __future__ import annotations

import pytest

from tests.exploration.__main__ import main, summary
from tests.exploration.frozen import BROKERS
from tests.exploration.mutants import MUTANTS, Mutant
from tests.exploration.search import Search
from tests.exploration.state import DEAD, Scope, State
from tests.exploration.story import tell

SECONDS_MAX = 60.0


@pytest.mark.parametrize(
    "scope",
    [
        Scope(batches=1, crashes=1),
        Scope(batches=1, lags=1, lost_answers=1),
        Scope(batches=1, lags=1, slow_disks=True),
    ],
    ids=["a crash", "a lost answer", "slow disks"],
)
def test_every_state_of_a_small_scope_is_right(scope: Scope) -> None:
    search = Search(scope)
    report = search.run(seconds=SECONDS_MAX)
    assert report.violation is None, "\n".join(tell(search.cluster, report.story))
    assert report.complete, summary(report)
    assert report.at_rest > 0, "some story comes to its end, with everybody in sync"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.__name__)
def test_a_mutant_is_found_and_its_story_told(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    search = Search(mutant.scope)
    report = search.run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report)
    assert report.violation.startswith(mutant.guarantee)
    lines = list(tell(search.cluster, report.story))
    assert "a client sends the next batch" in "\n".join(lines)


def test_a_twin_has_the_same_future() -> None:
    """Merging by names loses nothing: with and without it the same moves are possible, as often."""
    search = Search(Scope(batches=1, lags=1))
    cluster, names = search.cluster, search.names
    state = cluster.initial()
    for _ in range(12):
        twin = names.canonical(state)
        ahead = [chain[-1][1] for chain in cluster.ahead(state)]
        twins = [chain[-1][1] for chain in cluster.ahead(twin)]
        assert sorted(hash(names.canonical(one)) for one in ahead) == sorted(
            hash(names.canonical(one)) for one in twins
        )
        if not ahead:
            break
        state = ahead[len(ahead) // 2]


def test_what_is_taken_eagerly_hides_nothing() -> None:
    """Logs, high watermarks, leaders and node are in as many constellations when it may come at any time."""
    eager, patient = (constellations(Scope(batches=1, crashes=1, reduced=reduced)) for reduced in (True, False))
    assert eager == patient


def constellations(scope: Scope) -> set[tuple[object, ...]]:
    search = Search(scope)
    seen: set[tuple[object, ...]] = set()
    report = search.run(seconds=SECONDS_MAX, visit=lambda state: seen.add(outline(search, state)))
    assert report.complete, summary(report)
    return seen


def outline(search: Search, state: State) -> tuple[object, ...]:
    """What the invariants look at, whatever the brokers' names."""
    brokers, disks = search.cluster.brokers, search.cluster.disks
    node = brokers.values[state.node].state
    each = []
    for place, core in enumerate(state.cores):
        view = brokers.views[core] if core != DEAD else None
        role = (view.high_watermark, -1 if view.leader_epoch is None else view.leader_epoch) if view else (-1, -2)
        name = BROKERS[place]
        stands = (name == node.leader, name in node.isr_ids, name in [entry.broker_id for entry in node.elr])
        each.append((role, disks[state.disks[place]].records, stands))
    return (*sorted(each), node.leader_epoch, state.committed)


def test_a_search_that_stops_at_its_bound_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "1", "--crashes", "1", "--minutes", "0"]) == 0
    assert "STOPPED at the bound" in capsys.readouterr().out


def test_a_beam_says_that_it_has_not_seen_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "2", "--beam", "3"]) == 0
    assert "SAMPLED to the end" in capsys.readouterr().out
