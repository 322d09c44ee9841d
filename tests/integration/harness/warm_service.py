# SPDX-License-Identifier: Apache-2.0
"""Services that start in a tenth of the CPU time: each is forked off a process that has imported it (warm.py).

For each kind of service there is one server per test worker, with the imports of that kind and no others. The worker
adopts each forked process: a fork is its child, to wait for, stop and kill as any other. A service under a launcher, or
with other variables that an interpreter reads at its start, is started without a fork. So are the services of
tests/integration/services/test_local_cluster.py. Linux only; elsewhere all are fresh.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
from tidemark.local.process import ServiceProcess

from tests.integration.harness import warm

MODULES: Final = ("tidemark.broker", "tidemark.controller", "tidemark.admin", "tests.chaos.group.member")
READ_AT_THE_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "GRPC_", "ARROW_", "OMP_", "OPENBLAS_")
"""A running process has read its own values of variables with this prefix."""
_PR_SET_CHILD_SUBREAPER: Final = 36  # <linux/prctl.h>

_fresh_spawn = ServiceProcess._spawn
_adopting = threading.Lock()


@contextlib.contextmanager
def warm_services() -> Iterator[None]:
    """Meanwhile `ServiceProcess.start` forks every service that may be forked."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(ServiceProcess, "_spawn", _spawn)
        yield


@contextlib.contextmanager
def fresh_services() -> Iterator[None]:
    """Meanwhile each service starts as its users start it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServiceProcess, "_spawn", _fresh_spawn)
        yield


def _spawn(process: ServiceProcess, output: BinaryIO) -> subprocess.Popen[bytes]:
    command, environment = process._command, {**os.environ, **process._environment}
    if command[:2] != [sys.executable, "-m"] or command[2] not in MODULES:
        return _fresh_spawn(process, output)
    server, born_with = _server(command[2])
    changed = {name for name in born_with | environment if born_with.get(name) != environment.get(name)}
    if any(name.startswith(READ_AT_THE_START) for name in changed - {"PYTHONPATH"}):
        return _fresh_spawn(process, output)
    return _Forked(command, server, environment, output)


@functools.cache
def _server(module: str) -> tuple[Path, dict[str, str]]:
    """The socket of this worker's server of a module, and the environment that it was started in."""
    places = os.pathsep.join([str(warm.ROOT / "services"), str(warm.ROOT), *warm.places(os.environ)])
    environment = {"PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not be forked
    return warm.start_server("tests.integration.harness.warm_service", module, environment=environment), dict(
        os.environ
    )


class _Forked(subprocess.Popen[bytes]):
    """A child of this process that a server forks instead of this process."""

    def __init__(self, command: list[str], server: Path, environment: Mapping[str, str], output: BinaryIO) -> None:
        self._server, self._environment, self._output = server, environment, output.fileno()
        super().__init__(command)

    def _execute_child(self, *_: Any) -> None:
        """Fork from the server, in place of Popen's fork."""
        command: list[str] = self.args  # type: ignore[assignment]
        with _adopting_orphans(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self._server))
            warm.send_call(connection, command, self._environment, [self._output] * 2)
            told = connection.makefile("rb").read()
        assert told, "the server's log states why nothing was forked"
        self.pid = int(told)
        self._child_created = True


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Meanwhile each orphan among the descendants of this process becomes its child."""
    with _adopting:
        _set_subreaper(True)
        try:
            yield
        finally:
            _set_subreaper(False)


def _set_subreaper(yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _import_all_of(module: str) -> None:
    package = importlib.util.find_spec(module)
    assert package is not None, module
    run = f"{module}.__main__" if package.submodule_search_locations else module
    importlib.import_module(run)
    del sys.modules[run]  # runpy runs the module again


def _become(command: list[str]) -> None:
    """The steps of a starting interpreter, up to the module's own code."""
    os.setsid()
    sys.orig_argv, sys.argv = command, command[2:]
    for place in map(os.path.abspath, reversed(warm.places(os.environ))):
        if place not in sys.path:
            sys.path.insert(0, place)
            if (hook := Path(place, "sitecustomize.py")).exists():
                runpy.run_path(str(hook))


if __name__ == "__main__":
    _import_all_of(sys.argv[2])
    asked = warm.serve(sys.argv[1], attend=None)
    _become(asked)
    runpy.run_module(asked[2], run_name="__main__", alter_sys=True)
