# SPDX-License-Identifier: Apache-2.0
"""Pictures of the console for docs/console/: `make screenshots`. A local cluster with flights, one broker killed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, expect, sync_playwright
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.console.conftest import ARGUMENTS, executable
from tests.integration.harness.waiting import wait_for

PLACE: Final = Path(__file__).resolve().parents[3] / "docs" / "console"
SIZE: Final = {"width": 1280, "height": 720}
SCHEMA: Final = "carrier STRING NOT NULL, flight INT, origin STRING, delay INT, PRIMARY KEY (carrier)"


def main() -> int:
    """Write the pictures; returns the exit code."""
    found = executable()
    if found is None:
        sys.stderr.write("no browser: apt install chromium-headless-shell\n")
        return 1
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), console=True) as cluster:
        _fill(cluster)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
            _take(browser, cluster.console_url, {"topics": "topics"})
            _take(browser, cluster.console_url, {"topic": "topics/flights"}, scheme="dark")
            cluster.kill(broker_name(2))
            _wait_until_away(cluster.console_url, browser)
            _take(browser, cluster.console_url, {"overview": ""})
            browser.close()
        cluster.restart(broker_name(2))
    return 0


def _fill(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        configs = {"flush.interval.ms": 500}
        admin.create_topic("flights", partitions=4, replication_factor=3, configs=configs, schema=SCHEMA)
        for number in range(5_000):
            row = {"carrier": f"C{number % 40}", "flight": number, "origin": "JFK", "delay": number % 60}
            producer.send("flights", row)
        for name in ("delays", "gates", "weather"):
            admin.create_topic(name, partitions=3, replication_factor=3, configs={"retention.ms": 86_400_000})
            for number in range(2_000):
                producer.send(name, b"x" * 200, key=str(number).encode())
        producer.flush(60)


def _take(browser: Browser, url: str, pages: dict[str, str], *, scheme: str = "light") -> None:
    context = browser.new_context(color_scheme=scheme, viewport=SIZE, device_scale_factor=1)  # type: ignore[arg-type]
    page = context.new_page()
    for name, path in pages.items():
        page.goto(url + path)
        expect(page.locator("#live-state")).to_contain_text("updated")
        page.screenshot(path=PLACE / f"{name}.png")
    context.close()


def _wait_until_away(url: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(url)
    wait_for(lambda: page.reload() is not None and page.locator("text=Act:").count() > 0, "the broker is away")
    page.close()


if __name__ == "__main__":
    sys.exit(main())
