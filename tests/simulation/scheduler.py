# SPDX-License-Identifier: Apache-2.0
"""`ports.Scheduler` in the simulated time of one process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidemark.ports import Signal

from tests.simulation.engine import Answer, Node

T = TypeVar("T")


class SimSignal:
    """`ports.Signal`: waiting coroutines resume from the queue of the engine, not inside `set`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_set = False
        self._waiting: list[Answer[None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            self._node.after(0, answer.settle)

    def clear(self) -> None:
        self._is_set = False

    def changed(self) -> Answer[None]:
        """An answer that is settled when the flag is set."""
        answer: Answer[None] = Answer()
        if self._is_set:
            answer.settle()
        else:
            self._waiting.append(answer)
        return answer

    async def wait(self) -> None:
        await self.changed()


class SimScheduler:
    """Steps coroutines on a node: not while the node is stopped, and never after its death or `stop`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.engine.at_end.append(self.close)
        self._tasks: dict[Coroutine[Any, Any, None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Start `work`, as a new asyncio task: it begins after the callbacks that are ready now."""

        def step() -> None:
            if work not in self._tasks:
                return
            try:
                awaited: Answer[Any] = work.send(None)
            except StopIteration:
                self._tasks.pop(work, None)
            except Exception as error:  # noqa: BLE001 - `on_error` judges
                self._tasks.pop(work, None)
                on_error(error)
            else:
                awaited.when_settled(resume)

        def resume() -> None:
            self._node.run(step)

        self._tasks[work] = None
        self._node.after(0, step)

    def call_soon(self, work: Callable[[], None]) -> None:
        self._node.after(0, work)

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._node.sleep(duration_ms)

    def signal(self) -> SimSignal:
        return SimSignal(self._node)

    async def wait(self, signal: Signal, timeout_ms: int) -> None:
        assert isinstance(signal, SimSignal), "signals and schedulers of one world belong together"
        answer = signal.changed()
        self._node.after(timeout_ms, answer.settle)
        await answer

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work in turn: other work of this instant comes first."""
        await self._node.sleep(0)
        return work()

    async def stop(self) -> None:
        self.close()

    def close(self) -> None:
        """End all coroutines, those that have not begun included."""
        tasks, self._tasks = self._tasks, {}
        for work in tasks:
            work.close()
