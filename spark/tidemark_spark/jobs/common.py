"""What the jobs share: their flags, their session, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tidemark.client.cluster import BOOTSTRAP_VARIABLE
from tidemark.model import TidemarkError

from tidemark_spark.source import register

EXIT_FOUND: Final = 1
"""A check that found something."""
EXIT_WRONG: Final = 2
"""What was asked for cannot be done; nothing was."""

Run = Callable[[SparkSession, argparse.Namespace], int]


def job_parser(name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A parser whose help ends with an example."""
    return argparse.ArgumentParser(
        prog=f"{name}.py",
        description=text,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_bootstrap(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """The flag that every job has."""
    known = os.environ.get(BOOTSTRAP_VARIABLE)
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT[,HOST:PORT...]",
        default=known,
        required=required and known is None,
        help=f"any brokers of the cluster (default: {BOOTSTRAP_VARIABLE})",
    )


def run_job(name: str, parser: argparse.ArgumentParser, run: Run, arguments: Sequence[str] | None = None) -> int:
    """Parse, open a session (spark-submit says where), run; an error that is not ours to explain keeps its trace.

    Returns:
        Exit status: 0, EXIT_FOUND, or EXIT_WRONG with a sentence on stderr.
    """
    parsed = parser.parse_args(arguments)
    spark = SparkSession.builder.appName(f"tidemark {name}").getOrCreate()
    register(spark)
    try:
        return run(spark, parsed)
    except (TidemarkError, ValueError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_WRONG
    except PySparkException as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_WRONG
    finally:
        spark.stop()


def say(text: str) -> None:
    """A line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
