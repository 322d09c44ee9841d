# SPDX-License-Identifier: Apache-2.0
"""`tidemark schema evolve`: its JSON, with a fake client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.client.aio.admin.topic_schemas import AlteredSchema
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


class Client(FakeAdmin):
    """A cluster in which each change makes a version."""

    def alter_topic_schema(self, topic: str, schema: object, **_: object) -> AlteredSchema:
        return AlteredSchema(first_version(draft_from_ddl("a INT")), True, ("column a: is new",))


@pytest.mark.parametrize(("options_given", "changed"), [([], True), (["--dry-run"], False)])
def test_a_dry_run_of_evolve_changes_nothing_in_json_either(
    monkeypatch: pytest.MonkeyPatch, options_given: list[str], changed: bool
) -> None:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: Client())
    command = ["schema", "evolve", "t", "--schema", "a INT", "-o", "json", *options_given]
    shown: dict[str, Any] = json.loads(CliRunner().invoke(app, command).stdout)
    assert shown == {"name": "t", "version": 1, "changed": changed, "differences": ["column a: is new"]}
