# SPDX-License-Identifier: Apache-2.0
"""Settings of processes other than brokers: each field is a row of the table of all settings (`keys`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.runtime.configuration.key import I32_MAX, setting
from tidemark.runtime.host_port import HostPort, Listeners


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of every process."""

    owner: ClassVar[str]

    metrics_listeners: HostPort = setting("", "Address of /metrics; default: host of listeners, port + 100")
    log_level: str = setting(
        "info", "Lowest level that is logged", choices=("debug", "info", "warning", "error"), dynamic=True
    )
    log_format: str = setting("json", "Format of log lines", choices=("json", "text"))
    shutdown_grace_ms: int = setting(10_000, "Time limit of a graceful stop, after which running calls are aborted")
    termination_message_path: str = setting(
        "",
        "File that receives one line with the reason when the service cannot start or fails; /dev/termination-log in "
        "a pod",
    )


@dataclass(frozen=True, slots=True)
class ServiceSettings(ProcessSettings):
    """Settings of brokers, controllers and admin services."""

    zookeeper_connect: str = setting(None, "ZooKeeper's addresses: host:port[,host:port...][/chroot]")
    zookeeper_session_timeout_ms: int = setting(
        6000,
        "Time without contact after which ZooKeeper expires the session of the service",
        minimum=1,
        defaults=(("controller", "4000"),),  # failover to another controller is cheap
    )
    zookeeper_tls_ca_file: str = setting(
        "",
        "PEM file with the certificates of the authorities of ZooKeeper's servers; with it, sessions use TLS, and "
        "zookeeper.connect names ZooKeeper's TLS port",
    )
    zookeeper_tls_certificate_file: str = setting(
        "",
        "PEM file with the certificate for ZooKeeper, whose subject is the same for all services; default: "
        "tls.certificate.file",
    )
    zookeeper_tls_key_file: str = setting(
        "", "PEM file with the key of zookeeper.tls.certificate.file; default: tls.key.file"
    )
    listeners: Listeners = setting(
        "127.0.0.1:9192",
        "Address that the service listens on; with port 0 the system chooses a port. With TLS, several by name: "
        "internal (certificates; the services' own calls), clients.mtls (certificates), clients.token (bearer "
        "tokens). While a cluster moves, also plain (everything, in plain text). Services use the first of internal "
        "and plain",
        defaults=(("controller", "127.0.0.1:9193"), ("admin", "127.0.0.1:9194")),
    )
    advertised_listeners: Listeners = setting(
        "", "Address that other processes connect to, for each name of listeners; default: listeners"
    )
    metrics_tls: str = setting(
        "none",
        "TLS of /metrics: none; server: with the certificate of this service; mutual: a scraper needs a certificate "
        "of tls.ca.file, too",
        choices=("none", "server", "mutual"),
    )
    health_listeners: HostPort | None = setting(
        "", "Plain-text address that serves only gRPC's health service, for probes that cannot use TLS"
    )
    tls_ca_file: str = setting(
        "",
        "PEM file with the certificates of the authorities to trust. With this file, every port and every connection "
        "of this service uses TLS, and callers need a certificate",
    )
    tls_certificate_file: str = setting(
        "", "PEM file with this service's certificate, followed by its intermediates; read again when it changes"
    )
    tls_key_file: str = setting("", "PEM file with the key of tls.certificate.file")
    connections_max_age_ms: int = setting(
        12 * 3600 * 1000,
        "Age at which a connection with TLS is closed, after up to 30 s for its calls. Its client opens another one, "
        "with its present certificate",
        minimum=1000,
        maximum=I32_MAX,
        unlimited=True,
    )
    max_connections: int = setting(
        0,
        "Connections at a time, divided equally among the listeners; 0: 10,000, or as many as the limit of open files "
        "leaves room for",
        unit="connections",
        maximum=1_000_000,
    )
    max_connections_per_ip: int = setting(
        1_000,
        "Connections at a time of one address to one listener; the newest ones above it are closed",
        unit="connections",
        minimum=1,
        maximum=I32_MAX,
        unlimited=True,
    )
    max_connection_creation_rate_per_ip: int = setting(
        200,
        "New connections of one address to one listener per second, and as a burst. Above this rate the kernel drops "
        "attempts, which the client's kernel repeats",
        unit="connections",
        minimum=1,
        maximum=100_000,
        unlimited=True,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "Time without a call after which a connection is closed; its client opens another one for its next call",
        minimum=1_000,
        maximum=I32_MAX,
        unlimited=True,
    )
    max_streams_per_connection: int = setting(
        100, "Calls at a time on one connection; more wait at the client", unit="calls", minimum=8, maximum=I32_MAX
    )
    max_in_flight_bytes_per_connection: int = setting(
        128 << 20,
        "Bytes of unfinished requests and of answers that the client has not taken, above which a connection is closed",
        unit="bytes",
        minimum=32 << 20,
        unlimited=True,
    )
    max_in_flight_bytes: int = setting(
        512 << 20,
        "Bytes in flight of all connections, above which the connection with the most is closed, of the address with "
        "the most",
        minimum=64 << 20,
        unlimited=True,
    )


