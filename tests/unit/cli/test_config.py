# SPDX-License-Identifier: Apache-2.0
"""`tidemark config set`: a change is reported, even if the later request for its warning fails."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.entries import ConfigChange
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


class Client(FakeAdmin):
    """Changes settings, then is unavailable."""

    def alter_configs(self, *_: object, **__: object) -> list[ConfigChange]:
        return [ConfigChange("min.insync.replicas", "2", "3")]

    def describe_topics(self, names: object) -> Any:
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "gone")


def test_a_change_is_reported_without_its_warning_during_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: Client())
    ended = CliRunner().invoke(app, ["config", "set", "topic", "t", "min.insync.replicas=3"])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "~ min.insync.replicas: 2 -> 3\n", "")
