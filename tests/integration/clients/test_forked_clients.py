# SPDX-License-Identifier: Apache-2.0
"""A client in a forked process raises an error immediately, and the parent's client continues."""

from __future__ import annotations

import asyncio
import pickle
import sys
import textwrap
from pathlib import Path

from tidemark.client import ClientClosedError, InvalidRequestError, TidemarkError

from tests.integration.harness.fake_broker import TOPIC, FakeCluster

# A separate process is forked, because this one has threads that do not belong to the test.
PARENT = textwrap.dedent(
    """
    import asyncio, os, pickle, sys, time
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # gRPC's own handlers sometimes crash in the child
    from tidemark.client import Consumer, Producer, TidemarkError, aio

    bootstrap, topic, path = sys.argv[1:]

    def outcome(call):
        try:
            return call()
        except TidemarkError as error:
            return error

    async def of_its_own():
        async with aio.Producer(bootstrap):
            return None

    async def awaited(handle):
        return await asyncio.wait_for(handle, 10)

    producer, consumer = Producer(bootstrap), Consumer(bootstrap)
    consumer.assign(topic)
    producer.send(topic, b"parent").result(10)
    slow = Producer(bootstrap, linger_ms=60_000)
    handle = slow.send(topic, b"in flight")
    child = os.fork()
    if child == 0:
        began_s = time.monotonic()
        found = {
            "send": outcome(lambda: producer.send(topic, b"child")),
            "flush": outcome(producer.flush),
            "result": outcome(lambda: handle.result(10)),
            "await": outcome(lambda: asyncio.run(awaited(handle))),
            "poll": outcome(lambda: consumer.poll(1)),
            "new": outcome(lambda: Producer(bootstrap)),
            "async": outcome(lambda: asyncio.run(of_its_own())),
            "close": outcome(producer.close) or outcome(consumer.close),
        }
        with open(path, "wb") as file:
            pickle.dump((time.monotonic() - began_s, found), file)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    assert ended == 0, ended
    producer.send(topic, b"parent again").result(10)
    assert consumer.poll(10) is not None
    slow.close()
    assert handle.done()
    producer.close()
    consumer.close()
    """
)


async def test_a_forked_process_is_refused_at_once_and_its_parent_continues(tmp_path: Path) -> None:
    path = tmp_path / "found"
    async with FakeCluster() as cluster, asyncio.timeout(60):
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, cluster.bootstrap, TOPIC, str(path), stderr=asyncio.subprocess.PIPE
        )
        _, said = await parent.communicate()
        assert parent.returncode == 0, said.decode()
        assert cluster.values() == [b"parent", b"parent again", b"in flight"]
    took_s, found = pickle.loads(path.read_bytes())
    assert took_s < 15, "half of a request's timeout"
    kinds: dict[str, type[TidemarkError]] = {
        "send": ClientClosedError,
        "flush": ClientClosedError,
        "result": InvalidRequestError,
        "await": InvalidRequestError,
        "poll": ClientClosedError,
        "new": InvalidRequestError,
        "async": InvalidRequestError,
    }
    assert {name: type(one) for name, one in found.items()} == {**kinds, "close": type(None)}
