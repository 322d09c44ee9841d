# SPDX-License-Identifier: Apache-2.0
"""Templates: every value is escaped, a missing one is an error, and filters show times, sizes and offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tidemark.client.units import shown_bytes, shown_duration
from tidemark.core.isr_change_reasons import MEANINGS
from tidemark.model import host_port

WHOLE: Final = "_layout.html"
LIVE: Final = "_live.html"
"""The layouts: a whole page, and the part that live updates replace."""

_DOTS: Final = re.compile(r"~*\.\.?")


def environment() -> Environment:
    """Make the environment with the templates of the package."""
    made = Environment(
        loader=PackageLoader("tidemark.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "time": shown_time,
        "bytes": shown_bytes,
        "rate": shown_rate,
        "duration": shown_duration,
        "number": shown_number,
        "segment": segment,
        "brokers": shown_brokers,
        "isr_reason": shown_isr_reason,
        "host_port": host_port,
    }
    return made


def shown_time(at_ms: int) -> Markup:
    """A time in UTC to the second; programs read it in the attribute."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(timespec="seconds"), text)


def shown_rate(bytes_per_s: float | None) -> str:
    """Bytes per second; "unknown" for None."""
    return "unknown" if bytes_per_s is None else f"{shown_bytes(bytes_per_s)}/s"


def shown_number(count: int | None) -> str:
    """A whole number with commas; "unknown" for None."""
    return "unknown" if count is None else f"{count:,}"


def shown_brokers(ids: list[int]) -> str:
    """Ids as "0, 1, 2"; "none" if there are none."""
    return ", ".join(map(str, ids)) or "none"


def shown_isr_reason(reason: str) -> str:
    """The reason of an ISR change in words; a later version's reason as its name."""
    return MEANINGS.get(reason, reason) or "reason not known"


def segment(text: object) -> str:
    """A text as one segment of an address. Browsers remove . and .., also as %2E, so these begin with a tilde; and so
    that `text_of` reads each segment, ~. begins with two.
    """
    return quote(f"~{text}" if _DOTS.fullmatch(str(text)) else str(text), safe="")


def text_of(segment: str) -> str:
    """The text whose `segment` this is, decoded."""
    return segment[segment.startswith("~") and _DOTS.fullmatch(segment) is not None :]


class Renderer:
    """Renders pages, with the facts that all pages share."""

    def __init__(self, shared: Mapping[str, object]) -> None:
        self._environment = environment()
        self._shared = shared

    def render(self, template: str, layout: str, facts: Mapping[str, object]) -> str:
        """Render a page; returns its HTML."""
        return self._environment.get_template(template).render({**self._shared, **facts, "layout": layout})
