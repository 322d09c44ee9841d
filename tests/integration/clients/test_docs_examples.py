# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/clients.md and docs/typed-topics.md run as they stand, and print the output of the page."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster

from tests.examples import Example, examples

EXAMPLES = examples()
TIMEOUT_S = 60
"""Limit of an example with its topic."""


FLIGHTS = (
    "carrier STRING NOT NULL, flight INT, delay INT, scheduled_at TIMESTAMP NOT NULL, "
    "PRIMARY KEY (carrier), EVENT_TIME (scheduled_at)"
)
TOPICS = {"clients.md": ("orders", None), "typed-topics.md": ("flights", FLIGHTS)}
"""The topic of each page, and its schema."""


@pytest.fixture
def example(
    request: pytest.FixtureRequest, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Example]:
    """An example, with the topic of its page, empty."""
    found = EXAMPLES[request.param]
    topic, schema = TOPICS[found.page]
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", cluster.bootstrap)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=3, schema=schema)
        try:
            yield found
        finally:
            admin.delete_topic(topic)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "example", range(len(EXAMPLES)), ids=[f"{one.page}: {one.heading}" for one in EXAMPLES], indirect=True
)
def test_an_example_prints_the_output_of_its_page(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "example.py"
    program.write_text(example.code)
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out == example.output
