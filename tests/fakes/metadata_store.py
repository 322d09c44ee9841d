# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper in memory: the real store's logic over a fake ensemble; passes the contract suite of the real one.

ensemble = FakeZooKeeper(clock)
store = ensemble.store()          # one session each
store.session.suspend(); store.session.resume(); store.session.expire()
store.session.lose_answers(1, applied=True)
store.session.before_commit(callback)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent, ZnodeStat
from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import Clock, StoreEvent
from tidemark.zookeeper.session_port import NodeRead, Watch
from tidemark.zookeeper.store import MetadataStore

T = TypeVar("T")


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def wall_us(self) -> int:
        return self.time_ms * 1000

    def advance(self, delta_ms: int) -> None:
        self.time_ms += delta_ms


@dataclass(frozen=True)
class _Node:
    data: bytes
    version: int = 0
    created_zxid: int = 0
    modified_zxid: int = 0
    owner: int = 0
    child_changes: int = 0
    child_count: int = 0

    @property
    def stat(self) -> ZnodeStat:
        return ZnodeStat(
            czxid=self.created_zxid,
            mzxid=self.modified_zxid,
            ctime=0,
            mtime=0,
            version=self.version,
            cversion=self.child_changes,
            aversion=0,
            ephemeralOwner=self.owner,
            dataLength=len(self.data),
            numChildren=self.child_count,
            pzxid=0,
        )


_Write = Callable[["_Tree"], Any]


@dataclass
class _Tree:
    """The nodes, and the changes of a multi so far."""

    nodes: dict[str, _Node]
    zxid: int
    data_changed: set[str] = field(default_factory=set)
    children_changed: set[str] = field(default_factory=set)

    def children(self, path: str) -> list[str]:
        prefix = "/" if path == "/" else path + "/"
        return [
            name[len(prefix) :] for name in self.nodes if name.startswith(prefix) and "/" not in name[len(prefix) :]
        ]

    def create(self, path: str, data: bytes, owner: int) -> str:
        parent = path.rpartition("/")[0]
        if path in self.nodes:
            raise NodeExistsError
        if parent and parent not in self.nodes:
            raise NoNodeError
        self.nodes[path] = _Node(data, created_zxid=self.zxid, modified_zxid=self.zxid, owner=owner)
        self._changed(path, parent)
        return path

    def set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        node = self.check(path, version)
        self.nodes[path] = replace(node, data=data, version=node.version + 1, modified_zxid=self.zxid)
        self.data_changed.add(path)
        return self.nodes[path].stat

    def delete(self, path: str, version: int) -> bool:
        self.check(path, version)
        if self.children(path):
            raise NotEmptyError
        del self.nodes[path]
        self._changed(path, path.rpartition("/")[0])
        return True

    def check(self, path: str, version: int) -> _Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError
        if version not in (-1, node.version):
            raise BadVersionError
        return node

    def _changed(self, path: str, parent: str) -> None:
        self.data_changed.add(path)
        self.children_changed.add(parent or "/")
        above = self.nodes.get(parent)
        if above is not None:
            count = above.child_count + (1 if path in self.nodes else -1)
            self.nodes[parent] = replace(above, child_changes=above.child_changes + 1, child_count=count)


