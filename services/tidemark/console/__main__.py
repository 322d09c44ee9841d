# SPDX-License-Identifier: Apache-2.0
"""`python -m tidemark.console`: assembles and runs the console."""

from __future__ import annotations

import contextlib
import logging
import sys
from importlib.metadata import PackageNotFoundError, version

from tidemark.client.metadata.bootstrap import parse_bootstrap
from tidemark.console.app import Console
from tidemark.console.queries.clients import Clients
from tidemark.console.server import HttpServer
from tidemark.model import TidemarkError
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.runtime.configuration.settings import ConsoleSettings, load_settings
from tidemark.runtime.logging import configure_logging
from tidemark.runtime.metrics import start_metrics_server, tell_what_runs
from tidemark.runtime.service import run_until_stopped
from tidemark.runtime.stalls import run_watched
from tidemark.runtime.termination import refuse_settings

_log = logging.getLogger("tidemark.console")


async def serve(settings: ConsoleSettings) -> int:
    """Run the console until SIGTERM; returns the exit code of the process."""
    tell_what_runs("console")
    console = Console(
        Clients(settings.bootstrap, settings.cluster_tls_ca_file),
        refresh_ms=settings.console_refresh_ms,
        hosts=[host.strip() for host in settings.console_hosts.split(",") if host.strip()],
        version=_version(),
        write=settings.console_write,
    )
    server = HttpServer(
        console.app,
        settings.console_listeners,
        certificate_file=settings.https_certificate_file,
        key_file=settings.https_key_file,
        grace_s=settings.shutdown_grace_ms / 1000,
    )
    stop = contextlib.AsyncExitStack()

    async def start() -> None:
        metrics = start_metrics_server(settings.metrics_listeners.host, settings.metrics_listeners.port)
        stop.callback(metrics.close)
        stop.push_async_callback(server.stop)
        await server.start()
        stop.callback(console.stop_streams)
        ports = {"ports": [server.port], "metrics_port": metrics.port}
        _log.info("serving", extra={"address": str(settings.console_listeners), **ports})

    return await run_until_stopped(start, stop.aclose, termination_path=settings.termination_message_path)


def main() -> None:
    """Run the console."""
    settings = load_settings(ConsoleSettings)
    configure_logging(settings.log_level, settings.log_format, ConsoleSettings.owner)
    try:
        parse_bootstrap(settings.bootstrap)
        if settings.cluster_tls_ca_file:
            TlsIdentity(TlsFiles(ca=settings.cluster_tls_ca_file))
    except TidemarkError as error:
        refuse_settings(ConsoleSettings.owner, settings.termination_message_path, error)
    sys.exit(run_watched(serve(settings)))


def _version() -> str:
    try:
        return version("tidemark")
    except PackageNotFoundError:  # run from a source tree
        return ""


if __name__ == "__main__":
    main()
