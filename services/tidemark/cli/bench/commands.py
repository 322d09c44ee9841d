# SPDX-License-Identifier: Apache-2.0
"""`tidemark bench produce|consume|latency`: run a workload against an existing cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.cli.common.options import (
    AdminOption,
    BootstrapOption,
    Commands,
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
"""The largest batch that a producer and a topic accept."""
_LINGER_MS_MAX: Final = 60_000

bench_app = Commands(help="Measure throughput and latency of a cluster.")

TopicOption = Annotated[
    str,
    typer.Option("--topic", "-t", metavar="TOPIC", help="An existing topic; default: a new one, deleted at the end."),
]
PartitionsOption = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of the new topic.")]
ReplicationOption = Annotated[
    int, typer.Option("--replication-factor", "-r", min=0, help="Of the new topic; 0: the cluster's default.")
]
ConfigOption = Annotated[
    list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="A setting of the new topic; repeatable.")
]
SizeOption = Annotated[
    str, typer.Option("--message-size", metavar="SIZE", help="Random bytes of each value: 100, 1kB, 64KiB.")
]
ProducersOption = Annotated[int, typer.Option("--producers", min=1, max=256, help="Number of producer processes.")]
ConsumersOption = Annotated[
    int, typer.Option("--consumers", min=1, max=256, help="Number of consumer processes; they share the partitions.")
]
KeysOption = Annotated[
    int, typer.Option("--keys", min=0, max=1_000_000, help="Distinct keys, round-robin; 0 disables keys.")
]
BulkOption = Annotated[
    bool, typer.Option("--bulk", help="Send tables of one batch each, as produce --file does, not single records.")
]
WarmUpOption = Annotated[float, typer.Option("--warm-up", min=0, help="Seconds before the measurement.")]
DurationOption = Annotated[float, typer.Option("--duration", min=0.1, help="Seconds of the measurement.")]
LingerOption = Annotated[
    float, typer.Option("--linger-ms", min=0, max=_LINGER_MS_MAX, help="How long a batch waits for more records.")
]
BatchOption = Annotated[str, typer.Option("--batch-size", metavar="SIZE", help="Bytes of a producer's batch.")]


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


@bench_app.command(short_help="Throughput of producers.")
def produce(
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Records per second of all producers; 0: no limit.")
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
    """Measure acknowledged records per second, and their latency.

    \b
    One Python process that sends single records reaches its own limit first. Use more --producers, or --bulk, to find
    the limit of the cluster.

    \b
    The latency counts from the time at which the record was due by --rate. Without --rate the latency counts from the
    send call, and includes the wait in the producer's full buffer. Exit status 1 if any record failed.

    \b
    Examples:
      tidemark bench produce
      tidemark bench produce --bulk --message-size 100
      tidemark bench produce --producers 4 --message-size 100 --partitions 12 --duration 60
      tidemark bench produce --rate 10000 --acks all --replication-factor 3 --config min.insync.replicas=2 --json
    """
    if bulk and keys:
        raise typer.BadParameter("--bulk sends no keys", param_hint="--keys")
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


@bench_app.command(short_help="Throughput of consumers.")
def consume(
    consumers: ConsumersOption = 1,
    backlog: Annotated[
        str, typer.Option("--backlog", metavar="SIZE", help="Bytes to produce first; only without --topic.")
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
    """Measure records read per second, from the start of a topic to its end, or for --duration.

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


@bench_app.command(short_help="Latency at a fixed rate.")
def latency(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Records per second of all producers.")] = 1000.0,
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
    """Measure latency at a fixed rate: until the acknowledgement, and until a consumer has the record.

    \b
    Both count from the time at which the record was due. Producers and consumers run on this machine and use its clock.
    Exit status 1 if any record failed or did not arrive.

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
