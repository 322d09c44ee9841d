# SPDX-License-Identifier: Apache-2.0
"""Walks every interleaving of a small scope, and reports how much of the scope it covered.

    python -m tests.exploration [--batches 2 --crashes 2 --suspicions 1 --lost-answers 1] [--minutes M] [--beam N]

Exit status: 0 if every visited state is right, even if the walk is incomplete; 1 for a violation.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from tests.exploration.model.state import Scope
from tests.exploration.story import tell
from tests.exploration.walking.at_once import KINDS
from tests.exploration.walking.search import Report, Search
from tests.exploration.walking.walk import Walk

_WITHOUT_DELAY: Final = {
    "streams": "streams",
    "commands": "streams and commands",
    "zookeeper": "streams, commands and requests",
}


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    scope = Scope(
        batches=options.batches,
        crashes=options.crashes,
        suspicions=options.suspicions,
        lost_answers=options.lost_answers,
        lags=options.lags,
        breaks=options.breaks,
        expiries=options.expiries,
        cuts=options.cuts,
        unnoticed=options.unnoticed,
        min_isr=options.min_isr,
        acks=options.acks,
        slow_disks=options.slow_disks,
    )
    print(f"{scope}", flush=True)
    seconds, every_s = options.minutes * 60, options.progress_seconds
    search: Search | Walk
    if options.beam is not None:
        search = Search(scope)
        report = search.run(
            seconds=seconds, beam=options.beam, seed=options.seed, progress=_progress, progress_every_s=every_s
        )
        print(summary(report))
    else:
        search = _walked(scope, options)
        report = search.report
    if report.violation is None:
        return 0
    for line in tell(search.cluster, report.story):
        print(line)
    print(f"    which breaks {report.violation}")
    return 1


def _walked(scope: Scope, options: argparse.Namespace) -> Walk:
    """Walk a scope once, or once for each number of deferred deliveries; returns the last walk."""
    ends_s = time.monotonic() + options.minutes * 60
    walk: Walk | None = None
    for delays in [None] if options.delays is None else range(options.delays + 1):
        walk = Walk(
            scope,
            delays=delays,
            surprises_count=options.surprises_count,
            at_once=options.at_once,
            after=walk,
        )
        report = walk.run(
            seconds=ends_s - time.monotonic(),
            memory_bytes_max=options.memory_gb * 1e9,
            progress=_progress,
            progress_every_s=options.progress_seconds,
        )
        print(summary(report), flush=True)
        if not report.complete:
            break
    assert walk is not None, "at least one walk is asked for"
    return walk


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2, help="that clients send, one after the other")
    parser.add_argument("--crashes", type=int, default=2, help="kill -9 of any broker at any moment")
    parser.add_argument("--suspicions", type=int, default=1, help="of any broker, dead or alive")
    parser.add_argument("--lost-answers", type=int, default=1, help="of ZooKeeper, the write having happened or not")
    parser.add_argument("--lags", type=int, default=0, help="a follower sends nothing for replica.lag.time.max.ms")
    parser.add_argument("--breaks", type=int, default=0, help="of a stream, with all that is on its way")
    parser.add_argument("--expiries", type=int, default=0, help="of the session of a process that lives")
    parser.add_argument("--cuts", type=int, default=0, help="kill -9 of all brokers; one log loses its last batch")
    parser.add_argument(
        "--unnoticed", action="store_true", help="with --cuts: no torn batch is left, so a start notices nothing"
    )
    parser.add_argument("--min-isr", type=int, default=2)
    parser.add_argument("--acks", type=int, default=-1, choices=(-1, 0, 1))
    parser.add_argument("--slow-disks", action="store_true", help="anything may happen while a log is written or cut")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="stop then, and say how far it got (default 10; inf: at the end)"
    )
    parser.add_argument("--memory-gb", type=float, default=3.5, help="stop too when it takes more (default 3.5)")
    parser.add_argument(
        "--delays", type=int, help="only stories with at most this number of deferred deliveries: 0 first, then 1, ..."
    )
    parser.add_argument(
        "--surprises-count",
        action="store_true",
        help="with --delays: a fault or batch that comes while anything is on its way counts as one put off",
    )
    parser.add_argument(
        "--at-once",
        choices=tuple(KINDS),
        help="only stories in which messages on streams are delivered before any other move; or those and the "
        "controller's commands; or those and requests to ZooKeeper; without --delays",
    )
    parser.add_argument("--beam", type=int, help="continue from this many states per depth: long stories, not all")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--progress-seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    if options.at_once is not None and (options.delays is not None or options.beam is not None):
        parser.error("--at-once goes with neither --delays nor --beam")
    return options


def _progress(report: Report) -> None:
    print(f"  {counts(report)}, {report.waiting:,} waiting", flush=True)


def counts(report: Report) -> str:
    """The figures of a search."""
    return (
        f"{report.states:,} states, {report.transitions:,} transitions, depth {report.depth}, "
        f"{report.merged:,} twins merged, {report.cores:,} broker states, {report.steps:,} steps of the core, "
        f"{report.at_rest:,} ends, {report.seconds:.0f} s, {report.memory_mb} MB"
    )


def _bound(report: Report) -> str:
    """The permitted number of deferred deliveries, as text."""
    count = f"{report.delays} deliver{'y' if report.delays == 1 else 'ies'} put off"
    return f"{count}, faults and batches in their midst counted too" if report.surprises_count else count


def summary(report: Report) -> str:
    """The result of the search, and its limits."""
    if report.violation is not None:
        return f"VIOLATION after {counts(report)}"
    if report.complete and report.delays is not None:
        return f"COMPLETE with at most {_bound(report)}: {counts(report)}"
    if report.complete and report.at_once is not None:
        return f"COMPLETE with {_WITHOUT_DELAY[report.at_once]} at once: {counts(report)}"
    if report.complete:
        return f"COMPLETE: every state of this scope is right: {counts(report)}"
    if report.dropped:
        end = "to the end of the longest" if report.waiting == 0 else "until the time was over"
        return f"SAMPLED {end}: nothing wrong found, {report.dropped:,} states not gone on from: {counts(report)}"
    if report.delays is not None:
        return f"STOPPED before the end of {_bound(report)}: {report.waiting:,} states wait: {counts(report)}"
    kind = "" if report.at_once is None else f" with {_WITHOUT_DELAY[report.at_once]} at once"
    return (
        f"STOPPED at the bound{kind}: every story of up to {report.depth} moves is right, of longer ones only some; "
        f"{report.waiting:,} states wait: {counts(report)}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
