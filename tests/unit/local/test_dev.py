# SPDX-License-Identifier: Apache-2.0
"""`tidemark dev` starts the console if its packages are installed, and names the option that a start lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tidemark.local import dev
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError


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


@pytest.mark.parametrize("was_secure", [False, True])
def test_a_plain_start_in_the_directory_of_a_secure_cluster_names_the_option(
    was_secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(cluster: LocalCluster) -> None:
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "not serving after 30 s")

    monkeypatch.setattr(LocalCluster, "start", refuse)
    if was_secure:
        (tmp_path / "certs").mkdir()
    with pytest.raises(TidemarkError, match="not serving after 30 s") as refused:
        dev.run(tmp_path, brokers=1, controllers=1, free_ports=True)
    assert ("add --secure" in refused.value.message) is was_secure


def test_the_console_has_a_fixed_port_of_its_own() -> None:
    ports = dev.fixed_ports(9, 9)
    assert len({*ports.values(), *(port + 100 for port in ports.values())}) == 2 * len(ports)
    assert ports["console"] == 9195
