# SPDX-License-Identifier: Apache-2.0
"""The TLS files of a process: contents that do not fit together never replace contents that do."""

from __future__ import annotations

import os
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidemark.core.security.principals import Role
from tidemark.local import certificates
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security import files as tls
from tidemark.rpc.security.files import TlsIdentity, uris_in
from tidemark.rpc.security.paths import FILE_VARIABLES, SETTINGS, TlsFiles, files_of
from tidemark.rpc.security.service import service_identity

from tests.refusals import raises_code

HOSTS = ("127.0.0.1",)


@pytest.fixture(autouse=True)
def at_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are checked each time."""
    monkeypatch.setattr(tls, "_CHECK_S", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certs", "shop")


@pytest.fixture
def broker(authority: Authority) -> TlsFiles:
    return authority.issue_service(Role.BROKER, "3", HOSTS)


def test_new_files_are_used_from_the_next_look_on(authority: Authority, broker: TlsFiles) -> None:
    identity = TlsIdentity(broker)
    before = identity.current()
    assert before.uris == ("tidemark://shop/broker/3",)
    authority.issue_service(Role.BROKER, "3", HOSTS, days=7)
    after = identity.current()
    assert after.fingerprint != before.fingerprint
    assert after.not_after_s < before.not_after_s
    assert after.certificate == Path(broker.certificate).read_bytes()
    assert identity.failures == 0


def test_a_certificate_is_valid_no_longer_than_its_authority(tmp_path: Path) -> None:
    old, new = (Authority.create(tmp_path / name, "shop", days=days) for name, days in (("old", 30), ("new", 300)))
    issued = {one: one.issue_service(Role.BROKER, "3", HOSTS, days=90) for one in (old, new)}
    both = tmp_path / "both.crt"
    both.write_bytes(b"".join(Path(files.ca).read_bytes() for files in issued.values()))
    ends = {days: time.time() + days * 86400 for days in (30, 90)}
    for authority, days in ((old, 30), (new, 90)):
        for ca in (issued[authority].ca, str(both)):
            valid_until_s = TlsIdentity(issued[authority]._replace(ca=ca)).current().not_after_s
            assert valid_until_s == pytest.approx(ends[days], abs=3600)


def test_a_renamed_symbolic_link_counts_as_a_change(authority: Authority, broker: TlsFiles, tmp_path: Path) -> None:
    """Kubernetes replaces the files of a Secret in this way."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for version in ("1", "2"):
        (mounted / version).mkdir()
        for path in authority.issue_service(Role.BROKER, "3", HOSTS):
            (mounted / version / Path(path).name).write_bytes(Path(path).read_bytes())
    (mounted / "..data").symlink_to("1")
    identity = TlsIdentity(TlsFiles(*(str(mounted / "..data" / Path(path).name) for path in broker)))
    first = identity.current().fingerprint
    (mounted / "new").symlink_to("2")
    os.replace(mounted / "new", mounted / "..data")
    assert identity.current().fingerprint != first
    assert identity.failures == 0


def test_a_certificate_without_its_key_yet_keeps_the_former_pair(authority: Authority, broker: TlsFiles) -> None:
    identity = TlsIdentity(broker)
    before = identity.current()
    old_key = Path(broker.key).read_bytes()
    authority.issue_service(Role.BROKER, "3", HOSTS)
    new_key = Path(broker.key).read_bytes()
    Path(broker.key).write_bytes(old_key)
    assert identity.current() == before
    assert identity.current() == before
    assert identity.failures == 1, "one state of the files is counted once"
    Path(broker.key).write_bytes(new_key)
    assert identity.current().key == new_key


def test_a_certificate_of_another_service_keeps_the_former_identity(authority: Authority, broker: TlsFiles) -> None:
    identity = TlsIdentity(broker)
    before = identity.current()
    for path, other in zip(broker, authority.issue_service(Role.BROKER, "4", HOSTS), strict=True):
        Path(path).write_bytes(Path(other).read_bytes())
    assert identity.current() == before
    assert identity.failures == 1
    authority.issue_service(Role.BROKER, "3", HOSTS)
    assert identity.current().fingerprint != before.fingerprint


@pytest.mark.parametrize("first", ["key", "certificate"])
def test_a_process_that_starts_between_the_two_renames_of_a_new_pair_waits_for_the_second(
    authority: Authority, broker: TlsFiles, first: str
) -> None:
    other = broker.certificate if first == "key" else broker.key
    old = Path(other).read_bytes()
    authority.issue_service(Role.BROKER, "3", HOSTS)
    new = Path(other).read_bytes()
    Path(other).write_bytes(old)
    with pytest.raises(TidemarkError, match="which is not the key of"):
        TlsIdentity(broker)
    renaming = threading.Timer(0.1, Path(other).write_bytes, (new,))
    renaming.start()
    try:
        assert TlsIdentity(broker).current().certificate == Path(broker.certificate).read_bytes()
    finally:
        renaming.join()


