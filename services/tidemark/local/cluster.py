# SPDX-License-Identifier: Apache-2.0
"""A cluster on loopback: ZooKeeper, controllers, an admin service, brokers and a console, each in its own process."""

from __future__ import annotations

import asyncio
import http
import http.client
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import SCHEME, Role
from tidemark.local.certificates import AUTHORITY, Authority
from tidemark.local.directory import HeldDirectory
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ServiceProcess
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security import token_file
from tidemark.rpc.security.channels import BlockingChannels
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import FILE_VARIABLES, SETTINGS, TlsFiles

__all__ = ["ADMIN", "CONSOLE", "LocalCluster", "broker_name", "controller_name", "fixed_ports"]

ADMIN: Final = "admin"
CONSOLE: Final = "console"
ZOOKEEPER: Final = "zookeeper"
CERTIFICATES: Final = "certs"
TOKENS: Final = "tokens"
FIRST_CONTROLLER_ID: Final = 100

_READY_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_POLL_INTERVAL_S: Final = 0.03
_HEALTH_TIMEOUT_S: Final = 0.5
_METRICS_STEP: Final = 100
_CLIENT_STEPS: Final = {200: Listener.MTLS, 300: Listener.TOKEN}
_NODE_STEP: Final = 10
_CLUSTER: Final = "local"
_USER: Final = "dev"
_SUPER_USERS: Final = f"User:{SCHEME}://{_CLUSTER}/user/{_USER};User:token:{_USER}"
_REPLICATION_FACTOR: Final = 3
_HOST_NAME: Final = "localhost"


def broker_name(broker_id: int) -> str:
    """Name of the broker's process."""
    return f"broker-{broker_id}"


def controller_name(index: int) -> str:
    """Name of the process of controller `index`, from 0; its controller.id is 100 + index."""
    return f"controller-{FIRST_CONTROLLER_ID + index}"


def fixed_ports(brokers: int, controllers: int) -> dict[str, int]:
    """Ports of `tidemark dev`: brokers 9192, 9202, ..., controllers 9193, 9203, ..., admin 9194, console 9195; ports
    of metrics are 100 above.
    """
    ports = {ZOOKEEPER: 9181, ADMIN: 9194, CONSOLE: 9195}
    ports |= {broker_name(index): 9192 + _NODE_STEP * index for index in range(brokers)}
    ports |= {controller_name(index): 9193 + _NODE_STEP * index for index in range(controllers)}
    return ports


