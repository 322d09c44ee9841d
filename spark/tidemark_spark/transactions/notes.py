# SPDX-License-Identifier: Apache-2.0
"""Notes of open transactions, in a directory that only the Python processes of one driver share.

Spark begins and aborts a micro-batch in two processes, which share only the options. The messages of completed tasks
name the transaction. Without any, the aborting process knows it by the note.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path

from pyspark import SparkFiles

from tidemark_spark.transactions.members import WriteTransaction
from tidemark_spark.transactions.settings import TransactionSettings


def note(settings: TransactionSettings, transaction: WriteTransaction) -> None:
    """Note the transaction of the query's present micro-batch, in place of an earlier note."""
    path = _path(settings)
    if path is not None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(transaction)), encoding="utf-8")
        part.replace(path)


def noted(settings: TransactionSettings) -> WriteTransaction | None:
    """The transaction of the query's micro-batch; None: no note can be read."""
    path = _path(settings)
    if path is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return WriteTransaction(**json.loads(path.read_text(encoding="utf-8")))
    return None


def forget(settings: TransactionSettings) -> None:
    """Delete the note, if any."""
    path = _path(settings)
    if path is not None:
        path.unlink(missing_ok=True)


def _path(settings: TransactionSettings) -> Path | None:
    """The note of a query, by its checkpoint; None: this is not a process of Spark."""
    if not SparkFiles._is_running_on_worker or not SparkFiles._root_directory:
        return None
    name = hashlib.sha256(json.dumps([settings.checkpoint, settings.app_id]).encode()).hexdigest()
    return Path(SparkFiles._root_directory, f"tidemark-transaction-{name[:32]}.json")
