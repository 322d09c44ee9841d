# SPDX-License-Identifier: Apache-2.0
"""The dashboard of the controller: its load, and the progress of reassignments."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    BLUE,
    BROKER,
    CLUSTER,
    GREEN,
    NAMESPACE,
    NONE_IS_BEST,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Board,
    Row,
    graph,
    increase,
    quantile,
    rate,
    stat,
)

_NOW: Final = Row(
    "Now",
    (
        stat(
            "Active controllers",
            "Must be exactly one. At 0, start a controller, and check whether ZooKeeper answers. If there "
            "are two for longer than a scrape, the old one has not noticed its replacement; ZooKeeper refuses its "
            "writes by their epoch.",
            "sum(tidemark_controller_active{C}) or vector(0)",
            steps=((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Epoch",
            "The present controller epoch: the number of controller elections so far.",
            "max(tidemark_controller_epoch{C})",
            steps=PLAIN,
        ),
        stat(
            "Live brokers",
            "Registered brokers.",
            "sum(tidemark_controller_live_brokers{C})",
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Suspected brokers",
            "Registered brokers that do not answer the controller: they are stuck, or the network to them is cut. "
            "Other brokers lead their partitions.",
            "sum(tidemark_controller_suspected_brokers{C})",
        ),
        stat(
            "Offline partitions",
            "Partitions without a leader. Start the brokers of their replicas; see `tidemark elect --last-known`.",
            "sum(tidemark_controller_offline_partitions{C})",
        ),
        stat(
            "Unanswered LeaderAndIsr",
            "Brokers that have not answered a LeaderAndIsr command yet. If this lasts, read the log of the broker.",
            "sum(tidemark_controller_leader_and_isr_pending{C})",
            steps=NONE_IS_BEST,
        ),
        stat(
            "Events in the queue",
            "Events that the controller has not processed yet. There are thousands for a moment when a broker with "
            "thousands of partitions fails.",
            "sum(tidemark_controller_event_queue_size{C})",
            steps=((None, GREEN), (1000, ORANGE)),
        ),
        stat(
            "Records maybe lost",
            "Records that unclean elections may have lost since these controllers started, as far as known. "
            "`tidemark elect --reports` shows each election.",
            "sum(tidemark_controller_records_maybe_lost_total{C})",
        ),
    ),
)

_CONTROLLER: Final = Row(
    "Controller",
    (
        graph(
            "Active controller",
            "1 for the active controller. A new controller first reads the whole state. If the controller changes "
            "often, sessions expire: check ZooKeeper.",
            "short",
            ("tidemark_controller_active{C}", "{{instance}}"),
            maximum=1,
        ),
        graph(
            "Elections",
            "Leaders elected. Unclean elections may lose acknowledged records.",
            "short",
            (
                'sum(increase(tidemark_controller_leader_elections_total{C,clean="true"}[$__rate_interval]))',
                "clean",
            ),
            (
                'sum(increase(tidemark_controller_leader_elections_total{C,clean="false"}[$__rate_interval])) or '
                "vector(0)",
                "unclean",
            ),
        ),
        graph(
            "Duration of an election",
            "Time from the choice of a leader to its confirmation. The partitions are unavailable for this time, "
            "plus the time of the failure detection.",
            "s",
            (quantile(0.5, "tidemark_controller_leader_election_seconds{C}", "cluster"), "median"),
            (quantile(0.99, "tidemark_controller_leader_election_seconds{C}", "cluster"), "p99"),
        ),
        graph(
            "Events in the queue",
            "By controller.",
            "short",
            ("tidemark_controller_event_queue_size{C}", "{{instance}}"),
        ),
        graph(
            "Time in the queue",
            "Time of an event in the queue.",
            "s",
            (quantile(0.5, "tidemark_controller_event_queue_seconds{C}", "cluster"), "median"),
            (quantile(0.99, "tidemark_controller_event_queue_seconds{C}", "cluster"), "p99"),
        ),
        graph(
            "Time to process, by event",
            "The 99th percentile of the ten slowest events.",
            "s",
            (
                f"topk(10, {quantile(0.99, 'tidemark_controller_event_duration_seconds{C}', 'event')})",
                "{{event}}",
            ),
        ),
        graph(
            "Observations",
            "Observations of the controller by kind; its log has each one with the partition.",
            "short",
            increase("tidemark_controller_observations_total{C}", by="kind"),
            stacked=True,
        ),
        graph(
            "Brokers",
            "Registered brokers, and suspected brokers (registered, but without an answer).",
            "short",
            ("sum(tidemark_controller_live_brokers{C})", "live"),
            ("sum(tidemark_controller_suspected_brokers{C})", "suspected"),
        ),
        graph(
            "Leaders by broker",
            "If one broker is far above the others after a restart: `tidemark elect --preferred`.",
            "short",
            ("tidemark_replica_leader_count{B}", "{{instance}}"),
            stacked=True,
        ),
    ),
)

_MOVES: Final = Row(
    "Reassignment",
    (
        stat(
            "Partitions being reassigned",
            "Partitions with a queued or running reassignment. `tidemark reassign list` shows each one.",
            "sum(tidemark_controller_reassignments{C})",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Replicas remaining",
            "Replicas that reassignments add and that are not in sync yet.",
            "sum(tidemark_controller_reassignment_replicas_remaining{C})",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Bytes remaining",
            "Bytes that these replicas still lack.",
            "sum(tidemark_replica_reassignment_remaining_bytes{B})",
            unit="bytes",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Time remaining",
            "At the rate of the last five minutes. No value without a reassignment, or while no byte is copied: "
            "then `tidemark reassign list` names why each one waits.",
            "sum(tidemark_replica_reassignment_remaining_bytes{B}) "
            "/ (sum(rate(tidemark_replica_reassignment_out_bytes_total{B}[5m])) > 0)",
            unit="s",
            width=4,
            steps=PLAIN,
            empty_until="a reassignment runs",
        ),
        stat(
            "Throttle",
            "The lowest throttle of the running reassignments of a broker; it ends with them.",
            "min(tidemark_replica_reassignment_throttle_bytes_per_second{B} > 0)",
            unit="Bps",
            width=4,
            steps=PLAIN,
            empty_until="a reassignment with a throttle runs",
        ),
        stat(
            "Waiting for the throttle",
            "Led partitions whose reassignment now waits for its throttle. If there are always some, a higher "
            "throttle would be faster.",
            "sum(tidemark_replica_throttled{B})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        graph(
            "Copied",
            "Bytes that brokers send to replicas that reassignments add. If there are none during a reassignment, "
            "it makes no progress.",
            "Bps",
            (
                "rate(tidemark_replica_reassignment_out_bytes_total{B}[$__rate_interval])",
                "from {{instance}}",
            ),
            ("tidemark_replica_reassignment_throttle_bytes_per_second{B} > 0", "throttle of {{instance}}"),
        ),
        graph(
            "Appended",
            "Bytes that the added replicas appended.",
            "Bps",
            ("rate(tidemark_replica_reassignment_in_bytes_total{B}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Remaining",
            "Bytes that replicas added by reassignments still lack, by leader.",
            "bytes",
            ("tidemark_replica_reassignment_remaining_bytes{B}", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Partitions and replicas",
            "Partitions being reassigned, and added replicas that are not in sync yet.",
            "short",
            ("sum(tidemark_controller_reassignments{C})", "partitions"),
            ("sum(tidemark_controller_reassignment_replicas_remaining{C})", "replicas"),
        ),
        graph(
            "Produce during reassignments, p99",
            "The cost of a reassignment for producers: lower its throttle if this rises.",
            "s",
            (quantile(0.99, "tidemark_broker_produce_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Log directory moves",
            "Running moves between log directories of one broker, and bytes copied per second.",
            "short",
            ("sum by (instance) (tidemark_broker_log_dir_moves{B})", "{{instance}} replicas"),
            rate("tidemark_broker_log_dir_moves_copied_bytes_total{B}", legend="{{instance}} bytes/s"),
        ),
    ),
)

CONTROLLER: Final = Board(
    "controller",
    "Tidemark: controller and reassignment",
    "The active controller and its load, and the progress of reassignments.",
    (_NOW, _CONTROLLER, _MOVES),
    (NAMESPACE, CLUSTER, BROKER),
)
