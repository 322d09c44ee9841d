# SPDX-License-Identifier: Apache-2.0
"""The input of `produce` for a topic with a schema: which options it takes, and where its rows come from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tidemark.cli.produce.options import InputFormat, Job
from tidemark.cli.produce.rejects import Rejects
from tidemark.cli.produce.typed_inputs import TIMESTAMP, TypedInput
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import ErrorCode, TidemarkError, invalid_request


class TypedJob:
    """Sends rows of one input to a typed topic.

    Args:
        job: the options.
        schema: newest version of the topic's schema.
        files: closes the file of `--reject-file`.

    Attributes:
        rejects: the rows that do not fit.
        event_time: column with the timestamps of the rows.

    Raises:
        TidemarkError: INVALID_REQUEST: an option that a typed topic does not take; STORAGE_ERROR.
    """

    def __init__(self, job: Job, schema: TopicSchema, files: contextlib.ExitStack) -> None:
        _check_options(job, schema)
        self._job = job
        self._version = schema.version
        file = None
        if job.reject_file is not None:
            _check_other_file(job.reject_file, job.file)
            try:
                opened = job.reject_file.open("w", encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                sentence = f"{job.reject_file} cannot be written: {error.strerror}"
                raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence) from error
            file = files.enter_context(opened)
        self.rejects = Rejects(file, "row" if job.typed_format is InputFormat.PARQUET else "line")
        self._input = TypedInput(
            job.topic,
            schema,
            self.rejects,
            timestamp=job.timestamp or TIMESTAMP,
            unit=job.timestamp_unit.value,
        )
        column = schema.event_time_column
        self.event_time = TIMESTAMP if column is None else column.name

    def batches(self, source: BinaryIO) -> Iterator[pa.RecordBatch]:
        """The rows that fit, for `send_table`; raises as the methods of TypedInput, with topic and version."""
        try:
            yield from self._batches(source)
        except TidemarkError as error:
            if error.code is not ErrorCode.SCHEMA_MISMATCH:
                raise
            topic, version = self._job.topic, str(self._version)
            sentence = f"topic {topic}, schema version {version}: {error.message}"
            raise TidemarkError(error.code, sentence, {"topic": topic, "version": version, **error.metadata}) from None

    def _batches(self, source: BinaryIO) -> Iterator[pa.RecordBatch]:
        match self._job.typed_format:
            case InputFormat.CSV:
                return self._input.csv_batches(source, self._job.delimiter)
            case InputFormat.PARQUET:
                return self._input.parquet_batches(source)
            case _:
                return self._input.json_batches(source)

    def times(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """The times of the rows as a column `timestamp`; None: the time of sending."""
        if self.event_time not in rows.schema.names:
            return None
        return pa.RecordBatch.from_arrays([rows.column(self.event_time)], names=["timestamp"])


def typed_job(bootstrap: str, job: Job, files: contextlib.ExitStack) -> TypedJob | None:
    """The input for a topic with a schema; None for one without.

    Raises:
        TidemarkError: UNKNOWN_TOPIC and others of the brokers; INVALID_REQUEST: an option that the topic does not take.
    """
    with RangeReader(bootstrap, deadline_s=job.timeout_s) as reader:
        versions = reader.schemas(job.topic)
    if versions:
        return TypedJob(job, versions[max(versions)], files)
    if job.reject_file is not None:
        raise invalid_request(f"topic {job.topic} has no schema, so every row fits: omit --reject-file")
    return None


def _check_options(job: Job, schema: TopicSchema) -> None:
    columns = {"--key-column": job.key, "--value-column": job.value, "--key-separator": job.key_separator}
    named = [option for option, given in columns.items() if given]
    if named:
        key = ", ".join(column.name for column in schema.key_columns)
        reason = f"its key is made of {key}" if key else "it has no key columns"
        raise _refused(job, f"omit {named[0]}: columns are matched by name, and {reason}")
    if job.strings:
        raise _refused(job, "omit --strings: cells become values of the columns' types")
    if job.typed_format is InputFormat.TEXT:
        raise _refused(job, "lines of text are not rows: expected --format json, csv or parquet")
    event_time = schema.event_time_column
    if job.timestamp and event_time is not None:
        raise _refused(job, f"omit --timestamp-column: the time of a row is its {event_time.name}")


def _check_other_file(rejects: Path, source: Path | None) -> None:
    if source is not None and rejects.exists() and source.exists() and rejects.samefile(source):
        raise invalid_request(f"--reject-file {rejects} is the input itself: name another file")


def _refused(job: Job, reason: str) -> TidemarkError:
    return invalid_request(f"topic {job.topic} has a schema: {reason}")