class _Transaction:
    """Collects the operations of a multi, as kazoo's does."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self.writes: list[_Write] = []

    def check(self, path: str, version: int) -> None:
        self.writes.append(lambda tree: tree.check(path, version) is not None)

    def create(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        self.writes.append(lambda tree: tree.create(path, value, self._owner if ephemeral else 0))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self.writes.append(lambda tree: tree.set(path, value, version))

    def delete(self, path: str, version: int) -> None:
        self.writes.append(lambda tree: tree.delete(path, version))


def _later(call: Callable[[], None]) -> None:
    try:
        asyncio.get_running_loop().call_soon(call)
    except RuntimeError:
        call()


class FakeZooKeeper:
    """One ensemble, shared by the stores of a test.

    Args:
        clock: leases are on it.
        schedule: how hints are delivered; default: `call_soon` of the running loop, or immediately without one.
    """

    def __init__(self, clock: Clock | None = None, schedule: Callable[[Callable[[], None]], None] = _later) -> None:
        self.clock = clock or ManualClock()
        self.schedule = schedule
        self.nodes: dict[str, _Node] = {}
        self.zxid = 0
        self.sessions: dict[int, FakeSession] = {}
        self._next_session_id = 1
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._recursive: dict[int, dict[str, Callable[[str], None]]] = {}

    def store(self, session_timeout_ms: int = 6000) -> FakeMetadataStore:
        """A store with a session of its own; start it."""
        return FakeMetadataStore(self, session_timeout_ms)

    def corrupt(self, path: str, data: bytes) -> None:
        """Write content that no store would write."""
        node = self.nodes[path]
        self.zxid += 1
        self.nodes[path] = replace(node, data=data, version=node.version + 1, modified_zxid=self.zxid)
        self._fire_watches(dict.fromkeys(self._data_watches.pop(path, {}), path))
        self._report([path])

    def open_session(self, session: FakeSession) -> int:
        session_id = self._next_session_id
        self._next_session_id += 1
        self.sessions[session_id] = session
        return session_id

    def close_session(self, session_id: int) -> None:
        """End a session as if it expired: its ephemeral nodes are deleted, and watches are notified."""
        if self.sessions.pop(session_id, None) is None:
            return
        self.forget_recursive(session_id)
        mine = [path for path, node in self.nodes.items() if node.owner == session_id]
        self.commit([lambda tree, path=path: tree.delete(path, -1) for path in mine])  # type: ignore[misc]

    def commit(self, writes: Sequence[_Write]) -> list[Any]:
        """Commit a multi: all operations or none, with results as kazoo returns them."""
        tree = _Tree(dict(self.nodes), self.zxid + 1)
        results: list[Any] = []
        for index, write in enumerate(writes):
            try:
                results.append(write(tree))
            except KazooException as error:
                after = len(writes) - index - 1
                return [*(RolledBackError() for _ in results), error, *(RuntimeInconsistency() for _ in range(after))]
        self.nodes, self.zxid = tree.nodes, tree.zxid
        fired: dict[Watch, str] = {}
        for path in sorted(tree.data_changed):
            fired.update(dict.fromkeys(self._data_watches.pop(path, {}), path))
        for path in sorted(tree.children_changed):
            fired.update(dict.fromkeys(self._child_watches.pop(path, {}), path))
        self._fire_watches(fired)
        self._report(sorted(tree.data_changed))
        return results

    def _fire_watches(self, fired: dict[Watch, str]) -> None:
        for watch, path in fired.items():
            event = WatchedEvent(EventType.CHANGED, KeeperState.CONNECTED, path)
            self.schedule(lambda watch=watch, event=event: watch(event))  # type: ignore[misc]

    def _report(self, changed: Sequence[str]) -> None:
        """Notify the recursive watches."""
        for path in changed:
            for roots in self._recursive.values():
                for root, fire in roots.items():
                    if path == root or path.startswith(root + "/"):
                        self.schedule(lambda fire=fire, path=path: fire(path))  # type: ignore[misc]

    def watch_below(self, session_id: int, path: str, fire: Callable[[str], None]) -> None:
        self._recursive.setdefault(session_id, {})[path] = fire

    def forget_recursive(self, session_id: int) -> None:
        """Remove the recursive watches, as the end of the session's connection does."""
        self._recursive.pop(session_id, None)

    def children(self, path: str) -> list[str]:
        return _Tree(self.nodes, self.zxid).children(path)

    def watch_data(self, path: str, watch: Watch) -> None:
        self._data_watches.setdefault(path, {})[watch] = None

    def watch_children(self, path: str, watch: Watch) -> None:
        self._child_watches.setdefault(path, {})[watch] = None


