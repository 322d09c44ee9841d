# SPDX-License-Identifier: Apache-2.0
"""The cost of TLS compared with Kafka's, and the pause of producers while all certificates are renewed."""

from __future__ import annotations

import asyncio
import itertools
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from tidemark.client import AdminClient, Consumer, Producer, SendHandle, TlsFiles
from tidemark.client.aio import Consumer as AsyncConsumer
from tidemark.client.records import records_of
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.cluster import CERTIFICATES, LocalCluster
from tidemark.rpc.security.channels import channel_credentials
from tidemark.rpc.security.files import TlsIdentity

from bench.measuring.figures import Figure
from bench.peers import KafkaPeer, beside, kafka_peer
from bench.produce import PARTITIONS, SIZE_BYTES, arrow_per_s

TOPIC: Final = "measured"
ROTATIONS: Final = 5
_HOST: Final = "127.0.0.1"
_HOSTS: Final = (_HOST, "localhost")
_QUIET_S: Final = 3.0
"""Time between two rotations; processes check their files every half second."""
_PAUSE_S: Final = 0.002
_WAIT_S: Final = 60.0
_SUITES: Final = {0x1301: "TLS_AES_128_GCM_SHA256", 0x1302: "TLS_AES_256_GCM_SHA384"}


class Rates(NamedTuple):
    """Records per second, written and read."""

    produced: float
    consumed: float

    @property
    def both(self) -> float:
        """Records per second that are written and then read."""
        return 1 / (1 / self.produced + 1 / self.consumed)


def tls_figures(directory: Path, rounds: int, records: int) -> dict[str, Figure]:
    """Medians of the rounds' ratios of TLS to plain text, Kafka's as the peer; all four clusters take turns.

    TLS is on both hops, from clients to brokers and between brokers, with certificates on both sides.
    """
    with (
        LocalCluster(directory / "plain") as plain,
        LocalCluster(directory / "secure", secure=True) as secure,
        _peers(secure) as peers,
    ):
        for cluster, tls in ((plain, None), (secure, secure.client_files)):
            with AdminClient(cluster.admin_address, tls=tls) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        topic = f"{TOPIC}-{int(time.time())}"  # the peer's directory may hold that of an earlier run
        for peer in peers:
            peer.call("topic", topic, str(PARTITIONS), "3")
        measured: list[Callable[[], Rates]] = [
            lambda: _ours(plain, records),
            lambda: _ours(secure, records),
            *(lambda peer=peer: _theirs(peer, topic, records) for peer in peers),  # type: ignore[misc]
        ]
        found = []
        for number in range(rounds):
            found.append([measure() for measure in measured])
            print(f"TLS, round {number + 1}: {found[-1]}", flush=True)
        pause_s = rotation_pause_s(secure)
    return {
        **{
            f"tls_{name}of_plain": Figure(
                _ratio(found, 0, how), "of plain", _ratio(found, 2, how) if len(measured) > 2 else None
            )
            for name, how in _WAYS.items()
        },
        "rotation_pause_s": Figure(pause_s, "s", lower_is_better=True),
    }


_WAYS: Final[dict[str, Callable[[Rates], float]]] = {
    "": lambda rates: rates.both,
    "produced_": lambda rates: rates.produced,
    "consumed_": lambda rates: rates.consumed,
}


def _ratio(found: list[list[Rates]], first: int, how: Callable[[Rates], float]) -> float:
    return statistics.median(how(rates[first + 1]) / how(rates[first]) for rates in found)


async def read_per_s(bootstrap: str, topic: str, records: int, **settings: Any) -> float:
    """Records that one consumer reads in batches, from the beginning."""
    async with AsyncConsumer(bootstrap, **settings) as consumer:
        await consumer.assign(topic, start="earliest")
        found, started_s = 0, time.perf_counter()
        async for batch in consumer.batches():
            found += batch.rows.num_rows
            if found >= records:
                break
        return found / (time.perf_counter() - started_s)


def _ours(cluster: LocalCluster, records: int) -> Rates:
    tls = cluster.client_files if cluster.client_files.is_set else None
    produced = arrow_per_s(cluster.bootstrap, TOPIC, records=records, tls=tls)
    return Rates(produced, asyncio.run(read_per_s(cluster.bootstrap, TOPIC, records, tls=tls)))


def _theirs(peer: KafkaPeer, topic: str, records: int) -> Rates:
    produced = peer.produce_per_s(topic, records=records, size_bytes=SIZE_BYTES)
    return Rates(produced, peer.consume_per_s(topic, records=records))


