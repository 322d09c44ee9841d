# SPDX-License-Identifier: Apache-2.0
"""`tidemark replicas verify` of no partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.cli.common.output import Output
from tidemark.cli.inspect import replicas_verify


@pytest.mark.parametrize("shape", [Output.TEXT, Output.JSON])
def test_a_verification_of_no_partition_warns_that_it_compared_none(
    shape: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metadata has no topic that the caller may not DESCRIBE, so the command would report all replicas as compared."""

    class Reader:
        def __enter__(self) -> Any:
            return SimpleNamespace(view=lambda topics: SimpleNamespace(topics={}))

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(replicas_verify, "ReplicaReader", lambda bootstrap, repair: Reader())
    replicas_verify.run("h:1", [], [], shape, whole=False, throttle_bytes_per_s=0, repair=False)
    assert "no partition was compared" in capsys.readouterr().err
