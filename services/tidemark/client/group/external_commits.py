# SPDX-License-Identifier: Apache-2.0
"""Commits of a reader that stores its positions outside Tidemark, to a group without members (docs/groups.md, step
G7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.offset_commits import Commits, GroupPosition, refused_in
from tidemark.client.group.settings import group_settings
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.tls import Credentials
from tidemark.model import NO_EPOCH, TidemarkError, TopicPartition
from tidemark.rpc.request_limits import in_requests


class ExternalCommits(Lifecycle):
    """Shows the progress of a query to the tools of groups: lag, metrics, `tidemark group describe`.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers.
        group: id of the group.
        timeout_s: timeout in seconds of the start, and of each request.
        tls: the TLS files, and a token if any; None: files and token of the environment, or plain text.
        client_id: a name for metrics of brokers.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        group: str,
        *,
        timeout_s: float,
        tls: Credentials | None = None,
        client_id: str = "",
    ) -> None:
        self._commits = Commits(group_settings(group))
        self._cluster = Cluster(bootstrap, timeout_s=timeout_s, tls=tls, client_id=client_id)
        self._coordinator = Coordinator(self._cluster, group)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Find a broker that answers; raises BROKER_NOT_AVAILABLE with the error of each address."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._cluster.close()

    async def check(self) -> None:
        """Raise the error that a commit to this group would raise, without a commit.

        Raises:
            TidemarkError: INCONSISTENT_GROUP_PROTOCOL if the group has members; GROUP_AUTHORIZATION_FAILED;
                REQUEST_TIMED_OUT.
        """
        await self._send([])

    async def commit(self, positions: Sequence[GroupPosition]) -> dict[TopicPartition, TidemarkError]:
        """Commit positions, and return the errors of the refused partitions; raises the errors of `check`."""
        refused: dict[TopicPartition, TidemarkError] = {}
        for some in in_requests(positions) if positions else ():
            answer = await self._send(some)
            refused |= refused_in(answer)
        return refused

    async def _send(self, positions: Sequence[GroupPosition]) -> Any:
        request = self._commits.request(positions, "", NO_EPOCH)
        return await self._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=self._timeout_s)
