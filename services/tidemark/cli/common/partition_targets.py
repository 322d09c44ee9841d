# SPDX-License-Identifier: Apache-2.0
"""Arguments that name topics and partitions: TOPIC or TOPIC:PARTITION."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from tidemark.cli.common.options import fits_int32
from tidemark.model import TopicPartition


def parse_targets(targets: Iterable[str]) -> tuple[list[str], list[TopicPartition]]:
    """The topics, and the partitions; bad usage for an argument that is neither."""
    places = parse_places(targets)
    topics = [topic for topic, index in places if index is None]
    return topics, [TopicPartition(topic, index) for topic, index in places if index is not None]


def parse_places(targets: Iterable[str]) -> list[tuple[str, int | None]]:
    """Each topic with its partition (None: all partitions); bad usage for an argument of another form."""
    places: list[tuple[str, int | None]] = []
    for target in targets:
        topic, colon, index = target.partition(":")
        if not topic or (colon and not (index.isascii() and index.isdecimal())):
            raise typer.BadParameter(f"{target!r}: want TOPIC or TOPIC:PARTITION, such as flights:0")
        places.append((topic, fits_int32(int(index)) if colon else None))
    return places
