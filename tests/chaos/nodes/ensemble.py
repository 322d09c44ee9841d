# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper servers, one on each node, with the settings of the chart."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import yaml
from tidemark.local.zookeeper_process import java_command

from tests.chaos.nodes.network import NodeNetwork, node_address

CLIENT_PORT: Final = 2181
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_CHART: Final = Path(__file__).parents[3] / "charts" / "zookeeper"
_START_S: Final = 60.0


def chart_settings() -> dict[str, str]:
    """The chart's settings of ticks and limits."""
    values = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
    return {name: str(value) for name, value in values["config"].items()}


def chart_flags() -> list[str]:
    """The chart's flags for Java, except its memory."""
    values = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
    return str(values["jvmFlags"]).split()


class Ensemble:
    """Servers 1, 2, ... on the nodes of these numbers."""

    def __init__(self, network: NodeNetwork, directory: Path, nodes: int, settings: dict[str, str]) -> None:
        self._network = network
        self._directory = directory
        self._nodes = range(1, nodes + 1)
        self._settings = chart_settings() | settings
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def connect(self) -> str:
        """The value of `zookeeper.connect`."""
        return ",".join(f"{node_address(node)}:{CLIENT_PORT}" for node in self._nodes)

    def start(self) -> None:
        """Start all servers, and wait until each serves."""
        for node in self._nodes:
            self._launch(node)
        deadline_s = time.monotonic() + _START_S
        while not all(self.mode(node) for node in self._nodes):
            assert time.monotonic() < deadline_s, "the ensemble does not serve"
            time.sleep(0.1)

    def leader(self) -> int:
        """The node whose server leads."""
        (found,) = [node for node in self._nodes if self.mode(node) == "leader"]
        return found

    def mode(self, node: int) -> str:
        """Role of a server: leader, follower, or "" while the server does not serve."""
        try:
            with socket.create_connection((node_address(node), CLIENT_PORT), timeout=0.5) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return ""
        found = re.search(rb"Mode: (\w+)", answer)
        return found.group(1).decode() if found else ""

    def stop(self) -> None:
        """Kill all servers."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _launch(self, node: int) -> None:
        home = self._directory / f"zookeeper-{node}"
        (home / "data").mkdir(parents=True)
        (home / "data" / "myid").write_text(str(node), encoding="ascii")
        lines = [f"dataDir={home / 'data'}", f"clientPort={CLIENT_PORT}", "admin.enableServer=false"]
        lines += [f"{key}={value}" for key, value in self._settings.items()]
        lines += ["4lw.commands.whitelist=ruok,srvr,mntr", "quorumListenOnAllIPs=true"]
        lines += [f"server.{one}={node_address(one)}:2888:3888" for one in self._nodes]
        (home / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (home / "log4j2.properties").write_text(_LOG_CONFIG, encoding="utf-8")
        command, main = java_command(home), [_MAIN, str(home / "zoo.cfg")]
        with (home / "console.log").open("wb") as console:
            self._processes.append(
                subprocess.Popen(
                    [*self._network.launcher(node), command[0], *chart_flags(), *command[1:], *main],
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )


_LOG_CONFIG: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
