"""What the source asks of the brokers: what topics hold, and the rows of a range. Stateless, each with a deadline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from tidemark.client.ranges import RangeReader

from tidemark_spark.options import ReadOptions
from tidemark_spark.ranges import OffsetRange, PartitionBounds
from tidemark_spark.rows import CREATE_TIME, LOG_APPEND_TIME


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic when the query is planned.

    Attributes:
        topic_id: uuid; one that was recreated has another, and is refused rather than read.
        incarnations: uuid of each partition, likewise.
        bounds: what each partition holds.
        timestamp_type: CREATE_TIME or LOG_APPEND_TIME.
    """

    topic_id: str
    incarnations: Mapping[int, str]
    bounds: Mapping[int, PartitionBounds]
    timestamp_type: int


def describe(options: ReadOptions) -> dict[str, TopicFacts]:
    """Every topic asked for; raises TidemarkError, e.g. UNKNOWN_TOPIC or BROKER_NOT_AVAILABLE."""
    with RangeReader(options.bootstrap, deadline_s=options.deadline_ms / 1000) as reader:
        described = {}
        for name, topic in reader.topics(list(options.topics)).items():
            held = reader.bounds(name, sorted(topic.partitions))
            append_time = topic.configs.get("message.timestamp.type") == "LogAppendTime"
            described[name] = TopicFacts(
                topic_id=topic.topic_id,
                incarnations={index: partition.incarnation for index, partition in topic.partitions.items()},
                bounds={index: PartitionBounds(start, end) for index, (start, end) in held.items()},
                timestamp_type=LOG_APPEND_TIME if append_time else CREATE_TIME,
            )
    return described


def read(options: ReadOptions, offsets: OffsetRange, *, topic_id: str, incarnation: str) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in order, each once; raises TidemarkError when they cannot all be had."""
    with RangeReader(options.bootstrap, deadline_s=options.deadline_ms / 1000) as reader:
        yield from reader.read(
            offsets.topic,
            offsets.partition,
            offsets.start,
            offsets.end,
            topic_id=topic_id,
            incarnation=incarnation,
        )
