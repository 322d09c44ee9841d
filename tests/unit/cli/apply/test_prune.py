# SPDX-License-Identifier: Apache-2.0
"""`tidemark apply --prune` with a file that is about access rules or quotas only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.cli.apply.command import apply
from tidemark.model import ErrorCode

from tests.refusals import raises_code


@pytest.mark.parametrize("content", ["acls: {'User:token:alice': []}", "topics:"])
def test_prune_is_refused_with_a_file_that_names_no_topic(tmp_path: Path, content: str) -> None:
    """Otherwise the command would delete every topic of the cluster, without a question."""
    file = tmp_path / "cluster.yaml"
    file.write_text(content)
    with raises_code(ErrorCode.INVALID_REQUEST, "cluster.yaml names no topic, so --prune would delete all topics"):
        apply(file, prune=True)
