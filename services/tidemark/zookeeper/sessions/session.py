# SPDX-License-Identifier: Apache-2.0
"""A ZooKeeper session on asyncio: a bridge to kazoo's threads, a deadline for every request, the lease of rule F1.

Callbacks on kazoo's threads reach the event loop by `call_soon_threadsafe`. The event loop holds a thread's lock only
while it puts a request into kazoo's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.serialization import Create
from kazoo.protocol.states import Callback, KeeperState
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import Clock, StoreEvent
from tidemark.runtime.clock import timeout
from tidemark.zookeeper.kazoo_handler import PollHandler
from tidemark.zookeeper.mirror.recursive_watches import RecursiveWatches
from tidemark.zookeeper.security.access import CHECK_S, REFUSALS, AccessError, NodeAccess
from tidemark.zookeeper.security.tls import ZooKeeperTls
from tidemark.zookeeper.session_port import NodeRead
from tidemark.zookeeper.sessions.multi_read import MultiRead
from tidemark.zookeeper.sessions.servers import SILENCE_FRACTION, STEPS, Servers
from tidemark.zookeeper.sessions.session_metrics import SessionTally

_log = logging.getLogger(__name__)

# kazoo logs every reconnection attempt; this module logs the events that an operator needs.
_KAZOO_LOG: Final = logging.getLogger("tidemark.zookeeper.kazoo")
_KAZOO_LOG.setLevel(logging.CRITICAL)

LEASE_MARGIN_FRACTION: Final = 6
"""The lease ends this fraction of the timeout early: a ZooKeeper follower reports a touch half a tick late."""

PING_FRACTION: Final = 6
"""Fraction of the timeout after which an idle session is touched."""

_IN_FLIGHT_MAX: Final = 128
"""Requests queued in kazoo: each writes a byte into a socket pair, and from about 270 requests on, that write would
block.
"""

_READS_PER_REQUEST: Final = 250

_POLL_INTERVAL_S: Final = 0.1

T = TypeVar("T")

_LOST_ANSWER: Final = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    AuthFailedError,
)


class ZooKeeperSession:
    """One session at a time; after its expiry every call is refused until `renew`.

    Args:
        connect: host:port[,host:port...][/chroot].
        session_timeout_ms: requested timeout; the timeout that the server grants applies.
        clock: the clock of the lease.
        on_event: receives SESSION_SUSPENDED, _RESTORED and _EXPIRED on the event loop.
        tally: counts the events of the session.
        tls: the certificate of the session; None: plain text.
        access: access rules of the znodes that this process creates.
    """

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int,
        clock: Clock,
        on_event: Callable[[StoreEvent], None],
        tally: SessionTally,
        tls: ZooKeeperTls | None = None,
        access: NodeAccess | None = None,
    ) -> None:
        self._tally = tally
        self._tls = tls
        self._access = access or NodeAccess()
        self._connect = connect
        self._session_timeout_ms = session_timeout_ms
        self._clock = clock
        self._on_event = on_event
        self._client: Any = None
        self._recursive: Any = None
        self._connected = asyncio.Event()
        self._access_known = asyncio.Event()
        """Event that requests with TLS wait for: kazoo's own default is an open ACL, wrong in a closed tree."""
        self._suspended = False
        self._window = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._negotiated_timeout_ms = 0
        self._lease_until_ms = 0
        self._last_answered_send_ms = 0
        self._unanswered: dict[asyncio.Future[Any], None] = {}
        """Requests in the order of sending, which is the order of their answers."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def session_id(self) -> int:
        """Id of the live session, as in `ephemeralOwner` of its znodes; 0 without a session."""
        client_id = self._client.client_id if self._client is not None else None
        return int(client_id[0]) if client_id else 0

    @property
    def call_timeout_ms(self) -> int:
        """Deadline of every request."""
        return max(self._session_timeout_ms, 1000)

    def lease_valid_until_ms(self) -> int:
        """End of the session lease (rule F1): send time of the last answered request + negotiated timeout - margin; 0
        with no session."""
        return self._lease_until_ms

    def lease_length_ms(self) -> int:
        """Negotiated timeout less the margin; 0 before the first session."""
        return self._negotiated_timeout_ms - self._negotiated_timeout_ms // LEASE_MARGIN_FRACTION

    # life

    def now_ms(self) -> int:
        """Time of the port's clock, in milliseconds."""
        return self._clock.now_ms()

    async def pause(self) -> None:
        """Wait a moment before a retry."""
        await asyncio.sleep(_POLL_INTERVAL_S)

    async def give_way(self) -> None:
        """Let other tasks of the event loop run."""
        await asyncio.sleep(0)

    async def gather(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Results in order.

        After all have ended, raises the first failure, so that no coroutine continues without its caller.
        """
        results = await asyncio.gather(*calls, return_exceptions=True)
        found: list[T] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            found.append(result)
        return found

    async def start(self) -> None:
        """Connect; raises COORDINATION_UNAVAILABLE when no server answers in time."""
        assert self._client is None, "started already"
        sent_ms = self._clock.now_ms()
        loop = asyncio.get_running_loop()
        self._connected.clear()
        self._access_known.clear()
        self._suspended = False
        client, servers = self._new_client(loop)
        self._client = client
        try:
            client.start_async()
            async with timeout(self.call_timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            await self._discard()
            raise self._unavailable("no server answered") from None
        except BaseException:
            await self._discard()
            raise
        self._answered(client, sent_ms)
        self._tally.connected(self._negotiated_timeout_ms)
        self._tasks = [
            asyncio.create_task(self._keep_alive(client), name="zookeeper keep-alive"),
            asyncio.create_task(self._leave_the_silent(client, servers), name="zookeeper silence"),
        ]
        if self._tls is not None:
            await self._begin_access(client)
        self._access_known.set()

    async def stop(self) -> None:
        """Close the session, which deletes its ephemeral znodes; idempotent."""
        self._lease_until_ms = 0
        self._tally.closed()
        self._cancel_tasks()
        await self._discard()

    async def renew(self) -> None:
        """A new session in place of the old one."""
        await self.stop()
        await self.start()

    def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def _new_client(self, loop: asyncio.AbstractEventLoop) -> tuple[Any, Servers]:
        client = KazooClient(
            hosts=self._connect,
            timeout=self._session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_jitter": 0.1, "max_delay": 0.5},
            logger=_KAZOO_LOG,
            handler=PollHandler() if self._tls is None else self._tls.handler(),
            default_acl=self._access.acl,
        )
        servers = Servers(client, self._session_timeout_ms)

        def on_state(state: KazooState) -> None:
            read_only = client.client_state == KeeperState.CONNECTED_RO
            _on_loop(loop, self._on_state, client, state, servers.negotiated_timeout_ms, read_only)

        client.add_listener(on_state)
        self._recursive = RecursiveWatches(client)
        return client, servers

    async def _discard(self) -> None:
        client, self._client = self._client, None
        self._connected.clear()
        if client is not None:
            await asyncio.wait({_close_in_thread(client)}, timeout=self.call_timeout_ms / 1000)

    def _on_state(self, client: Any, state: KazooState, negotiated_ms: int, read_only: bool) -> None:
        if client is not self._client:
            return
        if state == KazooState.CONNECTED and not read_only:
            self._negotiated_timeout_ms = negotiated_ms
            self._connected.set()
            if self._suspended:
                self._suspended = False
                self._tally.connected(negotiated_ms)
                _log.info("ZooKeeper answers again", extra={"zookeeper": self._connect})
                self._on_event(StoreEvent.SESSION_RESTORED)
        elif state == KazooState.LOST:
            self._expire()
        else:
            self._connected.clear()
            if not self._suspended:
                self._suspended = True
                self._tally.suspended()
                _log.warning("ZooKeeper does not answer", extra={"zookeeper": self._connect})
                self._on_event(StoreEvent.SESSION_SUSPENDED)

    def _expire(self) -> None:
        """The server has expired the session. kazoo would open a new one by itself; `renew` decides when."""
        client, self._client = self._client, None
        self._connected.clear()
        self._lease_until_ms = 0
        self._cancel_tasks()
        _close_in_thread(client)
        self._tally.expired()
        _log.warning("the ZooKeeper session has expired", extra={"zookeeper": self._connect})
        self._on_event(StoreEvent.SESSION_EXPIRED)

    # requests

    async def call(self, submit: Callable[[Any], Any]) -> Any:
        """Send one request to ZooKeeper and wait for its answer.

        Args:
            submit: makes the request on kazoo's client and returns its AsyncResult.

        Raises:
            TidemarkError: COORDINATION_UNAVAILABLE, with metadata sent="true" when ZooKeeper may have carried the
                request out, sent="false" when the request was not sent.
            KazooException: ZooKeeper's refusal, such as NoNodeError.
        """
        sent = False
        try:
            async with timeout(self.call_timeout_ms / 1000):
                client = await self._ready()
                async with self._window:
                    sent = True
                    return await self._request(client, submit)
        except TimeoutError:
            raise self._unavailable("no answer in time", sent=sent) from None

    async def read(self, submit: Callable[[Any], Any]) -> Any:
        """`call` for an idempotent request: after a lost connection the request is retried until the deadline."""
        return await self._read(submit, self._ready)

    async def _read(self, submit: Callable[[Any], Any], ready: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with timeout(self.call_timeout_ms / 1000):
                while True:
                    client = await ready()
                    async with self._window:
                        try:
                            return await self._request(client, submit)
                        except TidemarkError as error:
                            if self._client is not client or error.metadata.get("sent") == "false":
                                raise
                    # `_ready` waits for the connection only after the event loop has received the loss.
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise self._unavailable("no answer in time") from None

    async def read_many(self, paths: Sequence[str]) -> list[NodeRead | None]:
        """Data of many znodes, by a few concurrent requests; None for a missing znode."""
        parts = [paths[start : start + _READS_PER_REQUEST] for start in range(0, len(paths), _READS_PER_REQUEST)]
        answers = await self.gather([self.read(_reader_of(part)) for part in parts])
        found: list[NodeRead | None] = []
        for path, answer in zip(paths, (answer for part in answers for answer in part), strict=True):
            if not isinstance(answer, int):
                found.append(answer)
            elif answer == NoNodeError.code:
                found.append(None)
            elif answer == NoAuthError.code:
                raise self._unavailable(self._access.refusal(NoAuthError()), sent=False)
            else:
                raise TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refuses to read {path}: error {answer}")
        return found

    async def get(self, path: str, watch: Callable[[Any], None] | None = None) -> NodeRead | None:
        """Data of one znode; None if it is missing."""
        try:
            data, stat = await self.read(lambda client: client.get_async(path, watch=watch))
        except NoNodeError:
            return None
        return data, stat

    async def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Names of the children; none for a missing znode, whose creation fires the watch."""
        while True:
            try:
                found: list[str] = await self.read(lambda client: client.get_children_async(path, watch=watch))
            except NoNodeError:
                if watch is None or not await self.exists(path, watch):
                    return []
                continue  # the znode was created meanwhile
            return found

    async def exists(self, path: str, watch: Callable[[Any], None] | None = None) -> bool:
        """Whether the znode exists; the watch fires on its creation, too."""
        return await self.read(lambda client: client.exists_async(path, watch=watch)) is not None

    async def ensure(self, path: str) -> None:
        """Create the znode and its parents where missing."""
        await self.read(lambda client: client.ensure_path_async(path, acl=self._acl_of_creates()))

    async def ask(self, request: Any) -> Any:
        """`read` for a request of kazoo's connection; its paths include the chroot."""
        return await self.read(_submitter(request))

    @property
    def chroot(self) -> str:
        """The chroot of the connect string; "" if there is none, or no session."""
        return self._client.chroot if self._client is not None else ""

    async def ensure_chroot(self) -> None:
        """Create the chroot path of the connect string."""
        chroot = self.chroot
        names = [name for name in chroot.split("/") if name]
        for depth in range(1, len(names) + 1):
            request = Create("/" + "/".join(names[:depth]), b"", self._acl_of_creates() or OPEN_ACL_UNSAFE, 0)
            with contextlib.suppress(NodeExistsError):
                await self.ask(request)
        if self._tls is not None and names:
            await self._look_again(chroot)

    async def _look_again(self, chroot: str) -> None:
        """Read the access again: another session may have created the missing root since the start of this one."""
        try:
            await self._access.begin(self.ask, chroot)
        except AccessError as error:
            raise self._unavailable(str(error), sent=False) from error
        self._use_access(self._client)

    async def sync(self) -> None:
        """Later reads return no state older than this call."""
        await self.read(lambda client: client.sync_async("/"))

    async def deliver_events(self) -> None:
        """Sync, and wait until kazoo's thread of watches has delivered the events that came before the answer."""
        await self.sync()
        client, loop = await self._ready(), asyncio.get_running_loop()
        delivered: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not delivered.done():
                delivered.set_result(None)

        client.handler.dispatch_callback(Callback("watch", lambda: _on_loop(loop, settle), ()))
        try:
            async with timeout(self.call_timeout_ms / 1000):
                await delivered
        except TimeoutError:
            raise self._unavailable("no events in time") from None

    async def watch_below(self, path: str, fire: Callable[[str], None]) -> None:
        """Call `fire` on the event loop for each change at or below `path`, until the connection ends."""
        loop, pending = asyncio.get_running_loop(), deque[str]()

        def fire_all() -> None:
            try:
                while pending:
                    fire(pending.popleft())
            finally:
                if pending:
                    loop.call_soon(fire_all)

        def on_change(changed: str) -> None:
            pending.append(changed)
            if len(pending) == 1:  # otherwise `fire_all` is scheduled, or has not ended
                _on_loop(loop, fire_all)

        def submit(client: Any) -> Any:
            return _submitter(self._recursive.add(path, on_change))(client)

        await self.read(submit)

    async def commit(self, build: Callable[[TransactionRequest], None]) -> list[Any]:
        """Commit one multi: results in order, exceptions as values; raises like `call` without an answer."""

        def submit(client: Any) -> Any:
            transaction = client.transaction()
            build(transaction)
            if any(isinstance(operation, Create) for operation in transaction.operations):
                self._acl_of_creates()
            return transaction.commit_async()

        results: list[Any] = await self.call(submit)
        for result in results:
            if isinstance(result, REFUSALS):
                raise self._unavailable(self._access.refusal(result), sent=False)
        return results

    def watcher(self, event: StoreEvent) -> Callable[[Any], None]:
        """A watch that passes `event` to the listener on the event loop."""
        loop = asyncio.get_running_loop()

        return lambda _: _on_loop(loop, self._on_event, event)

    def _acl_of_creates(self) -> list[ACL] | None:
        """The ACL of created znodes; None: kazoo's default, open, in a session without TLS."""
        if self._tls is not None and self._access.acl is None:
            raise self._unavailable("the ACL of the root is not known yet", sent=False)
        return self._access.acl

    async def _ready(self) -> Any:
        """The client, once it is connected and has the ACL of the nodes to create."""
        client = await self._ready_to_ask()
        while not self._access_known.is_set():
            await self._access_known.wait()
            client = await self._ready_to_ask()
        return client

    async def _ready_to_ask(self) -> Any:
        """The client, once it is connected."""
        if self._client is None:
            raise self._unavailable("the session has ended", sent=False)
        await self._connected.wait()
        if self._client is None:
            raise self._unavailable("the session has ended", sent=False)
        return self._client

    async def _request(self, client: Any, submit: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        def on_done(result: Any) -> None:
            error = result.exception
            _on_loop(loop, settle, None if error else result.value, error)

        sent_ms, began_s = self._clock.now_ms(), time.perf_counter()
        submit(client).rawlink(on_done)
        self._unanswered[answer] = None
        try:
            value = await answer
        except asyncio.CancelledError:  # time is up
            self._tally.failed += 1
            raise
        except _LOST_ANSWER as error:
            self._tally.failed += 1
            raise self._unavailable(f"the connection was lost ({type(error).__name__})") from error
        except KazooException as error:
            self._tally.answered(time.perf_counter() - began_s)
            self._answered(client, sent_ms)
            if isinstance(error, REFUSALS):
                raise self._unavailable(self._access.refusal(error), sent=False) from error
            raise
        finally:
            self._unanswered.pop(answer, None)
        self._tally.answered(time.perf_counter() - began_s)
        self._answered(client, sent_ms)
        return value

    def _answered(self, client: Any, sent_ms: int) -> None:
        if client is not self._client:
            # kazoo continues a session that this object never adopted, so writes in that session will not last.
            raise self._unavailable("the session has ended")
        self._last_answered_send_ms = max(self._last_answered_send_ms, sent_ms)
        self._lease_until_ms = max(self._lease_until_ms, sent_ms + self.lease_length_ms())

    async def _keep_alive(self, client: Any) -> None:
        """Touch the session after a while without an answer (rule F1)."""
        while self._client is client:
            interval_ms = max(self._negotiated_timeout_ms // PING_FRACTION, 10)
            idle_ms = self._clock.now_ms() - self._last_answered_send_ms
            if idle_ms >= interval_ms:
                try:
                    await self.read(lambda connected: connected.exists_async("/"))
                except TidemarkError as error:
                    _log.debug("keep-alive: %s", error)
                    await asyncio.sleep(0.05)
            else:
                await asyncio.sleep((interval_ms - idle_ms) / 1000)

    async def _ask_first(self, request: Any) -> Any:
        """`ask` for the requests for which all other requests wait."""
        return await self._read(_submitter(request), self._ready_to_ask)

    async def _begin_access(self, client: Any) -> None:
        try:
            await self._access.begin(self._ask_first, client.chroot)
        except AccessError as error:
            await self.stop()
            raise self._unavailable(str(error), sent=False) from error
        except BaseException:
            await self.stop()
            raise
        self._use_access(client)
        self._tasks.append(asyncio.create_task(self._check_access(client), name="zookeeper access"))

    async def _check_access(self, client: Any) -> None:
        """Follow the tree, which an operator closes or opens while this session lives."""
        while self._client is client:
            await asyncio.sleep(CHECK_S)
            try:
                await self._access.check(self.ask, client.chroot)
            except (TidemarkError, KazooException) as error:
                _log.debug("access to the znodes: %s", error)
            self._use_access(client)

    def _use_access(self, client: Any) -> None:
        client.default_acl = self._access.acl
        self._tally.nodes_open = not self._access.closed

    async def _leave_the_silent(self, client: Any, servers: Servers) -> None:
        """Leave a server whose answer is overdue; another server can keep the session."""
        oldest, steps = None, 0
        while self._client is client:
            await asyncio.sleep(max(self._negotiated_timeout_ms, 10) / 1000 / SILENCE_FRACTION / STEPS)
            waiting = next(iter(self._unanswered), None) if self._connected.is_set() else None
            steps = steps + 1 if waiting is not None and waiting is oldest else 0
            oldest = waiting
            if steps == STEPS:
                servers.leave()
                steps = 0

    def _unavailable(self, why: str, *, sent: bool = True) -> TidemarkError:
        if self._tls is not None and self._tls.failure:
            why = f"{why}: {self._tls.failure}"
        return TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE,
            f"ZooKeeper at {self._connect} cannot be reached: {why}",
            {"zookeeper": self._connect, "sent": str(sent).lower()},
        )


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """Call a function on the event loop, from kazoo's threads."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:  # the loop is closed and has no listeners
        _log.debug("a ZooKeeper event came after the end of the event loop")


def _reader_of(paths: Sequence[str]) -> Callable[[Any], Any]:
    return lambda client: _submitter(MultiRead([client.chroot + path for path in paths]))(client)


def _submitter(request: Any) -> Callable[[Any], Any]:
    """Submits a request that kazoo has no method for; its paths are absolute and include the chroot."""

    def submit(client: Any) -> Any:
        result = client.handler.async_result()
        client._call(request, result)
        return result

    return submit


def _close_in_thread(client: Any) -> asyncio.Future[None]:
    """End kazoo's threads and the session; this blocks for seconds when the server does not answer.

    A daemon thread closes the client, so the event loop and the end of the process do not wait.
    """
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not closed.done():
            closed.set_result(None)

    def close() -> None:
        try:
            client.stop()
            client.close()
        except (KazooException, OSError) as error:
            _log.warning("closing a ZooKeeper client failed: %s", error)
        finally:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # the loop is closed
                _log.debug("a ZooKeeper client was closed after the end of the event loop")

    threading.Thread(target=close, name="zookeeper close", daemon=True).start()
    return closed
