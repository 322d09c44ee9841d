# SPDX-License-Identifier: Apache-2.0
"""Fixtures and settings of every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.collecting import collect_seldom

collect_seldom()  # already now: imports and the collection of tests keep almost all objects that they create
# How long an example takes depends on the machine more than on the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# By default it is where pytest is called: examples would be lost, and documentation folders would have files.
set_hypothesis_home_dir(Path(__file__).parents[1] / ".hypothesis")

LONGEST_FILES = (
    "spark/pipelines/test_driver_killed.py",
    "contract/test_metadata_store_sessions.py",
    "contract/test_metadata_store.py",
    "contract/test_metadata_store_lost_answers.py",
    "charts/test_alerts.py",
    "integration/groups/test_groups_adversity.py",
    "integration/reassign/test_reassign_log_dirs.py",
    "integration/reassign/test_log_dir_moves.py",
    "integration/reassign/test_reassignments.py",
    "integration/lifecycle/test_broker_recovery.py",
    "integration/lifecycle/test_rolling_restart.py",
    "integration/clients/test_silent_brokers.py",
    "integration/groups/test_groups.py",  # the first test of the shared cluster
)
"""If a worker ran one of these files last, the other workers would wait for it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Collect the longest files first; the order of the others stays."""
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-3:]).removeprefix("tests/"), len(places)))


def pytest_collection_finish() -> None:
    """Thousands of test functions and modules exist now."""
    collect_seldom()


def pytest_sessionfinish() -> None:
    """Collect once, so that the five collections at the end of pytest visit few objects."""
    collect_seldom()


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Tests that run in the background, or under nohup, ignore SIGINT or SIGHUP from the start."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
