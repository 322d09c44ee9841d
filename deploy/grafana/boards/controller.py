# SPDX-License-Identifier: Apache-2.0
"""The controller and reassignments: who leads the cluster, how busy it is, and how far moves of replicas are."""

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
            "Exactly one is right. None: start a controller, and look whether ZooKeeper answers. Two for longer than a "
            "scrape: the old one has not noticed yet; its writes are refused by their epoch.",
            "sum(tidemark_controller_active{C}) or vector(0)",
            steps=((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Epoch",
            "Of the present term: how often the office has changed hands.",
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
            "They are registered and do not answer: they hang, or the network between is cut. Their partitions are led "
            "by others meanwhile.",
            "sum(tidemark_controller_suspected_brokers{C})",
        ),
        stat(
            "Offline partitions",
            "Partitions that nobody leads. Start the brokers of their replicas; see `tidemark elect --last-known`.",
            "sum(tidemark_controller_offline_partitions{C})",
        ),
        stat(
            "Brokers yet to answer",
            "They were told who leads and follows, and have not answered. For long: look at the log of the broker.",
            "sum(tidemark_controller_leader_and_isr_pending{C})",
            steps=NONE_IS_BEST,
        ),
        stat(
            "Events waiting",
            "Events that wait for their turn. Thousands when a broker with thousands of partitions dies; then soon "
            "none.",
            "sum(tidemark_controller_event_queue_size{C})",
            steps=((None, GREEN), (1000, ORANGE)),
        ),
        stat(
            "Records maybe lost",
            "What unclean elections may have lost since these controllers started, where that is known. "
            "`tidemark elect --reports` tells each.",
            "sum(tidemark_controller_records_maybe_lost_total{C})",
        ),
    ),
)

_OFFICE: Final = Row(
    "Controller",
    (
        graph(
            "Who is active",
            "1 for the active controller. A change takes the others a moment to read all; frequent changes mean "
            "sessions that expire: look at ZooKeeper.",
            "short",
            ("tidemark_controller_active{C}", "{{instance}}"),
            maximum=1,
        ),
        graph(
            "Elections",
            "Leaders elected. Unclean ones may lose acknowledged records.",
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
            "How long an election takes",
            "From the decision for a leader until it has answered that it leads: so long its partitions stand still, "
            "beyond the time it took to notice.",
            "s",
            (quantile(0.5, "tidemark_controller_leader_election_seconds{C}", "cluster"), "median"),
            (quantile(0.99, "tidemark_controller_leader_election_seconds{C}", "cluster"), "99 of 100"),
        ),
        graph(
            "Events waiting",
            "By controller.",
            "short",
            ("tidemark_controller_event_queue_size{C}", "{{instance}}"),
        ),
        graph(
            "Wait of an event",
            "From its arrival to its turn.",
            "s",
            (quantile(0.5, "tidemark_controller_event_queue_seconds{C}", "cluster"), "median"),
            (quantile(0.99, "tidemark_controller_event_queue_seconds{C}", "cluster"), "99 of 100"),
        ),
        graph(
            "Time to decide, by event",
            "99 of 100, of the ten that take longest.",
            "s",
            (
                f"topk(10, {quantile(0.99, 'tidemark_controller_event_duration_seconds{C}', 'event')})",
                "{{event}}",
            ),
        ),
        graph(
            "What the controller saw",
            "Observations by kind; each is in its log with the partition.",
            "short",
            increase("tidemark_controller_observations_total{C}", by="kind"),
            stacked=True,
        ),
        graph(
            "Brokers",
            "Registered, and suspected of hanging.",
            "short",
            ("sum(tidemark_controller_live_brokers{C})", "live"),
            ("sum(tidemark_controller_suspected_brokers{C})", "suspected"),
        ),
        graph(
            "Leaders by broker",
            "One far above the others after a restart: `tidemark elect --preferred`.",
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
            "Partitions moving",
            "Partitions whose replicas are to move, or move. `tidemark reassign list` tells of each.",
            "sum(tidemark_controller_reassignments{C})",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Replicas remaining",
            "Replicas that moves add and that are not in sync yet.",
            "sum(tidemark_controller_reassignment_replicas_remaining{C})",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Bytes remaining",
            "What they still lack.",
            "sum(tidemark_replica_reassignment_remaining_bytes{B})",
            unit="bytes",
            width=4,
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Done in",
            "If it goes on as in the last five minutes. Nothing while nothing moves, or while nothing is copied: then "
            "`tidemark reassign list` says what each move waits for.",
            "sum(tidemark_replica_reassignment_remaining_bytes{B}) "
            "/ (sum(rate(tidemark_replica_reassignment_out_bytes_total{B}[5m])) > 0)",
            unit="s",
            width=4,
            steps=PLAIN,
            empty_until="replicas move",
        ),
        stat(
            "Throttle",
            "The lowest of the moves under way, of a broker; it ends with its moves.",
            "min(tidemark_replica_reassignment_throttle_bytes_per_second{B} > 0)",
            unit="Bps",
            width=4,
            steps=PLAIN,
            empty_until="replicas move with a throttle",
        ),
        stat(
            "Waiting for the throttle",
            "Led partitions whose moves wait for it now. Always some: a higher one would be faster.",
            "sum(tidemark_replica_throttled{B})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        graph(
            "Copied",
            "Bytes that brokers send to replicas that moves add. None though partitions move: the moves stand still.",
            "Bps",
            (
                "rate(tidemark_replica_reassignment_out_bytes_total{B}[$__rate_interval])",
                "from {{instance}}",
            ),
            ("tidemark_replica_reassignment_throttle_bytes_per_second{B} > 0", "throttle of {{instance}}"),
        ),
        graph(
            "Taken in",
            "Bytes that replicas added here took in.",
            "Bps",
            ("rate(tidemark_replica_reassignment_in_bytes_total{B}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Remaining",
            "Bytes that replicas that moves add still lack, by leader.",
            "bytes",
            ("tidemark_replica_reassignment_remaining_bytes{B}", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Partitions and replicas",
            "Partitions that move, and replicas not in sync yet.",
            "short",
            ("sum(tidemark_controller_reassignments{C})", "partitions"),
            ("sum(tidemark_controller_reassignment_replicas_remaining{C})", "replicas"),
        ),
        graph(
            "Produce while moving, 99 of 100",
            "What a move costs producers: lower its throttle where this rises.",
            "s",
            (quantile(0.99, "tidemark_broker_produce_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Between directories of one broker",
            "Replicas on their way, and bytes copied a second.",
            "short",
            ("sum by (instance) (tidemark_broker_log_dir_moves{B})", "{{instance}} replicas"),
            rate("tidemark_broker_log_dir_moves_copied_bytes_total{B}", legend="{{instance}} bytes/s"),
        ),
    ),
)

CONTROLLER: Final = Board(
    "controller",
    "Tidemark: controller and reassignment",
    "Who leads the cluster, how busy it is, and how far moves of replicas are.",
    (_NOW, _OFFICE, _MOVES),
    (NAMESPACE, CLUSTER, BROKER),
)
