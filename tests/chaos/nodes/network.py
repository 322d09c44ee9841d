# SPDX-License-Identifier: Apache-2.0
"""Nodes as network namespaces on one bridge, each of which can be cut off without a reset; for root only."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType
from typing import Final

_SUBNET: Final = "10.231.77"
_BRIDGE: Final = "tidemark-br"


def node_address(node: int) -> str:
    """The address of a node, from 1."""
    return f"{_SUBNET}.{node}"


class NodeNetwork:
    """Namespaces `tidemark-node-1`, ... and this process outside them, all on one bridge.

    A node that is cut off drops every packet, in and out: no peer gets an error, and no connection is reset.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = range(1, nodes + 1)

    def launcher(self, node: int) -> list[str]:
        """The prefix of a command that runs on the node; the command replaces it."""
        return ["ip", "netns", "exec", _name(node)]

    def cut_off(self, node: int) -> None:
        """Drop every packet of a node, until `reconnect`."""
        for chain in ("INPUT", "OUTPUT"):
            _run(
                *self.launcher(node),
                "iptables",
                "-I",
                chain,
                "!",
                "-i" if chain == "INPUT" else "-o",
                "lo",
                "-j",
                "DROP",
            )

    def reconnect(self, node: int) -> None:
        """Undo `cut_off`."""
        _run(*self.launcher(node), "iptables", "-F")

    def __enter__(self) -> NodeNetwork:
        assert os.geteuid() == 0, "network namespaces need root"
        self.__exit__()
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{_SUBNET}.254/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        for node in self._nodes:
            name, outside = _name(node), f"tidemark-{node}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", outside, "master", _BRIDGE, "up")
            inside = ["ip", "-n", name]
            _run(*inside, "address", "add", f"{node_address(node)}/24", "dev", "eth0")
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "route", "add", "default", "via", f"{_SUBNET}.254")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        for node in self._nodes:
            subprocess.run(["ip", "link", "delete", f"tidemark-{node}"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", _name(node)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)


def _name(node: int) -> str:
    return f"tidemark-node-{node}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
