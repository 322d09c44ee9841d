# SPDX-License-Identifier: Apache-2.0
"""A file of certificates, tokens, keys or settings without an end, as /dev/zero, does not fill the memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from tidemark.cli.common.profiles import use_profile
from tidemark.console.server import HttpServer
from tidemark.model import ErrorCode
from tidemark.rpc.security import token_file
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.jwks import KeySet
from tidemark.rpc.security.jwts import IssuersFile
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenSource
from tidemark.runtime.configuration.broker_settings import BrokerSettings
from tidemark.runtime.configuration.settings import read_settings
from tidemark.runtime.host_port import HostPort

from tests.refusals import raises_code

TOO_LARGE = "it has more than 16 MiB"


@pytest.fixture
def endless(tmp_path: Path) -> str:
    path = tmp_path / "tidemark" / "profiles.toml"
    path.parent.mkdir()
    path.touch(0o600)
    os.truncate(path, 17 << 20)  # of zeros, and without blocks
    return str(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: TlsIdentity(TlsFiles(ca=path)),
        TokenSource,
        token_file.read,
        lambda path: IssuersFile(path, 0.0),
        lambda path: read_settings(BrokerSettings, ["--config", path], {}),
        lambda path: use_profile("prod", {"XDG_CONFIG_HOME": str(Path(path).parent.parent)}),
    ],
    ids=["certificates", "token", "tokens", "issuers", "settings", "profiles"],
)
def test_a_file_without_an_end_is_refused(endless: str, read: Callable[[str], object]) -> None:
    """Regression: INTERNAL, after the memory was full."""
    with raises_code(ErrorCode.INVALID_CONFIG, TOO_LARGE):
        read(endless)


async def test_the_certificate_of_the_console_is_a_regular_file_of_bounded_size(endless: str, tmp_path: Path) -> None:
    """Regression: OpenSSL read all of the file; at a pipe the console waited for a writer without a word."""
    os.mkfifo(pipe := tmp_path / "pipe")
    for path, sentence in ((endless, TOO_LARGE), (str(pipe), "it is not a regular file")):
        server = HttpServer(PlainTextResponse(""), HostPort("127.0.0.1", 0), certificate_file=path, key_file=path)
        with raises_code(ErrorCode.INVALID_CONFIG, sentence):
            await server.start()


async def test_keys_without_an_end_are_refused(endless: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not await KeySet(endless).find("old")
    assert TOO_LARGE in caplog.text


async def test_an_authority_without_an_end_is_refused(endless: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not await KeySet("https://127.0.0.1:1/keys", ca_file=endless).find("old")
    assert TOO_LARGE in caplog.text
