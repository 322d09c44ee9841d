# SPDX-License-Identifier: Apache-2.0
"""A cluster with TLS: callers without the right certificate get a reason and change nothing; certificates rotate."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from tidemark.client import AdminClient, Consumer, Producer, TlsFiles
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.core.security.service_rights import INTERNAL
from tidemark.local.certificates import Authority
from tidemark.local.cluster import LocalCluster
from tidemark.local.process import ServiceProcess
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import blocking_channels
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark.v1 import broker_service_pb2 as broker_pb
from tidemark.v1 import controller_service_pb2 as control_pb
from tidemark.v1 import group_service_pb2 as group_pb
from tidemark.v1 import replica_service_pb2 as replica_pb
from tidemark.v1 import transaction_service_pb2 as transaction_pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceStub, ControllerServiceStub
from tidemark.v1.group_service_pb2_grpc import GroupServiceStub
from tidemark.v1.replica_service_pb2_grpc import ReplicaServiceStub
from tidemark.v1.transaction_service_pb2_grpc import TransactionCoordinationStub

from tests.channels import opened
from tests.integration.harness.certificates import replace, signed_by
from tests.integration.harness.metrics import samples
from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.harness.waiting import wait_for

CALL_S = 20.0
ISSUER = "https://login.example.com"
KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = json.loads(jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key()))
AGE_MS = 5_000
"""Every connection, also of services, ends after this age, and its streams end at most this much later."""
USER = "tidemark://local/user/mallory"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("secure")
    (directory / "issuers.yaml").write_text(
        f"corp: {{issuer: '{ISSUER}', audience: tidemark, jwks: '{directory}/keys.json'}}"
    )
    (directory / "keys.json").write_text(json.dumps({"keys": [{**PUBLIC, "kid": "a"}]}))
    aged = {"connections.max.age.ms": str(AGE_MS)}
    clients = {"tokens.issuers.file": str(directory / "issuers.yaml"), "tokens.clock.skew.ms": "0", **aged}
    settings = {"broker": clients, "admin": clients, "controller": aged}
    with LocalCluster(directory, secure=True, settings=settings) as started:
        yield started


def certificates_of(cluster: LocalCluster) -> Path:
    return cluster.directory / "certs"


def files_of(cluster: LocalCluster, stem: str) -> TlsFiles:
    return Authority.load(certificates_of(cluster)).files(stem)


def code_of(call: Any, address: str) -> tuple[ErrorCode, str]:
    """The refusal of a blocking call."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    error = from_rpc_error(raised.value, address=address)
    return error.code, error.message


def metadata_as(files: TlsFiles | None, address: str) -> broker_pb.GetMetadataResponse:
    channels = blocking_channels(None if files is None else TlsIdentity(files))
    try:
        return BrokerServiceStub(opened(channels, address)).GetMetadata(broker_pb.GetMetadataRequest(), timeout=CALL_S)
    finally:
        channels.close()


@pytest.mark.usefixtures("as_user")
def test_records_are_replicated_and_read_by_clients_that_take_their_files_from_the_environment(
    secure: LocalCluster,
) -> None:
    with AdminClient(secure.bootstrap) as admin:
        admin.create_topic("greetings", partitions=3, replication_factor=3)
        with Producer(secure.bootstrap) as producer:
            producer.send("greetings", b"hello", partition=1).result(CALL_S)
        with Consumer(secure.bootstrap) as consumer:
            consumer.assign("greetings", start="earliest")
            assert next(iter(consumer)).value == b"hello"
        assert [len(one.in_sync_replicas) for one in admin.describe_topics(["greetings"])[0].partitions.values()] == [
            3,
            3,
            3,
        ]


