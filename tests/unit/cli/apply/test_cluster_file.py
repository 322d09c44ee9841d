# SPDX-License-Identifier: Apache-2.0
"""The parser of `tidemark apply`: contents, and errors with their lines."""

from __future__ import annotations

import pytest
from tidemark.cli.apply.cluster_file import ClusterFile, WantedBroker, WantedTopic, parse
from tidemark.core.quotas.quotas import DEFAULT
from tidemark.model import ErrorCode

WHOLE = """\
# the wanted state of production
topics:
  flights:
    partitions: 6
    replication_factor: 3
    configs:
      retention.ms: 86400000
      unclean.leader.election.enable: True
  empty:
  bare: {configs: {}}
  greetings:
    delete: true
brokers:
  default:
    replica.lag.time.max.ms: 20000
  0: {log.level: debug}
"""


def problems_of(text: str) -> list[tuple[int, str]]:
    return [(line, error.message) for line, error in parse(text)[1]]


def test_a_file_is_parsed_with_its_lines() -> None:
    configs = {"retention.ms": "86400000", "unclean.leader.election.enable": "true"}
    said = ("partitions", "replication_factor", "configs", *configs)
    lines = dict(zip(said, range(4, 9), strict=True))
    found, problems = parse(WHOLE)
    assert problems == []
    assert found == ClusterFile(
        topics={
            "flights": WantedTopic("flights", 3, 6, 3, configs, lines),
            "empty": WantedTopic("empty", 9),
            "bare": WantedTopic("bare", 10, configs={}, lines={"configs": 10}),
            "greetings": WantedTopic("greetings", 11, lines={"delete": 12}, delete=True),
        },
        brokers={
            "default": WantedBroker(
                "default", 14, {"replica.lag.time.max.ms": "20000"}, {"replica.lag.time.max.ms": 15}
            ),
            "0": WantedBroker("0", 16, {"log.level": "debug"}, {"log.level": 16}),
        },
    )


def test_all_errors_are_reported_by_line() -> None:
    text = f"""\
topics:
  flights:
    partitions: six
    replication_factor: {"9" * 5_000}
    partition: 6
    configs:
      retention.ms: soon
      retention.msec: 1
      max.message.bytes:
      broker.id: 3
  flights:
    partitions: 3
  greetings:
    delete: maybe
    configs: [a, b]
    replication_factor: 0
brokers:
  default:
    num.read.threads: 3
    log.level: [a]
queues: []
"""
    _, problems = parse(text)
    assert [line for line, _ in problems] == [3, 4, 5, 7, 8, 9, 10, 11, 14, 15, 16, 19, 20, 21]
    by_line = dict(problems)
    assert by_line[7].code is ErrorCode.INVALID_CONFIG
    assert by_line[8].code is ErrorCode.UNKNOWN_CONFIG
    assert "did you mean retention.ms?" in by_line[8].message
    assert "first in line 2" in by_line[11].message
    assert "restart" in by_line[19].message


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("topics:\n  flights: [\n", 3, "not YAML"),
        ("topics:\n\tflights: 1\n", 2, "not YAML"),
        ("topics:\n  a: {}\n---\nb: 1\n", 3, "not YAML"),
        ("topics: *nowhere\n", 1, "not YAML"),
        ("topics: !!python/object:os.system {}\n[]", 2, "not YAML"),
        ("", 1, "empty"),
        ("- a\n- b\n", 1, "expected a mapping"),
        ("topics: 7\n", 1, "expected a mapping"),
        ("topics:\n  a: 7\n", 2, "expected a mapping"),
        ("topics:\n  [a, b]: {}\n", 2, "a name must be a scalar"),
        ("a: \x00\n", 1, "not YAML"),
        ("topics: " + "[" * 500 + "]" * 500, 1, "nested too deeply"),
    ],
)
def test_a_file_that_does_not_parse_is_one_error_with_its_line(text: str, line: int, what: str) -> None:
    ((at, sentence),) = problems_of(text)
    assert at == line
    assert what in sentence


ACLS = """\
acls:
  User:alice:
    - allow: [read, describe-configs]
      topic: orders
      topic_prefix: shop.
    - deny: write
      topic: [a, b]
      host: 10.0.0.7
    - {allow: alter, cluster: true}
  User:bob: []
"""


