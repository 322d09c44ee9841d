# SPDX-License-Identifier: Apache-2.0
"""The settings of a topic that elections use."""

from __future__ import annotations

from tidemark.controller.term import policy_of


def test_the_controller_omits_only_a_setting_that_does_not_parse() -> None:
    """A later version may have settings that this one does not know."""
    policy = policy_of({"min.insync.replicas": "1", "flush.policy": "group-commit", "from.the.future": "1"})
    assert (policy.min_insync_replicas, policy.group_commit) == (1, True)
