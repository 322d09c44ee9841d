# SPDX-License-Identifier: Apache-2.0
"""`tidemark dev` starts the console if its packages are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tidemark.local import dev


class Started(Exception):  # noqa: N818 - ends the test at the start of the cluster
    pass


@pytest.mark.parametrize(
    ("wanted", "missing", "started"),
    [(True, "", True), (True, "starlette", False), (False, "", False)],
)
def test_the_console_runs_if_it_is_wanted_and_installed(
    wanted: bool, missing: str, started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def cluster(directory: Path, **options: Any) -> Any:
        given.update(options)
        raise Started

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    monkeypatch.setattr(dev, "LocalCluster", cluster)
    with pytest.raises(Started):
        dev.run(tmp_path, brokers=1, controllers=1, free_ports=True, console=wanted)
    assert given["console"] is started


def test_the_console_has_a_fixed_port_of_its_own() -> None:
    ports = dev.fixed_ports(9, 9)
    assert len({*ports.values(), *(port + 100 for port in ports.values())}) == 2 * len(ports)
    assert ports["console"] == 9195
