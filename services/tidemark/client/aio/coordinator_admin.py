# SPDX-License-Identifier: Apache-2.0
"""The base of the clients for operators of groups and of transactions: every broker coordinates some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from tidemark.client.argument_types import seconds
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.coordinator_calls import answer_of
from tidemark.client.metadata.tls import Credentials
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven

TIMEOUT_S: Final = 30.0
LIST_TIMEOUT_S: Final = 10.0

L = TypeVar("L")


class CoordinatorAdmin(Lifecycle):
    """Connections to the brokers, and lists of the groups or transactional ids that each of them coordinates."""

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
    ) -> None:
        self._is_open = False
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._cluster = Cluster(bootstrap, timeout_s=self._timeout_s, tls=Credentials(tls, token_file))

    async def start(self) -> None:
        """Find a broker that answers; raises BROKER_NOT_AVAILABLE with the error of each address."""
        await self._cluster.start()
        self._is_open = True

    async def close(self) -> None:
        """Close the connections to all brokers."""
        self._is_open = False
        await self._cluster.close()

    def _brokers(self) -> dict[int, str]:
        """The addresses of the brokers, by id; raises CLIENT_CLOSED before the start and after the close."""
        if not self._is_open:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "this client is not started, or closed")
        return {broker_id: one.address for broker_id, one in sorted(self._cluster.view.brokers.items())}

    async def _lists(
        self,
        ask: Callable[[str], Awaitable[Any]],
        listings: Callable[[int, Any], Iterable[L]],
        *,
        what: str,
        topic: str,
    ) -> tuple[list[L], list[TidemarkError]]:
        """List the groups or transactional ids of all brokers, which are asked concurrently.

        Args:
            ask: calls the broker at an address.
            listings: the listings of a broker's answer.
            what: names the listings in errors.
            topic: the internal topic whose partitions the brokers coordinate.

        Returns:
            All listings in order, and errors of brokers whose listings may be missing.

        Raises:
            TidemarkError: every broker refused the request, with an error that is not retriable.
        """

        found: list[L] = []
        loading: set[int] = set()

        async def at(broker_id: int, address: str) -> TidemarkError | None:
            try:
                answer = await answer_of(ask(address), address)
            except TidemarkError as error:
                return error
            found.extend(listings(broker_id, answer))
            loading.update(answer.loading_partitions)
            return None

        self._brokers()  # raises before the start and after the close
        await self._cluster.look_again(timeout_s=self._timeout_s)  # a broker may have started since
        answers = await asyncio.gather(*(at(*broker) for broker in self._brokers().items()))
        missing = [error for error in answers if error is not None]
        refused = [error for error in missing if not error.retriable]
        if refused and len(refused) == len(answers):
            raise refused[0]
        if loading:
            sentence = f"{len(loading)} partitions of {topic} have no coordinator yet: their {what} are missing; retry"
            missing.append(TidemarkError(ErrorCode.COORDINATOR_LOADING, sentence))
        return sorted(found), missing  # type: ignore[type-var]
