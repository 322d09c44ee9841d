"""Services and ZooKeeper may start in any order: each waits until it answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import MetadataStore

_RETRY_S: Final = 0.3
_log = logging.getLogger(__name__)


async def start_when_reachable(store: MetadataStore) -> None:
    """Start the store, trying until ZooKeeper answers; what trying again does not mend is raised."""
    while True:
        try:
            await store.start()
        except TidemarkError as error:
            if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            _log.warning("waiting for ZooKeeper", extra={"why": error.message})
            await asyncio.sleep(_RETRY_S)
        else:
            return
