# SPDX-License-Identifier: Apache-2.0
"""The constructor of a client refuses a setting of a wrong type, and names the setting."""

from __future__ import annotations

import os
import tempfile
from typing import Any, get_type_hints

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tidemark.client import TableHandle, TlsFiles, aio
from tidemark.client.group.settings import ConsumerAndGroupOptions, GroupOptions, group_settings
from tidemark.client.producing.batching import PendingBatch
from tidemark.client.settings import ConsumerOptions, ProducerOptions, consumer_settings, producer_settings
from tidemark.model import TopicPartition

from tests.unit.client.wrong_values import WRONG, is_typed

ARGUMENTS = [
    *(("Producer", name) for name in ("bootstrap", "partitioner", "key_serializer", "value_serializer", "tls")),
    *(("Producer", name) for name in ProducerOptions.__annotations__),
    *(("Consumer", name) for name in ("bootstrap", "group", "key_deserializer", "value_deserializer", "tls")),
    *(("Consumer", name) for name in ConsumerAndGroupOptions.__annotations__),
    *(("Groups", name) for name in ("bootstrap", "timeout_s", "tls")),
    *(("AdminClient", name) for name in ("bootstrap", "admin", "timeout_s", "tls")),
]


@settings(max_examples=400, derandomize=True)
@given(st.sampled_from(ARGUMENTS), WRONG)
def test_a_wrong_setting_has_a_typed_error(argument: tuple[str, str], wrong: Any) -> None:
    kind, name = argument
    needed: dict[str, Any] = {"bootstrap": "127.0.0.1:9192"}
    if name in GroupOptions.__annotations__:
        needed["group"] = "g"
    try:
        getattr(aio, kind)(**(needed | {name: wrong}))
    except Exception as error:
        if not is_typed(error):
            raise


@settings(max_examples=100, derandomize=True)
@given(st.sampled_from(TlsFiles._fields), WRONG)
@example("ca", 1)
def test_a_wrong_path_of_a_tls_file_has_a_typed_error_and_closes_no_file(name: str, wrong: Any) -> None:
    with tempfile.TemporaryFile() as opened:
        for path in (wrong, opened.fileno()):
            try:
                aio.Producer("127.0.0.1:9192", tls=TlsFiles(**{name: path}))
            except Exception as error:
                if not is_typed(error):
                    raise
        os.fstat(opened.fileno())


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.sampled_from(("result", "exception", "outcomes", "add_done_callback")), st.booleans(), WRONG)
def test_a_wrong_argument_of_a_handle_has_a_typed_error(method: str, resolved: bool, wrong: Any) -> None:
    assume(resolved or not isinstance(wrong, int | float) or wrong < 1)  # a timeout of the handle
    assume(resolved or wrong is not None)
    batch = PendingBatch(TopicPartition("t", 0), opened_s=0, deadline_s=1)
    for handle in (batch.add(None, b"x", 0, None), TableHandle([batch])):
        if resolved:
            batch.resolve(0, 0, None)
        try:
            getattr(handle, method)(wrong) if hasattr(handle, method) else None
        except Exception as error:
            if not is_typed(error):
                raise
    batch.resolve(0, 0, None)
    assert batch.done


def test_a_callback_that_is_no_function_is_refused_at_the_call() -> None:
    batch = PendingBatch(TopicPartition("t", 0), opened_s=0, deadline_s=1)
    with pytest.raises(TypeError, match="callback is None, not a function"):
        batch.add(None, b"x", 0, None).add_done_callback(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "wrong", "sentence"),
    [
        ("Producer", {"linger": 5}, "a Producer has no argument 'linger': did you mean linger_ms?"),
        ("Producer", {"bootstrap_servers": "a:1"}, "did you mean bootstrap?"),
        ("Consumer", {"group_id": "g"}, "a Consumer has no argument 'group_id': did you mean group?"),
        ("Consumer", {"zzz": 1}, "a Consumer has no argument 'zzz': its arguments are assignor, "),
        ("Consumer", {"instance_id": "a"}, "instance_id is for members of a group: give group, too"),
        ("Consumer", {"max_bytes": 1.5}, r"max_bytes is 1\.5, a float, not an integer"),
        ("Producer", {"enable_idempotence": "no"}, "enable_idempotence is 'no', a str, not True or False"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(
    kind: str, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        getattr(aio, kind)("127.0.0.1:9192", **wrong)


@pytest.mark.parametrize(
    ("options", "check"),
    [(ProducerOptions, producer_settings), (ConsumerOptions, consumer_settings), (GroupOptions, group_settings)],
)
def test_the_typed_keywords_are_the_arguments_of_the_check(options: Any, check: Any) -> None:
    wanted = get_type_hints(check)
    assert get_type_hints(options) == {name: kind for name, kind in wanted.items() if name not in ("return", "group")}
