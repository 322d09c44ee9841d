# SPDX-License-Identifier: Apache-2.0
"""`tidemark certs`: files that a service and a client accept, and bad usage that changes nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from cryptography import x509
from tidemark.cli.app import app
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import TidemarkError
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.service import service_identity
from typer.testing import CliRunner


def certs(directory: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(app, ["certs", *arguments, "--directory", str(directory)])
    assert ran.exit_code == 0, ran.output
    return ran.output


def refused(directory: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(app, ["certs", *arguments, "--directory", str(directory)])
    assert ran.exit_code != 0, ran.output
    return " ".join((ran.output + str(ran.exception)).split())


def files(directory: Path, stem: str) -> TlsFiles:
    return TlsFiles(*(str(directory / name) for name in ("ca.crt", f"{stem}.crt", f"{stem}.key")))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    certs(made, "init", "shop")
    return made


def test_every_service_accepts_the_certificate_that_is_issued_for_it(directory: Path) -> None:
    certs(directory, "broker", "3", "--host", "broker-3.example.com", "--host", "10.0.0.5")
    certs(directory, "controller", "100", "--host", "localhost")
    certs(directory, "admin", "--host", "localhost")
    assert service_identity(files(directory, "broker-3"), Role.BROKER, 3)
    assert service_identity(files(directory, "controller-100"), Role.CONTROLLER, 100)
    assert service_identity(files(directory, "admin"), Role.ADMIN, None)


def test_a_clients_key_is_private_and_its_files_are_named(directory: Path) -> None:
    said = certs(directory, "client", "alice")
    alice = files(directory, "client-alice")
    assert alice.certificate in said.replace("\n", "")
    assert TlsIdentity(alice).current().uris == ("tidemark://shop/user/alice",)
    assert os.stat(alice.key).st_mode & 0o077 == 0
    assert os.stat(directory / "ca.key").st_mode & 0o077 == 0


def test_all_services_have_one_subject_which_no_user_and_no_zookeeper_has(directory: Path) -> None:
    certs(directory, "broker", "3", "--host", "localhost")
    certs(directory, "controller", "100", "--host", "localhost")
    certs(directory, "admin", "--host", "localhost")
    certs(directory, "client", "services")
    certs(directory, "zookeeper", "1", "--host", "localhost")
    stems = ("broker-3", "controller-100", "admin", "client-services", "zookeeper-1")
    subjects = [x509.load_pem_x509_certificate((directory / f"{stem}.crt").read_bytes()).subject for stem in stems]
    assert subjects[0] == subjects[1] == subjects[2]
    assert subjects[0].rfc4514_string() == "CN=services,O=shop"
    assert subjects[0] not in subjects[3:]


def test_a_zookeeper_server_gets_certificate_and_key_in_one_private_file(directory: Path) -> None:
    said = certs(directory, "zookeeper", "1", "--host", "localhost")
    both = directory / "zookeeper-1.pem"
    made = files(directory, "zookeeper-1")
    assert both.read_bytes() == Path(made.certificate).read_bytes() + Path(made.key).read_bytes()
    assert os.stat(both).st_mode & 0o077 == 0
    assert str(both) in said.replace("\n", "")


def test_an_expired_authority_issues_nothing(directory: Path) -> None:
    for name in ("ca.key", "ca.crt"):
        (directory / name).unlink()
    Authority.create(directory, "shop", days=0)
    sentence = refused(directory, "client", "alice")
    assert "ca.crt expired on" in sentence
    assert "tidemark certs init" in sentence
    assert not (directory / "client-alice.crt").exists()


def test_a_certificate_is_not_valid_longer_than_its_authority(tmp_path: Path) -> None:
    made = tmp_path / "short"
    certs(made, "init", "shop", "--days", "30")
    certs(made, "client", "alice")
    ends = [
        x509.load_pem_x509_certificate((made / name).read_bytes()).not_valid_after_utc
        for name in ("ca.crt", "client-alice.crt")
    ]
    assert ends[0] == ends[1]


def test_a_second_authority_never_replaces_the_first(directory: Path) -> None:
    before = (directory / "ca.key").read_bytes()
    assert "has an authority already" in refused(directory, "init", "other")
    assert (directory / "ca.key").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("client", "../alice"), "the client's name is '../alice'"),
        (("broker", "-1", "--host", "localhost"), "-1"),
        (("broker", "3"), "--host"),
        (("broker", "3", "--host", "böse.example"), "not a name or address of a host"),
        (("client", "x" * 201), "expected at most 200 letters"),
        (("broker", "3", "--host", ""), "not a name or address of a host"),
        (("broker", "3", "--host", "a.example,b.example"), "repeat --host for several"),
        (("broker", "3", "--host", "a.example:9192"), "not a name or address of a host"),
        (("broker", "3", "--host", "https://a.example"), "not a name or address of a host"),
        (("client", "alice", "--days", "0"), "--days"),
    ],
)
def test_bad_usage_issues_nothing(directory: Path, arguments: tuple[str, ...], sentence: str) -> None:
    before = sorted(path.name for path in directory.iterdir())
    assert sentence in refused(directory, *arguments)
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_directory_that_cannot_be_written_is_named_with_the_reason(directory: Path) -> None:
    """Root may write to any directory, but no path below a file is a directory."""
    below = directory / "ca.crt" / "certs"
    assert f"{below}: Not a directory" in refused(below, "init", "shop")
    (directory / "client-alice.key.new").mkdir()
    assert "client-alice.key.new: Is a directory" in refused(directory, "client", "alice")


def test_a_user_may_have_a_longer_name_than_a_subject_can_have(directory: Path) -> None:
    certs(directory, "client", "loader-" + "x" * 100)
    identity = TlsIdentity(files(directory, "client-loader-" + "x" * 100))
    assert identity.current().uris == ("tidemark://shop/user/loader-" + "x" * 100,)


def test_a_cluster_has_a_name_that_a_subject_can_have(tmp_path: Path) -> None:
    assert "at most 64 small letters" in refused(tmp_path / "certs", "init", "x" * 65)
    certs(tmp_path / "certs", "init", "x" * 64)


def test_without_an_authority_the_error_names_the_command_that_makes_one(tmp_path: Path) -> None:
    assert "tidemark certs init" in refused(tmp_path, "client", "alice")


def test_a_file_as_directory_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "it is a file" in refused(tmp_path / "file", "init", "shop")


def test_authorities_that_are_made_at_the_same_time_are_one(tmp_path: Path) -> None:
    """A second one would have replaced the files of the first, which the first command has named as good."""
    directory = tmp_path / "certs"
    start = Barrier(4)

    def make(_: int) -> str:
        start.wait()
        try:
            return Authority.create(directory, "shop").cluster
        except TidemarkError as error:
            return error.message

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(make, range(4)))
    assert said[-1] == "shop"
    assert all("has an authority already" in one for one in said[:-1])


def test_an_authority_whose_key_is_elsewhere_is_not_replaced(directory: Path) -> None:
    """`certs init` itself says that the key should be kept away."""
    (directory / "ca.key").unlink()
    before = (directory / "ca.crt").read_bytes()
    assert "has an authority already" in refused(directory, "init", "shop")
    assert (directory / "ca.crt").read_bytes() == before
    assert "put the key of the authority back" in refused(directory, "client", "alice")


def test_an_authority_that_was_interrupted_before_its_certificate_is_made_by_a_repeated_command(
    directory: Path,
) -> None:
    (directory / "ca.crt").unlink()
    certs(directory, "init", "shop")
    certs(directory, "client", "alice")
    assert TlsIdentity(files(directory, "client-alice")).current().uris == ("tidemark://shop/user/alice",)


def test_a_certificate_that_is_issued_by_several_commands_at_a_time_has_its_key(directory: Path) -> None:
    authority = Authority.load(directory)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: authority.issue_client("alice"), range(12)))) == 12
    assert TlsIdentity(files(directory, "client-alice")).current().uris == ("tidemark://shop/user/alice",)
