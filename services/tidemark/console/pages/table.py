# SPDX-License-Identifier: Apache-2.0
"""The table of pages: a line for each, in the order of the navigation."""

from __future__ import annotations

from typing import Final

from tidemark.console.page import Page
from tidemark.console.pages import (
    access,
    broker,
    brokers,
    cancel_reassignments,
    elections,
    group,
    groups,
    overview,
    partition,
    reassignments,
    records,
    reset_offsets,
    schema,
    topic,
    topics,
    transactions,
)

PAGES: Final = (
    Page("overview", "/", overview.load, "Overview"),
    Page("brokers", "/brokers", brokers.load, "Brokers"),
    Page("broker", "/brokers/{broker}", broker.load),
    Page("topics", "/topics", topics.load, "Topics"),
    Page("topic", "/topics/{topic}", topic.load),
    Page("records", "/topics/{topic}/records", records.load),
    Page("records-download", "/topics/{topic}/records/download", records.download, live=False),
    Page("schema", "/topics/{topic}/schema", schema.load),
    Page("record-value", "/topics/{topic}/{partition}/{offset}/{part}", records.value, live=False),
    Page("partition", "/topics/{topic}/{partition}", partition.load),
    Page("groups", "/groups", groups.load, "Groups"),
    Page("group", "/groups/{group:path}", group.load),
    Page("reset-offsets", "/reset-offsets/{group:path}", reset_offsets.load, live=False, methods=("GET", "POST")),
    Page(
        "cancel-reassignments",
        "/reassignments/cancel",
        cancel_reassignments.load,
        live=False,
        methods=("GET", "POST"),
    ),
    Page("reassignments", "/reassignments", reassignments.load, "Reassignments"),
    Page("transactions", "/transactions", transactions.load, "Transactions"),
    Page("transaction", "/transactions/{id:path}", transactions.load_one),
    Page("elections", "/elections", elections.load, "Unclean elections"),
    Page("acls", "/acls", access.load_acls, "Access rules"),
    Page("quotas", "/quotas", access.load_quotas, "Quotas"),
    Page("audit", "/audit", access.load_audit, "Audit"),
)
