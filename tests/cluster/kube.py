# SPDX-License-Identifier: Apache-2.0
"""Commands on a Kubernetes cluster: a given one (KUBECONFIG), or one that the scripts in $KUBE start."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]

_NODES: Final = "3"
_VOLUMES_PER_NODE: Final = "20"
_UP_TIMEOUT_S: Final = 1500.0
"""Includes building the programs of the cluster; a minute once they exist."""
_COMMAND_TIMEOUT_S: Final = 120.0
_NOT_BEGUN: Final = "Unable to connect to the server"
"""Error of kubectl and helm if a busy API server did not accept the connection in 10 s."""
_CONNECT_ATTEMPTS: Final = 5


class CommandError(Exception):
    """A command failed or timed out."""


class Cluster:
    """A cluster and one namespace in it.

    Args:
        namespace: the namespace of `kubectl` and `helm`.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._given = bool(os.environ.get("KUBECONFIG"))
        self._scripts = (ROOT / os.environ.get("KUBE", "")).resolve()
        state = Path(os.environ.get("TMPDIR", "/tmp")) / "kt"
        self._environment = {
            "KT_NODES": _NODES,
            "KT_PVS": _VOLUMES_PER_NODE,
            "KT_BIN": str(state / "bin"),
            "KT_STATE": str(state / "state"),
            **os.environ,
        }
        self._started = False

    @property
    def own(self) -> bool:
        """Whether the scripts start the cluster, so that they can stop nodes and load images."""
        return not self._given

    @property
    def is_up(self) -> bool:
        """Whether a cluster is available: a given one, or one that the scripts run."""
        return self._given or (Path(self._environment["KT_STATE"]) / "init.pid").exists()

    @property
    def programs(self) -> Path:
        """Directory of the scripts for programs and base images."""
        return Path(self._environment["KT_BIN"])

    def up(self) -> None:
        """Start a cluster, unless one is given or runs already."""
        if self.is_up:
            return
        if not (self._scripts / "cluster.sh").exists():
            raise CommandError(
                f"no cluster: set KUBECONFIG, or KUBE to scripts that start one; none in {self._scripts}"
            )
        self.programs.mkdir(parents=True, exist_ok=True)
        self.script("deps.sh", timeout_s=_UP_TIMEOUT_S)
        if not all((self.programs / name).exists() for name in ("helm", "kubectl")):
            self.script("get-helm.sh", str(self.programs), timeout_s=_UP_TIMEOUT_S)
        self.script("build.sh", str(self.programs), timeout_s=_UP_TIMEOUT_S)
        self.script("cluster.sh", "up", timeout_s=_UP_TIMEOUT_S)
        self._started = True

    def down(self) -> None:
        """Stop the cluster that `up` started."""
        if self._started:
            self.script("cluster.sh", "down", timeout_s=_UP_TIMEOUT_S)

    def script(self, name: str, *arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S, **more: str) -> str:
        """Run one of the scripts in $KUBE; `more`: environment variables."""
        return _run([str(self._scripts / name), *arguments], timeout_s, env={**self._environment, **more})

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
        """Run kubectl in the namespace; returns its output."""
        return self._command(["kubectl", "-n", self.namespace, *arguments], stdin, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
        """Run helm in the namespace; returns its output."""
        return self._command(["helm", "-n", self.namespace, *arguments], None, timeout_s)

    def objects(self, *arguments: str) -> dict[str, Any]:
        """The result of `kubectl get ARGUMENTS -o json`."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a kubectl whose output is read later."""
        return subprocess.Popen(
            [*self._prefix(), "kubectl", "-n", self.namespace, *arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut_off(self, node: int) -> None:
        """Disconnect a node (of a started cluster, not the first) from all others, until `reconnect`."""
        self._link(node, "down")

    def reconnect(self, node: int) -> None:
        """Undo `cut_off`."""
        self._link(node, "up")

    def _link(self, node: int, state: str) -> None:
        first = (Path(self._environment["KT_STATE"]) / "init.pid").read_text(encoding="ascii").strip()
        inside = ["nsenter", "-t", first, "--net", "--"]
        _run([*inside, "ip", "link", "set", f"to-{node}", state], _COMMAND_TIMEOUT_S, env=self._environment)

    def _prefix(self) -> list[str]:
        return [] if self._given else [str(self._scripts / "cluster.sh"), "exec"]

    def _command(self, command: Sequence[str], stdin: str | None, timeout_s: float) -> str:
        for _ in range(_CONNECT_ATTEMPTS - 1):
            try:
                return _run([*self._prefix(), *command], timeout_s, env=self._environment, stdin=stdin)
            except CommandError as error:
                if _NOT_BEGUN not in str(error):
                    raise
        return _run([*self._prefix(), *command], timeout_s, env=self._environment, stdin=stdin)


def _run(command: Sequence[str], timeout_s: float, *, env: dict[str, str], stdin: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, env=env, input=stdin or "", capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"not done after {timeout_s:g} s: {' '.join(command)}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise CommandError(f"status {done.returncode}: {' '.join(command)[:300]}\n{said}")
    return done.stdout


def wait_for(what: str, timeout_s: float, look: Callable[[], object], pause_s: float = 0.5) -> float:
    """Repeat `look` until it returns a true value; a failing command counts as false. Returns the seconds.

    Raises:
        AssertionError: `look` did not become true in time; the message has its last value.
    """
    begun_s = time.monotonic()
    seen: object = None
    while time.monotonic() - begun_s < timeout_s:
        try:
            seen = look()
        except CommandError as error:
            seen = error
        else:
            if seen:
                return time.monotonic() - begun_s
        time.sleep(pause_s)
    raise AssertionError(f"after {timeout_s:g} s still not: {what} (last seen: {seen})")