def test_a_certificate_of_an_unknown_version_keeps_the_former_identity(broker: TlsFiles) -> None:
    identity = TlsIdentity(broker)
    before = identity.current()
    whole = ssl.PEM_cert_to_DER_cert(Path(broker.certificate).read_text())
    version_3, version_107 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x6a"
    damaged = ssl.DER_cert_to_PEM_cert(whole.replace(version_3, version_107, 1))
    Path(broker.certificate).write_text(damaged)
    assert identity.current() == before
    assert identity.failures == 1
    assert uris_in(damaged.encode()) == ()


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.sampled_from(range(3)), st.floats(0, 1), st.sampled_from(["cut", "flip", "empty", "junk", "gone"]))
def test_damaged_files_never_replace_whole_ones(
    tmp_path_factory: pytest.TempPathFactory, which: int, where: float, damage: str
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    authority = Authority.create(directory, "shop")
    files = authority.issue_service(Role.BROKER, "3", HOSTS)
    identity = TlsIdentity(files)
    before = identity.current()
    path = Path(files[which])
    content = bytearray(path.read_bytes())
    at = int(where * (len(content) - 2))  # the file is whole without its last byte, a line end
    if damage == "gone":
        path.unlink()
    else:
        if damage == "flip":
            content[at] ^= 0x20
        path.write_bytes({"cut": content[:at], "empty": b"", "junk": b"no PEM"}.get(damage, bytes(content)))
    after = identity.current()
    if after != before:  # a byte that the PEM format ignores, or one that the peer finds by the signature
        assert damage == "flip"
        assert TlsIdentity(files).current() == after


@pytest.mark.parametrize("missing", SETTINGS)
def test_files_that_belong_together_are_set_together(broker: TlsFiles, missing: str) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        TlsIdentity(TlsFiles(*("" if name == missing else path for name, path in zip(SETTINGS, broker, strict=True))))
    assert missing in refused.value.message


def test_no_file_means_plain_text() -> None:
    assert service_identity(TlsFiles(), Role.BROKER, 3) is None
    assert not files_of({}).is_set
    assert files_of(dict(zip(FILE_VARIABLES, ("a", "b", "c"), strict=True))) == TlsFiles("a", "b", "c")


@pytest.mark.parametrize(("role", "service_id"), [(Role.BROKER, 4), (Role.CONTROLLER, 3), (Role.ADMIN, None)])
def test_a_service_refuses_the_certificate_of_another_one(broker: TlsFiles, role: Role, service_id: int | None) -> None:
    with pytest.raises(TidemarkError, match=r"tidemark://shop/broker/3\]: this service needs tidemark://CLUSTER/"):
        service_identity(broker, role, service_id)


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    with pytest.raises(TidemarkError, match="which expired on"):
        TlsIdentity(authority.issue_service(Role.BROKER, "3", HOSTS, days=0))


def issue_from(authority: Authority, monkeypatch: pytest.MonkeyPatch, wait_s: float) -> TlsFiles:
    """A certificate of the broker that is valid after this time, in seconds."""
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_BACKDATED", timedelta(seconds=-wait_s))
        return authority.issue_service(Role.BROKER, "3", HOSTS)


def test_a_certificate_that_is_not_valid_yet_is_refused(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TidemarkError, match="which is not valid before"):
        TlsIdentity(issue_from(authority, monkeypatch, 3600))


def test_a_start_takes_a_certificate_that_other_clocks_may_accept(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this machine may be late, and the server decides."""
    TlsIdentity(issue_from(authority, monkeypatch, 200))


class Later(datetime):
    """The clock after the time for which the certificates of these tests wait."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(seconds=201)


def test_a_changed_certificate_is_used_when_it_becomes_valid(
    authority: Authority, broker: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise peers would refuse the service until then."""
    identity = TlsIdentity(broker)
    before = identity.current()
    issue_from(authority, monkeypatch, 200)
    assert [identity.current() for _ in range(2)] == [before, before]
    assert identity.failures == 1, "each state of the files is logged once"
    monkeypatch.setattr(tls, "datetime", Later)
    assert identity.current().fingerprint != before.fingerprint


def renewed(authority: Path, *, first_days: float, last_days: float) -> bytes:
    """The certificate of an authority for other times, with the same name and key."""
    now = datetime.now(UTC)
    before = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    key = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder(before.issuer, before.subject, before.public_key(), x509.random_serial_number())
    for extension in before.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    valid = builder.not_valid_before(now + timedelta(first_days)).not_valid_after(now + timedelta(last_days))
    return valid.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first_days", "last_days"), [(-3, -1), (1, 900)])
@pytest.mark.parametrize("order", [1, -1])
def test_an_authority_that_is_not_valid_now_hides_no_valid_one_of_the_same_name(
    broker: TlsFiles, first_days: float, last_days: float, order: int
) -> None:
    """Regression: gRPC refused every certificate if the expired authority came first in the file."""
    ca = Path(broker.ca)
    bundle = [renewed(ca.parent, first_days=first_days, last_days=last_days), ca.read_bytes()]
    ca.write_bytes(b"".join(bundle[::order]))
    identity = TlsIdentity(broker)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[])
    port = server.add_secure_port("127.0.0.1:0", identity.server_credentials())
    server.start()
    material = identity.current()
    credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
    server.stop(0).wait()


def test_a_file_of_expired_authorities_only_is_used_as_it_is(authority: Authority, tmp_path: Path) -> None:
    """The handshakes then fail with the reason."""
    ca = tmp_path / "old.crt"
    ca.write_bytes(b"".join(renewed(tmp_path / "certs", first_days=-9, last_days=-last) for last in (1, 2)))
    assert TlsIdentity(TlsFiles(str(ca))).current().ca == ca.read_bytes()
