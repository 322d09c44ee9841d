# SPDX-License-Identifier: Apache-2.0
"""Profiles: addresses and paths of a cluster, and never a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.cli.common.profiles import profiles_path, use_profile
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import FILE_VARIABLES
from typer.testing import CliRunner

from tests.refusals import raises_code

PROD = """
[prod]
bootstrap = "b0:9492,b1:9492"
tls.ca.file = "/etc/tidemark/ca.crt"
token.file = "prod.token"
[dev]
bootstrap = "127.0.0.1:9192"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    write(tmp_path, PROD)
    return {"XDG_CONFIG_HOME": str(tmp_path), "TIDEMARK_ADMIN": "other:1", "TIDEMARK_TLS_KEY_FILE": "/other.key"}


def write(home: Path, text: str) -> Path:
    path = home / "tidemark" / "profiles.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_profile_replaces_all_that_the_environment_says_of_a_cluster(environ: dict[str, str], tmp_path: Path) -> None:
    use_profile("prod", environ)
    assert environ == {
        "XDG_CONFIG_HOME": str(tmp_path),
        "TIDEMARK_BOOTSTRAP": "b0:9492,b1:9492",
        "TIDEMARK_TLS_CA_FILE": "/etc/tidemark/ca.crt",
        "TIDEMARK_TOKEN_FILE": str(tmp_path / "tidemark" / "prod.token"),
    }


def test_profiles_are_in_the_home_directory_by_default() -> None:
    assert profiles_path({}) == Path.home() / ".config" / "tidemark" / "profiles.toml"


SECRET = f"tidemark_{'s' * 43}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PROD, "has no profile 'stage'; it has dev, prod"),
        ("", "it has none"),
        ("[stage", "is not TOML"),
        (f"[stage]\ntoken = '{SECRET}'", "has a secret itself in token"),
        (f"[stage]\ntoken.file = '{SECRET}'", "has a secret itself in token.file"),
        ("[stage]\ntls.key.file = '''-----BEGIN PRIVATE KEY-----\n'''", "has a secret itself in tls.key.file"),
        ("[stage]\ntoken.file = 'eyJhbGciOiJFUzI1NiJ9.e30.c2ln'", "has a secret itself"),
        ("[stage]\npassword = 'x'", "has password: expected bootstrap, admin"),
        ("[stage]\nbootstrap = 5", "has no text as bootstrap"),
    ],
)
def test_a_wrong_profile_is_refused_and_changes_nothing(
    environ: dict[str, str], tmp_path: Path, text: str, sentence: str
) -> None:
    write(tmp_path, text)
    before = dict(environ)
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        use_profile("stage", environ)
    assert sentence in refused.value.message
    assert SECRET not in str(refused.value)
    assert environ == before


def test_profiles_that_others_can_write_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, PROD).chmod(0o666)
    with pytest.raises(TidemarkError, match="can be written by others"):
        use_profile("prod", environ)


def test_the_command_takes_the_addresses_of_its_profile(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def connect(bootstrap: str, admin: str, **_: object) -> None:
        asked.append((bootstrap, admin))
        raise TidemarkError(ErrorCode.INTERNAL, "enough")

    monkeypatch.setattr(options, "connect_admin", connect)
    for variable in (*FILE_VARIABLES, "TIDEMARK_BOOTSTRAP", "TIDEMARK_ADMIN", "TIDEMARK_TOKEN_FILE"):
        monkeypatch.setenv(variable, "of-another-cluster:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    CliRunner().invoke(app, ["--profile", "prod", "topic", "list"])
    assert asked == [("b0:9492,b1:9492", "")]
    assert os.environ["TIDEMARK_TOKEN_FILE"] == str(tmp_path / "tidemark" / "prod.token")
    assert "TIDEMARK_TLS_KEY_FILE" not in os.environ
    CliRunner().invoke(app, ["--profile", "prod", "--token-file", "/mine", "topic", "list", "--bootstrap", "b9:1"])
    assert asked[1:] == [("b9:1", "")]
    assert os.environ["TIDEMARK_TOKEN_FILE"] == "/mine"
