# SPDX-License-Identifier: Apache-2.0
"""Options of `tidemark bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import AdminOption, BootstrapOption, JsonOption, OutputOption, TopicConfigsOption
from tidemark.cli.common.output import Output
from tidemark.cli.common.units import parse_size
from tidemark.cli.produce.options import Acks, AcksOption, CodecOption, Compression

_BATCH_BYTES_MAX: Final = 8 << 20
"""The largest batch that a producer and a topic accept."""
_LINGER_MS_MAX: Final = 60_000
_SPAN_S_MAX: Final = 86_400
RATE_MAX: Final = 1_000_000_000
"""Most records per second that a benchmark takes as its rate."""

SizeOption = Annotated[
    str, typer.Option("--message-size", metavar="SIZE", help="Random bytes of each value: 100, 1kB, 64KiB.")
]
ProducersOption = Annotated[
    int, typer.Option("--producers", metavar="N", min=1, max=256, help="Number of producer processes.")
]
ConsumersOption = Annotated[
    int,
    typer.Option(
        "--consumers", metavar="N", min=1, max=256, help="Number of consumer processes; they share the partitions."
    ),
]
KeysOption = Annotated[
    int,
    typer.Option("--keys", metavar="N", min=0, max=1_000_000, help="Distinct keys, round-robin; 0 disables keys."),
]
BatchOption = Annotated[str, typer.Option("--batch-size", metavar="SIZE", help="Bytes of a producer's batch.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The topic; without `topic`, one is created from the other fields and deleted at the end."""

    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="An existing topic; default: a new one, deleted at the end.",
            autocompletion=completion.topics,
        ),
    ] = ""
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", min=1, help="Partitions of the new topic.")
    ] = 6
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", metavar="N", min=0, help="For the new topic; 0: the cluster's default."
        ),
    ] = 0
    configs: TopicConfigsOption = None


@dataclass(frozen=True, slots=True)
class Batches:
    """Options of producers, such as acks, codec and the size of batches."""

    acks: AcksOption = Acks.ALL
    codec: CodecOption = Compression.NONE
    linger_ms: Annotated[
        float,
        typer.Option(
            "--linger-ms",
            metavar="MS",
            min=0,
            max=_LINGER_MS_MAX,
            help="Time that a batch waits for more records.",
        ),
    ] = 5.0
    batch_size: BatchOption = "128KiB"

    def settings(self) -> dict[str, Any]:
        """Arguments of client.Producer."""
        return {
            "acks": self.acks.value,
            "codec": self.codec.value,
            "linger_ms": self.linger_ms,
            "batch_bytes": batch_bytes(self.batch_size),
        }


@dataclass(frozen=True, slots=True)
class Span:
    """Warm-up and length of the measured time."""

    warm_up_s: Annotated[
        float, typer.Option("--warm-up", metavar="SECONDS", min=0, max=_SPAN_S_MAX, help="Time before the measurement.")
    ] = 5.0
    duration_s: Annotated[
        float, typer.Option("--duration", metavar="SECONDS", min=0.1, max=_SPAN_S_MAX, help="Time of the measurement.")
    ] = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster, and the format of the output."""

    bootstrap: BootstrapOption = ""
    admin: AdminOption = ""
    as_json: JsonOption = False
    output: OutputOption = Output.TEXT


def batch_bytes(text: str) -> int:
    """Bytes of a record or batch; raises BadParameter above the largest batch."""
    return parse_size(text, bytes_max=_BATCH_BYTES_MAX)