def internal_calls(channels: Any, cluster: LocalCluster, act_as: int) -> dict[str, Any]:
    """Every internal call, as a caller with these channels sends it under a service id."""
    broker, controller = (
        opened(channels, cluster.address("broker-0")),
        opened(channels, cluster.address("controller-100")),
    )
    control, own = BrokerControlServiceStub(broker), ControllerServiceStub(controller)
    transactions = TransactionCoordinationStub(broker)
    header = control_pb.ControlHeader(controller_id=act_as, controller_epoch=2**31 - 1)
    hello = replica_pb.ReplicateRequest(hello=replica_pb.ReplicateHello(broker_id=act_as))

    def unary(method: Any, request: Any) -> Any:
        return lambda: method(request, timeout=CALL_S)

    return {
        "/tidemark.v1.BrokerControlService/LeaderAndIsr": unary(
            control.LeaderAndIsr, control_pb.LeaderAndIsrRequest(header=header)
        ),
        "/tidemark.v1.BrokerControlService/StopReplica": unary(
            control.StopReplica, control_pb.StopReplicaRequest(header=header)
        ),
        "/tidemark.v1.BrokerControlService/UpdateMetadata": unary(
            control.UpdateMetadata, control_pb.UpdateMetadataRequest(header=header)
        ),
        "/tidemark.v1.BrokerControlService/DescribeReplicas": unary(
            control.DescribeReplicas, control_pb.DescribeReplicasRequest(header=header)
        ),
        "/tidemark.v1.BrokerControlService/Heartbeat": lambda: next(
            control.Heartbeat(iter([control_pb.HeartbeatRequest(header=header)]), timeout=CALL_S)
        ),
        "/tidemark.v1.ControllerService/ReportIsrChanges": unary(
            own.ReportIsrChanges, control_pb.ReportIsrChangesRequest(broker_id=act_as)
        ),
        "/tidemark.v1.ControllerService/AskReplicas": unary(own.AskReplicas, control_pb.AskReplicasRequest()),
        "/tidemark.v1.ControllerService/DescribeController": unary(
            own.DescribeController, control_pb.DescribeControllerRequest()
        ),
        "/tidemark.v1.ReplicaService/Replicate": lambda: next(
            ReplicaServiceStub(broker).Replicate(iter([hello]), timeout=CALL_S)
        ),
        "/tidemark.v1.TransactionCoordination/AddPartitions": unary(
            transactions.AddPartitions, transaction_pb.AddPartitionsRequest()
        ),
        "/tidemark.v1.TransactionCoordination/WriteMarkers": unary(
            transactions.WriteMarkers, transaction_pb.WriteMarkersRequest()
        ),
    }


NAMING_NO_CALLER = ("/DescribeController", "/AskReplicas", "/AddPartitions", "/WriteMarkers")
"""Calls whose requests do not name the service that makes them."""


