# SPDX-License-Identifier: Apache-2.0
"""The loss reports of unclean elections, the newest first."""

from __future__ import annotations

from typing import Final

from tidemark.console.page import Asked, View
from tidemark.console.pages.paging import part_of, searched
from tidemark.model import UncleanElection

_LIFE_MS: Final = 10_000


async def load(asked: Asked) -> View:
    """The page `/elections?topic=NAME&page=NUMBER`; without a topic, of all topics."""
    topic = searched(asked.query, "topic")
    wanted = [topic] if topic else []
    reports = await asked.need_admin(
        "unclean_elections", lambda admin: admin.list_unclean_elections(wanted), key=topic, life_ms=_LIFE_MS
    )
    part = part_of(sorted(reports, key=lambda one: one.elected_at_ms, reverse=True), asked.query)
    data = {"topic": topic, "reports": [_facts(one) for one in part.rows], **part.facts()}
    return View("Unclean elections", f"tidemark elect --reports {topic}".rstrip(), data)


def _facts(report: UncleanElection) -> dict[str, object]:
    """A report as data; numbers that are not known are None."""
    return {
        "topic": report.partition.topic,
        "partition": report.partition.partition,
        "elected_at_ms": report.elected_at_ms,
        "leader": report.leader,
        "leader_epoch": report.leader_epoch,
        "lineage": report.lineage,
        "records_maybe_lost": report.records_maybe_lost,
        "log_end_offset": report.log_end_offset,
        "high_watermark": report.high_watermark,
        "unheard": list(report.unheard),
        "request_id": report.request_id,
    }
