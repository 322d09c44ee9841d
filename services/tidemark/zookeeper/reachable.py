# SPDX-License-Identifier: Apache-2.0
"""Lets services and ZooKeeper start in any order: a service waits until ZooKeeper answers, and logs the cause."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import timeout
from tidemark.runtime.host_port import zookeeper_hosts
from tidemark.zookeeper import paths
from tidemark.zookeeper.store import MetadataStore

_RETRY_S: Final = 0.3
_SAY_S: Final = 4.0
_RESOLVE_S: Final = 2.0

_log = logging.getLogger(__name__)


async def start_when_reachable(store: MetadataStore, connect: str = "") -> None:
    """Start the store, with retries until ZooKeeper answers; errors that no retry can fix are raised.

    Args:
        connect: `zookeeper.connect`; host names that do not resolve are logged every few seconds.
    """
    reasons: deque[str] = deque(["it does not answer"], maxlen=1)
    starting = asyncio.create_task(_start(store, reasons), name="ZooKeeper session")
    try:
        while not (await asyncio.wait({starting}, timeout=_SAY_S))[0]:
            why = await _unresolvable(connect) or reasons[0]
            _log.info("waiting for ZooKeeper", extra={"zookeeper": connect, "why": why})
        await starting
    finally:
        starting.cancel()
        await asyncio.wait({starting})


async def cluster_id_when_reachable(store: MetadataStore, connect: str = "", *, known: str = "") -> str:
    """Start the store and read the cluster id, with retries until ZooKeeper answers both; creates that of a new tree.

    Args:
        connect: as for `start_when_reachable`.
        known: the id in the log directories; "" if they have none.

    Raises:
        TidemarkError: INVALID_CONFIG if the tree has no id, and the log directories have one.
    """
    while True:
        await start_when_reachable(store, connect)
        try:
            found = await store.cluster_id()
            if not found and known:
                raise no_cluster_id(known)
            return found or await store.create_cluster_id()
        except TidemarkError as error:
            if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            _log.info("waiting for ZooKeeper", extra={"zookeeper": connect, "why": error.message})
        await store.stop()  # the session may have expired
        await asyncio.sleep(_RETRY_S)


def no_cluster_id(known: str) -> TidemarkError:
    """Make the error of a process of a known cluster in a tree without an id."""
    return TidemarkError(
        ErrorCode.INVALID_CONFIG,
        f"ZooKeeper's tree has no {paths.CLUSTER_ID}, and this process is of cluster {known}: correct "
        "zookeeper.connect, or restore the tree",
    )


async def _start(store: MetadataStore, reasons: deque[str]) -> None:
    while True:
        try:
            await store.start()
        except TidemarkError as error:
            if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            reasons.append(error.message)
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def _unresolvable(connect: str) -> str:
    """The DNS errors of hosts that do not resolve, "" when all resolve."""
    hosts = zookeeper_hosts(connect) if connect else []
    found = await asyncio.gather(*map(_why_unresolved, dict.fromkeys(one.host for one in hosts)))
    return "; ".join(why for why in found if why)


async def _why_unresolved(host: str) -> str:
    try:
        async with timeout(_RESOLVE_S):
            await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        return f"DNS does not answer for {host}"
    except (OSError, UnicodeError) as error:
        return f"{host} cannot be resolved ({getattr(error, 'strerror', None) or error})"
    return ""
