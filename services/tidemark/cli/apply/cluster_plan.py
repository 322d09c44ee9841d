# SPDX-License-Identifier: Apache-2.0
"""Plans the steps that give the cluster the topics and settings of a file; each step is atomic. Pure.

Topics are created and get partitions first, then settings, schemas, access rules and quotas change, and topics are
deleted last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tidemark.cli.apply.acl_section import AclChange
from tidemark.cli.apply.cluster_file import ClusterFile, Problem, WantedTopic
from tidemark.cli.apply.quota_section import QuotasChange
from tidemark.cli.apply.schema_section import SchemaChange
from tidemark.cli.common.output import counted
from tidemark.client.created_topic import MIN_ISR, restart_warnings
from tidemark.core.cluster_view import TopicView
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.quotas.quotas import Limits, QuotaEntity
from tidemark.core.security.acls import Acl
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.entries import ConfigChange, changes_between

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.client.aio.admin.topic_schemas import TopicSchemas

INTERNAL_PREFIX = "__"
"""Internal topics are never deleted by --prune."""


class Action(StrEnum):
    """Kinds of steps, in the order of execution."""

    CREATE = "create"
    GROW = "grow"
    CONFIGURE = "configure"
    EVOLVE = "evolve"
    PERMIT = "permit"
    LIMIT = "limit"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Step:
    """One atomic change of a topic or broker.

    Attributes:
        resource: such as "topic flights" or "broker default".
        line: line of the file that requests the step; 0: not in the file (--prune).
        summary: numbers before and after, as text; may be empty.
        changes: changes of settings.
        lines: line of each key of the resource in the file.
        run: executes the step, or validates it only; returns warnings.
    """

    action: Action
    resource: str
    line: int
    run: Callable[[AdminClient, bool, str], Sequence[str]]
    summary: str = ""
    changes: tuple[ConfigChange, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)


def plan(
    wanted: ClusterFile,
    topics: Mapping[str, TopicView],
    brokers: Mapping[str, Mapping[str, str]],
    acls: Iterable[Acl] = (),
    quotas: Mapping[QuotaEntity, Limits] | None = None,
    schemas: Mapping[str, TopicSchemas] | None = None,
    *,
    prune: bool,
) -> tuple[list[Step], list[Problem]]:
    """The steps, and the impossible changes; if there is an impossible change, no step may be executed.

    Args:
        wanted: the file.
        topics: existing topics, by name.
        brokers: current overrides of the brokers in the file; one that is missing is not changed.
        acls: current access rules, if the file has any.
        quotas: current quotas, if the file has any.
        schemas: current schemas of the topics whose schema the file has.
        prune: delete topics that the file does not name.
    """
    steps: list[Step] = []
    problems: list[Problem] = []
    for topic in wanted.topics.values():
        found = topics.get(topic.name)
        if topic.delete:
            steps += [] if found is None else [_deletion(topic.name, topic.line)]
        elif found is None:
            steps.append(_creation(topic))
        else:
            problem = _impossible(topic, found)
            if problem is not None:
                problems.append(problem)
                continue
            steps += _changes_of(topic, found)
            try:
                steps += _evolution(topic, (schemas or {}).get(topic.name))
            except TidemarkError as error:
                problems.append(Problem(topic.lines.get("schema", topic.line), error))
    for name, before in brokers.items():
        resource, broker = ConfigResource(ConfigKind.BROKER, name), wanted.brokers[name]
        steps += _configuration(resource, f"broker {name}", broker.line, before, broker.configs, broker.lines)
    if change := AclChange(wanted.acls.values(), acls):
        line = min(one.line for one in wanted.acls.values())
        steps.append(Step(Action.PERMIT, "access rules", line, change.run, change.summary, change.changes))
    if limits := QuotasChange(wanted.quotas, quotas or {}):
        line = wanted.quotas[0].line
        steps.append(Step(Action.LIMIT, "quotas", line, limits.run, limits.summary, limits.changes))
    if prune:
        left = [name for name in sorted(topics) if name not in wanted.topics and not name.startswith(INTERNAL_PREFIX)]
        steps += [_deletion(name, 0) for name in left]
    order = list(Action)
    return sorted(steps, key=lambda step: order.index(step.action)), problems


def _impossible(topic: WantedTopic, found: TopicView) -> Problem | None:
    count = len(found.partitions)
    if topic.partitions is not None and topic.partitions < count:
        return Problem(
            topic.lines.get("partitions", topic.line),
            TidemarkError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name} has {count} partitions and the file states {topic.partitions}: this would delete "
                "records, see tidemark topic remove-partitions",
            ),
        )
    factors = {len(partition.assigned_replicas) for partition in found.partitions.values()}
    if topic.replication_factor is not None and factors - {topic.replication_factor}:
        return Problem(
            topic.lines.get("replication_factor", topic.line),
            TidemarkError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {topic.name} has {', '.join(map(str, sorted(factors)))} replicas of a partition and the file "
                f"states {topic.replication_factor}: this needs a reassignment, see tidemark reassign",
            ),
        )
    return None


def _creation(topic: WantedTopic) -> Step:
    partitions, factor, configs = topic.partitions or 1, topic.replication_factor or 0, dict(topic.configs or {})

    def run(client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        made = client.create_topic(
            topic.name,
            partitions=partitions,
            replication_factor=factor,
            configs=configs,
            schema=topic.schema,
            validate_only=validate_only,
            request_id=request_id,
        )
        return made.warnings

    shown = f"replication factor {factor}" if factor else "the cluster's replication factor"
    shown += f", a schema of {counted(len(topic.schema.columns), 'column')}" if topic.schema is not None else ""
    return Step(
        Action.CREATE,
        f"topic {topic.name}",
        topic.line,
        run,
        f"{partitions} partition{'s'[: partitions != 1]}, {shown}",
        tuple(changes_between({}, configs)),
        topic.lines,
    )


def _changes_of(topic: WantedTopic, found: TopicView) -> list[Step]:
    steps: list[Step] = []
    total = topic.partitions
    if total is not None and total > len(found.partitions):

        def grow(client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
            client.create_partitions(topic.name, total, validate_only=validate_only, request_id=request_id)
            return ()

        summary = f"{len(found.partitions)} -> {total} partitions"
        steps.append(Step(Action.GROW, f"topic {topic.name}", topic.line, grow, summary, lines=topic.lines))
    if topic.configs is not None:
        resource = ConfigResource(ConfigKind.TOPIC, topic.name)
        is_other = topic.configs.get(MIN_ISR) != found.configs.get(MIN_ISR)
        warnings = restart_warnings(found, topic.configs) if is_other else ()
        steps += _configuration(
            resource, f"topic {topic.name}", topic.line, found.configs, topic.configs, topic.lines, warnings
        )
    return steps


def _evolution(topic: WantedTopic, described: TopicSchemas | None) -> list[Step]:
    if topic.schema is None or described is None:
        return []
    change = SchemaChange(topic.name, topic.schema, described, topic.configs)
    if not change:
        return []
    line = topic.lines.get("schema", topic.line)
    return [Step(Action.EVOLVE, f"topic {topic.name}", line, change.run, change.summary, lines=topic.lines)]


def _configuration(
    resource: ConfigResource,
    name: str,
    line: int,
    before: Mapping[str, str],
    after: Mapping[str, str],
    lines: Mapping[str, int],
    warnings: Sequence[str] = (),
) -> Iterable[Step]:
    changes = tuple(changes_between(before, after))
    if not changes:
        return
    set_ = {change.key: change.after for change in changes if change.after is not None}
    delete = [change.key for change in changes if change.after is None]

    def run(client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        client.alter_configs(resource, set_, delete=delete, validate_only=validate_only, request_id=request_id)
        return warnings

    yield Step(Action.CONFIGURE, name, line, run, changes=changes, lines=lines)


def _deletion(name: str, line: int) -> Step:
    def run(client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        client.delete_topic(name, validate_only=validate_only, request_id=request_id)
        return ()

    return Step(Action.DELETE, f"topic {name}", line, run, "with all its records")
