# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper in simulated time: the shipping store's code over sessions with delays, lost answers and real expiry.

A request takes effect some time after it was sent, in the order of its session; its answer takes some time more, or is
lost with or without the effect. A session without a request for its timeout expires; its client is notified late.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from kazoo.exceptions import NodeExistsError
from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import StoreEvent
from tidemark.zookeeper import paths
from tidemark.zookeeper.session_port import NodeRead, Watch
from tidemark.zookeeper.sessions.session import LEASE_MARGIN_FRACTION, PING_FRACTION
from tidemark.zookeeper.store import MetadataStore

from tests.fakes.metadata_store import FakeZooKeeper, _ancestors, _Transaction
from tests.simulation.engine import Answer, Engine, Node
from tests.simulation.network.links import Network

T = TypeVar("T")

ZOOKEEPER = "zk"
_POLL_MS = 40


class Ensemble(FakeZooKeeper):
    """One tree; its watches fire late."""

    def __init__(self, engine: Engine, network: Network) -> None:
        super().__init__(schedule=self._fire)
        self.engine = engine
        self.network = network
        self.lost_answers = 0.0
        self.on_commit: Callable[[], None] = lambda: None

    def commit(self, writes: Sequence[Callable[[Any], Any]]) -> list[Any]:
        """Commit as the fake does; `on_commit` runs after every change of the tree."""
        results = super().commit(writes)
        self.on_commit()
        return results

    def _fire(self, call: Callable[[], None]) -> None:
        self.engine.after(self.engine.dice("watches").choice((0, 1, 5, 40, 150)), call)

    def sim_store(self, node: Node, session_timeout_ms: int) -> SimStore:
        return SimStore(node, self, session_timeout_ms)