def test_rules_are_every_combination_of_the_values_of_an_entry() -> None:
    found, problems = parse(ACLS)
    assert problems == []
    assert {str(acl) for acl in found.acls["User:alice"].acls} == {
        "ALLOW User:alice from * to READ Topic:orders",
        "ALLOW User:alice from * to READ Topic:shop.*",
        "ALLOW User:alice from * to DESCRIBE_CONFIGS Topic:orders",
        "ALLOW User:alice from * to DESCRIBE_CONFIGS Topic:shop.*",
        "DENY User:alice from 10.0.0.7 to WRITE Topic:a",
        "DENY User:alice from 10.0.0.7 to WRITE Topic:b",
        "ALLOW User:alice from * to ALTER Cluster",
    }
    assert (found.acls["User:bob"].line, found.acls["User:bob"].acls) == (10, frozenset())


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{allow: read}", "expected allow or deny, and a resource"),
        ("{topic: orders}", "expected allow or deny, and a resource"),
        ("{allow: ponder, topic: orders}", "'ponder' is none of READ"),
        ("{allow: read, cluster: true}", "READ does not apply to a CLUSTER"),
        ("{allow: read, topic: orders, hosts: x}", "unknown key 'hosts' of a rule"),
        ("{allow: read, topic: orders, host: broker-0}", "host 'broker-0'"),
        (
            "{allow: alter, topic: orders, cluster: false}",
            "cluster is 'false': write cluster: true, or remove the line",
        ),
        ("{allow: alter, cluster: shop}", "cluster is 'shop': write cluster: true"),
        ("{deny: [], allow: read, topic: orders}", "deny of User:alice has no value"),
        ("{deny: read, topic: orders, topic_prefix: []}", "topic_prefix of User:alice has no value"),
        ("{deny: read, topic: orders, host: []}", "host of User:alice has no value"),
    ],
)
def test_a_wrong_rule_is_reported_with_its_line(entry: str, sentence: str) -> None:
    _, problems = parse(f"acls:\n  User:alice:\n    - {entry}\n")
    assert [problem.line for problem in problems] == [3]
    assert sentence in problems[0].error.message


QUOTAS = """\
quotas:
  - user: User:token:alice
    client_id: loader
    producer_byte_rate: 10MB
    request_percentage: 12.5
  - user: <default>
    partition_creation_rate: 5
  - client_id: old
"""


def test_an_entry_has_all_quotas_of_an_entity() -> None:
    found, problems = parse(QUOTAS)
    assert problems == []
    assert [(one.line, one.entity, one.limits) for one in found.quotas] == [
        (2, ("User:token:alice", "loader"), {"producer_byte_rate": 1e7, "request_percentage": 12.5}),
        (6, (DEFAULT, None), {"partition_creation_rate": 5.0}),
        (8, (None, "old"), {}),
    ]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{producer_byte_rate: 1MB}", "a quota is for a user, a client id, or both"),
        ("{user: alice}", "no caller is 'alice'"),
        ("{client_id: ''}", "client id ''"),
        ("{client_id: a, producer_byte_rate: -1}", "expected bytes per second"),
        ("{client_id: a, producer_byte_rate: many}", "expected bytes per second"),
        ("{client_id: a, request_percentage: -1}", "request_percentage is -1"),
        ("{client_id: a, request_percentage: all}", "request_percentage is 'all'"),
        ("{client_id: a, request_percentage: nan}", "request_percentage is 'nan': give a number"),
        ("{client_id: a, request_percentage: 1_0}", "request_percentage is '1_0': give a number"),
        ("{client_id: a, connection_rate: 1}", "unknown key 'connection_rate' of quotas"),
        ("{client_id: a}\n  - {client_id: a}", "quotas of client id a are given twice"),
        ("7", "expected a mapping"),
    ],
)
def test_a_wrong_quota_is_reported_with_its_line(entry: str, sentence: str) -> None:
    _, problems = parse(f"quotas:\n  - {entry}\n")
    assert problems[0].line == 3 + entry.count("\n") - 1
    assert sentence in problems[0].error.message


def test_quotas_that_are_no_list_are_refused() -> None:
    _, problems = parse("quotas: {user: x}")
    assert ["quotas: expected a list" in problem.error.message for problem in problems] == [True]


@pytest.mark.parametrize("name", ['"\\ud800"', '"a\\nb"'])
def test_a_name_that_no_request_can_have_is_reported_with_its_line(name: str) -> None:
    (problem,) = parse(f"topics:\n  a: {{}}\n  {name}: {{delete: true}}\n")[1]
    assert (problem.line, problem.error.code) == (3, ErrorCode.INVALID_TOPIC_NAME)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (
            "topics:\n  a:\n    configs:\n      # retention.ms: -1\n",
            3,
            "configs of topic a has no value: {} removes all overrides; without this line they do not change",
        ),
        ("brokers:\n  default:\n", 2, "broker default has no value: {} removes all overrides; without this line"),
    ],
)
def test_settings_without_a_value_remove_no_overrides(text: str, line: int, sentence: str) -> None:
    """With the default retention.ms, records would be deleted."""
    (problem,) = parse(text)[1]
    assert problem.line == line
    assert problem.error.message.startswith(sentence)
