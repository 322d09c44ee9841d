# SPDX-License-Identifier: Apache-2.0
"""Processes without the time that their imports take, forked off one that has imported everything already.

A test worker starts such a server, which then waits at a Unix socket. For each connection it forks an attendant, and
that forks the process: with the environment, directory and open files that the call names, it becomes a service
(warm_service.py) or the command (warm_command.py). The attendant sends its pid, and stays only for a task.
"""

from __future__ import annotations

import atexit
import encodings.idna  # noqa: F401 - each process that is forked would import this for its first address
import gc
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tidemark.local.process import ServiceProcess

ROOT: Final = Path(__file__).resolve().parents[3]
READY_TIMEOUT_S: Final = 60.0

Attend = Callable[[socket.socket, int], None]
"""An attendant's work with the connection, after it has sent the pid of the process."""


def start_server(module: str, *arguments: str, environment: Mapping[str, str]) -> Path:
    """The socket of `python -m MODULE SOCKET ARGUMENTS`, which ends with this process; returns when it listens."""
    directory = Path(tempfile.mkdtemp(prefix="tidemark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path, log = directory / "socket", directory / "log"
    name = " ".join(["the server", module, *arguments])
    server = ServiceProcess(name, module, [str(path), *arguments], log=log, environment=environment)
    server.start()
    atexit.register(server.kill)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not path.exists():
        assert server.running, server.tail(50)
        assert time.monotonic() < deadline_s, server.tail(50)
        time.sleep(0.01)
    return path


def places(environment: Mapping[str, str]) -> list[str]:
    """Directories of the PYTHONPATH of an environment."""
    return [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]


def send_call(connection: socket.socket, words: list[str], environment: Mapping[str, str], files: list[int]) -> None:
    """Ask a server for a process; `files` become its standard streams, the last ones of 0, 1 and 2."""
    call = {"words": words, "environment": dict(environment), "directory": os.getcwd()}
    socket.send_fds(connection, [json.dumps(call).encode() + b"\n"], files)


def serve(path: str, attend: Attend | None) -> list[str]:
    """Fork for every call; returns in the process that is forked, with the words of the call.

    Args:
        attend: None: the attendant ends immediately, and the process is an orphan before the caller sees the end of the
            connection.
    """
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)  # a client that sees the socket can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return _fork_the_process(connection, attend)


def _fork_the_process(connection: socket.socket, attend: Attend | None) -> list[str]:
    beginning, files, _, _ = socket.recv_fds(connection, 1, 3)
    call: dict[str, Any] = json.loads(beginning + connection.makefile("rb").readline())
    attendant = os.getpid()
    process = os.fork()
    if process:
        for file in files:
            os.close(file)
        connection.sendall(b"%d\n" % process)
        if attend is not None:
            attend(connection, process)
        os._exit(0)
    _take_over(call, files)
    while attend is None and os.getppid() == attendant:
        time.sleep(0.0005)  # the process is just ending
    connection.close()
    words: list[str] = call["words"]
    return words


def _take_over(call: dict[str, Any], files: list[int]) -> None:
    for target, file in zip(range(3 - len(files), 3), files, strict=True):
        os.dup2(file, target)
        os.close(file)
    os.chdir(call["directory"])
    os.environ.clear()
    os.environ.update(call["environment"])
    random.seed()


def run_and_end(main: Callable[[], object]) -> None:
    """Run a function that ends this process, then end as an interpreter does, but without its clean-up.

    To free all that the server has imported takes more CPU time than most commands.
    """
    status = 0
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(status)  # the interpreter reports it
    os._exit(status)
