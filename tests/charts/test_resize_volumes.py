# SPDX-License-Identifier: Apache-2.0
"""deploy/resize-volumes.sh checks before its first change, and makes its changes in the required order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import ROOT

SCRIPT = ROOT / "deploy" / "resize-volumes.sh"

KUBECTL = """#!/bin/sh
echo "kubectl $*" >>"$CALLS"
case "$*" in
*create*volumeClaimTemplates*data-0*) cat >/dev/null; echo 20Gi ;;
*create*volumeClaimTemplates*) cat >/dev/null ;;
*create*) cat >/dev/null; echo tide-tidemark-broker ;;
*"get pvc -o name"*) printf 'persistentvolumeclaim/%s\\n' data-0-tide-tidemark-broker-0 data-0-tide-tidemark-broker-1 \\
    data-1-tide-tidemark-broker-0 ;;
*storageClassName*) echo standard ;;
*allowVolumeExpansion*) echo "$GROWS" ;;
esac
"""
HELM = """#!/bin/sh
echo "helm $*" >>"$CALLS"
[ "$1" != upgrade ] || exit "$UPGRADE"
"""


def run(directory: Path, *arguments: str, grows: str = "true", upgrade: int = 0) -> tuple[int, str, list[str]]:
    for name, text in (("kubectl", KUBECTL), ("helm", HELM)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    calls = directory / "calls"
    calls.touch()
    environment = {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "GROWS": grows,
        "UPGRADE": str(upgrade),
    }
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr, calls.read_text().splitlines()


def changes(calls: list[str]) -> list[str]:
    words = ("patch", "delete", "upgrade")
    return [each for each in calls if any(word in each for word in words) and "--dry-run" not in each]


def test_claims_grow_then_the_statefulset_is_recreated_around_its_pods(tmp_path: Path) -> None:
    status, _, calls = run(tmp_path, "streams", "tide", "data-0", "charts/tidemark", "-f", "values.yaml")
    assert status == 0
    first, second, delete, upgrade = changes(calls)
    for ordinal, patch in enumerate((first, second)):
        assert f"patch pvc data-0-tide-tidemark-broker-{ordinal}" in patch
        assert '"storage":"20Gi"' in patch
    assert delete == "kubectl -n streams delete statefulset tide-tidemark-broker --cascade=orphan --ignore-not-found"
    assert upgrade == "helm upgrade tide charts/tidemark -n streams -f values.yaml"
    asked = [number for number, each in enumerate(calls) if "--dry-run=server" in each]
    assert len(asked) == 2
    assert max(asked) < calls.index(first)


@pytest.mark.parametrize(
    ("claim", "grows", "sentence"),
    [
        ("data-0", "", "cannot expand volumes (allowVolumeExpansion); nothing was changed"),
        ("data-7", "true", "has no claim data-7"),
    ],
)
def test_invalid_requests_are_refused_before_the_first_change(
    claim: str, grows: str, sentence: str, tmp_path: Path
) -> None:
    status, said, calls = run(tmp_path, "streams", "tide", claim, "charts/tidemark", grows=grows)
    assert status == 1
    assert sentence in said
    assert not changes(calls)


def test_a_failed_upgrade_reports_that_the_script_must_run_again(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path, "streams", "tide", "data-0", "charts/tidemark", upgrade=1)
    assert status == 1
    assert "Correct the error, then run this again" in said


def test_without_arguments_the_script_prints_its_usage(tmp_path: Path) -> None:
    status, said, calls = run(tmp_path)
    assert status == 2
    assert "resize-volumes.sh streams tide data-0 charts/tidemark -f values.yaml" in said
    assert not calls
