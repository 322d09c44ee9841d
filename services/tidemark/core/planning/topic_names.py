# SPDX-License-Identifier: Apache-2.0
"""Names of topics in sentences for callers that may see only some topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

MayName: TypeAlias = Callable[[str], bool]
"""Whether the reader of a sentence may see the topic of this name."""
_NAMED_MAX: Final = 5


def every_name(_topic: str) -> bool:
    """Allows all names."""
    return True


def named(topics: Collection[str], may_name: MayName) -> str:
    """The first names that the reader may see, and the number of the other topics."""
    shown = sorted(filter(may_name, topics))[:_NAMED_MAX]
    more = len(topics) - len(shown)
    if not shown:
        return f"{more} topic{'' if more == 1 else 's'}"
    return ", ".join(shown) + (f" and {more} more" if more else "")
