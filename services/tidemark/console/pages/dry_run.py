# SPDX-License-Identifier: Apache-2.0
"""The step from a dry run to its change: the button carries the id of the plan on its page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.console.page import Asked, Refused
from tidemark.console.pages.paging import whole
from tidemark.core.topic_name import check_topic_name
from tidemark.model import TidemarkError

CHANGED: Final = "The plan has changed since the dry run, so nothing was changed. The page shows a new dry run."


def plan_id(*facts: Sequence[object] | str) -> str:
    """The id of a plan: equal for equal facts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def parameters(asked: Asked) -> dict[str, str]:
    """The parameters of the action: from the form of its button, or from the address of its dry run."""
    return {name: text.strip() for name, text in (asked.form if asked.changes else asked.query).items()}


def named_partition(given: Mapping[str, str]) -> tuple[str, int | None]:
    """The topic and the partition index of the parameters, "" and None where not given; raises `Refused`."""
    topic, index = given.get("topic", ""), given.get("partition", "")
    if index and not topic:
        raise Refused(400, "A partition needs its topic.")
    try:
        if topic:
            check_topic_name(topic)
    except TidemarkError as error:
        raise Refused(400, f"{error}.") from None
    return topic, whole(index, "partition") if index else None


def is_confirmed(asked: Asked, plan: str) -> bool:
    """Whether the request carries this plan out; a read-only console refuses every change."""
    if asked.changes:
        asked.need_write()
    return asked.changes and asked.form.get("plan") == plan


def without_plan(given: Mapping[str, str]) -> dict[str, str]:
    """The parameters for an address of the dry run."""
    return {name: text for name, text in given.items() if name != "plan"}