@contextmanager
def _peers(secure: LocalCluster) -> Iterator[list[KafkaPeer]]:
    """Kafka on plain text and with TLS, with certificates of the same authority and the same cipher; or none."""
    cipher = cipher_of(secure.client_files)
    print(f"Tidemark's clients and brokers use {cipher}", flush=True)
    certificates = secure.directory / CERTIFICATES
    issued = Authority.load(certificates).issue_zookeeper("kafka", _HOSTS)  # certificate and key in one file
    stores = secure.directory / "peer"
    stores.mkdir()
    (stores / "ca.crt").write_bytes(Path(issued.ca).read_bytes())
    (stores / "peer.pem").write_bytes(Path(issued.certificate).with_suffix(".pem").read_bytes())
    with kafka_peer() as peer:
        if peer is None:
            yield []
            return
        with beside(peer, "tls", {"TIDEMARK_PEER_KAFKA_TLS": str(stores), "CIPHER": cipher}) as with_tls:
            yield [peer, with_tls]


def cipher_of(files: TlsFiles) -> str:
    """The cipher suite of gRPC in Python: a server takes the one that the client offers first."""
    material = TlsIdentity(files).current()
    with socket.create_server((_HOST, 0)) as server:
        server.settimeout(_WAIT_S)
        channel = grpc.secure_channel(f"{_HOST}:{server.getsockname()[1]}", channel_credentials(material))
        try:
            channel.subscribe(lambda _: None, try_to_connect=True)
            connection, _ = server.accept()
            with connection:
                hello = connection.recv(4096)
        finally:
            channel.close()
    at = 5 + 4 + 2 + 32  # headers of record and message, version, random bytes; then the id of the session (RFC 8446)
    at += 1 + hello[at] + 2
    return _SUITES[int.from_bytes(hello[at : at + 2], "big")]


def rotation_pause_s(cluster: LocalCluster) -> float:
    """The longest time without an acknowledgement while all certificates are renewed repeatedly, in seconds.

    Raises:
        AssertionError: a record was refused, lost, or duplicated.
    """
    topic = "rotated"
    with AdminClient(cluster.admin_address, tls=cluster.client_files) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    authority = Authority.load(cluster.directory / CERTIFICATES)
    times: list[float] = []
    sent: list[SendHandle] = []
    pauses = []
    with Producer(cluster.bootstrap, tls=cluster.client_files, acks="all", linger_ms=0) as producer:
        _send_for(producer, topic, _QUIET_S, sent, times)
        quiet_s = _longest_s(times)
        for _ in range(ROTATIONS):
            del times[:-1]
            for name in cluster.names:
                kind, _, number = name.partition("-")
                authority.issue_service(Role(kind), number or kind, _HOSTS)
            authority.issue_client("dev")
            _send_for(producer, topic, _QUIET_S, sent, times)
            pauses.append(_longest_s(times))
        producer.flush(_WAIT_S)
    print(f"longest pause without a rotation {quiet_s:.3f} s, of rotations {[round(one, 3) for one in pauses]} s")
    _assert_all_there(cluster, topic, sent)
    return max(pauses)


def _send_for(
    producer: Producer, topic: str, duration_s: float, sent: list[SendHandle], acknowledged: list[float]
) -> None:
    until_s = time.monotonic() + duration_s
    while time.monotonic() < until_s:
        number = len(sent)
        handle = producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        handle.add_done_callback(lambda _: acknowledged.append(time.monotonic()))
        sent.append(handle)
        time.sleep(_PAUSE_S)


def _longest_s(times: list[float]) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def _assert_all_there(cluster: LocalCluster, topic: str, sent: list[SendHandle]) -> None:
    wanted = {}
    for number, handle in enumerate(sent):
        told = handle.result(_WAIT_S)  # raises for a record that was refused
        wanted[told.partition, told.offset] = number
    assert len(wanted) == len(sent)
    with Consumer(cluster.bootstrap, tls=cluster.client_files) as consumer:
        consumer.assign(topic)
        found: dict[tuple[int, int], int] = {}
        total = sum(consumer.end_offsets().values())
        while len(found) < total:
            batch = consumer.poll(_WAIT_S)
            assert batch is not None, f"{len(found)} of {total} records came"
            found |= {(one.partition, one.offset): int(one.value or b"") for one in records_of(*batch)}
    assert found == wanted, "a record is lost or there twice"
    print(f"{len(sent)} records were acknowledged meanwhile, and all are there once")