CALLERS = {
    "a user": (USER, None),
    "a service of another cluster": ("tidemark://other/controller/100", Role.CONTROLLER),
    "a broker": ("tidemark://local/broker/1", Role.BROKER),
    "a controller": ("tidemark://local/controller/101", Role.CONTROLLER),
    "the admin service": ("tidemark://local/admin/admin", Role.ADMIN),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_internal_calls_are_refused_to_every_caller_but_the_services_that_make_them(
    secure: LocalCluster, caller: str, tmp_path: Path
) -> None:
    uri, role = CALLERS[caller]
    files = signed_by(certificates_of(secure), tmp_path, uris=[uri])
    trusted = None if "other" in uri else role
    channels = blocking_channels(TlsIdentity(files))
    try:
        calls = internal_calls(channels, secure, act_as=7)  # an id that no caller here has
        assert calls.keys() == INTERNAL.keys()
        for path, call in calls.items():
            if trusted in INTERNAL[path] and path.endswith(NAMING_NO_CALLER):
                continue
            code, sentence = code_of(call, path)
            assert code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (path, sentence)
            assert uri in sentence
            assert ("may not act as" in sentence) == (trusted in INTERNAL[path]), (path, sentence)
    finally:
        channels.close()
    assert len(metadata_as(secure.client_files, secure.address("broker-0")).metadata.brokers) == 3


def test_names_that_only_look_like_a_uri_are_no_identity(secure: LocalCluster, tmp_path: Path) -> None:
    authority = certificates_of(secure)
    looks_alike = signed_by(authority, tmp_path / "dns", dns=["tidemark://local/controller/100"])
    two_names = signed_by(authority, tmp_path / "two", uris=["tidemark://local/controller/100", USER])
    for files in (looks_alike, two_names):
        channels = blocking_channels(TlsIdentity(files))
        try:
            call = internal_calls(channels, secure, act_as=100)["/tidemark.v1.BrokerControlService/UpdateMetadata"]
            code, sentence = code_of(call, "broker-0")
        finally:
            channels.close()
        assert code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "User:ANONYMOUS" in sentence


def test_a_caller_without_an_accepted_certificate_gets_a_reason(secure: LocalCluster, tmp_path: Path) -> None:
    address, authority = secure.address("broker-0"), certificates_of(secure)
    elsewhere = tmp_path / "elsewhere"
    Authority.create(elsewhere, "elsewhere")
    foreign = signed_by(elsewhere, tmp_path / "foreign", uris=[USER])._replace(ca=str(authority / "ca.crt"))
    early = signed_by(authority, tmp_path / "early", uris=[USER], valid_days=(0.003, 1))
    server_only = signed_by(authority, tmp_path / "server", uris=[USER], purposes=[ExtendedKeyUsageOID.SERVER_AUTH])
    without = TlsFiles(str(authority / "ca.crt"))
    for reason, files in {
        "no_tls": None,
        "no_certificate": without,
        "authority": foreign,
        "not_yet_valid": early,
        "purpose": server_only,
    }.items():
        before = refusals(secure, reason, HANDSHAKES)
        code, sentence = code_of(lambda files=files: metadata_as(files, address), address)  # type: ignore[misc]
        assert code is ErrorCode.BROKER_NOT_AVAILABLE, reason
        assert "TLS" in sentence, reason
        wait_for(
            lambda reason=reason, before=before: refusals(secure, reason, HANDSHAKES) > before,  # type: ignore[misc]
            f"the count of handshakes refused for {reason}",
        )
    distrusting = secure.client_files._replace(ca=str(elsewhere / "ca.crt"))
    code, sentence = code_of(lambda: metadata_as(distrusting, address), address)
    assert code is ErrorCode.AUTHENTICATION_FAILED
    assert "tls.ca.file" in sentence
    for days, sentence in {(-2, -1): "expired on", (0.5, 1): "not valid before"}.items():
        with pytest.raises(TidemarkError, match=sentence):
            TlsIdentity(signed_by(authority, tmp_path / "late", uris=[USER], valid_days=days))


def test_a_client_with_tls_files_learns_that_a_port_is_plain_text(cluster: LocalCluster, secure: LocalCluster) -> None:
    address = cluster.address("broker-0")
    code, sentence = code_of(lambda: metadata_as(secure.client_files, address), address)
    assert code is ErrorCode.AUTHENTICATION_FAILED
    assert "does not speak TLS" in sentence


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("broker-1", "tidemark://local/broker/1]: this service needs tidemark://CLUSTER/broker/0"),
        ("admin", "tidemark://local/admin/admin]"),
        ("key of another", "which is not the key of"),
        ("half a key", "not a whole PEM file"),
        ("no certificate", "tls.certificate.file is not set"),
    ],
)
def test_a_broker_does_not_start_with_files_that_are_not_its_own(
    secure: LocalCluster, tmp_path: Path, given: str, sentence: str
) -> None:
    files = files_of(secure, given if given in ("broker-1", "admin") else "broker-0")
    if given == "key of another":
        files = files._replace(key=files_of(secure, "broker-1").key)
    if given == "half a key":
        half = tmp_path / "half.key"
        half.write_bytes(Path(files.key).read_bytes()[:100])
        files = files._replace(key=str(half))
    if given == "no certificate":
        files = TlsFiles(files.ca)
    names = ("tls.ca.file", "tls.certificate.file", "tls.key.file")
    flags = [f"--{name}={path}" for name, path in zip(names, files, strict=True)]
    flags += ["--broker.id=0", f"--log.dirs={tmp_path}", f"--zookeeper.connect={secure.zookeeper.connect}"]
    broker = ServiceProcess("broker-0", "tidemark.broker", flags, log=tmp_path / "broker.log", environment={})
    broker.start()
    try:
        assert broker.wait(60), "it continues"
    finally:
        broker.kill()
    said = broker.tail(50)
    assert broker.exit_status == 2, said
    assert sentence in said
    assert len(said.splitlines()) == 1, said


