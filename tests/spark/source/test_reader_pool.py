# SPDX-License-Identifier: Apache-2.0
"""Readers that tasks of one worker process use one after another; without Spark and brokers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.model import ErrorCode, TidemarkError
from tidemark_spark.reader_pool import ReaderPool

PATIENCE_S = 20.0


class Reader(RangeReader):
    """A reader without a broker; it records its close."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", deadline_s=1.0)
        self.closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


@pytest.fixture
def pool() -> Iterator[ReaderPool]:
    made = ReaderPool(idle_s=3600.0)
    yield made
    made.close()


def use(pool: ReaderPool, key: str = "options") -> Reader:
    """The reader of a task that came to its end."""
    with pool.lend(key, Reader) as reader:
        assert isinstance(reader, Reader)
        return reader


def test_the_next_task_with_the_same_options_gets_the_same_reader(pool: ReaderPool) -> None:
    first = use(pool)
    assert use(pool) is first
    assert use(pool, "other options") is not first
    assert not first.closed.is_set()


def test_two_tasks_at_the_same_time_get_two_readers(pool: ReaderPool) -> None:
    with pool.lend("options", Reader) as one, pool.lend("options", Reader) as other:
        assert one is not other
    assert {use(pool), use(pool)} <= {one, other}


def test_a_failed_task_leaves_no_reader_behind(pool: ReaderPool) -> None:
    failed = use(pool)

    def task() -> None:
        with pool.lend("options", Reader) as reader:
            assert reader is failed
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the leader does not answer")

    with pytest.raises(TidemarkError):
        task()
    assert failed.closed.is_set()
    assert use(pool) is not failed


def test_a_cancelled_task_leaves_no_reader_behind(pool: ReaderPool) -> None:
    def rows() -> Iterator[RangeReader]:
        with pool.lend("options", Reader) as reader:
            while True:
                yield reader

    task = rows()
    cancelled = next(task)
    assert isinstance(cancelled, Reader)
    del task  # Spark drops the generator in the same way
    assert cancelled.closed.is_set()
    assert use(pool) is not cancelled


def test_an_idle_reader_is_closed() -> None:
    pool = ReaderPool(idle_s=0.05)
    first = use(pool)
    assert first.closed.wait(PATIENCE_S)
    second = use(pool)
    assert second is not first
    assert second.closed.wait(PATIENCE_S), "the timer runs again"


def test_a_reader_in_use_is_not_closed() -> None:
    pool = ReaderPool(idle_s=0.05)
    with pool.lend("other options", Reader) as busy:
        assert isinstance(busy, Reader)
        assert use(pool).closed.wait(PATIENCE_S)
        assert not busy.closed.is_set()


def test_a_forked_process_neither_uses_nor_closes_the_readers_of_its_parent(pool: ReaderPool) -> None:
    idle = use(pool)
    with pool.lend("options", Reader) as lent:
        assert lent is idle
    with pool.lend("other options", Reader) as lent:
        child = os.fork()
        if child == 0:
            mine = use(pool)
            pool.close()
            as_it_should = mine is not idle and mine.closed.is_set() and not idle.closed.is_set()
            os._exit(0 if as_it_should else 1)
    assert isinstance(lent, Reader)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert use(pool) is idle


def test_a_task_that_was_forked_does_not_close_the_reader_of_its_parent(pool: ReaderPool) -> None:
    def rows() -> Iterator[RangeReader]:
        with pool.lend("options", Reader) as reader:
            yield reader
            yield reader

    task = rows()
    lent = next(task)
    assert isinstance(lent, Reader)
    child = os.fork()
    if child == 0:
        del task
        os._exit(1 if lent.closed.is_set() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(task)) == 1
    assert use(pool) is lent
