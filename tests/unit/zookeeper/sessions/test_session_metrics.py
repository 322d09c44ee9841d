# SPDX-License-Identifier: Apache-2.0
"""The metrics of a ZooKeeper session."""

from __future__ import annotations

from tidemark.zookeeper.sessions.session_metrics import SessionMetrics, SessionTally

from tests.unit.broker.scraped import scraped


def state(tally: SessionTally) -> list[str]:
    text = SessionMetrics(tally, lambda: 0, lambda: 0).render()
    return [
        labels.removeprefix("state=")
        for (name, labels), value in scraped(text).items()
        if name == "tidemark_zookeeper_session_state" and value == 1
    ]


def test_a_session_is_in_one_state_and_an_expired_one_stays_so_until_there_is_another() -> None:
    tally = SessionTally()
    assert state(tally) == ["closed"]
    tally.connected(6000)
    assert state(tally) == ["connected"]
    tally.suspended()
    assert state(tally) == ["suspended"]
    tally.expired()
    tally.closed()
    assert state(tally) == ["expired"]
    tally.connected(6000)
    tally.closed()
    assert state(tally) == ["closed"]


def test_session_metrics_count_events_and_request_times() -> None:
    tally = SessionTally()
    tally.connected(6000)
    for seconds in (0.0004, 0.004, 30.0):
        tally.answered(seconds)
    tally.suspended()
    tally.expired()
    tally.failed += 1
    found = scraped(SessionMetrics(tally, lambda: 7_500, lambda: 5_000).render())
    assert found["tidemark_zookeeper_session_timeout_seconds", ""] == 6
    assert found["tidemark_zookeeper_lease_seconds", ""] == 2.5
    assert found["tidemark_zookeeper_session_expiries_total", ""] == 1
    assert found["tidemark_zookeeper_disconnects_total", ""] == 1
    assert found["tidemark_zookeeper_requests_failed_total", ""] == 1
    bucket = "tidemark_zookeeper_request_seconds_bucket"
    assert [found[bucket, f"le={le}"] for le in ("0.0005", "0.005", "10.0", "+Inf")] == [1, 2, 2, 3]
    assert found["tidemark_zookeeper_request_seconds_count", ""] == 3
    assert found["tidemark_zookeeper_request_seconds_sum", ""] == 30.0044


def test_a_lease_that_is_over_is_none() -> None:
    tally = SessionTally()
    assert scraped(SessionMetrics(tally, lambda: 10, lambda: 20).render())["tidemark_zookeeper_lease_seconds", ""] == 0
