# SPDX-License-Identifier: Apache-2.0
"""Renews the certificates, the authority and the token of a secure round, while all processes run; none is restarted.

Files are replaced one at a time, as `tidemark certs` and `tidemark token` do. So a process may see a key without its
certificate.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.local.certificates import AUTHORITY, Authority
from tidemark.local.cluster import ADMIN, CERTIFICATES, TOKENS, LocalCluster
from tidemark.rpc.security import token_file
from tidemark.rpc.security.paths import TlsFiles

from tests.chaos.arena.access import CLIENT, TOKEN_NAMES
from tests.chaos.arena.names import BROKERS, CONTROLLERS, ZOOKEEPER
from tests.chaos.arena.proxy import HOST
from tests.integration.harness.certificates import replace

_HOSTS: Final = (HOST, "localhost")
_SEEN_S: Final = 1.0
"""The longest time between two checks of a process for changed files, if the process uses the files."""
_ANSWERED_S: Final = 5.0
"""Longest wait for a server that is stopped or killed; a stopped server reads its files when it continues."""
_ASK_S: Final = 1.0
_IN_FLIGHT_S: Final = 15.0
"""Longest time for which the network may hold back a call with a replaced token."""


class Rotation:
    """Renewals in a secure cluster that has been started; called from one thread.

    Args:
        slowness: of the machine; waits are this much longer.
    """

    def __init__(self, cluster: LocalCluster, slowness: float) -> None:
        self._cluster = cluster
        self._slowness = slowness
        self._directory = cluster.directory / CERTIFICATES
        self._authorities = 1
        self._renewed_s = -float("inf")

    def renew_certificates(self) -> str:
        """Renew certificates and keys of all processes; returns a description of the change."""
        with self._nothing_ends():
            self._issue_all()
        return "all certificates are renewed"

    def replace_authority(self) -> str:
        """Trust the old and a new authority, renew all certificates, trust the new authority only.

        Returns a description of the change.
        """
        self._authorities += 1
        fresh = self._directory / f"authority-{self._authorities}"
        with self._nothing_ends():
            probe = Authority.create(fresh, "local").issue_client("probe")
            new = (fresh / f"{AUTHORITY}.crt").read_bytes()
            trusted = self._directory / f"{AUTHORITY}.crt"
            replace(trusted, new + trusted.read_bytes())  # the first certificate belongs to the key
            replace(self._directory / f"{AUTHORITY}.key", (fresh / f"{AUTHORITY}.key").read_bytes())
            silent = self._wait_for_servers(probe._replace(ca=str(trusted)))
            self._issue_all()
            silent += self._wait_for_servers(probe)
            time.sleep(_SEEN_S * self._slowness)  # now clients have read their new files, too
            replace(trusted, new)
        return f"the authority is replaced{', unseen by ' + ', '.join(sorted(set(silent))) if silent else ''}"

    def renew_token(self) -> str:
        """Give clients a new token; servers still accept the last token, and not an earlier one.

        Returns a description of the change.
        """
        path, hashes = self._cluster.token_file, self._cluster.directory / TOKENS
        assert path is not None
        known = list(token_file.read(hashes))
        if len(known) > 1:
            if time.monotonic() < self._renewed_s + _IN_FLIGHT_S * self._slowness:
                return "the token was renewed just now"
            token_file.remove(hashes, known.pop(0))
        name = TOKEN_NAMES[(TOKEN_NAMES.index(known[-1]) + 1) % len(TOKEN_NAMES)]
        replace(path, token_file.create(hashes, name).encode())
        self._renewed_s = time.monotonic()
        return f"the token is renewed, as {name}"

    @contextmanager
    def _nothing_ends(self) -> Iterator[None]:
        before = self._running()
        yield
        assert self._running() == before, f"a process ended with new files: {before}, {self._running()}"

    def _running(self) -> dict[str, int]:
        processes = {name: self._cluster.process(name) for name in self._cluster.names}
        return {name: process.pid for name, process in processes.items() if process.running}

    def _issue_all(self) -> None:
        authority = Authority.load(self._directory)
        for name in self._cluster.names:
            kind, _, number = name.partition("-")
            authority.issue_service(Role(kind), number or kind, _HOSTS)
        authority.issue_zookeeper("1", _HOSTS)
        authority.issue_client(CLIENT)

    def _wait_for_servers(self, files: TlsFiles) -> list[str]:
        """Wait until each server accepts these files and they accept its certificate.

        Returns the servers that did not answer.
        """
        waiting = self._servers()
        until_s = time.monotonic() + _ANSWERED_S * self._slowness
        while waiting and time.monotonic() < until_s:
            waiting = {name: port for name, port in waiting.items() if not self._agrees(name, port, files)}
        return list(waiting)

    def _servers(self) -> Mapping[str, int]:
        cluster = self._cluster
        addresses = {name: cluster.address(name) for name in (*BROKERS, *CONTROLLERS, ADMIN)}
        for name in (*BROKERS, ADMIN):
            addresses[f"{name} for clients"] = cluster.client_address(name, Listener.MTLS)
        return {ZOOKEEPER: cluster.zookeeper.port} | {
            name: int(address.rpartition(":")[2]) for name, address in addresses.items()
        }

    def _agrees(self, name: str, port: int, files: TlsFiles) -> bool:
        """Whether a server accepts the files: in TLS 1.3 a refusal follows the handshake, so this waits for bytes."""
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.certificate, files.key)
        if name != ZOOKEEPER:
            context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((HOST, port), timeout=_ASK_S * self._slowness) as connection,
                context.wrap_socket(connection, server_hostname=HOST) as secure,
            ):
                if name == ZOOKEEPER:
                    secure.sendall(b"srvr")
                return bool(secure.recv(1))
        except OSError:
            return False
