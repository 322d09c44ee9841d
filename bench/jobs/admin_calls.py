# SPDX-License-Identifier: Apache-2.0
"""A client process of `bench admin`: calls one method repeatedly, and measures the time of each call.

Requests and answers stay bytes, so that the client does not become the bottleneck. A line of JSON on standard input is
one run; its answer is a line of JSON on standard output.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Call = Callable[[], Awaitable[Any]]
TIMEOUT_S = 60.0


async def _run(call: Call, calls: int, concurrency: int) -> dict[str, Any]:
    """Make the calls, `concurrency` of them at any time; times in seconds."""
    took_s: list[float] = []
    left = calls
    size_bytes = 0

    async def one_by_one() -> None:
        nonlocal left, size_bytes
        while left > 0:
            left -= 1
            began_s = time.perf_counter()
            answer = await call()
            took_s.append(time.perf_counter() - began_s)
            size_bytes = len(answer)

    began_s, cpu_s = time.time(), time.process_time()
    await asyncio.gather(*(one_by_one() for _ in range(concurrency)))
    return {
        "began_s": began_s,
        "ended_s": time.time(),
        "cpu_s": time.process_time() - cpu_s,
        "took_s": took_s,
        "size_bytes": size_bytes,
    }


async def _calls_of_tidemark(run: dict[str, Any]) -> dict[str, Any]:
    # Without keep-alive pings: a machine under load answers them late.
    async with grpc.aio.insecure_channel(run["address"]) as channel:
        method: Any = channel.unary_unary(run["method"])
        request = bytes.fromhex(run["request"])

        async def call() -> bytes:
            answer: bytes = await method(request, timeout=TIMEOUT_S)
            return answer

        await call()
        return await _run(call, run["calls"], run["concurrency"])


async def _calls_of_the_peer(run: dict[str, Any]) -> dict[str, Any]:
    """The same through confluent-kafka's AdminClient, whose calls return futures."""
    confluent: Any = importlib.import_module("confluent_kafka.admin")
    names: Any = importlib.import_module("confluent_kafka").TopicCollection(run["topics"])
    admin = confluent.AdminClient({"bootstrap.servers": run["address"]})

    async def call() -> bytes:
        if run["method"] == "describe_cluster":
            await asyncio.wrap_future(admin.describe_cluster(request_timeout=TIMEOUT_S))
        else:
            futures = admin.describe_topics(names, request_timeout=TIMEOUT_S)
            await asyncio.gather(*map(asyncio.wrap_future, futures.values()))
        return b""

    await call()
    return await _run(call, run["calls"], run["concurrency"])


def main() -> int:
    for line in sys.stdin:
        run = json.loads(line)
        calls = _calls_of_the_peer if run["peer"] else _calls_of_tidemark
        try:
            print(json.dumps(asyncio.run(calls(run))), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"error": str(error)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
