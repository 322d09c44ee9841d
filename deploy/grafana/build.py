# SPDX-License-Identifier: Apache-2.0
"""Writes the JSON of the dashboards here: `python -m deploy.grafana.build`. A test compares the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from deploy.grafana.boards.cluster import CLUSTER
from deploy.grafana.boards.controller import CONTROLLER
from deploy.grafana.boards.groups import GROUPS
from deploy.grafana.boards.replication import REPLICATION
from deploy.grafana.boards.spark import SPARK

BOARDS: Final = (CLUSTER, REPLICATION, CONTROLLER, GROUPS, SPARK)
PLACE: Final = Path(__file__).resolve().parent


def files() -> dict[Path, str]:
    """Path and content of each file."""
    return {
        PLACE / f"tidemark-{board.name}.json": json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n"
        for board in BOARDS
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
