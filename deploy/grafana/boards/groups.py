# SPDX-License-Identifier: Apache-2.0
"""Consumer groups: how far they are behind, who is in them, and how their coordinators are."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    CLUSTER,
    GREEN,
    NAMESPACE,
    NONE_IS_BEST,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    YELLOW,
    Board,
    Row,
    Variable,
    graph,
    increase,
    quantile,
    rate,
    stat,
    table,
)

_GROUP: Final = Variable(
    "group", "Group", 'tidemark_group_lag_records{namespace=~"$namespace",cluster=~"$cluster"}', "group"
)

_NOW: Final = Row(
    "Now",
    (
        stat("Groups", "Groups that have members or offsets.", "sum(tidemark_group_count{C})", width=4, steps=PLAIN),
        stat("Members", "Members of all groups.", "sum(tidemark_group_members{C})", width=4, steps=PLAIN),
        stat(
            "Largest lag",
            "Of one group and topic, in records.",
            "max(sum by (group, topic) (tidemark_group_lag_records{G}))",
            width=4,
            steps=((None, GREEN), (10_000, YELLOW), (1_000_000, ORANGE)),
        ),
        stat(
            "Lag not known",
            "Partitions with a committed offset whose high watermark is not known now: nobody leads them, or the "
            "leader does not answer.",
            "sum(tidemark_group_lag_unknown_partitions{G})",
            width=4,
            steps=NONE_IS_BEST,
        ),
        stat(
            "Being loaded",
            "Partitions of __consumer_offsets still being read after a change of leaders; their groups wait.",
            "sum(tidemark_group_partitions_loading{C})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Age of the lags",
            "How old the lags are that are shown here.",
            "max(tidemark_group_lag_age_seconds{C})",
            unit="s",
            width=4,
            steps=((None, GREEN), (120, ORANGE)),
        ),
    ),
)

_LAG: Final = Row(
    "Lag",
    (
        graph(
            "Lag by group and topic",
            "From committed offset to high watermark, all partitions together. It grows: the group is slower than its "
            "producers, or has stopped. More members help as long as there are partitions for them.",
            "short",
            ("sum by (group, topic) (tidemark_group_lag_records{G})", "{{group}} {{topic}}"),
            width=12,
        ),
        graph(
            "Lag of the partition with the most",
            "One partition far above the share of the others: a key with most of the records, or a member that hangs.",
            "short",
            ("max by (group, topic) (tidemark_group_lag_records_max{G})", "{{group}} {{topic}}"),
            width=12,
        ),
        graph(
            "Lag in time",
            "How long producers took for as many records as the group lacks, at their present speed.",
            "s",
            (
                "sum by (group, topic) (tidemark_group_lag_records{G}) / on (topic) group_left () "
                "(sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m])) > 0)",
                "{{group}} {{topic}}",
            ),
            width=12,
            empty_until="a topic of a group is written; no records, no time",
        ),
        graph(
            "Written and processed",
            "How fast records of the groups' topics are written, and how fast the groups commit them.",
            "cps",
            (
                "sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m])) "
                "and on (topic) tidemark_group_lag_records{G}",
                "{{topic}} written",
            ),
            (
                "(sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m]))) * on (topic) group_right () "
                "(sum by (group, topic) (tidemark_group_lag_records{G}) * 0 + 1) "
                "- sum by (group, topic) (deriv(tidemark_group_lag_records{G}[5m]))",
                "{{group}} {{topic}} processed",
            ),
            width=12,
        ),
        table(
            "Groups and topics",
            "Lag of each. `tidemark group describe` tells it by partition and member.",
            (("group", "Group"), ("topic", "Topic")),
            ("Lag", "sum by (group, topic) (tidemark_group_lag_records{G})"),
            ("Of one partition at most", "max by (group, topic) (tidemark_group_lag_records_max{G})"),
            ("Partitions not known", "sum by (group, topic) (tidemark_group_lag_unknown_partitions{G})"),
            width=16,
        ),
        graph(
            "Members by group",
            "None though there is a lag: nobody consumes. Up and down again and again: members crash, or are slower "
            "than max_poll_interval_ms allows.",
            "short",
            ("sum by (group) (tidemark_group_member_count{G})", "{{group}}"),
        ),
    ),
)

_COORDINATORS: Final = Row(
    "Coordinators",
    (
        graph(
            "Groups by state",
            "Of all coordinators.",
            "short",
            ("sum by (state) (tidemark_group_count{C})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Assignments computed anew",
            "Who reads what is computed anew when members come and go, or partitions are added.",
            "short",
            increase("tidemark_group_rebalances_total{C}"),
        ),
        graph(
            "Members taken out",
            "They were silent, or slow to give partitions up.",
            "short",
            increase("tidemark_group_members_removed_total{C}"),
            steps=NONE_IS_BEST,
        ),
        graph(
            "Commits",
            "Offsets remembered or forgotten.",
            "cps",
            rate("tidemark_group_committed_offsets_total{C}"),
        ),
        graph(
            "Commit, 99 of 100",
            "From a commit to its answer: a write to __consumer_offsets that all in sync have.",
            "s",
            (quantile(0.99, "tidemark_group_commit_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Heartbeats",
            "Answered, by coordinator.",
            "reqps",
            rate("tidemark_group_heartbeats_total{C}"),
        ),
        graph(
            "Refused",
            "Requests of members that were refused, by code. NOT_COORDINATOR comes with every change of leaders.",
            "cps",
            rate("tidemark_group_requests_refused_total{C}", by="code"),
            empty_until="a member is refused",
        ),
        graph(
            "Writes that failed",
            "Writes to __consumer_offsets: commits are refused as long as it is not writable. See whether it is under "
            "min ISR.",
            "cps",
            rate("tidemark_group_failed_writes_total{C}"),
            steps=NONE_IS_GOOD,
        ),
        graph(
            "Offsets remembered",
            "By coordinator: one for each group and partition.",
            "short",
            ("sum by (instance) (tidemark_group_offsets{C})", "{{instance}}"),
        ),
    ),
)

GROUPS: Final = Board(
    "groups",
    "Tidemark: consumer groups",
    "How far groups are behind, who is in them, and how their coordinators are.",
    (_NOW, _LAG, _COORDINATORS),
    (NAMESPACE, CLUSTER, _GROUP),
)
