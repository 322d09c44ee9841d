# SPDX-License-Identifier: Apache-2.0
"""Clients with short timeouts for missing objects; for tests of objects that never appear."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tidemark.client.metadata import blocking_cluster, cluster

PATIENCE_S: Final = "1.0"
_TOPICS: Final = "PATIENCE_WITH_TOPICS_S"
_BROKERS: Final = "PATIENCE_WITH_BROKERS_S"


def with_topics(patch: pytest.MonkeyPatch) -> None:
    """Set short timeouts here, and in every warm command that is started."""
    patch.setenv(_TOPICS, PATIENCE_S)
    _take(patch)


def with_brokers(patch: pytest.MonkeyPatch) -> None:
    """The same, for tests that call no running broker, which may answer later than this timeout."""
    patch.setenv(_BROKERS, PATIENCE_S)
    _take(patch)


def as_told() -> None:
    """The state of the environment, permanently."""
    _take(pytest.MonkeyPatch())


def _take(patch: pytest.MonkeyPatch) -> None:
    if _TOPICS in os.environ:
        for module in (cluster, blocking_cluster):
            patch.setattr(module, "TOPIC_PATIENCE_S", float(os.environ[_TOPICS]))
    if _BROKERS in os.environ:
        patch.setattr(cluster, "CONNECT_TIMEOUT_S", float(os.environ[_BROKERS]))
