# SPDX-License-Identifier: Apache-2.0
"""Has the server of warm_command.py fork the command, and ends as the command did.

python -I -S warm_launcher.py SOCKET [argument ...]

This process starts hundreds of times in a run of the tests, so it imports only modules that are written in C: `socket`,
`signal`, `json` and `os` would take more than half of its CPU time.
"""

import posix
import sys
from _json import encode_basestring_ascii as quoted
from _signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, signal
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

STREAMS = (0, 1, 2)


def main() -> None:
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.connect(sys.argv[1])
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in STREAMS)
    connection.sendmsg([call(sys.argv[2:]), b"\n"], [(SOL_SOCKET, SCM_RIGHTS, files)])
    command = line_of(connection)
    for number in (SIGHUP, SIGINT, SIGTERM):
        signal(number, lambda number, _: posix.kill(command, number))
    for descriptor in STREAMS:  # the streams belong to the command
        posix.close(descriptor)
    status = line_of(connection)
    if status < 0:
        signal(-status, SIG_DFL)
        posix.kill(posix.getpid(), -status)
    posix._exit(status)


def call(words: list[str]) -> bytes:
    """The bytes of a call, as `send_call` of warm.py sends them."""
    variables = ((text(name), text(value)) for name, value in posix.environ.items())
    environment = ", ".join(f"{quoted(name)}: {quoted(value)}" for name, value in variables)
    listed = ", ".join(map(quoted, words))
    whole = f'{{"words": [{listed}], "environment": {{{environment}}}, "directory": {quoted(posix.getcwd())}}}'
    return whole.encode()


def text(value: bytes) -> str:
    return value.decode(sys.getfilesystemencoding(), "surrogateescape")


def line_of(connection: socket) -> int:
    """The number in the next line; an error if the server has gone."""
    line = b""
    while (byte := connection.recv(1)) not in (b"", b"\n"):
        line += byte
    return int(line)


main()
