"""Service processes without the time that their imports take.

For each kind of service one process per test worker has imported what that imports, and nothing else; for each service
that a test starts it forks one that becomes `python -m <module> <arguments>`, with the environment and the output of
that. The fork becomes a child of the worker, so that it is waited for, stopped and killed as any other; a broker starts
in a tenth of the CPU time. What the worker's
own interpreter would not have given it, a launcher or variables that an interpreter reads when it starts, gets a fresh
process, and so do the tests of tests/integration/test_local_cluster.py. Linux only; elsewhere all are fresh.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.util
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
from tidemark.local.process import ServiceProcess

ROOT: Final = Path(__file__).resolve().parents[2]
SERVICES: Final = ROOT / "services"
MODULES: Final = ("tidemark.broker", "tidemark.controller", "tidemark.admin", "tests.chaos.group_member")
READ_AT_THE_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "GRPC_", "ARROW_", "OMP_", "OPENBLAS_")
"""Of variables whose names begin so, a process that runs already has taken its own."""
READY_TIMEOUT_S: Final = 60.0
ADOPTED_TIMEOUT_S: Final = 60.0
_PR_SET_CHILD_SUBREAPER: Final = 36  # <linux/prctl.h>

_fresh_spawn = ServiceProcess._spawn
_adopting = threading.Lock()


class Adopted(subprocess.Popen[bytes]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, command: list[str]) -> None:
        self.args = command
        self.pid = pid
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None  # type: ignore[assignment]
        self._ending = threading.Lock()

    def poll(self) -> int | None:
        with self._ending:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            ends = os.pidfd_open(self.pid)
            try:
                select.select([ends], [], [], timeout)
            finally:
                os.close(ends)
        if (status := self.poll()) is None:
            assert timeout is not None, "it has ended"
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


@contextlib.contextmanager
def warm_services() -> Iterator[None]:
    """Meanwhile `ServiceProcess.start` forks what may be forked."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(ServiceProcess, "_spawn", _spawn)
        yield


@contextlib.contextmanager
def fresh_services() -> Iterator[None]:
    """Meanwhile each is started as its users start it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServiceProcess, "_spawn", _fresh_spawn)
        yield


def _spawn(process: ServiceProcess, output: BinaryIO) -> subprocess.Popen[bytes]:
    command, environment = process._command, {**os.environ, **process._environment}
    if command[:2] != [sys.executable, "-m"] or command[2] not in MODULES:
        return _fresh_spawn(process, output)
    place, born_with = _server(command[2])
    hook = _hook(born_with, environment)
    if hook is None:
        return _fresh_spawn(process, output)
    call = {"command": command, "environment": environment, "hook": hook, "directory": os.getcwd(), "for": os.getpid()}
    with _adopting, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _adopt_orphans(yes=True)  # before it can fork
        try:
            connection.connect(str(place))
            socket.send_fds(connection, [json.dumps(call).encode() + b"\n"], [output.fileno()])
            told = connection.makefile("rb").readline()
        finally:
            _adopt_orphans(yes=False)
    assert told, f"{process.name} ended before it began: {process.tail()}"
    return Adopted(int(told), command)


def _hook(born_with: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Where the code is that the interpreter is to run first; "": there is none; None: it cannot be one of ours."""
    changed = {name for name in born_with.keys() | wanted.keys() if born_with.get(name) != wanted.get(name)}
    if any(name.startswith(READ_AT_THE_START) for name in changed - {"PYTHONPATH"}):
        return None
    known = {str(ROOT), str(SERVICES), *_places(born_with)}
    unknown = [place for place in _places(wanted) if place not in known]
    if not unknown:
        return ""
    return unknown[0] if [path.name for path in Path(unknown[0]).iterdir()] == ["sitecustomize.py"] else None


def _places(environment: Mapping[str, str]) -> list[str]:
    return [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]


def _adopt_orphans(*, yes: bool) -> None:
    """Whether what is orphaned among our descendants becomes our child."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@functools.cache
def _server(module: str) -> tuple[Path, dict[str, str]]:
    """The socket of our own server of a module, which dies with us, and the environment that it was started in."""
    directory = Path(tempfile.mkdtemp(prefix="tidemark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "services"
    places = os.pathsep.join([str(SERVICES), str(ROOT), *_places(os.environ)])
    environment = {"PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"}  # what has threads is not to be forked
    own, arguments, log = "tests.integration.warm_service", [str(path), module], directory / "log"
    server = ServiceProcess(f"the server of {module}", own, arguments, log=log, environment=environment)
    server.start()
    atexit.register(server.kill)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not path.exists():
        assert server.running, server.tail(50)
        assert time.monotonic() < deadline_s, server.tail(50)
        time.sleep(0.01)
    return path, dict(os.environ)


def serve(path: str) -> dict[str, Any]:
    """Fork for every call; returns in the process that is to be the service, with the call."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)  # who sees it can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)  # what it has forked is an orphan now
            listener.close()
            return _become_the_service(connection)
        connection.close()


def _become_the_service(connection: socket.socket) -> dict[str, Any]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    beginning, (output,), _, _ = socket.recv_fds(connection, 1, 1)
    call: dict[str, Any] = json.loads(beginning + connection.makefile("rb").readline())
    deadline_s = time.monotonic() + ADOPTED_TIMEOUT_S
    while os.getppid() != call["for"]:
        assert time.monotonic() < deadline_s, "somebody else's child"
        time.sleep(0.0005)  # the one between is just ending
    os.setsid()
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.chdir(call["directory"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.orig_argv = call["command"]
    sys.argv = call["command"][2:]
    random.seed()
    if call["hook"]:
        sys.path.insert(0, call["hook"])
        runpy.run_path(str(Path(call["hook"]) / "sitecustomize.py"))
    connection.sendall(b"%d\n" % os.getpid())
    connection.close()
    return call


def _import_all_of(module: str) -> None:
    package = importlib.util.find_spec(module)
    assert package is not None, module
    run = f"{module}.__main__" if package.submodule_search_locations else module
    importlib.import_module(run)
    del sys.modules[run]  # it is to be run


if __name__ == "__main__":
    _import_all_of(sys.argv[2])
    gc.freeze()
    asked = serve(sys.argv[1])
    runpy.run_module(asked["command"][2], run_name="__main__", alter_sys=True)
