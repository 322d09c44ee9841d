"""Keeps the admin service in touch with ZooKeeper: a session that expired is replaced. It holds nothing ephemeral."""

from __future__ import annotations

import asyncio
import logging

from tidemark.model import TidemarkError
from tidemark.ports import MetadataStore, StoreEvent

_log = logging.getLogger(__name__)

_RETRY_S = 0.5


class SessionKeeper:
    """Opens a new session whenever the store's has expired; make it before the store is started."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._expired = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.listen(self._on_event)

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._renew_when_expired(), name="ZooKeeper session")

    async def stop(self) -> None:
        """End it; again is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _on_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired.set()

    async def _renew_when_expired(self) -> None:
        while True:
            await self._expired.wait()
            self._expired.clear()
            try:
                await self._store.new_session()
                _log.info("a new ZooKeeper session is open")
            except TidemarkError as error:
                _log.warning("no new ZooKeeper session yet: %s", error)
                self._expired.set()
                await asyncio.sleep(_RETRY_S)
