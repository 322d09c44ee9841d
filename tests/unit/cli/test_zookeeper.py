# SPDX-License-Identifier: Apache-2.0
"""`tidemark zookeeper` takes the settings of a service, and names the option of a wrong file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.cli.zookeeper import _progress
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import TlsFiles
from tidemark.zookeeper.closing import Pass
from typer.testing import CliRunner


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority.create(tmp_path, "shop").issue_service(Role.ADMIN, "admin", ["localhost"])


def environment(files: TlsFiles) -> dict[str, str]:
    return {
        "TIDEMARK_ZOOKEEPER_CONNECT": "127.0.0.1:1/shop",
        "TIDEMARK_ZOOKEEPER_TLS_CA_FILE": files.ca,
        "TIDEMARK_TLS_CERTIFICATE_FILE": files.certificate,
        "TIDEMARK_TLS_KEY_FILE": files.key,
    }


@pytest.mark.parametrize("command", ["close", "open"])
def test_the_settings_of_a_service_in_the_environment_suffice(
    files: TlsFiles, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.zookeeper.closing._SESSION_TIMEOUT_MS", 300)
    ran = CliRunner().invoke(app, ["zookeeper", command], env=environment(files))
    assert isinstance(ran.exception, TidemarkError)
    assert ran.exception.code is ErrorCode.COORDINATION_UNAVAILABLE
    assert "127.0.0.1:1/shop" in ran.exception.message


def test_a_wrong_file_is_named_with_its_option(files: TlsFiles) -> None:
    ran = CliRunner().invoke(app, ["zookeeper", "close", "--key-file", "/no/such"], env=environment(files))
    assert isinstance(ran.exception, TidemarkError)
    assert ran.exception.code is ErrorCode.INVALID_CONFIG
    assert ran.exception.message == "--key-file is /no/such, which cannot be read: No such file or directory"


def test_the_progress_of_a_large_tree_is_shown_for_each_pass(capsys: pytest.CaptureFixture[str]) -> None:
    tell = _progress()
    for nodes, other in ((4_000, 4_000), (6_000, 5_000), (9_000, 5_000), (12_000, 9_000), (100, 0), (5_100, 0)):
        tell(Pass(nodes, other))
    assert capsys.readouterr().err.splitlines() == [
        "6000 nodes seen, 5000 with another ACL",
        "12000 nodes seen, 9000 with another ACL",
        "5100 nodes seen, 0 with another ACL",
    ]


@pytest.mark.parametrize("connect", ["", "http://zk:2181", "zk:2181,,zk:2182"])
def test_a_wrong_address_of_zookeeper_is_bad_usage(files: TlsFiles, connect: str) -> None:
    ran = CliRunner().invoke(app, ["zookeeper", "close", "--connect", connect], env=environment(files))
    assert ran.exit_code == 2, ran.exception
    assert "--connect" in ran.stderr