@pytest.mark.usefixtures("as_user")
def test_an_authority_is_replaced_under_load_without_a_lost_record_or_a_restart(
    secure: LocalCluster, tmp_path: Path
) -> None:
    """Every file changes, and services do not trust the old authority any more.

    Brokers reconnect with the new files.
    """
    authority = certificates_of(secure)
    before = authority / "ca.crt"
    new = Authority.create(tmp_path / "new", "local")
    bundle = before.read_bytes() + (tmp_path / "new" / "ca.crt").read_bytes()
    old_user = signed_by(authority, tmp_path / "old-user", uris=[USER])
    Path(old_user.certificate).with_name("ca.crt").write_bytes(bundle)
    old_user = old_user._replace(ca=str(Path(old_user.certificate).with_name("ca.crt")))
    with AdminClient(secure.bootstrap) as admin:
        admin.create_topic("rotated", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        with NumbersLoad(secure.bootstrap, "rotated", 3) as load:
            wait_for(lambda: len(load.acknowledged) > 30 or load.failure is not None, "the load runs")
            replace(before, bundle)
            wait_for(lambda: knows(secure, tmp_path / "new"), "both authorities are trusted", timeout_s=30)
            for stem in (*secure.names, "client-dev", "zookeeper-1"):
                reissue(new, stem, authority)
            replace(before, (tmp_path / "new" / "ca.crt").read_bytes())
            replace(authority / "ca.key", (tmp_path / "new" / "ca.key").read_bytes())
            wait_for(lambda: refuses(secure, old_user), "the old authority is trusted no longer", timeout_s=30)
            at_rotation = len(load.acknowledged)
            secure.kill("broker-1")
            secure.restart("broker-1")
            wait_for(lambda: len(load.acknowledged) > at_rotation + 60 or load.failure is not None, "the load runs")
        wait_for(lambda: in_sync(admin, "rotated"), "in sync again", refused=TidemarkError)
    load.assert_nothing_lost_or_twice()


def reissue(authority: Authority, stem: str, into: Path) -> None:
    """Replace certificate and key by those of a new authority; the key first, as may happen."""
    kind, _, name = stem.partition("-")
    hosts = ("127.0.0.1", "localhost")
    if kind == "client":
        made = authority.issue_client(name)
    elif kind == "zookeeper":
        made = authority.issue_zookeeper(name, hosts)
        replace(into / f"{stem}.pem", Path(made.certificate).with_suffix(".pem").read_bytes())
    else:
        made = authority.issue_service(Role(kind), name or kind, hosts)
    replace(into / f"{stem}.key", Path(made.key).read_bytes())
    time.sleep(0)
    replace(into / f"{stem}.crt", Path(made.certificate).read_bytes())


def knows(cluster: LocalCluster, authority: Path) -> bool:
    """Whether every broker trusts an authority by now."""
    files = signed_by(authority, authority / "probe", uris=[USER])._replace(ca=str(certificates_of(cluster) / "ca.crt"))
    return all(answers(cluster, files))


def refuses(cluster: LocalCluster, files: TlsFiles) -> bool:
    """Whether no broker answers a caller with these files."""
    return not any(answers(cluster, files))


def answers(cluster: LocalCluster, files: TlsFiles) -> list[bool]:
    found = []
    for address in cluster.bootstrap.split(","):
        try:
            metadata_as(files, address)
            found.append(True)
        except grpc.RpcError:
            found.append(False)
    return found


def in_sync(admin: AdminClient, topic: str) -> bool:
    return all(len(one.in_sync_replicas) == 3 for one in admin.describe_topics([topic])[0].partitions.values())


@pytest.mark.parametrize("listener", [Listener.MTLS, Listener.TOKEN])
def test_the_clusters_own_calls_exist_on_no_listener_of_clients(secure: LocalCluster, listener: Listener) -> None:
    channels = blocking_channels(TlsIdentity(files_of(secure, "controller-100")))
    try:
        method = opened(channels, secure.client_address("broker-0", listener)).unary_unary(
            "/tidemark.v1.BrokerControlService/UpdateMetadata"
        )
        with pytest.raises(grpc.RpcError) as refused:
            method(b"", timeout=CALL_S)
    finally:
        channels.close()
    # A caller without a token does not learn which objects exist.
    wanted = grpc.StatusCode.UNIMPLEMENTED if listener is Listener.MTLS else grpc.StatusCode.UNAUTHENTICATED
    assert refused.value.code() is wanted


def test_metadata_has_the_addresses_of_the_listener_that_the_client_uses(secure: LocalCluster) -> None:
    for listener in (Listener.INTERNAL, Listener.MTLS):
        internal = listener is Listener.INTERNAL
        asked = secure.address("broker-1") if internal else secure.client_address("broker-1", listener)
        found = metadata_as(secure.client_files, asked).metadata
        brokers = {f"broker-{one.broker_id}": f"{one.host}:{one.port}" for one in found.brokers}
        assert brokers == {
            name: secure.address(name) if internal else secure.client_address(name, listener)
            for name in ("broker-0", "broker-1", "broker-2")
        }
        assert found.admin_address == ("" if internal else secure.client_address("admin", listener))
        assert not any(one.endpoints for one in found.brokers)


@pytest.mark.usefixtures("as_user")
def test_a_group_finds_its_coordinator_on_the_listener_of_its_clients(secure: LocalCluster) -> None:
    addresses = secure.bootstrap.split(",")
    channels = blocking_channels(TlsIdentity(secure.client_files))
    try:
        stubs = [GroupServiceStub(opened(channels, address)) for address in addresses]
        (found,) = (
            stubs[0]
            .FindCoordinator(group_pb.FindCoordinatorRequest(group_ids=["readers"]), timeout=CALL_S)
            .coordinators
        )
        assert f"{found.host}:{found.port}" in addresses
        other = stubs[(found.broker_id + 1) % 3]
        with pytest.raises(grpc.RpcError) as refused:
            other.DeleteGroup(group_pb.DeleteGroupRequest(group_id="readers"), timeout=CALL_S)
        moved = from_rpc_error(refused.value, address="other")
        assert moved.code is ErrorCode.NOT_COORDINATOR
        assert f"{moved.metadata['host']}:{moved.metadata['port']}" == f"{found.host}:{found.port}"
    finally:
        channels.close()
    with AdminClient(secure.bootstrap) as admin:
        described = admin.describe_cluster().view
    assert {f"{one.host}:{one.port}" for one in described.brokers.values()} == set(secure.bootstrap.split(","))
    assert described.admin_address == secure.admin_address


def test_a_service_is_an_ordinary_user_on_a_listener_of_clients(secure: LocalCluster) -> None:
    """The authority of clients may be another one than the cluster's: its certificates make no services."""
    found = metadata_as(files_of(secure, "controller-100"), secure.client_address("broker-0"))
    assert len(found.metadata.brokers) == 3


def token_for(seconds: float, **changed: object) -> str:
    content = {"iss": ISSUER, "aud": "tidemark", "sub": "alice", "exp": int(time.time() + seconds), **changed}
    return jwt.encode(content, KEY, "ES256", headers={"kid": "a"})


@pytest.fixture
def with_token(secure: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Clients take no certificate, and the token of this file."""
    for variable in FILE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "token"
    assert secure.token_file is not None
    path.write_bytes(secure.token_file.read_bytes())
    monkeypatch.setenv(FILE_VARIABLES.ca, secure.client_files.ca)
    monkeypatch.setenv("TIDEMARK_TOKEN_FILE", str(path))
    return path


def test_a_client_with_a_token_needs_no_certificate(secure: LocalCluster, with_token: Path) -> None:
    with AdminClient(secure.token_bootstrap) as admin:
        admin.create_topic("by-token", partitions=1, replication_factor=3)
        assert admin.describe_cluster().view.admin_address == secure.client_address("admin", Listener.TOKEN)
    with Producer(secure.token_bootstrap, token_file=lambda: token_for(60)) as producer:
        producer.send("by-token", b"hello").result(CALL_S)
    with Consumer(secure.token_bootstrap) as consumer:
        consumer.assign("by-token", start="earliest")
        assert next(iter(consumer)).value == b"hello"


BAD_TOKENS = {
    "expired": (lambda: token_for(-60), "has expired"),
    "audience": (lambda: token_for(60, aud="kafka"), "for another audience"),
    "issuer": (lambda: token_for(60, iss="https://evil"), "https://evil"),
    "unknown": (lambda: "made-up", "the token is unknown"),
    "malformed": (lambda: "a.b.c", "not a JSON web token"),
}


@pytest.mark.parametrize("reason", BAD_TOKENS)
def test_a_bad_token_is_refused_with_its_fault_and_counted(secure: LocalCluster, with_token: Path, reason: str) -> None:
    token, sentence = BAD_TOKENS[reason][0](), BAD_TOKENS[reason][1]
    with_token.write_text(token)
    before = refusals(secure, reason)
    with pytest.raises(TidemarkError) as refused, AdminClient(secure.token_bootstrap, timeout_s=5):
        pytest.fail("the client started")
    assert refused.value.code is ErrorCode.AUTHENTICATION_FAILED
    assert sentence in str(refused.value)
    assert token not in str(refused.value)
    assert refusals(secure, reason) > before


HANDSHAKES = "tidemark_tls_handshake_failures_total"


def refusals(cluster: LocalCluster, reason: str, metric: str = "tidemark_authentication_failures_total") -> float:
    """Refused calls or handshakes at all brokers and the admin service."""
    services = ("broker-0", "broker-1", "broker-2", "admin")
    return sum(samples(cluster, service).get(f'{metric}{{reason="{reason}"}}', 0.0) for service in services)


def call_with(address: str, token: str, files: TlsFiles | None) -> Any:
    """A call with this header, as a careless client sends it."""
    channels = blocking_channels(None if files is None else TlsIdentity(files))
    try:
        stub = BrokerServiceStub(opened(channels, address))
        header = [("authorization", f"Bearer {token}")]
        return stub.GetMetadata(broker_pb.GetMetadataRequest(), timeout=CALL_S, metadata=header)
    finally:
        channels.close()


def test_a_token_in_plain_text_or_on_a_listener_for_certificates_is_refused(
    secure: LocalCluster, cluster: LocalCluster
) -> None:
    token = token_for(60)
    plain = code_of(lambda: call_with(cluster.address("broker-0"), token, None), "plain")
    assert plain[0] is ErrorCode.AUTHENTICATION_FAILED
    assert "plain text" in plain[1]
    for listener in (Listener.MTLS, Listener.INTERNAL):
        address = secure.address("broker-0") if listener is Listener.INTERNAL else secure.client_address("broker-0")
        code, sentence = code_of(lambda address=address: call_with(address, token, secure.client_files), "mtls")  # type: ignore[misc]
        assert code is ErrorCode.AUTHENTICATION_FAILED
        assert "takes certificates, not tokens" in sentence


def test_a_token_of_a_megabyte_is_refused_and_the_server_continues(secure: LocalCluster) -> None:
    address, ca = secure.client_address("broker-0", Listener.TOKEN), TlsFiles(secure.client_files.ca)
    code, sentence = code_of(lambda: call_with(address, "x" * 1_000_000, ca), address)
    assert code is ErrorCode.AUTHENTICATION_FAILED, sentence
    assert len(call_with(address, token_for(60), ca).metadata.brokers) == 3


@pytest.mark.parametrize("stream", ["WatchMetadata", "Produce", "FetchStream", "DescribeLogDirs"])
def test_a_stream_ends_when_its_token_expires(secure: LocalCluster, stream: str) -> None:
    channels = blocking_channels(TlsIdentity(TlsFiles(secure.client_files.ca)))
    try:
        stub = BrokerServiceStub(opened(channels, secure.client_address("broker-0", Listener.TOKEN)))
        header = [("authorization", f"Bearer {token_for(3)}")]
        if stream == "DescribeLogDirs":  # this stream ends by itself before
            assert list(stub.DescribeLogDirs(broker_pb.DescribeLogDirsRequest(), timeout=CALL_S, metadata=header))
            return
        held = threading.Event()
        requests = iter(lambda: held.wait(CALL_S) or None, None)
        request: Any = broker_pb.WatchMetadataRequest() if stream == "WatchMetadata" else requests
        call = getattr(stub, stream)(request, timeout=CALL_S, metadata=header)
        code, sentence = code_of(lambda: list(call), stream)
        held.set()
        assert code is ErrorCode.AUTHENTICATION_FAILED, sentence
        assert "has expired" in sentence
    finally:
        channels.close()


def test_streams_end_with_their_token_and_continue_with_the_next_one(secure: LocalCluster, with_token: Path) -> None:
    """Tokens of two seconds, under load: no acknowledged record is lost, and no record is written twice."""
    ending = threading.Event()

    def renew() -> None:
        while not ending.wait(0.5):
            replace(with_token, token_for(2).encode())

    replace(with_token, token_for(2).encode())
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with AdminClient(secure.token_bootstrap) as admin:
            admin.create_topic("renewed", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
            began_s = time.monotonic()
            with NumbersLoad(secure.token_bootstrap, "renewed", 3) as load:
                wait_for(
                    lambda: (
                        load.failure is not None or (time.monotonic() - began_s > 8 and len(load.acknowledged) > 100)
                    ),
                    "the load outlives three tokens",
                    timeout_s=60,
                )
        load.assert_nothing_lost_or_twice()
    finally:
        ending.set()
        renewing.join()


@pytest.mark.usefixtures("as_user")
def test_connections_that_reach_their_age_lose_and_refuse_nothing(secure: LocalCluster) -> None:
    channels = blocking_channels(TlsIdentity(secure.client_files))
    with AdminClient(secure.bootstrap) as admin:
        admin.create_topic("aged", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        with NumbersLoad(secure.bootstrap, "aged", 3) as load:
            try:
                stub = BrokerServiceStub(opened(channels, secure.client_address("broker-0")))
                began_s = time.monotonic()
                watch = stub.WatchMetadata(broker_pb.WatchMetadataRequest(), timeout=60)
                code, sentence = code_of(lambda: list(watch), "watch")
                assert code is ErrorCode.BROKER_NOT_AVAILABLE, sentence
                assert 0.8 * AGE_MS / 1000 < time.monotonic() - began_s < 40
                stub.GetMetadata(broker_pb.GetMetadataRequest(), timeout=CALL_S)  # the call opens a new connection
            finally:
                channels.close()
            then = len(load.acknowledged)
            wait_for(lambda: len(load.acknowledged) > then + 60 or load.failure is not None, "the load continues")
    load.assert_nothing_lost_or_twice()
