# SPDX-License-Identifier: Apache-2.0
"""A console as a separate process, for a cluster that tests share."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.local.cluster import LocalCluster
from tidemark.local.process import ServiceProcess

from tests.integration.harness.waiting import wait_for
from tests.unit.broker.scraped import scraped


class RunningConsole:
    """A console process, and its address for browsers."""

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        return f"http://localhost:{self._said('ports')[0]}"

    def samples(self) -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._said('metrics_port')}/metrics", timeout=10) as answer:
            return scraped(answer.read())

    def wait(self) -> None:
        wait_for(lambda: self._said("ports") is not None or not self.process.running, "the console serves")
        assert self.process.running, self.process.tail()

    def _said(self, name: str) -> Any:
        lines = self.process.log.read_text().splitlines()
        return next((found[name] for found in map(json.loads, lines) if name in found), None)


@contextmanager
def console_of(
    cluster: LocalCluster, directory: Path, *, secure: bool = False, **settings: str
) -> Iterator[RunningConsole]:
    """A console over this cluster; `settings` by their keys with underscores."""
    flags = {
        "bootstrap": cluster.token_bootstrap if secure else cluster.bootstrap,
        "console.listeners": "127.0.0.1:0",
        "metrics.listeners": "127.0.0.1:0",
        "console.refresh.ms": "200",
        **({"cluster.tls.ca.file": str(cluster.client_files.ca)} if secure else {}),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    arguments = [part for key, value in flags.items() for part in (f"--{key}", value)]
    process = ServiceProcess("console", "tidemark.console", arguments, log=directory / "console.log", environment={})
    process.start()
    try:
        running = RunningConsole(process)
        running.wait()
        yield running
    finally:
        process.kill()
