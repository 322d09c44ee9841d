# SPDX-License-Identifier: Apache-2.0
"""Asks the server of warm_command.py to be the command, and ends as that did. Standard library only: it starts often.

python -I -S warm_launcher.py SOCKET [argument ...]
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(sys.argv[1])
    call = {"words": sys.argv[2:], "environment": dict(os.environ), "directory": os.getcwd()}
    socket.send_fds(connection, [json.dumps(call).encode(), b"\n"], [0, 1, 2])
    answers = connection.makefile("rb")
    command = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(command, number))
    for descriptor in (0, 1, 2):  # they are the command's
        os.close(descriptor)
    status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
