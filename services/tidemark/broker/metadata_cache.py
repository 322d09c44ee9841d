"""The cluster as this broker was told of it, and the clients that watch it (rule K2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from tidemark.core.cluster_state import ClusterView, TopicView, apply
from tidemark.model import ErrorCode, TidemarkError


class MetadataCache:
    """Latest view; every watcher gets the whole view first, then what changed."""

    def __init__(self, cluster_id: str, admin_address: str) -> None:
        self._view = ClusterView(cluster_id=cluster_id, admin_address=admin_address)
        self._watchers: dict[asyncio.Queue[ClusterView | None], frozenset[str]] = {}

    @property
    def view(self) -> ClusterView:
        """What is known now."""
        return self._view

    def update(self, update: ClusterView) -> None:
        """Take in what the controller told.

        Raises:
            TidemarkError: STALE_CONTROLLER_EPOCH (rule F4).
        """
        if update.controller_epoch < self._view.controller_epoch:
            raise TidemarkError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {update.controller_epoch} is older than {self._view.controller_epoch}",
            )
        self._view = apply(self._view, update)
        changed = replace(
            update,
            admin_address=self._view.admin_address,
            cluster_id=self._view.cluster_id,
            topics={name: self._view.topics[name] for name in update.topics if name in self._view.topics},
        )
        for queue, wanted in self._watchers.items():
            queue.put_nowait(_only(changed, wanted) if wanted else changed)

    def describe(self, topics: Collection[str], *, all_topics: bool) -> ClusterView:
        """The view of some topics, or of all; one that is not known carries UNKNOWN_TOPIC."""
        if all_topics:
            return replace(self._view, complete=True)
        found = {name: self._view.topics.get(name) or _unknown(name) for name in topics}
        return replace(self._view, topics=found, complete=False)

    def watch(self, topics: Collection[str]) -> tuple[asyncio.Queue[ClusterView | None], Callable[[], None]]:
        """A queue of views, the first one whole; and how to let it go."""
        wanted = frozenset(topics)
        queue: asyncio.Queue[ClusterView | None] = asyncio.Queue()
        queue.put_nowait(self.describe(wanted, all_topics=not wanted))
        self._watchers[queue] = wanted
        return queue, lambda: self._watchers.pop(queue, None) and None

    def close(self) -> None:
        """End every watch."""
        for queue in self._watchers:
            queue.put_nowait(None)


def _only(view: ClusterView, wanted: frozenset[str]) -> ClusterView:
    return replace(
        view,
        topics={name: topic for name, topic in view.topics.items() if name in wanted},
        deleted_topics=tuple(name for name in view.deleted_topics if name in wanted),
        complete=False,
    )


def _unknown(name: str) -> TopicView:
    error = TidemarkError(
        ErrorCode.UNKNOWN_TOPIC, f"there is no topic {name!r}; create it with `tidemark topic create {name}`"
    )
    return TopicView(name, "", error=error)