class SimSession:
    """`session_port.Session` of one process."""

    def __init__(self, node: Node, ensemble: Ensemble, timeout_ms: int, on_event: Callable[[StoreEvent], None]) -> None:
        self._node = node
        self._ensemble = ensemble
        self._engine = ensemble.engine
        self._timeout_ms = timeout_ms
        self._on_event = on_event
        self._dice = self._engine.dice(f"zookeeper {node.name}")
        self._lease_until_ms = 0
        self._heard_ms = 0
        self._effect_ms = 0
        self._answer_ms = 0
        self._told_of_end = 0
        self.session_id = 0

    # -- the server's side -----------------------------------------------------------------------------------------

    def _touch(self, session_id: int) -> None:
        heard = self._heard_ms = self._engine.now

        def maybe_end() -> None:
            if self._heard_ms == heard:
                self._ensemble.close_session(session_id)

        self._engine.after(self._timeout_ms, maybe_end)

    def _is_live(self, session_id: int) -> bool:
        return self._ensemble.sessions.get(session_id) is self  # type: ignore[comparison-overlap]

    def _request(self, act: Callable[[], T], *, writes: bool) -> Answer[T]:
        """One request on the wire; a lost request fails immediately, as on a broken connection."""
        answer: Answer[T] = Answer()
        sent_ms, session_id, dice = self._engine.now, self.session_id, self._dice
        loses = dice.random() < self._ensemble.lost_answers
        applied = not loses or dice.random() < 0.5
        there, back = dice.choice((1, 2, 2, 20)), dice.choice((1, 2, 5, 5, 50, 120 if writes else 5))

        def answered(value: T | None, error: TidemarkError | None) -> None:
            self._answer_ms = max(self._answer_ms, self._engine.now + back)
            self._engine.at(
                self._answer_ms, lambda: self._node.run(lambda: self._settle(answer, value, error, sent_ms))
            )

        def take_effect() -> None:
            if not self._carried(True) or not applied:
                answered(None, self._unavailable(sent=True))
            elif not self._is_live(session_id):
                self._node.after(back, lambda: self._learn_end(session_id))
                answered(None, self._unavailable(sent=True))
            else:
                self._touch(session_id)
                value = act()
                lost = loses or not self._carried(False)
                answered(*((None, self._unavailable(sent=True)) if lost else (value, None)))

        self._effect_ms = max(self._effect_ms, self._engine.now + there)
        self._engine.at(self._effect_ms, take_effect)
        return answer

    def _carried(self, to_server: bool) -> bool:
        ends = (self._node.name, ZOOKEEPER) if to_server else (ZOOKEEPER, self._node.name)
        return self._ensemble.network.carries(*ends)

    def _settle(self, answer: Answer[T], value: T | None, error: TidemarkError | None, sent_ms: int) -> None:
        if error is None and self.session_id:
            self._lease_until_ms = max(self._lease_until_ms, sent_ms + self.lease_length_ms())
        answer.settle(value, error)

    def _learn_end(self, session_id: int) -> None:
        """The server's answer that the session has expired; this answer has a delay, too."""
        if self._told_of_end == session_id:
            return
        self._told_of_end = session_id

        def end() -> None:
            if self.session_id == session_id:
                self.session_id = 0
                self._lease_until_ms = 0
                self._on_event(StoreEvent.SESSION_EXPIRED)

        self._node.after(self._dice.choice((0, 5, 60, 400)), end)

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _reach(self) -> None:
        """Wait for a connection until the deadline."""
        if not self._node.alive:  # a coroutine of a dead process that is closed must not suspend again
            raise self._unavailable(sent=False)
        deadline_ms = self._engine.now + self.call_timeout_ms
        while self.session_id and not (self._carried(True) and self._carried(False)):
            if self._engine.now >= deadline_ms:
                break
            await self._node.sleep(_POLL_MS)
        else:
            if self.session_id:
                return
        raise self._unavailable(sent=False)

    async def _read(self, act: Callable[[], T]) -> T:
        deadline_ms = self._engine.now + self.call_timeout_ms
        while True:
            await self._reach()
            try:
                return await self._request(act, writes=False)
            except TidemarkError:
                if not self.session_id or self._engine.now >= deadline_ms:
                    raise

    def _unavailable(self, *, sent: bool) -> TidemarkError:
        metadata = {"sent": str(sent).lower()}
        return TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "the simulated ZooKeeper does not answer", metadata)

    # -- as session_port.Session -------------------------------------------------------------------------------------

    @property
    def call_timeout_ms(self) -> int:
        return max(self._timeout_ms, 1000)

    def lease_valid_until_ms(self) -> int:
        return self._lease_until_ms

    def lease_length_ms(self) -> int:
        return self._timeout_ms - self._timeout_ms // LEASE_MARGIN_FRACTION

    def now_ms(self) -> int:
        return self._engine.now

    async def pause(self) -> None:
        await self._node.sleep(100)

    async def give_way(self) -> None:
        """Does nothing: simulated time passes only between messages."""

    async def gather(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run the calls one after the other; the first failure is raised when all have ended."""
        found: list[T] = []
        failure: TidemarkError | None = None
        try:
            for call in calls:
                try:
                    found.append(await call)
                except TidemarkError as error:
                    failure = failure or error
        finally:
            for call in calls:
                call.close()
        if failure is not None:
            raise failure
        return found

    async def start(self) -> None:
        assert not self.session_id, "started already"
        deadline_ms = self._engine.now + self.call_timeout_ms
        while not (self._carried(True) and self._carried(False)):
            if self._engine.now >= deadline_ms:
                raise self._unavailable(sent=False)
            await self._node.sleep(_POLL_MS)
        sent_ms = self._engine.now
        self.session_id = session_id = self._ensemble.open_session(self)  # type: ignore[arg-type]
        self._touch(session_id)
        await self._node.sleep(self._dice.choice((2, 5, 30)))
        if self.session_id == session_id:
            self._lease_until_ms = sent_ms + self.lease_length_ms()
            self._node.spawn(self._keep_alive(session_id))

    async def _keep_alive(self, session_id: int) -> None:
        while self.session_id == session_id:
            try:
                await self._read(lambda: None)
            except TidemarkError:
                await self._node.sleep(50)
            await self._node.sleep(self._timeout_ms // PING_FRACTION)

    async def stop(self) -> None:
        self._ensemble.close_session(self.session_id)
        self.session_id = 0
        self._lease_until_ms = 0

    async def renew(self) -> None:
        await self.stop()
        await self.start()

    def _node_of(self, path: str) -> NodeRead | None:
        node = self._ensemble.nodes.get(path)
        if node is None or path.startswith(paths.TOPIC_CONFIGS):
            return None if node is None else (node.data, node.stat)
        # No node is deleted manually here: a partition without nodes is new, and the controller asks no broker.
        return (node.data, node.stat._replace(cversion=0, numChildren=0))

    async def read_many(self, paths: Sequence[str]) -> list[NodeRead | None]:
        return await self._read(lambda: [self._node_of(path) for path in paths])

    async def get(self, path: str, watch: Watch | None = None) -> NodeRead | None:
        def act() -> NodeRead | None:
            found = self._node_of(path)
            if watch is not None and found is not None:
                self._ensemble.watch_data(path, watch)
            return found

        return await self._read(act)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def act() -> list[str]:
            if path not in self._ensemble.nodes:
                if watch is not None:
                    self._ensemble.watch_data(path, watch)
                return []
            if watch is not None:
                self._ensemble.watch_children(path, watch)
            return self._ensemble.children(path)

        return await self._read(act)

    async def exists(self, path: str, watch: Watch | None = None) -> bool:
        def act() -> bool:
            if watch is not None:
                self._ensemble.watch_data(path, watch)
            return path in self._ensemble.nodes

        return await self._read(act)

    async def ensure_chroot(self) -> None:
        await self._reach()

    async def ensure(self, path: str) -> None:
        def act() -> None:
            for part in _ancestors(path):
                if part not in self._ensemble.nodes:
                    made = self._ensemble.commit([lambda tree, part=part: tree.create(part, b"", 0)])  # type: ignore[misc]
                    assert not isinstance(made[0], NodeExistsError)

        await self._read(act)

    async def sync(self) -> None:
        await self._read(lambda: None)

    async def commit(self, build: Callable[[Any], None]) -> list[Any]:
        await self._reach()
        transaction = _Transaction(self.session_id)
        build(transaction)
        return await self._request(lambda: self._ensemble.commit(transaction.writes), writes=True)

    def watcher(self, event: StoreEvent) -> Watch:
        """While a link is cut, a notification waits until the link works again."""

        def fire(_: Any) -> None:
            if not self._carried(False):
                self._engine.after(_POLL_MS, lambda: fire(None))
            else:
                self._node.run(lambda: self._on_event(event) if self.session_id else None)

        return fire


class SimStore(MetadataStore):
    """`zookeeper.store.MetadataStore` of one process in simulated time."""

    session: SimSession

    def __init__(self, node: Node, ensemble: Ensemble, session_timeout_ms: int) -> None:
        def session_of(on_event: Callable[[StoreEvent], None]) -> SimSession:
            self.session = SimSession(node, ensemble, session_timeout_ms, on_event)
            return self.session

        super().__init__(session_of)

    async def start(self) -> None:
        """Create the parents of the layout, with which a world begins."""
        self._watchers = {event: self._session.watcher(event) for event in StoreEvent}
        await self._session.start()
