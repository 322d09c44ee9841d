# SPDX-License-Identifier: Apache-2.0
"""Validation of topic names."""

from __future__ import annotations

import re
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

TOPIC_NAME_CHARACTERS_MAX: Final = 249
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DIRECTORIES: Final = frozenset({".", ".."})


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    is_formed = len(name) <= TOPIC_NAME_CHARACTERS_MAX and _TOPIC_NAME.fullmatch(name) is not None
    return is_formed and name not in _DIRECTORIES


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_NAME for a name that no topic can have."""
    if not name:
        why = "it is empty"
    elif len(name) > TOPIC_NAME_CHARACTERS_MAX:
        why = f"it has {len(name)} characters, {TOPIC_NAME_CHARACTERS_MAX} are allowed"
    elif name in _DIRECTORIES:
        why = "it names a directory"
    elif _TOPIC_NAME.fullmatch(name) is None:
        why = "only letters, digits, '.', '_' and '-' are allowed"
    else:
        return
    shown = name if len(name) <= 40 else f"{name[:40]}..."
    raise TidemarkError(ErrorCode.INVALID_TOPIC_NAME, f"{shown!r} cannot be the name of a topic: {why}")
