# SPDX-License-Identifier: Apache-2.0
"""The token of `tidemark dev --secure`, also after a kill at the first start."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tidemark.local import cluster
from tidemark.rpc.security import token_file
from tidemark.rpc.security.token_source import TokenSource


def test_a_token_of_a_killed_start_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the file was empty, and each later start failed."""

    class Killed(BaseException):
        pass

    def kill(path: Path, name: str) -> str:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(token_file, "create", kill)
        with pytest.raises(Killed):
            cluster._token_in(tmp_path)
    path = cluster._token_in(tmp_path)
    token = TokenSource(str(path)).current()
    assert token_file.digest_of(token) in token_file.read(tmp_path / cluster.TOKENS).values()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cluster._token_in(tmp_path) == path
    assert TokenSource(str(path)).current() == token
