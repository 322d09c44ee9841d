# SPDX-License-Identifier: Apache-2.0
"""`tidemark bench produce|consume|latency`: a workload against a cluster that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.cli.common.options import (
    AdminOption,
    BootstrapOption,
    JsonOption,
    OutputOption,
    need_bootstrap,
    parse_configs,
)
from tidemark.cli.common.output import Output
from tidemark.cli.common.units import parse_size
from tidemark.cli.produce.command import Acks, AcksOption, CodecOption, Compression

if TYPE_CHECKING:
    from tidemark.cli.bench.runner import Target

_BATCH_BYTES_MAX: Final = 8 << 20
"""Of a producer, and of every topic."""
_LINGER_MS_MAX: Final = 60_000

bench_app = typer.Typer(help="Measure a cluster: how much, and how long it takes.", no_args_is_help=True)

TopicOption = Annotated[
    str,
    typer.Option("--topic", "-t", metavar="TOPIC", help="One that is there, and stays; else one is made."),
]
PartitionsOption = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of the topic that is made.")]
ReplicationOption = Annotated[
    int, typer.Option("--replication-factor", "-r", min=0, help="Of the topic that is made; 0: the cluster's default.")
]
ConfigOption = Annotated[
    list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Of the topic that is made; repeatable.")
]
SizeOption = Annotated[
    str, typer.Option("--message-size", metavar="SIZE", help="Bytes of each value: 100, 1kB, 64KiB. Random bytes.")
]
ProducersOption = Annotated[int, typer.Option("--producers", min=1, max=256, help="Each is a process.")]
ConsumersOption = Annotated[
    int, typer.Option("--consumers", min=1, max=256, help="Each is a process; partitions are dealt out.")
]
KeysOption = Annotated[
    int, typer.Option("--keys", min=0, max=1_000_000, help="So many different keys in turn; 0: none.")
]
BulkOption = Annotated[
    bool, typer.Option("--bulk", help="Send tables of a batch each, as produce --file does, and not record by record.")
]
WarmUpOption = Annotated[float, typer.Option("--warm-up", min=0, help="Seconds before it is measured.")]
DurationOption = Annotated[float, typer.Option("--duration", min=0.1, help="Seconds that are measured.")]
LingerOption = Annotated[
    float, typer.Option("--linger-ms", min=0, max=_LINGER_MS_MAX, help="How long a batch waits for more records.")
]
BatchOption = Annotated[str, typer.Option("--batch-size", metavar="SIZE", help="Of a producer's batches.")]


def _producer_settings(acks: Acks, codec: Compression, linger_ms: float, batch_size: str) -> dict[str, Any]:
    return {
        "acks": acks.value,
        "codec": codec.value,
        "linger_ms": linger_ms,
        "batch_bytes": parse_size(batch_size, bytes_max=_BATCH_BYTES_MAX),
    }


def _target(
    bootstrap: str, admin: str, topic: str, partitions: int, replication_factor: int, configs: list[str] | None
) -> Target:
    from tidemark.cli.bench.runner import Target

    return Target(need_bootstrap(bootstrap), admin, topic, partitions, replication_factor, parse_configs(configs or []))


@bench_app.command(short_help="How many records are acknowledged in a second.")
def produce(
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Records a second of all producers; 0: as many as they can.")
    ] = 0.0,
    producers: ProducersOption = 1,
    size: SizeOption = "1kB",
    keys: KeysOption = 0,
    bulk: BulkOption = False,
    topic: TopicOption = "",
    partitions: PartitionsOption = 6,
    replication_factor: ReplicationOption = 0,
    configs: ConfigOption = None,
    acks: AcksOption = Acks.ALL,
    codec: CodecOption = Compression.NONE,
    linger_ms: LingerOption = 5.0,
    batch_size: BatchOption = "128KiB",
    warm_up_s: WarmUpOption = 5.0,
    duration_s: DurationOption = 30.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """How many records are acknowledged in a second, and how long each takes.

    \b
    Record by record, one Python process is soon the limit: give it some --producers, or --bulk, to find the cluster's.

    \b
    A latency counts from when the record was due by --rate; without one, from when it was handed to the producer, whose
    buffer is full then. Status 1 if any record failed.

    \b
    Examples:
      tidemark bench produce
      tidemark bench produce --bulk --message-size 100
      tidemark bench produce --producers 4 --message-size 100 --partitions 12 --duration 60
      tidemark bench produce --rate 10000 --acks all --replication-factor 3 --config min.insync.replicas=2 --json
    """
    if bulk and keys:
        raise typer.BadParameter("tables are sent without keys", param_hint="--keys")
    from tidemark.cli.bench.runner import Workload, run

    workload = Workload(
        kind="produce",
        producers=producers,
        rate=rate,
        message_bytes=parse_size(size, bytes_max=_BATCH_BYTES_MAX),
        keys=keys,
        bulk=bulk,
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        settings=_producer_settings(acks, codec, linger_ms, batch_size),
    )
    target = _target(bootstrap, admin, topic, partitions, replication_factor, configs)
    run(workload, target, Output.JSON if as_json else output)


@bench_app.command(short_help="How many records are read in a second.")
def consume(
    consumers: ConsumersOption = 1,
    backlog: Annotated[
        str, typer.Option("--backlog", metavar="SIZE", help="So much is written first, where no --topic is given.")
    ] = "512MB",
    size: SizeOption = "1kB",
    topic: TopicOption = "",
    partitions: PartitionsOption = 6,
    replication_factor: ReplicationOption = 0,
    configs: ConfigOption = None,
    codec: CodecOption = Compression.NONE,
    batch_size: BatchOption = "128KiB",
    warm_up_s: WarmUpOption = 0.0,
    duration_s: DurationOption = 60.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """How many records are read in a second: from the start of a topic to its end, or for --duration.

    \b
    Examples:
      tidemark bench consume
      tidemark bench consume --consumers 3 --backlog 2GB --message-size 100
      tidemark bench consume --topic flights --duration 20 --json
    """
    from tidemark.cli.bench.runner import Workload, run

    workload = Workload(
        kind="consume",
        consumers=consumers,
        backlog_bytes=parse_size(backlog),
        message_bytes=parse_size(size, bytes_max=_BATCH_BYTES_MAX),
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        settings={"codec": codec.value, "batch_bytes": parse_size(batch_size, bytes_max=_BATCH_BYTES_MAX)},
    )
    target = _target(bootstrap, admin, topic, partitions, replication_factor, configs)
    run(workload, target, Output.JSON if as_json else output)


@bench_app.command(short_help="How long a record takes at a fixed rate.")
def latency(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Records a second of all producers.")] = 1000.0,
    producers: ProducersOption = 1,
    consumers: ConsumersOption = 1,
    size: SizeOption = "1kB",
    keys: KeysOption = 0,
    topic: TopicOption = "",
    partitions: PartitionsOption = 6,
    replication_factor: ReplicationOption = 0,
    configs: ConfigOption = None,
    acks: AcksOption = Acks.ALL,
    codec: CodecOption = Compression.NONE,
    linger_ms: LingerOption = 0.0,
    batch_size: BatchOption = "128KiB",
    warm_up_s: WarmUpOption = 5.0,
    duration_s: DurationOption = 30.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """How long a record takes at a fixed rate: until it is acknowledged, and until a consumer has it.

    \b
    Both count from when the record was due. Producers and consumers run on this machine, so its clock is the only one.
    Status 1 if any record failed, or did not arrive.

    \b
    Examples:
      tidemark bench latency
      tidemark bench latency --rate 20000 --producers 2 --consumers 2 --message-size 100 --partitions 12
      tidemark bench latency --rate 500 --warm-up 2 --duration 10 --json
    """
    from tidemark.cli.bench.runner import Workload, run

    workload = Workload(
        kind="latency",
        producers=producers,
        consumers=consumers,
        rate=rate,
        message_bytes=parse_size(size, bytes_max=_BATCH_BYTES_MAX),
        keys=keys,
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        settings=_producer_settings(acks, codec, linger_ms, batch_size),
    )
    target = _target(bootstrap, admin, topic, partitions, replication_factor, configs)
    run(workload, target, Output.JSON if as_json else output)
