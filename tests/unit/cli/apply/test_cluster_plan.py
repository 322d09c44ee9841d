# SPDX-License-Identifier: Apache-2.0
"""The steps from the current state to the file, executed on a fake cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tidemark.cli.apply.cluster_file import ClusterFile, Problem, parse
from tidemark.cli.apply.cluster_plan import Action, Step, plan
from tidemark.client.aio.admin.topic_schemas import StoredSchema, TopicSchemas
from tidemark.client.created_topic import CreatedTopic
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.quotas.quotas import QuotaEntity, QuotaKind
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import SchemaDraft, TopicSchema
from tidemark.core.security.acls import Operation, allow_rule, topic
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch
from tidemark.rpc.quotas.codec import QuotaChange

FILE = """\
topics:
  flights:
    partitions: 6
    replication_factor: 2
    configs: {retention.ms: 7}
  orders: {}
  old: {delete: true}
brokers:
  default: {log.level: debug}
"""


class PlayedCluster:
    """A fake cluster that records its requests."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicView] = {}
        self.brokers: dict[str, dict[str, str]] = {}
        self.schemas: dict[str, list[TopicSchema]] = {}
        self.asked: list[str] = []

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        schema: SchemaDraft | None = None,
        validate_only: bool = False,
        request_id: str = "",
    ) -> CreatedTopic:
        made = topic_of(name, partitions, replication_factor or 3, configs or {})
        if not validate_only:
            self.asked.append(f"create {name}")
            self.topics[name] = made
            self.schemas[name] = [] if schema is None else [first_version(schema)]
        return CreatedTopic.of(made)

    def alter_topic_schema(
        self,
        topic: str,
        schema: SchemaDraft,
        *,
        expected_version: int,
        validate_only: bool = False,
        request_id: str = "",
    ) -> None:
        """The topic's rule decides, as in the admin service."""
        current = self.schemas[topic][-1]
        assert current.version == expected_version
        following = next_version(current, schema, Compatibility(self.rule(topic)))
        if not validate_only:
            self.asked.append(f"evolve {topic}")
            self.schemas[topic].append(following)

    def rule(self, topic: str) -> str:
        return self.topics[topic].configs.get("schema.compatibility", "backward")

    def describe_topic_schemas(self, topic: str) -> TopicSchemas:
        versions = tuple(StoredSchema(one, 0) for one in self.schemas.get(topic, []))
        return TopicSchemas(f"id-{topic}", versions, self.rule(topic))

    def create_partitions(
        self, topic: str, total_count: int, *, validate_only: bool = False, request_id: str = ""
    ) -> None:
        if validate_only:
            return
        self.asked.append(f"grow {topic}")
        found = self.topics[topic]
        factor = len(found.partitions[0].assigned_replicas)
        self.topics[topic] = topic_of(topic, total_count, factor, found.configs)

    def alter_configs(
        self,
        resource: ConfigResource,
        set_: Mapping[str, str] | None = None,
        *,
        delete: Collection[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> None:
        if validate_only:
            return
        self.asked.append(f"configure {resource.name}")
        is_topic = resource.kind is ConfigKind.TOPIC
        before = self.topics[resource.name].configs if is_topic else self.brokers.get(resource.name, {})
        after = {key: value for key, value in before.items() if key not in delete} | dict(set_ or {})
        if is_topic:
            self.topics[resource.name] = replace(self.topics[resource.name], configs=after)
        else:
            self.brokers[resource.name] = after

    def delete_topic(self, name: str, *, validate_only: bool = False, request_id: str = "") -> None:
        if validate_only:
            return
        self.asked.append(f"delete {name}")
        del self.topics[name]

    def plan(self, text: str, *, prune: bool = False) -> tuple[list[Step], list[Problem]]:
        wanted = file_of(text)
        typed = [one.name for one in wanted.topics.values() if one.schema is not None and one.name in self.topics]
        schemas = {name: self.describe_topic_schemas(name) for name in typed}
        brokers = {name: self.brokers.get(name, {}) for name in wanted.brokers}
        return plan(wanted, self.topics, brokers, schemas=schemas, prune=prune)

    def apply(self, text: str, *, prune: bool = False) -> list[str]:
        self.asked = []
        steps, problems = self.plan(text, prune=prune)
        assert problems == []
        for step in steps:
            step.run(self, True, "")
        for step in steps:
            step.run(self, False, "")
        return self.asked


def file_of(text: str) -> ClusterFile:
    found, problems = parse(text)
    assert problems == []
    return found


def topic_of(name: str, partitions: int, factor: int, configs: Mapping[str, str]) -> TopicView:
    replicas = tuple(BrokerId(broker) for broker in range(factor))
    views = {
        index: PartitionView(index, BrokerId(0), LeaderEpoch(0), replicas, replicas, "i") for index in range(partitions)
    }
    return TopicView(topic=name, topic_id=f"id-{name}", partitions=views, configs=configs)


def test_an_empty_cluster_is_changed_to_match_the_file_and_a_second_plan_is_empty() -> None:
    cluster = PlayedCluster()
    assert cluster.apply(FILE) == ["create flights", "create orders", "configure default"]
    assert len(cluster.topics["flights"].partitions) == 6
    assert cluster.topics["flights"].configs == {"retention.ms": "7"}
    assert cluster.brokers == {"default": {"log.level": "debug"}}
    assert cluster.apply(FILE) == []


def test_partitions_come_before_settings_and_deletions_come_last() -> None:
    cluster = PlayedCluster()
    cluster.topics = {
        "flights": topic_of("flights", 2, 2, {"retention.ms": "8", "flush.policy": "os"}),
        "old": topic_of("old", 1, 1, {}),
    }
    steps, _ = cluster.plan(FILE)
    assert [(step.action, step.resource) for step in steps] == [
        (Action.CREATE, "topic orders"),
        (Action.GROW, "topic flights"),
        (Action.CONFIGURE, "topic flights"),
        (Action.CONFIGURE, "broker default"),
        (Action.DELETE, "topic old"),
    ]
    cluster.apply(FILE)
    assert len(cluster.topics["flights"].partitions) == 6
    assert cluster.topics["flights"].configs == {"retention.ms": "7"}, "exactly as in the file"
    assert "old" not in cluster.topics
    assert cluster.apply(FILE) == []


def test_values_that_the_file_omits_do_not_change() -> None:
    cluster = PlayedCluster()
    cluster.topics = {"orders": topic_of("orders", 5, 1, {"retention.ms": "8"}), "more": topic_of("more", 1, 1, {})}
    assert cluster.plan("topics: {orders: }") == ([], [])
    assert [step.resource for step in cluster.plan("topics: {orders: {configs: {}}}")[0]] == ["topic orders"]


def test_prune_deletes_unnamed_topics_except_internal_ones() -> None:
    cluster = PlayedCluster()
    cluster.topics = {name: topic_of(name, 1, 1, {}) for name in ("orders", "more", "__consumer_offsets")}
    assert cluster.plan("topics: {orders: }") == ([], [])
    assert cluster.apply("topics: {orders: }", prune=True) == ["delete more"]


def test_impossible_changes_are_reported_with_their_lines() -> None:
    cluster = PlayedCluster()
    cluster.topics = {"a": topic_of("a", 3, 1, {}), "b": topic_of("b", 3, 2, {})}
    _, problems = cluster.plan("topics:\n  a:\n    partitions: 2\n  b:\n    replication_factor: 3\n")
    assert [(line, error.code) for line, error in problems] == [
        (3, ErrorCode.INVALID_PARTITIONS),
        (5, ErrorCode.INVALID_REPLICATION_FACTOR),
    ]


def test_all_rules_of_the_principals_in_the_file_change_in_one_step() -> None:
    text = "acls:\n  User:alice:\n    - {allow: [read, write], topic: orders}\n  User:bob: []\n"
    found, problems = parse(text)
    assert problems == []
    stays, goes = (allow_rule("User:alice", one, topic("orders")) for one in (Operation.READ, Operation.ALTER))
    of_bob, of_carol = (allow_rule(f"User:{name}", Operation.READ, topic("orders")) for name in ("bob", "carol"))
    (step,), _ = plan(found, {}, {}, [stays, goes, of_bob, of_carol], prune=True)
    assert (step.action, step.line, step.summary) == (Action.PERMIT, 2, "1 to add, 2 to remove")
    assert [change.after or change.before for change in step.changes] == [
        "ALLOW User:alice from * to ALTER Topic:orders",
        "ALLOW User:bob from * to READ Topic:orders",
        "ALLOW User:alice from * to WRITE Topic:orders",
    ]
    assert plan(found, {}, {}, [stays, stays._replace(operation=Operation.WRITE), of_carol], prune=True) == ([], [])


def test_quotas_change_in_one_step_and_quotas_of_others_stay() -> None:
    asked = []

    class Quoted(PlayedCluster):
        def alter_client_quotas(self, changes: Sequence[QuotaChange], *, validate_only: bool) -> None:
            asked.append(list(changes))

    wanted, problems = parse(
        "quotas: [{user: User:token:a, producer_byte_rate: 12345679}, {client_id: b, consumer_byte_rate: 7}, "
        "{client_id: c}]"
    )
    assert problems == []
    found = {
        QuotaEntity("User:token:a"): {QuotaKind.PRODUCER_BYTE_RATE: 12345678.0, QuotaKind.REQUEST_PERCENTAGE: 9.0},
        QuotaEntity(None, "b"): {QuotaKind.CONSUMER_BYTE_RATE: 7.0},
        QuotaEntity(None, "d"): {QuotaKind.CONSUMER_BYTE_RATE: 7.0},
    }
    (step,), _ = plan(wanted, {}, {}, (), found, prune=True)
    assert (step.action, step.line, step.summary) == (Action.LIMIT, 1, "2 to change")
    assert [change[1:] for change in step.changes] == [("12345678", "12345679"), ("9", None)]
    step.run(Quoted(), False, "")  # type: ignore[arg-type]
    assert asked == [
        [
            QuotaChange(
                QuotaEntity("User:token:a"),
                {QuotaKind.PRODUCER_BYTE_RATE: 12345679.0},
                frozenset({QuotaKind.REQUEST_PERCENTAGE}),
            )
        ]
    ]


TYPED = """\
topics:
  flights:
    schema:
      columns:
        - {name: carrier, type: string}
        - {name: delay, type: int32}
      key: [carrier]
"""


def test_a_topic_is_created_with_its_schema_which_later_files_change() -> None:
    cluster = PlayedCluster()
    assert cluster.apply(TYPED) == ["create flights"]
    assert cluster.plan(TYPED) == ([], [])
    wider = TYPED.replace("int32", "int64")
    (step,), _ = cluster.plan(wider)
    assert (step.action, step.line) == (Action.EVOLVE, 3)
    assert "version 1 -> 2" in step.summary
    assert "delay" in step.summary
    assert cluster.apply(wider) == ["evolve flights"]
    assert cluster.plan(wider) == ([], [])
    assert cluster.plan("topics: {flights: {partitions: 1}}") == ([], []), "a file without the key changes no schema"


def test_a_schema_that_may_not_follow_is_refused_at_its_line() -> None:
    cluster = PlayedCluster()
    cluster.apply(TYPED)
    _, (problem,) = cluster.plan(TYPED.replace("int32", "string"))
    assert (problem.line, problem.error.code) == (3, ErrorCode.INCOMPATIBLE_SCHEMA)
    cluster.apply("topics: {untyped: {}}")
    _, (problem,) = cluster.plan(TYPED.replace("flights", "untyped"))
    assert (problem.line, problem.error.code) == (3, ErrorCode.INVALID_SCHEMA)


def test_the_rule_in_the_same_file_decides() -> None:
    cluster = PlayedCluster()
    cluster.apply(TYPED)
    other = TYPED.replace("int32", "string") + "    configs: {schema.compatibility: none}\n"
    assert cluster.apply(other) == ["configure flights", "evolve flights"]
    assert cluster.plan(other) == ([], [])


def test_a_schema_is_a_mapping_a_ddl_or_a_file_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "flights.yaml").write_text("columns: [{name: carrier, type: string}]")
    text = "topics:\n  a: {schema: flights.yaml}\n  b: {schema: 'carrier STRING'}\n"
    found, problems = parse(text + "  c: {schema: {columns: [{name: carrier, type: string}]}}\n", tmp_path)
    assert problems == []
    assert found.topics["a"].schema == found.topics["b"].schema == found.topics["c"].schema is not None
    _, problems = parse(text, tmp_path / "elsewhere")
    assert [(one.line, one.error.code) for one in problems] == [(2, ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize("value", ["{columns: []}", "[1]", "", "{columns: [{name: a, type: uint8}]}", "{? [a] : 1}"])
def test_a_value_that_states_no_schema_is_refused_at_its_line(value: str) -> None:
    _, problems = parse(f"topics:\n  flights:\n    schema: {value}\n")
    assert [(one.line, one.error.code) for one in problems] == [(3, ErrorCode.INVALID_SCHEMA)]
