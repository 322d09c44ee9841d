# SPDX-License-Identifier: Apache-2.0
"""Commits the progress of a streaming query to a consumer group, for tools that show lag.

The query itself continues from its checkpoint. Commits run one at a time, and the newest position replaces waiting
positions. A failed commit is logged and repeated. A commit never fails or delays the query.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from typing import Final

from tidemark.client.group.external_commits import ExternalCommits
from tidemark.client.group.offset_commits import GroupPosition
from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.tls import Credentials
from tidemark.client.sync.event_loop_thread import BackgroundLoop, background_loop
from tidemark.model import TidemarkError, TopicPartition

from tidemark_spark.options import ReadOptions
from tidemark_spark.stream_offsets import StreamOffset

_log = logging.getLogger("tidemark.spark")

_CALL_S: Final = 10.0
"""Time limit of the check at the query's start, and of one commit with its retries."""
_FIRST_PAUSE_S: Final = 0.2
_PAUSE_S: Final = 30.0
_SETTLE_S: Final = 1.0
_CLOSE_S: Final = 2.0
_RENEW_S: Final = 3600.0
"""Offsets that did not change are committed again after this time, because brokers let offsets expire."""


class GroupProgress:
    """The group of one query, on its driver.

    Args:
        options: options of the read, with a group id.

    Raises:
        TidemarkError: INCONSISTENT_GROUP_PROTOCOL if the group has members, GROUP_AUTHORIZATION_FAILED.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._group = options.group_id
        self._options = options
        self._lock = threading.Lock()
        self._loop: BackgroundLoop = background_loop()
        self._commits: ExternalCommits | None = None
        self._wanted: StreamOffset | None = None
        self._settled: StreamOffset | None = None
        self._sending: Future[None] | None = None
        self._committed: dict[TopicPartition, GroupPosition] = {}
        self._all_at_s = time.monotonic()
        self._failure = ""
        try:
            self._loop.call(self._check(), _CALL_S)
        except TidemarkError as error:
            if not error.retriable:
                self.close()
                raise TidemarkError(error.code, f"option 'groupId': {error.message}", error.metadata) from None
            self._note(str(error))

    def put(self, offset: StreamOffset) -> None:
        """Commit the position of the query, some time soon."""
        with self._lock:
            if offset == self._wanted and time.monotonic() - self._all_at_s < _RENEW_S:
                return
            self._wanted = offset
            if self._sending is None:
                self._sending = self._loop.start(self._send())

    def settle(self) -> None:
        """Wait for the commit of the last position, once for each position and for a short time.

        For a query without new records: Spark ends the process of a query that has ended without a notice.
        """
        with self._lock:
            sending, is_new = self._sending, self._settled is not self._wanted
            self._settled = self._wanted
        if sending is not None and is_new:
            concurrent.futures.wait([sending], _SETTLE_S)

    def close(self) -> None:
        """Complete a commit that is sent, if that takes no time, and close the connections."""
        self.settle()
        with self._lock:
            sending, commits = self._sending, self._commits
        if sending is not None:
            sending.cancel()
        if commits is not None:
            with contextlib.suppress(TidemarkError):
                self._loop.call(commits.close(), _CLOSE_S)

    async def _check(self) -> None:
        await (await self._started()).check()

    async def _started(self) -> ExternalCommits:
        if self._commits is None:
            options = self._options
            credentials = Credentials(options.tls, options.token_file)
            made = ExternalCommits(
                options.bootstrap, self._group, timeout_s=_CALL_S, tls=credentials, client_id=options.client_id
            )
            try:
                await made.start()
            except BaseException:
                await made.close()
                raise
            self._commits = made
        return self._commits

    async def _send(self) -> None:
        """Commit until no newer position waits."""
        pauses = Backoff(_FIRST_PAUSE_S, _PAUSE_S)
        sent: StreamOffset | None = None
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted is None or wanted is sent:
                    self._sending = None
                    return
            try:
                await self._commit(wanted)
            except TidemarkError as error:
                self._note(str(error))
                await asyncio.sleep(pauses.next_s())
                continue
            sent = wanted
            pauses.reset()

    async def _commit(self, offset: StreamOffset) -> None:
        now_s = time.monotonic()
        if now_s - self._all_at_s >= _RENEW_S:
            self._committed.clear()
        changed = [one for one in _positions(offset) if self._committed.get(one.partition) != one]
        refused = await (await self._started()).commit(changed)
        if not self._committed:
            self._all_at_s = now_s
        self._committed |= {one.partition: one for one in changed if one.partition not in refused}
        if refused:
            where, error = next(iter(refused.items()))
            self._note(f"{where}: {error}; {len(refused)} partitions are refused")
        elif self._failure:
            self._failure = ""
            _log.info("the progress of the query is committed to the group %s again", self._group)

    def _note(self, failure: str) -> None:
        """Log a failure once, until a different failure."""
        if failure != self._failure:
            self._failure = failure
            _log.warning("the progress of the query is not committed to the group %s: %s", self._group, failure)


def _positions(offset: StreamOffset) -> list[GroupPosition]:
    return [
        GroupPosition(
            TopicPartition(name, index), position.offset, position.leader_epoch, topic.topic_id, position.incarnation
        )
        for name, topic in offset.topics.items()
        for index, position in topic.partitions.items()
    ]
