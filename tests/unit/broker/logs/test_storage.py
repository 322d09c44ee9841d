# SPDX-License-Identifier: Apache-2.0
"""The clean shutdown files are written only when every thread that works on logs has stopped (rule T1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tidemark.broker.logs.storage import Storage
from tidemark.model import BrokerEpoch

EPOCH = BrokerEpoch(7)


def storage() -> Any:
    """A storage whose parts only record their calls."""
    made: Any = object.__new__(Storage)
    made.logs, made.threads, made._offline, made._retention = Mock(), Mock(), Mock(), Mock()
    made._cleaner, made.dir_moves, made._checkpoints = AsyncMock(), AsyncMock(), AsyncMock()
    made.repairs, made.refused_chunks, made._scrubber = AsyncMock(), AsyncMock(), AsyncMock()
    made._node = SimpleNamespace(readers=Mock(), core=SimpleNamespace(queries=Mock()))
    made._stopped = False
    return made


async def test_a_complete_stop_marks_the_directories_clean() -> None:
    made = storage()
    await made.stop()
    await made.close(EPOCH)
    made.logs.close_clean.assert_called_once()


async def test_a_part_that_fails_to_stop_leaves_the_others_stopped_and_no_mark() -> None:
    made = storage()
    made.dir_moves.stop.side_effect = OSError("a copier")
    with pytest.raises(OSError, match="a copier"):
        await made.stop()
    made.threads.stop.assert_called_once()
    made._node.readers.shutdown.assert_called_once()
    await made.close(EPOCH)
    made.logs.close.assert_called_once()
    made.logs.close_clean.assert_not_called()
