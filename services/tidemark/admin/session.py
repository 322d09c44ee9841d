# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper session of the admin service: connects without a time limit and replaces expired sessions.

Each session may be one of another ensemble, so the id of the cluster is read again.

The session owns no ephemeral nodes, so its expiry loses nothing.
"""

from __future__ import annotations

import asyncio
import logging

from tidemark.model import TidemarkError
from tidemark.ports import StoreEvent
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.zookeeper.reachable import start_when_reachable
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)

_RETRY_S = 0.5


class SessionKeeper:
    """Starts the store, and opens a new session after each expiry.

    Args:
        receiver: gets the id of the cluster.
        connect: `zookeeper.connect`, for log lines while ZooKeeper does not answer.
    """

    def __init__(self, store: MetadataStore, receiver: ReceiverCheck, connect: str = "") -> None:
        self._store = store
        self._receiver = receiver
        self._connect = connect
        self._expired = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.listen(self._on_event)

    async def start(self) -> None:
        """Start the store, retrying until ZooKeeper answers, and watch for expiry."""
        await start_when_reachable(self._store, self._connect)
        self._task = asyncio.create_task(self._renew_when_expired(), name="ZooKeeper session")

    async def stop(self) -> None:
        """Stop watching for expiry, then stop the store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._store.stop()

    def _on_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired.set()

    async def _renew_when_expired(self) -> None:
        while True:
            await self._read_cluster_id()
            await self._expired.wait()
            self._expired.clear()
            try:
                await self._store.new_session()
                _log.info("a new ZooKeeper session is open")
            except TidemarkError as error:
                _log.warning("no new ZooKeeper session yet: %s", error)
                self._expired.set()
                await asyncio.sleep(_RETRY_S)

    async def _read_cluster_id(self) -> None:
        """Read the id until there is one, or the session expires; the services of a new cluster start in any order."""
        while not self._expired.is_set():
            try:
                found = await self._store.cluster_id()
            except TidemarkError as error:
                _log.info("cannot read the cluster id", extra={"why": error.message})
                found = ""
            if found:
                self._receiver.cluster_id = found
                return
            await asyncio.sleep(_RETRY_S)
