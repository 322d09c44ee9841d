# SPDX-License-Identifier: Apache-2.0
"""`python -m tidemark.broker --broker.id 0 --log.dirs ... --zookeeper.connect ... --listeners 127.0.0.1:9192`."""

from __future__ import annotations

import sys
from typing import Final

from tidemark.broker.lean_imports import lean_imports

with lean_imports():
    from tidemark.broker.process import BrokerProcess
    from tidemark.core.security.principals import Role
    from tidemark.rpc.security.handshakes import NativeLines
    from tidemark.rpc.security.service import load_ports
    from tidemark.runtime.configuration.settings import BrokerSettings, load_settings
    from tidemark.runtime.freed_memory import keep_freed_memory
    from tidemark.runtime.logging import configure_logging
    from tidemark.runtime.metrics import METRICS
    from tidemark.runtime.service import end_process, run_until_stopped
    from tidemark.runtime.stalls import run_watched

_SWITCH_INTERVAL_S: Final = 0.0005
"""Longest time that the event loop keeps the interpreter while an append thread that has written waits for it.

A tenth of Python's default, since this wait is part of every acknowledgement.
"""


async def _main() -> int:
    settings = load_settings(BrokerSettings)
    configure_logging(settings.log_level, settings.log_format, f"broker-{settings.broker_id}")
    process = BrokerProcess(settings, load_ports(settings, Role.BROKER, settings.broker_id))
    path = settings.termination_message_path
    with NativeLines(METRICS):
        return await run_until_stopped(process.start, process.stop, failed=process.failed, termination_path=path)


if __name__ == "__main__":
    keep_freed_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    end_process(run_watched(_main()))