@dataclass(frozen=True, slots=True)
class ClientFacingSettings(ServiceSettings):
    """Settings of brokers and admin services, whose callers may be clients."""

    authorization_enabled: bool = setting(
        False,
        "Check every call against the access rules (ACLs); without a rule nothing is allowed. Set the same value at "
        "all brokers and admin services",
    )
    super_users: tuple[str, ...] = setting("", "Principals that are allowed everything, without access rules")
    clients_tls_ca_file: str = setting(
        "", "PEM file with the authorities of clients' certificates on clients.mtls; default: tls.ca.file"
    )
    clients_tls_certificate_file: str = setting(
        "", "PEM file with the certificate that clients.mtls and clients.token show; default: tls.certificate.file"
    )
    clients_tls_key_file: str = setting("", "PEM file with the key of clients.tls.certificate.file")
    tls_principal_mapping_rules: str = setting(
        "",
        "Rules that name users by the subjects of certificates without a URI name, with the syntax of Kafka's "
        "ssl.principal.mapping.rules; empty: such callers are User:ANONYMOUS",
    )
    tokens_file: str = setting(
        "", "File of static tokens, a line NAME: SHA-256 for each (tidemark token create); read again when it changes"
    )
    tokens_issuers_file: str = setting(
        "", "YAML file of the issuers whose JSON web tokens are accepted, by alias; read again when it changes"
    )
    tokens_clock_skew_ms: int = setting(
        30_000,
        "Difference of clocks for which an expired token, or one that is not valid yet, is still accepted",
        maximum=3_600_000,
    )


@dataclass(frozen=True, slots=True)
class ControllerSettings(ServiceSettings):
    """Settings of `python -m tidemark.controller`."""

    owner = "controller"

    controller_id: int = setting(None, "Id of the controller", maximum=I32_MAX)
    controller_heartbeat_interval_ms: int = setting(500, "Interval of heartbeats to brokers", minimum=10)
    controller_heartbeat_timeout_ms: int = setting(
        2500, "Time without an answer after which a broker is suspected", minimum=50
    )
    reassignment_moves_per_broker_max: int = setting(
        50, "Reassignments that copy from or to one broker at a time", minimum=1
    )
    leader_election_wait_ms: int = setting(
        5_000,
        "After a crash of all eligible replicas of a partition, the time that the first one waits for the others. The "
        "one with the furthest log is then elected. 0: the first one is elected",
        maximum=600_000,
    )
    leader_imbalance_check_interval_ms: int = setting(
        300_000, "Interval at which the controller elects preferred replicas by itself; 0 disables this"
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "Percentage of a broker's preferred partitions led by others, above which preferred replicas are elected",
        maximum=100,
    )


@dataclass(frozen=True, slots=True)
class AdminSettings(ClientFacingSettings):
    """Settings of `python -m tidemark.admin`."""

    owner = "admin"

    admin_request_timeout_ms: int = setting(
        30_000, "Time for which the admin service waits for a request to complete", minimum=1
    )
    default_replication_factor: int = setting(
        3, "Replication factor of a topic created without one", minimum=1, maximum=32_767
    )
    default_min_insync_replicas: int = setting(
        2,
        "min.insync.replicas of a topic created without it; at most the replication factor of the topic",
        minimum=1,
        maximum=32_767,
    )


@dataclass(frozen=True, slots=True)
class ConsoleSettings(ProcessSettings):
    """Settings of `python -m tidemark.console`."""

    owner = "console"

    bootstrap: str = setting(
        None,
        "Addresses of any brokers: host:port[,host:port...]; with cluster.tls.ca.file, of their listener clients.token",
    )
    console_listeners: HostPort = setting("127.0.0.1:9195", "Address at which browsers reach the console")
    console_hosts: str = setting(
        "",
        "Host names in the addresses of browsers, separated by commas, in addition to localhost and IP addresses. "
        "Other names are refused, since the name of a foreign web page could lead to the console's address",
    )
    console_write: bool = setting(
        False,
        "Whether the pages of a cluster without security reset offsets and cancel reassignments, for every browser "
        "that can open them. With cluster.tls.ca.file the rights of each user decide",
    )
    console_refresh_ms: int = setting(
        2_000,
        "Time for which all users with the same token share an answer of the cluster, and interval of live updates",
        minimum=100,
        maximum=3_600_000,
    )
    cluster_tls_ca_file: str = setting(
        "",
        "PEM file with the authorities of the certificates of brokers and admin services. With this file every user "
        "gives a token, which the console forwards; without it the console uses plain text",
    )
    https_certificate_file: str = setting(
        "", "PEM file with the certificate for browsers, followed by its intermediates; empty: plain HTTP"
    )
    https_key_file: str = setting("", "PEM file with the key of https.certificate.file")
