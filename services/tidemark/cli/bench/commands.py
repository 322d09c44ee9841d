# SPDX-License-Identifier: Apache-2.0
"""`tidemark bench produce|consume|latency`: run a workload against an existing cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.bench.options import (
    RATE_MAX,
    Batches,
    BatchOption,
    ConsumersOption,
    KeysOption,
    Place,
    ProducersOption,
    SizeOption,
    Span,
    Target,
    batch_bytes,
)
from tidemark.cli.common.options import Commands
from tidemark.cli.common.units import parse_size
from tidemark.cli.produce.options import CodecOption, Compression

bench_app = Commands(help="Measure throughput and latency of a cluster.")


@bench_app.command(short_help="Measure the throughput of producers.")
def produce(
    rate: Annotated[
        float,
        typer.Option(
            "--rate", metavar="N", min=0, max=RATE_MAX, help="Records per second of all producers; 0: no limit."
        ),
    ] = 0.0,
    producers: ProducersOption = 1,
    size: SizeOption = "1kB",
    keys: KeysOption = 0,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Send tables of one batch each, as produce --file does, not single records.")
    ] = False,
    target: Target = Target(),
    batches: Batches = Batches(),
    span: Span = Span(),
    place: Place = Place(),
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
    from tidemark.cli.bench.runner import run
    from tidemark.cli.bench.workers import Workload

    workload = Workload(
        kind="produce",
        producers=producers,
        rate=rate,
        message_bytes=batch_bytes(size),
        keys=keys,
        bulk=bulk,
        span=span,
        settings=batches.settings(),
    )
    run(workload, target, place)


@bench_app.command(short_help="Measure the throughput of consumers.")
def consume(
    consumers: ConsumersOption = 1,
    backlog: Annotated[
        str, typer.Option("--backlog", metavar="SIZE", help="Bytes to produce first; only without --topic.")
    ] = "512MB",
    size: SizeOption = "1kB",
    target: Target = Target(),
    codec: CodecOption = Compression.NONE,
    batch_size: BatchOption = "128KiB",
    span: Span = Span(warm_up_s=0.0, duration_s=60.0),
    place: Place = Place(),
) -> None:
    """Measure records read per second, from the start of a topic to its end, or for --duration.

    \b
    Examples:
      tidemark bench consume
      tidemark bench consume --consumers 3 --backlog 2GB --message-size 100
      tidemark bench consume --topic flights --duration 20 --json
    """
    from tidemark.cli.bench.runner import run
    from tidemark.cli.bench.workers import Workload

    workload = Workload(
        kind="consume",
        consumers=consumers,
        backlog_bytes=parse_size(backlog),
        message_bytes=batch_bytes(size),
        span=span,
        settings={"codec": codec.value, "batch_bytes": batch_bytes(batch_size)},
    )
    run(workload, target, place)


@bench_app.command(short_help="Measure latency at a fixed rate.")
def latency(
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0.1, max=RATE_MAX, help="Records per second of all producers.")
    ] = 1000.0,
    producers: ProducersOption = 1,
    consumers: ConsumersOption = 1,
    size: SizeOption = "1kB",
    keys: KeysOption = 0,
    target: Target = Target(),
    batches: Batches = Batches(linger_ms=0.0),
    span: Span = Span(),
    place: Place = Place(),
) -> None:
    """Measure latency at a fixed rate: until the acknowledgement, and until a consumer has the record.

    \b
    Both latencies count from the time at which the record was due. Producers and consumers use this machine's clock.
    Exit status 1 if any record failed or did not arrive.

    \b
    Examples:
      tidemark bench latency
      tidemark bench latency --rate 20000 --producers 2 --consumers 2 --message-size 100 --partitions 12
      tidemark bench latency --rate 500 --warm-up 2 --duration 10 --json
    """
    from tidemark.cli.bench.runner import run
    from tidemark.cli.bench.workers import Workload

    workload = Workload(
        kind="latency",
        producers=producers,
        consumers=consumers,
        rate=rate,
        message_bytes=batch_bytes(size),
        keys=keys,
        span=span,
        settings=batches.settings(),
    )
    run(workload, target, place)
