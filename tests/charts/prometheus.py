# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus for a test: it scrapes and evaluates rules every second, with its data in a directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "tidemark-alerts.yaml"
_READY_S = 20.0
_ANSWER_S = 10.0


def program(name: str) -> str:
    """The path of a program, which `.ci/run` installs. Without the program the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt install prometheus")
    return found


def promtool(*arguments: str) -> str:
    """The output of `promtool`; its failure fails the test."""
    done = subprocess.run((program("promtool"), *arguments), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def impatient() -> dict[str, Any]:
    """The rules adapted to incidents of seconds: without `for`, and a high watermark may stall for 2 s."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
            if rule["alert"] == "TidemarkHighWatermarkStalled":
                assert rule["expr"].endswith("> 30")
                rule["expr"] = rule["expr"].removesuffix("30") + "2"
    return rules


class Prometheus:
    """Prometheus on a free port of loopback; `with` starts and kills it.

    Args:
        directory: for its configuration and data.
        targets: addresses by component: {"broker": {"broker-0": "127.0.0.1:9292"}}.
        rules: a rule file's content, or None.
    """

    def __init__(
        self, directory: Path, targets: Mapping[str, Mapping[str, str]], rules: Mapping[str, Any] | None = None
    ) -> None:
        self._program = program("prometheus")
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "prometheus.yaml"
        self._config.write_text(yaml.safe_dump(_configuration(targets, rules is not None)))
        if rules is not None:
            (directory / "rules.yaml").write_text(yaml.safe_dump(dict(rules), width=10_000))
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Prometheus:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{chosen.getsockname()[1]}"
        self.url = f"http://{address}"
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                (
                    self._program,
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={address}",
                    "--log.level=warn",
                ),
                stdout=log,
                stderr=log,
                env=os.environ | {"GOMAXPROCS": "1"},
            )
        try:
            self.wait_until_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._kill()

    def wait_until_ready(self) -> None:
        """Wait until Prometheus answers queries."""
        deadline_s = time.monotonic() + _READY_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
                    return
            except OSError:
                assert time.monotonic() < deadline_s, "Prometheus is not ready in time"
                time.sleep(0.1)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The result of an instant query: a vector's series, or a scalar as the only one.

        A failed query fails the test.
        """
        question = urllib.parse.urlencode({"query": expr})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{question}", timeout=_ANSWER_S) as answer:
                found = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{expr}: {error.read().decode()}")
        return list(found["result"]) if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """One instance of each alert that is pending or firing, by name; checks that no text lacks a value."""
        with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["alerts"]
        for alert in found:
            assert not re.search(r"<error|<no value>", str(alert["annotations"])), alert
        return {one["labels"]["alertname"]: one for one in found}

    def wait_for_alerts(self, *names: str, timeout_s: float = 30.0) -> dict[str, dict[str, Any]]:
        """Wait until all of `names` fire."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            now = self.alerts()
            if all(name in now and now[name]["state"] == "firing" for name in names):
                return now
            assert time.monotonic() < deadline_s, f"{names} should fire; there are {sorted(now)}"
            time.sleep(0.3)

    def wait_for_peace(self, *names: str, timeout_s: float = 30.0) -> None:
        """Wait until none of `names` is pending or firing."""
        deadline_s = time.monotonic() + timeout_s
        while not (still := set(names) & set(self.alerts())).isdisjoint(names):
            assert time.monotonic() < deadline_s, f"{sorted(still)} should have ended"
            time.sleep(0.3)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _configuration(targets: Mapping[str, Mapping[str, str]], with_rules: bool) -> dict[str, Any]:
    """The labels of a target, as in deploy/prometheus/prometheus.yaml."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        **({"rule_files": ["rules.yaml"]} if with_rules else {}),
        "scrape_configs": [
            {
                "job_name": f"tidemark-{component}",
                "static_configs": [
                    {"targets": [address], "labels": {"cluster": "test", "component": component, "instance": name}}
                    for name, address in of_kind.items()
                ],
            }
            for component, of_kind in targets.items()
        ],
    }