class FakeSession:
    """A session on a `FakeZooKeeper`; its methods for tests inject faults."""

    def __init__(
        self, ensemble: FakeZooKeeper, session_timeout_ms: int, on_event: Callable[[StoreEvent], None]
    ) -> None:
        self._ensemble = ensemble
        self._timeout_ms = session_timeout_ms
        self._on_event = on_event
        self._session_id = 0
        self._connected = False
        self._lease_until_ms = 0
        self._lost: list[bool] = []
        self._before_commit: list[Callable[[], Coroutine[Any, Any, None]]] = []

    # for tests

    def suspend(self) -> None:
        """No server can be reached: calls are refused, the lease runs out."""
        self._lease_until_ms = self.lease_valid_until_ms()
        self._connected = False
        self._ensemble.forget_recursive(self._session_id)
        self._tell(StoreEvent.SESSION_SUSPENDED)

    def resume(self) -> None:
        """A server can be reached again; reports the session's expiry if it expired meanwhile."""
        if self._session_id in self._ensemble.sessions:
            self._connected = True
            self._tell(StoreEvent.SESSION_RESTORED)
        else:
            self._session_id = 0
            self._lease_until_ms = 0
            self._tell(StoreEvent.SESSION_EXPIRED)

    def expire(self) -> None:
        """The server ends the session; a suspended client is notified when it resumes, another one immediately."""
        self._ensemble.close_session(self._session_id)
        if self._connected:
            self._connected = False
            self.resume()

    def lose_answers(self, count: int, *, applied: bool) -> None:
        """The answers to the next multis are lost; `applied`: ZooKeeper applied them nevertheless."""
        self._lost += [applied] * count

    def before_commit(self, meddle: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `meddle` when the next multi is about to be sent: another writer was faster."""
        self._before_commit.append(meddle)

    # as session_port.Session

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def call_timeout_ms(self) -> int:
        return self._timeout_ms

    def lease_valid_until_ms(self) -> int:
        if self._connected:  # the real one keeps itself alive when idle
            self._lease_until_ms = self._ensemble.clock.now_ms() + self.lease_length_ms()
        return self._lease_until_ms

    def lease_length_ms(self) -> int:
        return self._timeout_ms - self._timeout_ms // 6

    def now_ms(self) -> int:
        return self._ensemble.clock.now_ms()

    async def pause(self) -> None:
        await asyncio.sleep(0)

    async def give_way(self) -> None:
        await asyncio.sleep(0)

    async def gather(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return [await call for call in calls]

    async def start(self) -> None:
        assert not self._session_id, "started already"
        self._session_id = self._ensemble.open_session(self)
        self._connected = True

    async def stop(self) -> None:
        self._ensemble.close_session(self._session_id)
        self._session_id = 0
        self._connected = False
        self._lease_until_ms = 0

    async def renew(self) -> None:
        await self.stop()
        await self.start()

    async def read_many(self, paths: Sequence[str]) -> list[NodeRead | None]:
        self._reach()
        return [self._read(path) for path in paths]

    async def get(self, path: str, watch: Watch | None = None) -> NodeRead | None:
        self._reach()
        found = self._read(path)
        if watch is not None and found is not None:
            self._ensemble.watch_data(path, watch)
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self._reach()
        if path not in self._ensemble.nodes:
            await self.exists(path, watch)
            return []
        if watch is not None:
            self._ensemble.watch_children(path, watch)
        return self._ensemble.children(path)

    async def exists(self, path: str, watch: Watch | None = None) -> bool:
        self._reach()
        if watch is not None:
            self._ensemble.watch_data(path, watch)
        return path in self._ensemble.nodes

    async def ensure_chroot(self) -> None:
        self._reach()

    async def ensure(self, path: str) -> None:
        self._reach()
        for part in _ancestors(path):
            if part not in self._ensemble.nodes:
                self._ensemble.commit([lambda tree, part=part: tree.create(part, b"", 0)])  # type: ignore[misc]

    async def sync(self) -> None:
        self._reach()

    async def deliver_events(self) -> None:
        self._reach()
        delivered = asyncio.Event()
        self._ensemble.schedule(delivered.set)  # after every call that was scheduled before
        await delivered.wait()

    async def watch_below(self, path: str, fire: Callable[[str], None]) -> None:
        self._reach()
        self._ensemble.watch_below(self._session_id, path, fire)

    async def commit(self, build: Callable[[Any], None]) -> list[Any]:
        self._reach()
        if self._before_commit:
            await self._before_commit.pop(0)()
            self._reach()
        transaction = _Transaction(self._session_id)
        build(transaction)
        if self._lost:
            if self._lost.pop(0):
                self._ensemble.commit(transaction.writes)
            raise self._unavailable(sent=True)
        return self._ensemble.commit(transaction.writes)

    def watcher(self, event: StoreEvent) -> Watch:
        return lambda _: self._on_event(event) if self._connected else None

    def _tell(self, event: StoreEvent) -> None:
        self._ensemble.schedule(lambda: self._on_event(event))

    def _read(self, path: str) -> NodeRead | None:
        node = self._ensemble.nodes.get(path)
        return None if node is None else (node.data, node.stat)

    def _reach(self) -> None:
        if not self._connected:
            raise self._unavailable(sent=False)

    def _unavailable(self, *, sent: bool) -> TidemarkError:
        return TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE, "the fake ZooKeeper does not answer", {"sent": str(sent).lower()}
        )


def _ancestors(path: str) -> Iterator[str]:
    names = path.strip("/").split("/")
    for depth in range(1, len(names) + 1):
        yield "/" + "/".join(names[:depth])


class FakeMetadataStore(MetadataStore):
    """`zookeeper.store.MetadataStore` on a `FakeZooKeeper`; `session` injects the faults."""

    session: FakeSession

    def __init__(self, ensemble: FakeZooKeeper, session_timeout_ms: int = 6000) -> None:
        def session_of(on_event: Callable[[StoreEvent], None]) -> FakeSession:
            self.session = FakeSession(ensemble, session_timeout_ms, on_event)
            return self.session

        super().__init__(session_of)
