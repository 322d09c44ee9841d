# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command lines of the jobs: plain digits, in range; nothing else is read as a number."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_spark.jobs import archive, flights

ARCHIVE = ("--bootstrap", "a:1", "--topic", "t", "--to", "somewhere")
FLIGHTS = ("--bootstrap", "a:1")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (archive, (*ARCHIVE, "--max-offsets", "1_000")),
        (archive, (*ARCHIVE, "--min-files", "-1")),
        (archive, (*ARCHIVE, "--file-mib", "１２８")),
        (archive, (*ARCHIVE, "--file-mib", "0")),
        (archive, (*ARCHIVE, "--grace-hours", "nan")),
        (archive, (*ARCHIVE, "--grace-hours", "-1")),
        (flights, (*FLIGHTS, "--days", "3_6")),
        (flights, (*FLIGHTS, "--kills", "many")),
        (flights, (*FLIGHTS, "--lead-days", "1.5")),
    ],
)
def test_a_job_refuses_a_number_in_another_form(job: Any, words: tuple[str, ...], capfd: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        job.parser().parse_args(list(words))
    assert ended.value.code == 2
    assert f"argument {words[-2]}: {words[-1]!r}: expected a " in capfd.readouterr().err


def test_a_job_reads_plain_numbers() -> None:
    found = archive.parser().parse_args([*ARCHIVE, "--max-offsets", "150", "--grace-hours", "0.5"])
    assert (found.max_offsets, found.min_files, found.grace_hours) == (150, 4, 0.5)


@pytest.mark.parametrize("every", ["３ seconds", "1_0 seconds"])
def test_an_interval_has_plain_digits(every: str) -> None:
    with pytest.raises(ValueError, match="--every is"):
        archive._seconds(every)
