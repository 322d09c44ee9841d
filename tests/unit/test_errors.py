# SPDX-License-Identifier: Apache-2.0
"""A refusal has the class of its code, from every source, and `code` has the code."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import grpc
import pytest
from tidemark import client, errors
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.rpc.errors import from_proto, to_proto

OWN = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TidemarkError)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.UNKNOWN_TOPIC, client.UnknownTopicError),
        (ErrorCode.UNKNOWN_TOPIC_ID, client.TopicRecreatedError),
        (ErrorCode.CLIENT_CLOSED, client.ClientClosedError),
        (ErrorCode.BATCH_TOO_LARGE, client.BatchTooLargeError),
        (ErrorCode.BROKER_NOT_AVAILABLE, client.BrokerNotAvailableError),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, client.InconsistentGroupProtocolError),
        (ErrorCode.FENCED_MEMBER_EPOCH, client.FencedMemberError),
        (ErrorCode.OFFSET_OUT_OF_RANGE, client.OffsetOutOfRangeError),
        (ErrorCode.LOG_TRUNCATED, client.LogTruncatedError),
        (ErrorCode.REQUEST_TIMED_OUT, client.RequestTimedOutError),
    ],
)
def test_a_refusal_is_of_the_class_of_its_code(code: ErrorCode, kind: type[TidemarkError]) -> None:
    made = TidemarkError(code, "why", {"fact": "1"})
    assert type(made) is kind
    assert (made.code, made.message, made.metadata) == (code, "why", {"fact": "1"})
    assert str(made) == f"{code}: why"
    assert repr(made) == f"{kind.__name__}({code}, 'why', {{'fact': '1'}})"


@pytest.mark.parametrize("code", ErrorCode)
def test_between_processes_and_over_the_wire_class_and_facts_stay(code: ErrorCode) -> None:
    made = TidemarkError(code, "why", {"fact": "1"})
    for found in (pickle.loads(pickle.dumps(made)), copy.copy(made), from_proto(to_proto(made))):
        assert type(found) is type(made)
        assert (found.code, found.message, found.metadata) == (code, "why", {"fact": "1"})


def test_a_code_without_a_class_is_a_plain_refusal() -> None:
    assert type(TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "why")) is TidemarkError


def test_a_custom_class_keeps_its_type() -> None:
    class MineError(TidemarkError):
        pass

    assert type(MineError(ErrorCode.UNKNOWN_TOPIC, "why")) is MineError


def test_every_class_is_public() -> None:
    assert {one.__name__ for one in OWN} <= set(client.__all__)


def test_no_builtin_is_hidden_by_a_name() -> None:
    names = {one.__name__ for one in OWN}
    assert not names & set(vars(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
    assert not names & set(vars(grpc))


def test_an_unknown_topic_is_refused_with_the_next_step() -> None:
    refusal = errors.unknown_topic("")
    assert refusal.code is ErrorCode.UNKNOWN_TOPIC
    assert refusal.message.startswith("there is no topic ''; `tidemark topic list` shows the topics")
    assert refusal.metadata == {"topic": ""}


def test_the_sentence_of_an_unknown_topic_is_written_once() -> None:
    home = Path(errors.__file__)
    others = [path for path in home.parent.rglob("*.py") if path != home and "v1" not in path.parts]
    assert [path.name for path in others if re.search(r"there is no topic \{(?!_shown)", path.read_text())] == []
