"""Copies of dashboards and alerts inside the chart, which can read nothing outside: `python -m tests.charts.copies`."""

from __future__ import annotations

import shutil

from tests.charts.rendering import CHARTS, ROOT

COPIED = (("grafana", "*.json"), ("prometheus", "tidemark-*.yaml"))

if __name__ == "__main__":
    for place, pattern in COPIED:
        directory = CHARTS / "tidemark" / "files" / place
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob(pattern):
            old.unlink()
        for path in sorted((ROOT / "deploy" / place).glob(pattern)):
            shutil.copyfile(path, directory / path.name)
