# SPDX-License-Identifier: Apache-2.0
"""The options of transactional writes, the ids, and the decision of the driver; no Spark session, no cluster."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs
from tidemark_spark.sink.options import parse_write_options
from tidemark_spark.transactions.checkpoint import read_query_id
from tidemark_spark.transactions.members import (
    NO_PRODUCER,
    Decision,
    Membership,
    MixedTransactionsError,
    WriteTransaction,
    decide,
)
from tidemark_spark.transactions.settings import (
    Mode,
    TransactionSettings,
    batch_identity,
    check_streaming,
    query_identity,
)

BOOTSTRAP = {"tidemark.bootstrap": "127.0.0.1:9192", "topic": "sums"}
TRANSACTION = WriteTransaction("spark-1", 7, 60_000)


def parsed(**options: str) -> TransactionSettings:
    return parse_write_options({**BOOTSTRAP, **options}).transactions


def test_a_write_is_transactional_where_the_cluster_allows_it_unless_an_option_says_otherwise() -> None:
    assert (parsed().mode, parsed().obstacle) == (Mode.AUTO, "")
    assert (parsed(Transactional="TRUE").mode, parsed(transactional="false").mode) == (Mode.TRUE, Mode.FALSE)


@pytest.mark.parametrize(
    "options", [{"tidemark.acks": "1"}, {"kafka.acks": "0"}, {"tidemark.enable.idempotence": "false"}]
)
def test_a_producer_without_idempotence_writes_without_transactions(options: dict[str, str]) -> None:
    settings = parsed(**options)
    assert "a transaction needs" in settings.obstacle
    with pytest.raises(ValueError, match="option 'transactional' is true, and option"):
        parsed(**options, transactional="true")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"transactional": "yes"}, "option 'transactional' is 'yes'; expected auto, true or false"),
        ({"tidemark.transaction.timeout.ms": "10"}, "expected milliseconds, a whole number from 1000"),
        ({"kafka.transaction.timeout.ms": "1 minute"}, "option 'kafka.transaction.timeout.ms' is '1 minute'"),
        (
            {"kafka.transaction.timeout.ms": "2000", "tidemark.transaction.timeout.ms": "3000"},
            "contradict one another",
        ),
        ({"txnVersion": "-1", "txnAppId": "a"}, "option 'txnVersion' is '-1'"),
        ({"txnVersion": str(1 << 63), "txnAppId": "a"}, "expected a whole number from 0"),
        ({"txnAppId": "a" * 250}, "option 'txnAppId' has 250 characters; expected 249 at most"),
        ({"transactionall": "true"}, "did you mean 'transactional'"),
        ({"kafka.transactional.id": "sums"}, "it configures Kafka's client; remove it"),
    ],
)
def test_a_wrong_option_of_transactions_is_refused_with_its_valid_form(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parsed(**options)


def test_the_timeout_of_the_transaction_is_an_option_with_kafkas_name_too() -> None:
    assert parsed().timeout_ms == 60_000
    assert parsed(**{"kafka.transaction.timeout.ms": "600000"}).timeout_ms == 600_000


def test_each_batch_write_has_an_id_of_its_own() -> None:
    assert batch_identity(parsed(), "one") == ("spark-one", 0)
    assert batch_identity(parsed(), "two") == ("spark-two", 0)


def test_an_application_and_a_version_make_a_batch_write_repeatable() -> None:
    assert batch_identity(parsed(txnAppId="nightly", txnVersion="20261127"), "x") == ("nightly", 20261127)
    with pytest.raises(ValueError, match="option 'txnVersion' is missing"):
        batch_identity(parsed(txnAppId="nightly"), "x")
    with pytest.raises(ValueError, match="option 'txnAppId' is missing"):
        batch_identity(parsed(txnVersion="3"), "x")


def test_a_query_has_the_id_of_its_checkpoint_and_no_version() -> None:
    assert query_identity(parsed(), "4f9c") == "spark-4f9c"
    assert query_identity(parsed(txnAppId="sums"), "4f9c") == "sums"
    check_streaming(parsed(txnAppId="sums"))
    with pytest.raises(ValueError, match="a streaming write has the number of its micro-batch"):
        check_streaming(parsed(txnAppId="sums", txnVersion="3"))


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b?c"])
@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "FILE://{}"])
def test_the_id_of_a_query_is_read_from_its_checkpoint_whose_name_is_not_decoded(
    tmp_path: Path, form: str, name: str
) -> None:
    query_id = str(uuid.uuid4())
    (tmp_path / name).mkdir()
    (tmp_path / name / "metadata").write_text(json.dumps({"id": query_id}), encoding="ascii")
    uri = form.format(tmp_path / name)
    assert read_query_id(uri) == query_id
    assert parsed(checkpointLocation=uri).checkpoint == uri


def test_a_checkpoint_of_another_file_system_has_the_name_that_hadoop_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class System:
        uris: ClassVar[list[str]] = []

        @classmethod
        def from_uri(cls, uri: str) -> tuple[fs.FileSystem, str]:
            cls.uris.append(uri)
            return fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr(fs, "FileSystem", System)
    (tmp_path / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="ascii")
    for uri in ("hdfs://name:8020/a%20b/c d", "s3a://bucket/a#b"):
        assert read_query_id(uri)
    assert System.uris == ["hdfs://name:8020/a%2520b/c%20d", "s3://bucket/a%23b"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id": 7}', '{"id": "x"}', "\xff"])
def test_a_checkpoint_without_an_id_is_an_error_that_names_the_checkpoint(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=f"of the checkpoint {tmp_path} has no id"):
        read_query_id(str(tmp_path))


def test_a_checkpoint_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(OSError, match="metadata"):
        read_query_id("/nowhere")
    with pytest.raises(ValueError, match="unheard-of"):
        read_query_id("unheard-of://place")


@given(st.lists(st.integers(0, 9) | st.just(NO_PRODUCER), min_size=1, max_size=20))
def test_the_driver_names_each_producer_of_a_message_once_and_no_other(producer_ids: list[int]) -> None:
    messages = [Membership(TRANSACTION, one) for one in producer_ids]
    decision = decide(pickle.loads(pickle.dumps(messages)))
    assert decision == Decision(TRANSACTION, tuple(sorted(set(producer_ids) - {NO_PRODUCER})))


def test_tasks_without_a_transaction_have_nothing_to_commit() -> None:
    assert decide([]) is None
    assert decide([None, None]) is None


@pytest.mark.parametrize("other", [None, Membership(WriteTransaction("spark-1", 8, 60_000), 4)])
def test_tasks_of_different_transactions_are_not_committed(other: Membership | None) -> None:
    with pytest.raises(MixedTransactionsError, match=r"different transactions: .*spark-1 \(7\)"):
        decide([Membership(TRANSACTION, 3), other])
