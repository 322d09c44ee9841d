# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: tables and lines as text, JSON for scripts, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from rich.console import Console
from rich.table import Table

from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import TidemarkError

_WIDTH_WITHOUT_TERMINAL: Final = 10_000
"""Wide enough that rich folds no cell."""


class Output(StrEnum):
    """Format of a command's output."""

    TEXT = "text"
    JSON = "json"


def print_line(text: str) -> None:
    """Write one line to stdout, unchanged."""
    sys.stdout.write(f"{text}\n")


def counted(count: int, noun: str) -> str:
    """The count with its noun: "1 record", "2 records"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_json(value: object) -> None:
    """Write one JSON document on one line."""
    print_line(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; cells are never truncated or folded when stdout is not a terminal."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    console.print(table, soft_wrap=not console.is_terminal)


def print_error(error: TidemarkError) -> None:
    """Write `error CODE: sentence` to stderr, always on one line."""
    sys.stderr.write(f"error {error.code}: {' '.join(error.message.split())}\n")


def print_warning(sentence: str) -> None:
    """Write `warning: sentence` to stderr; the command went on."""
    sys.stderr.write(f"warning: {sentence}\n")


def describe_topic(topic: TopicView) -> list[str]:
    """A topic in the form of Kafka's tools: a line for the topic, and a line for each partition."""
    configs = ",".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
    lines = [
        f"Topic:{topic.topic} PartitionCount:{len(topic.partitions)} "
        f"ReplicationFactor:{replication_factor(topic)} Configs:{configs}"
    ]
    for partition in _partitions(topic):
        replicas = ",".join(str(replica) for replica in partition.assigned_replicas)
        isr = ",".join(str(replica) for replica in partition.in_sync_replicas)
        leader = partition.leader if partition.leader >= 0 else "none"
        lines.append(
            f"Topic: {topic.topic} Partition: {partition.partition} Leader: {leader} Replicas: {replicas} Isr: {isr}"
        )
    return lines


def topic_json(topic: TopicView) -> Mapping[str, object]:
    """A topic as JSON; a partition without a leader has leader -1."""
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partition_count": len(topic.partitions),
        "replication_factor": replication_factor(topic),
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.assigned_replicas),
                "isr": list(partition.in_sync_replicas),
                "elr": list(partition.eligible_leader_replicas),
                "lineage": partition.lineage,
            }
            for partition in _partitions(topic)
        ],
    }


def error_json(error: TidemarkError) -> Mapping[str, object]:
    """An error as JSON."""
    return {"code": str(error.code), "message": error.message, "metadata": dict(error.metadata)}


def replication_factor(topic: TopicView) -> int:
    """Replication factor of the first partition; partitions differ only during a reassignment."""
    partitions = _partitions(topic)
    return len(partitions[0].assigned_replicas) if partitions else 0


def _partitions(topic: TopicView) -> list[PartitionView]:
    return [topic.partitions[index] for index in sorted(topic.partitions)]
