# SPDX-License-Identifier: Apache-2.0
"""The dashboard of consumer groups: lag, members, and the state of their coordinators."""

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
            "The largest lag of a group and topic, in records.",
            "max(sum by (group, topic) (tidemark_group_lag_records{G}))",
            width=4,
            steps=((None, GREEN), (10_000, YELLOW), (1_000_000, ORANGE)),
        ),
        stat(
            "Lag unknown",
            "Partitions that the group reads whose high watermark is unknown: they have no leader, or the leader "
            "does not answer.",
            "sum(tidemark_group_lag_unknown_partitions{G})",
            width=4,
            steps=NONE_IS_BEST,
        ),
        stat(
            "Loading",
            "Partitions of __consumer_offsets that are being loaded after a leader election; their groups wait.",
            "sum(tidemark_group_partitions_loading{C})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Age of the lags",
            "Age of the lags on this dashboard.",
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
            "Records from committed offset to high watermark, of all partitions. If the lag grows, the group is "
            "slower than its producers, or has stopped. More members help while there are partitions for them.",
            "short",
            ("sum by (group, topic) (tidemark_group_lag_records{G})", "{{group}} {{topic}}"),
            width=12,
        ),
        graph(
            "Largest lag of a partition",
            "If one partition is far above the others, one key has most of the records, or its member is stuck.",
            "short",
            ("max by (group, topic) (tidemark_group_lag_records_max{G})", "{{group}} {{topic}}"),
            width=12,
        ),
        graph(
            "Lag in time",
            "Time in which producers write as many records as the group lacks, at their present rate.",
            "s",
            (
                "sum by (group, topic) (tidemark_group_lag_records{G}) / on (topic) group_left () "
                "(sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m])) > 0)",
                "{{group}} {{topic}}",
            ),
            width=12,
            empty_until="a topic of a group is written",
        ),
        graph(
            "Produced and committed",
            "Rates at which records of the groups' topics are produced, and at which the groups commit them.",
            "cps",
            (
                "sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m])) "
                "and on (topic) tidemark_group_lag_records{G}",
                "{{topic}} produced",
            ),
            (
                "(sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m]))) * on (topic) group_right () "
                "(sum by (group, topic) (tidemark_group_lag_records{G}) * 0 + 1) "
                "- sum by (group, topic) (deriv(tidemark_group_lag_records{G}[5m]))",
                "{{group}} {{topic}} committed",
            ),
            width=12,
        ),
        table(
            "Groups and topics",
            "Lag of each group and topic. `tidemark group describe` shows each partition and member.",
            (("group", "Group"), ("topic", "Topic")),
            ("Lag", "sum by (group, topic) (tidemark_group_lag_records{G})"),
            ("Largest of a partition", "max by (group, topic) (tidemark_group_lag_records_max{G})"),
            ("Partitions unknown", "sum by (group, topic) (tidemark_group_lag_unknown_partitions{G})"),
            width=16,
        ),
        graph(
            "Members by group",
            "A group with lag but without members reads no records. If the number changes often, members crash, or "
            "are slower than max_poll_interval_ms allows.",
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
            "Groups of all coordinators.",
            "short",
            ("sum by (state) (tidemark_group_count{C})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Rebalances",
            "New target assignments: members joined or left, or partitions were added.",
            "short",
            increase("tidemark_group_rebalances_total{C}"),
        ),
        graph(
            "Evicted members",
            "Members that were silent, or slow to release partitions.",
            "short",
            increase("tidemark_group_members_removed_total{C}"),
            steps=NONE_IS_BEST,
        ),
        graph(
            "Commits",
            "Offsets committed or deleted.",
            "cps",
            rate("tidemark_group_committed_offsets_total{C}"),
        ),
        graph(
            "Commit, p99",
            "Time from a commit request to its answer: a write to __consumer_offsets on all in-sync replicas.",
            "s",
            (quantile(0.99, "tidemark_group_commit_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Heartbeats",
            "Answered heartbeats, by coordinator.",
            "reqps",
            rate("tidemark_group_heartbeats_total{C}"),
        ),
        graph(
            "Refused",
            "Refused requests of members, by code. NOT_COORDINATOR follows every leader election.",
            "cps",
            rate("tidemark_group_requests_refused_total{C}", by="code"),
            empty_until="a member is refused",
        ),
        graph(
            "Failed writes",
            "Failed writes to __consumer_offsets: commits are refused until the topic is writable. Check whether it "
            "is under min ISR.",
            "cps",
            rate("tidemark_group_failed_writes_total{C}"),
            steps=NONE_IS_GOOD,
        ),
        graph(
            "Committed offsets",
            "By coordinator: one for each group and partition.",
            "short",
            ("sum by (instance) (tidemark_group_offsets{C})", "{{instance}}"),
        ),
    ),
)

_TRANSACTIONS: Final = Row(
    "Transactions",
    (
        graph(
            "Open transactions",
            "Open transactions, and those that are decided but lack a marker.",
            "short",
            ("sum(tidemark_transactions_open{C})", "open"),
            ("sum(tidemark_transactions_completing{C})", "completing"),
        ),
        graph(
            "Age of the oldest transaction",
            "`tidemark transaction find-hanging` names transactions that do not end, and the command that ends each.",
            "s",
            ("max(tidemark_transaction_oldest_seconds{C})", "open"),
            ("max(tidemark_transaction_completing_seconds{C})", "completing"),
        ),
        graph(
            "Records behind the stable offset",
            "Records between last stable offset and high watermark of the partition with the most: read_committed "
            "readers wait for them.",
            "short",
            ("max by (instance) (tidemark_replica_unstable_records_max{C})", "leader {{instance}}"),
        ),
        graph(
            "Decisions",
            "Decided transactions by result and reason. Aborts by timeout: the producer died, or its timeout is short.",
            "cps",
            ("sum by (result, reason) (rate(tidemark_transaction_decisions_total{C}[5m]))", "{{result}}, {{reason}}"),
            empty_until="a transaction ends",
        ),
    ),
)

GROUPS: Final = Board(
    "groups",
    "Tidemark: consumer groups",
    "Lag and members of groups, the state of their coordinators, and transactions.",
    (_NOW, _LAG, _COORDINATORS, _TRANSACTIONS),
    (NAMESPACE, CLUSTER, _GROUP),
)
