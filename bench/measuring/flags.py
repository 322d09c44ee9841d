# SPDX-License-Identifier: Apache-2.0
"""The flags of a benchmark. `--help` prints the docstring of the benchmark, as it is."""

from __future__ import annotations

import argparse


def flags_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark with this name and docstring; a benchmark without flags refuses each argument."""
    return argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
