# SPDX-License-Identifier: Apache-2.0
"""The page of a topic's schema over a cluster in memory."""

from __future__ import annotations

import httpx
import pytest
from tidemark.client.aio.admin.topic_schemas import StoredSchema, TopicSchemas
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import ErrorCode

from tests.unit.console.conftest import JSON, FakeCluster, refused, topic

PAGE = "/topics/flights/schema"
VERSIONS = ("carrier STRING, PRIMARY KEY (carrier)", "carrier STRING, delay INT", "carrier STRING, `<b>x` BIGINT")
HOSTILE = "&lt;b&gt;x"


def versions() -> list[TopicSchema]:
    """Three versions: the second adds a column, the third replaces the column."""
    first, *others = map(draft_from_ddl, VERSIONS)
    found = [first_version(first)]
    for draft in others:
        found.append(next_version(found[-1], draft, Compatibility.NONE))
    return found


class TypedCluster(FakeCluster):
    """A cluster with a typed topic."""

    def __init__(self) -> None:
        super().__init__()
        self.add(topic("flights", schema_version=3), topic("untyped"))
        stored = tuple(StoredSchema(one, 1_700_000_000_000 + one.version) for one in versions())
        self.schemas = TopicSchemas("t", stored, "none")

    async def describe_topic_schemas(self, name: str) -> TopicSchemas:
        return self.schemas if name == "flights" else TopicSchemas("u", (), "backward")


@pytest.fixture
def cluster() -> TypedCluster:
    return TypedCluster()


async def test_the_page_of_a_schema_shows_the_newest_version_first_with_its_differences(
    browser: httpx.AsyncClient,
) -> None:
    page = (await browser.get(PAGE, headers=JSON)).json()
    assert page["command"] == "tidemark schema history flights"
    third, second, first = page["data"]["versions"]
    assert [third["version"], second["version"], first["version"]] == [3, 2, 1]
    assert third["command"] == "tidemark schema diff flights --from 2 --to 3"
    assert any("delay" in sentence for sentence in third["differences"])
    assert any("delay" in sentence for sentence in second["differences"])
    assert (first["differences"], first["command"], first["key"]) == ([], "", ["carrier"])


async def test_the_page_of_a_topic_leads_to_the_versions_of_its_schema(browser: httpx.AsyncClient) -> None:
    text = (await browser.get("/topics/flights")).text
    assert f'href="{PAGE}"' in text
    assert "tidemark schema show flights" in text
    assert PAGE not in (await browser.get("/topics/untyped")).text


async def test_the_names_of_columns_are_text(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(PAGE)).text
    assert HOSTILE in text
    assert "<b>x" not in text


async def test_a_topic_without_a_schema_has_the_command_that_proposes_one(browser: httpx.AsyncClient) -> None:
    assert "tidemark schema infer --topic untyped" in (await browser.get("/topics/untyped/schema")).text
    assert (await browser.get("/topics/none/schema")).status_code == 404


async def test_a_schema_that_the_user_may_not_see_is_refused(browser: httpx.AsyncClient, cluster: TypedCluster) -> None:
    cluster.failures["describe_topic_schemas"] = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "alice may not")
    assert (await browser.get(PAGE)).status_code == 403