class LocalCluster:
    """A cluster with its data in `directory`; a later start reuses the data.

    Its calls block; async code uses `async with`, or `asyncio.to_thread`. All processes of the cluster end with this
    process.

    Args:
        directory: data in zookeeper/ and broker-N/, logs of the processes in logs/.
        brokers: number of brokers; their ids are 0, 1, ...
        controllers: number of controllers; their ids are 100, 101, ...
        ports: port of each process, by name, its metrics 100 above; None: free ports, reserved while this object is
            started.
        console: whether the console runs, too.
        settings: more flags, by dotted key, for all services of a kind ("broker", "controller", "admin", "console") or
            for one service ("broker-0").
        environment: variables added to this process's environment, for every service.
        secure: TLS for every process, with an authority and certificates in certs/; ZooKeeper accepts only sessions
            with a certificate. There is a listener of each kind. `client_files` are the TLS files of a user,
            `token_file` has a user's token; both are super users, if `settings` have `authorization.enabled`.
        launchers: a command prefix, by name of a service. The prefix must exec the service, as `env` does, so that
            signals reach the service.
        before_services: called with `zookeeper.connect` at a start, when ZooKeeper serves; its error ends the start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        controllers: int = 2,
        ports: Mapping[str, int] | None = None,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        environment: Mapping[str, str] | None = None,
        launchers: Mapping[str, Sequence[str]] | None = None,
        secure: bool = False,
        console: bool = False,
        before_services: Callable[[str], None] = lambda connect: None,
    ) -> None:
        self.directory = directory.absolute()
        self._brokers = [broker_name(index) for index in range(brokers)]
        self._controllers = [controller_name(index) for index in range(controllers)]
        self._consoles = [CONSOLE] if console else []
        self._fixed = dict(ports or {})
        self._settings = {kind: dict(flags) for kind, flags in (settings or {}).items()}
        # Files of a client, which a user may have exported: the services must not take them for their own.
        self._environment = dict.fromkeys(FILE_VARIABLES, "") | dict(environment or {})
        self._launchers = dict(launchers or {})
        self._secure = secure
        self._before_services = before_services
        self._authority: Authority | None = None
        self.client_files = TlsFiles()
        self.token_file: Path | None = None
        self._ports = HeldPorts()
        self._held = HeldDirectory(self.directory)
        self._zookeeper: ZooKeeperProcess | None = None
        self._services: dict[str, ServiceProcess] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the services, in the order of their start; without ZooKeeper."""
        return (*self._controllers, ADMIN, *self._brokers, *self._consoles)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, for the bootstrap argument of clients."""
        return ",".join(self.client_address(name) for name in self._brokers)

    @property
    def token_bootstrap(self) -> str:
        """Addresses of all brokers for clients with tokens; the cluster is secure."""
        return ",".join(self.client_address(name, Listener.TOKEN) for name in self._brokers)

    @property
    def admin_address(self) -> str:
        """host:port of the admin service."""
        return self.client_address(ADMIN)

    @property
    def console_url(self) -> str:
        """Address of the console, for browsers; "" if there is none."""
        return f"http://{self.address(CONSOLE)}/" if self._consoles else ""

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        """The ZooKeeper process."""
        assert self._zookeeper is not None, "not started"
        return self._zookeeper

    def address(self, name: str) -> str:
        """host:port of a service; if it has several listeners, of the internal listener."""
        return f"{HOST}:{self._ports[name]}"

    def client_address(self, name: str, listener: Listener = Listener.MTLS) -> str:
        """host:port of a service for clients, by the listener if the cluster is secure."""
        return f"{HOST}:{self._ports[f'{name} {listener}']}" if self._secure else self.address(name)

    def metrics_address(self, name: str) -> str:
        """host:port of a service's /metrics."""
        return f"{HOST}:{self._ports[name + ' metrics']}"

    def process(self, name: str) -> ServiceProcess:
        """The process of the service `name`, such as "broker-0"."""
        return self._services[name]

    def start(self, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Start all processes and wait until every service is SERVING; after an error, no process is left running.

        Raises:
            TidemarkError: the directory or a port cannot be used. Also if a service ended or was not SERVING in time;
                the message has the end of its log.
        """
        assert self._zookeeper is None, "started already"
        self._held.take()
        try:
            self._take_ports()
            if self._secure:
                self._authority = _authority_in(self.directory / CERTIFICATES)
                self.client_files = self._authority.issue_client(_USER)
                self.token_file = _token_in(self.directory)
            tls = None if self._authority is None else self._authority.issue_zookeeper("1", (HOST, _HOST_NAME))
            self._zookeeper = ZooKeeperProcess(self.directory / ZOOKEEPER, self._fixed.get(ZOOKEEPER), tls=tls)
            self._zookeeper.start(timeout_s)
            self._before_services(self._zookeeper.connect)
            self._services = {name: self._service(name) for name in self.names}
            for service in self._services.values():
                service.start()
            self.wait_until_serving(timeout_s=timeout_s)
        except BaseException:
            self.kill_all()
            raise

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop in order: brokers and admin, controllers, ZooKeeper; SIGKILL after `timeout_s` each. Idempotent.

        Raises:
            TidemarkError: a service did not end with status 0 after SIGTERM.
        """
        try:
            unclean = self._terminate((*self._consoles, *self._brokers, ADMIN), timeout_s)
            unclean += self._terminate(self._controllers, timeout_s)
            if self._zookeeper is not None:
                self._zookeeper.stop()
        finally:
            self.kill_all()
        if unclean:
            raise unclean[0].died("did not end cleanly")

    def kill_all(self) -> None:
        """Send SIGKILL to all processes. Idempotent."""
        for service in self._services.values():
            service.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper = None
        self._ports.release()
        self._held.release()

    def kill(self, name: str) -> None:
        """Send SIGKILL to one service."""
        self._services[name].kill()

    def pause(self, name: str) -> None:
        """Send SIGSTOP and wait until the process is stopped; its connections stay open."""
        self._services[name].pause()

    def resume(self, name: str) -> None:
        """Send SIGCONT to one service, which continues."""
        self._services[name].signal(signal.SIGCONT)

    def terminate(self, name: str, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Send SIGTERM to one service and wait for its end; raises TidemarkError for a status other than 0."""
        if self._terminate((name,), timeout_s):
            raise self._services[name].died("did not end cleanly")

    def restart(self, name: str, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Restart a service on the same data and port, and wait until it is SERVING."""
        self._terminate((name,))
        self._services[name].start()
        self.wait_until_serving((name,), timeout_s=timeout_s)

    def wait_until_serving(self, names: Iterable[str] | None = None, *, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Wait until the health service of all of `names` (default: all services) reports SERVING.

        A broker is registered then; its replicas may join their ISRs later (`readiness`).
        """
        waiting = {name: self._services[name] for name in (self.names if names is None else names)}
        deadline_s = time.monotonic() + timeout_s
        identity = TlsIdentity(self.client_files) if self.client_files.is_set else None
        channels = BlockingChannels(identity, _RECONNECT_FAST)
        try:
            while waiting:
                for name, service in list(waiting.items()):
                    if not service.running:
                        raise service.died("ended")
                    address = self.address(name)
                    if _is_healthy(address) if name == CONSOLE else _is_serving(channels, address, name):
                        del waiting[name]
                if waiting and time.monotonic() > deadline_s:
                    raise _not_serving(waiting.values(), timeout_s)
                time.sleep(_POLL_INTERVAL_S if waiting else 0)
        finally:
            channels.close()

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill_all()

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.__exit__, kind)

    def _take_ports(self) -> None:
        for name in self.names:
            port = self._fixed.get(name, 0)
            self._ports.take(name, port)
            self._ports.take(f"{name} metrics", port and port + _METRICS_STEP)
            if self._secure and name not in (*self._controllers, *self._consoles):
                for step, listener in _CLIENT_STEPS.items():
                    self._ports.take(f"{name} {listener}", port and port + step)
        self._ports.hand_over()

    def _service(self, name: str) -> ServiceProcess:
        kind = name.partition("-")[0]
        flags = self._console_flags() if kind == CONSOLE else self._node_flags(name)
        flags |= self._settings.get(kind, {}) | self._settings.get(name, {})
        arguments = [part for key, value in flags.items() for part in (f"--{key}", value)]
        log = self.directory / "logs" / f"{name}.log"
        return ServiceProcess(
            name,
            f"tidemark.{kind}",
            arguments,
            log=log,
            environment=self._environment,
            launcher=self._launchers.get(name, ()),
        )

    def _console_flags(self) -> dict[str, str]:
        flags = {
            "bootstrap": self.token_bootstrap if self._secure else self.bootstrap,
            "console.listeners": self.address(CONSOLE),
            "metrics.listeners": self.metrics_address(CONSOLE),
        }
        return flags | ({"cluster.tls.ca.file": self.client_files.ca} if self._secure else {})

    def _node_flags(self, name: str) -> dict[str, str]:
        kind, _, number = name.partition("-")
        flags = {
            "zookeeper.connect": self.zookeeper.connect,
            "listeners": self._listeners(name),
            "metrics.listeners": self.metrics_address(name),
        }
        if kind == "broker":
            flags |= {
                "broker.id": number,
                "log.dirs": str(self.directory / name),
                "admin.address": self._admin_addresses(),
            }
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        if kind == "controller":
            flags["controller.id"] = number
        if kind == ADMIN:
            flags["default.replication.factor"] = str(min(len(self._brokers), _REPLICATION_FACTOR))
        if self._authority is not None:
            files = self._authority.issue_service(Role(kind), number or kind, (HOST, _HOST_NAME))
            flags |= dict(zip(SETTINGS, files, strict=True)) | {"zookeeper.tls.ca.file": files.ca}
            if kind != "controller":
                flags |= {"tokens.file": str(self.directory / TOKENS), "super.users": _SUPER_USERS}
        return flags

    def _listeners(self, name: str) -> str:
        if not self._secure:
            return self.address(name)
        clients = () if name in self._controllers else _CLIENT_STEPS.values()
        addresses = {listener: self.client_address(name, listener) for listener in clients}
        return _by_name({Listener.INTERNAL: self.address(name), **addresses})

    def _admin_addresses(self) -> str:
        if not self._secure:
            return self.admin_address
        return _by_name({listener: self.client_address(ADMIN, listener) for listener in _CLIENT_STEPS.values()})

    def _terminate(self, names: Iterable[str], timeout_s: float = _STOP_TIMEOUT_S) -> list[ServiceProcess]:
        """Send SIGTERM to all together, and SIGKILL after `timeout_s`; returns the services that did not end with
        status 0.
        """
        ending = [self._services[name] for name in names if name in self._services and self._services[name].running]
        for service in ending:
            service.signal(signal.SIGCONT)
            service.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + timeout_s
        for service in ending:
            if not service.wait(max(0.0, deadline_s - time.monotonic())):
                service.kill()
        return [service for service in ending if service.exit_status != 0]


_RECONNECT_FAST: Final = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100))


def _authority_in(directory: Path) -> Authority:
    """The authority of an earlier start, or a new authority."""
    if (directory / f"{AUTHORITY}.crt").exists():
        return Authority.load(directory)
    return Authority.create(directory, _CLUSTER)


def _token_in(directory: Path) -> Path:
    """The file with a user's token, of an earlier start or new."""
    path = directory / f"{_USER}.token"
    if not path.exists():
        hashes = directory / TOKENS
        if hashes.exists() and _USER in token_file.read(hashes):
            token_file.remove(hashes, _USER)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token_file.create(hashes, _USER) + "\n")
        new.rename(path)
    return path


def _by_name(addresses: Mapping[Listener, str]) -> str:
    return ",".join(f"{listener}://{address}" for listener, address in addresses.items())


def _is_serving(channels: BlockingChannels, address: str, name: str) -> bool:
    kind = name.partition("-")[0]
    request = health_pb2.HealthCheckRequest(service=f"tidemark.v1.{kind.capitalize()}Service")
    try:
        with channels.lent(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(request, timeout=_HEALTH_TIMEOUT_S)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _is_healthy(address: str) -> bool:
    """Whether the console at the address answers the kubelet's probe."""
    connection = http.client.HTTPConnection(address, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _not_serving(services: Iterable[ServiceProcess], timeout_s: float) -> TidemarkError:
    waiting = list(services)
    names = ", ".join(service.name for service in waiting)
    return TidemarkError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"not serving after {timeout_s:.0f} s: {names}; the log of {waiting[0].name} ends with:\n{waiting[0].tail()}",
    )
