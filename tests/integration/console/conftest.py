# SPDX-License-Identifier: Apache-2.0
"""A browser, and a console over a cluster in memory that it opens."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from tidemark.console.app import Console
from tidemark.console.metrics import ConsoleMetrics
from tidemark.console.server import HttpServer
from tidemark.core.isr_change_reasons import IsrChange
from tidemark.model import BrokerId, LeaderEpoch
from tidemark.runtime.host_port import HostPort
from tidemark.runtime.metrics import Metrics

from tests.unit.console.conftest import FakeClients, FakeCluster, topic
from tests.unit.console.test_access_pages import GuardedCluster
from tests.unit.console.test_actions import ChangingCluster
from tests.unit.console.test_groups_pages import member, partition
from tests.unit.console.test_schema_page import TypedCluster
from tests.unit.console.test_transactions_pages import TransactionsCluster

REFRESH_MS = 100
STOP_S = 10
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--js-flags=--no-opt,--no-maglev")
"""Containers run tests as root, and have a small /dev/shm. No page lives long enough for the optimizing compilers."""


class WholeCluster(ChangingCluster, GuardedCluster, TransactionsCluster, TypedCluster):
    """A cluster with content for each page."""


class ServedConsole:
    """A console over `cluster`, at `url`, which changes something, too.

    Attributes:
        cluster: tests change it from their own thread; the console only reads it.
    """

    def __init__(self, cluster: FakeCluster, *, secure: bool = False) -> None:
        self.cluster = cluster
        self.url = ""
        self._secure = secure
        self._loop = asyncio.new_event_loop()
        self._serving = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="console")

    def start(self) -> None:
        self._thread.start()
        assert self._serving.wait(STOP_S)

    def stop(self) -> None:
        """Stop the console; may be called again."""
        if self._thread.is_alive() and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        clients: Any = FakeClients(self.cluster, secure=self._secure)
        console = Console(clients, refresh_ms=REFRESH_MS, write=True, metrics=ConsoleMetrics(Metrics()))
        server = HttpServer(console.app, HostPort("127.0.0.1", 0), grace_s=1)
        await server.start()
        self.url = f"http://localhost:{server.port}"
        self._serving.set()
        await self._stopping.wait()
        console.stop_streams()
        await server.stop()


@contextmanager
def served(cluster: FakeCluster, *, secure: bool = False) -> Iterator[ServedConsole]:
    console = ServedConsole(cluster, secure=secure)
    console.start()
    try:
        yield console
    finally:
        console.stop()


def executable() -> str | None:
    """The first browser in PATH; the one without windows takes half the CPU time."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for one file: an event loop runs in this thread meanwhile, so async tests are not possible."""
    found = executable()
    if found is None:
        pytest.skip("no browser: apt install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def served_console() -> Iterator[ServedConsole]:
    """A healthy cluster with 120 topics, some records, two groups, and content for each other page."""
    cluster = WholeCluster()
    cluster.topics.clear()
    cluster.add_group("readers", partition(0, 90), members=[member("m0", 0)])
    cluster.add_group("nightly", partition(0, 90), partition(1, -1))
    lagged = IsrChange(1_700_000_000_000, LeaderEpoch(3), 4, (BrokerId(0), BrokerId(1)), ((BrokerId(2), "lagging"),))
    cluster.isr_changes = {0: [lagged]}
    for number in range(60):
        cluster.log.add(f'{{"n":{number}}}'.encode(), key=b"k", headers=[("h", b"v")])
    cluster.add(topic("flights", 3, schema_version=3), *(topic(f"topic-{number:03}") for number in range(119)))
    with served(cluster) as console:
        yield console


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which the package bundles."""
    import axe_playwright_python

    (script,) = Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")
    return script.read_text(encoding="utf-8")
