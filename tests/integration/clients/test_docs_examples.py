# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/clients.md run as they stand, and print what the page says."""

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
"""Of an example with its topic."""


@pytest.fixture
def orders(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The topic of the page, empty."""
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", cluster.bootstrap)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("orders", partitions=3, replication_factor=3)
        try:
            yield
        finally:
            admin.delete_topic("orders")


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[example.heading for example in EXAMPLES])
def test_an_example_prints_the_output_of_its_page(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example: Example = EXAMPLES[number]
    program = tmp_path / "example.py"
    program.write_text(example.code)
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out == example.output
