# SPDX-License-Identifier: Apache-2.0
"""A coordinator may receive the metadata of a new topic late: the client retries a commit refused for this."""

from __future__ import annotations

import time

import pytest
from tidemark.client.group import offset_commits
from tidemark.client.group.offset_commits import CommitPatience
from tidemark.errors import unknown_topic
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code

ACCEPTED = pb.GroupPartitionResult(topic="t", partition=0)
LATER = TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "no controller is active")
RECREATED = TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, "another topic")


def refused(error: TidemarkError) -> pb.GroupPartitionResult:
    return pb.GroupPartitionResult(topic="t", partition=1, error=errors.to_proto(error))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "_PAUSE_S", 0.0)


async def test_a_commit_is_repeated_while_a_coordinator_may_hear_of_the_topic() -> None:
    patience = CommitPatience(time.monotonic() + 60)
    assert not await patience.is_to_be_retried([ACCEPTED])
    for error in (LATER, unknown_topic("t")):
        assert await patience.is_to_be_retried([ACCEPTED, refused(error)])


async def test_a_permanent_refusal_of_a_partition_ends_the_commit() -> None:
    with raises_code(ErrorCode.UNKNOWN_TOPIC_ID):
        await CommitPatience(time.monotonic() + 60).is_to_be_retried([refused(LATER), refused(RECREATED)])


async def test_a_commit_ends_when_the_topic_stays_unknown_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(ErrorCode.LEADER_NOT_AVAILABLE):
        await CommitPatience(time.monotonic()).is_to_be_retried([refused(LATER)])
    monkeypatch.setattr(offset_commits, "TOPIC_PATIENCE_S", 0.0)
    with raises_code(ErrorCode.UNKNOWN_TOPIC):
        await CommitPatience(time.monotonic() + 60).is_to_be_retried([refused(unknown_topic("t"))])
