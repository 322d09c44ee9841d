"""The cluster at a glance: is it healthy, what goes through it, and what do its machines have left."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    BLUE,
    GREEN,
    NONE_IS_BEST,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    graph,
    quantile,
    stat,
)

_HEALTH: Final = Row(
    "Health",
    (
        stat(
            "Brokers online",
            "Brokers that Prometheus reaches. Fewer than there should be: look at their logs and pods; partitions "
            "go on "
            "as long as min.insync.replicas are in sync.",
            'count(up{C,component="broker"} == 1) or vector(0)',
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Active controllers",
            "Exactly one is right. None: no leader is elected and no topic made until one is; start a controller, and "
            "look whether ZooKeeper answers.",
            "sum(tidemark_controller_active{C}) or vector(0)",
            steps=((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Offline partitions",
            "Partitions that nobody leads: neither written nor read. Start the brokers of their replicas; if those are "
            "gone for good, see `tidemark elect --last-known`.",
            "sum(tidemark_controller_offline_partitions{C})",
        ),
        stat(
            "Under-replicated",
            "Led partitions that lack an in-sync replica. Some during a restart are expected; for longer, see the "
            "dashboard ISR and high watermark.",
            "sum(tidemark_replica_under_replicated{B})",
            steps=NONE_IS_BEST,
        ),
        stat(
            "Under min ISR",
            "Led partitions with fewer in sync than min.insync.replicas: producers with acks=all are refused. Bring "
            "their followers back.",
            "sum(tidemark_replica_under_min_isr{B})",
        ),
        stat(
            "At min ISR",
            "One replica less, and producers with acks=all are refused. Do not restart another broker now.",
            "sum(tidemark_replica_at_min_isr{B})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Offline log directories",
            "Directories that a broker has given up after an error of the disk. Replace the disk; the broker's log "
            "names the error.",
            "sum(tidemark_offline_log_directories{B})",
        ),
        stat(
            "Unclean elections, 24 h",
            "Elections of a replica that was not in sync: acknowledged records may be lost. "
            "`tidemark elect --reports` says which.",
            'sum(increase(tidemark_controller_leader_elections_total{C,clean="false"}[24h])) or vector(0)',
            decimals=0,
        ),
        stat("Topics", "Topics of the cluster.", "sum(tidemark_controller_topics{C})", steps=PLAIN),
        stat("Partitions", "Partitions of all topics.", "sum(tidemark_controller_partitions{C})", steps=PLAIN),
        stat(
            "Replicas online",
            "Replicas that work.",
            "sum(tidemark_replica_count{B}) - sum(tidemark_replica_offline_count{B})",
            steps=PLAIN,
        ),
        stat(
            "Not preferred leaders",
            "Partitions led by another than the first of their replicas: load may be uneven. "
            "`tidemark elect --preferred` gives leadership back.",
            "sum(tidemark_controller_not_preferred_leaders{C})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Processes not scraped",
            "Services that Prometheus does not reach: they are down, or their metrics port is.",
            'count(up{C,component=~"broker|controller|admin"} == 0) or vector(0)',
        ),
        stat(
            "Full log directories",
            "Directories that lately had no space: replicas there take nothing in. Free space, or move replicas with "
            "`tidemark log-dirs move`.",
            "sum(tidemark_full_log_directories{B})",
        ),
        stat(
            "Reassignments",
            "Partitions whose replicas move now; see the dashboard Controller and reassignment.",
            "sum(tidemark_controller_reassignments{C})",
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Least disk space left",
            "Of all log directories the least share that is free.",
            "min(tidemark_log_directory_free_bytes{B} / tidemark_log_directory_total_bytes{B})",
            unit="percentunit",
            steps=((None, RED), (0.15, ORANGE), (0.3, GREEN)),
        ),
    ),
)

_TRAFFIC: Final = Row(
    "Traffic",
    (
        graph(
            "Bytes in",
            "What producers send, by broker. One broker far above the others leads too much: "
            "`tidemark elect --preferred`.",
            "Bps",
            ("sum by (instance) (rate(tidemark_broker_produced_bytes_total{B}[$__rate_interval]))", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "What consumers are given, by broker.",
            "Bps",
            ("sum by (instance) (rate(tidemark_broker_fetched_bytes_total{B}[$__rate_interval]))", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Records in",
            "Records that producers send, by broker.",
            "cps",
            ("sum by (instance) (rate(tidemark_broker_produced_records_total{B}[$__rate_interval]))", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Replication in",
            "What followers take in, by broker; moves of replicas are part of it.",
            "Bps",
            (
                "sum by (instance) (rate(tidemark_broker_replicated_in_bytes_total{B}[$__rate_interval]))",
                "{{instance}}",
            ),
            stacked=True,
        ),
        graph(
            "Replication out",
            "What leaders send to followers, by broker.",
            "Bps",
            ("sum by (instance) (rate(tidemark_broker_replicated_bytes_total{B}[$__rate_interval]))", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Requests",
            "Produce requests, and fetches of consumers. A request carries many batches where there is load.",
            "reqps",
            ("sum(rate(tidemark_broker_produce_requests_total{B}[$__rate_interval]))", "produce"),
            ("sum(rate(tidemark_broker_fetch_requests_total{B}[$__rate_interval]))", "fetch"),
        ),
        graph(
            "Bytes in by topic",
            "The ten topics that are written most.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_produced_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Bytes out by topic",
            "The ten topics that are read most.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_fetched_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Refused",
            "Partitions of requests that were refused, by error code. NOT_LEADER comes with every change of "
            "leaders and "
            "clients handle it; NOT_ENOUGH_REPLICAS needs replicas back in sync.",
            "cps",
            (
                "sum by (code) (rate(tidemark_broker_produce_errors_total{B}[$__rate_interval]))",
                "produce: {{code}}",
            ),
            ("sum by (code) (rate(tidemark_broker_fetch_errors_total{B}[$__rate_interval]))", "fetch: {{code}}"),
            empty_until="a request is refused",
        ),
        graph(
            "Connections",
            "Connections of clients with an open stream, by broker.",
            "short",
            ("sum by (instance) (tidemark_broker_connections{B})", "{{instance}}"),
        ),
        graph(
            "Streams",
            "Open streams, by kind.",
            "short",
            ("sum by (kind) (tidemark_broker_streams{B})", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "Reads of followers",
            "Bytes that consumers got from a replica in their rack instead of from the leader, and how often a leader "
            "sent one there.",
            "Bps",
            ("sum(rate(tidemark_broker_follower_fetched_bytes_total{B}[$__rate_interval]))", "bytes from followers"),
            ("sum(rate(tidemark_broker_preferred_read_replicas_total{B}[$__rate_interval]))", "sent to a follower"),
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        graph(
            "Produce, 99 of 100",
            "From a produce request to its answer; with acks=all that waits for all replicas in sync. High on one "
            "broker: its disk or its followers; on all: look at the event loop and at replication.",
            "s",
            (quantile(0.99, "tidemark_broker_produce_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Produce, all brokers",
            "The median, 99 and 999 of a thousand.",
            "s",
            *(
                (quantile(share, "tidemark_broker_produce_seconds{B}", "cluster"), f"{share:.1%}")
                for share in (0.5, 0.99, 0.999)
            ),
        ),
        graph(
            "Fetch, 99 of 100",
            "Work on a fetch, without the wait for records to come. Consumers that read old records wait for the disk.",
            "s",
            (quantile(0.99, "tidemark_broker_fetch_seconds{B}", "instance, kind"), "{{instance}} {{kind}}"),
        ),
        graph(
            "Append, 99 of 100",
            "From an append's queue to its write(2): the disk, or too few threads for it.",
            "s",
            (quantile(0.99, "tidemark_broker_append_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Flush, 99 of 100",
            "An fdatasync of a log whose topic asks for it (flush.policy): what acks=all costs there.",
            "s",
            (quantile(0.99, "tidemark_broker_flush_seconds{B}"), "{{instance}}"),
            empty_until="a topic is written whose flush.policy asks for it",
        ),
        Panel(
            "Produce, all requests",
            "How many requests took how long.",
            (Query("sum by (le) (increase(tidemark_broker_produce_seconds_bucket{B}[$__rate_interval]))", "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
    ),
)

_MACHINES: Final = Row(
    "Processes",
    (
        Panel(
            "Brokers",
            "Each broker as it is now.",
            (
                Query('max by (instance) (time() - process_start_time_seconds{B,component="broker"})'),
                Query("max by (instance) (tidemark_replica_count{B})"),
                Query("max by (instance) (tidemark_replica_leader_count{B})"),
                Query("max by (instance) (tidemark_replica_under_replicated{B})"),
                Query("max by (instance, state) (tidemark_broker_state{B} == 1)"),
            ),
            kind="table",
            width=16,
            columns=(
                ("instance", "Broker"),
                ("state", "State"),
                ("Value #A", "Up for"),
                ("Value #B", "Replicas"),
                ("Value #C", "Leads"),
                ("Value #D", "Under-replicated"),
            ),
            units={"Up for": "s"},
        ),
        Panel(
            "Versions",
            "What runs where; more than one version is an upgrade under way, or one that was left half done.",
            (Query("count by (version, service) (tidemark_build_info{C})"),),
            kind="table",
            columns=(("service", "Service"), ("version", "Version"), ("Value", "Processes")),
        ),
        graph(
            "Memory",
            "Resident memory. It grows with replicas and clients; near the container's limit the kernel kills.",
            "bytes",
            ('process_resident_memory_bytes{C,component=~"broker|controller|admin"}', "{{instance}}"),
        ),
        graph(
            "Processor",
            "Processors used. A broker's event loop has one: above about 0.9 requests wait.",
            "short",
            (
                'rate(process_cpu_seconds_total{C,component=~"broker|controller|admin"}[$__rate_interval])',
                "{{instance}}",
            ),
        ),
        graph(
            "Open files",
            "Share of the file descriptors that a process may open. Three a segment, one a connection.",
            "percentunit",
            ('process_open_fds{C,component=~"broker|controller|admin"} / process_max_fds{C}', "{{instance}}"),
            steps=((None, GREEN), (0.8, RED)),
        ),
        graph(
            "Event loop: longest stall",
            "The longest of the last minute that anything due had to wait. Above 1 s heartbeats are at risk; the "
            "log has "
            "a line for each with where it stood.",
            "s",
            ("tidemark_event_loop_stall_longest_seconds{C}", "{{instance}}"),
            steps=((None, GREEN), (1, RED)),
        ),
        graph(
            "Event loop: 99 of 100",
            "How late what is due runs.",
            "s",
            (quantile(0.99, "tidemark_event_loop_stall_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Garbage collection: longest pause",
            "The longest of the last minute.",
            "s",
            ("tidemark_gc_pause_longest_seconds{C}", "{{instance}}"),
        ),
        graph(
            "Admin calls",
            "Calls of the admin service, by method and outcome.",
            "reqps",
            ("sum by (method, code) (rate(tidemark_admin_requests_total{C}[$__rate_interval]))", "{{method}} {{code}}"),
        ),
        graph(
            "Admin calls, 99 of 100",
            "How long they take.",
            "s",
            (quantile(0.99, "tidemark_admin_request_seconds{C}", "method"), "{{method}}"),
        ),
        graph(
            "Scrapes",
            "What Prometheus' own requests take to be answered. metrics.partitions=false makes them short where there "
            "are thousands of partitions.",
            "s",
            ("tidemark_scrape_seconds{C}", "{{instance}}"),
        ),
    ),
)

_DISKS: Final = Row(
    "Disks",
    (
        graph(
            "Free",
            "Share that is free of the file system of each log directory.",
            "percentunit",
            (
                "tidemark_log_directory_free_bytes{B} / tidemark_log_directory_total_bytes{B}",
                "{{instance}} {{directory}}",
            ),
            steps=((None, RED), (0.15, GREEN)),
            maximum=1,
        ),
        graph(
            "Full in",
            "How long the space lasts if the last hour goes on. Add a disk, shorten retention, or move replicas "
            "before.",
            "s",
            (
                "tidemark_log_directory_free_bytes{B} / (-deriv(tidemark_log_directory_free_bytes{B}[1h]) > 0)",
                "{{instance}} {{directory}}",
            ),
            steps=((None, RED), (86400, GREEN)),
            empty_until="the space of a directory shrinks",
        ),
        graph(
            "Used by logs",
            "Bytes of the logs in each directory.",
            "bytes",
            ("tidemark_log_directory_used_bytes{B}", "{{instance}} {{directory}}"),
            stacked=True,
        ),
        graph(
            "Log size by topic",
            "All replicas together, of the ten largest topics.",
            "bytes",
            ("topk(10, sum by (topic) (tidemark_partition_log_size_bytes{B}))", "{{topic}}"),
        ),
        graph(
            "Segments",
            "Segments of all logs of a broker: each holds three files open.",
            "short",
            ("sum by (instance) (tidemark_partition_log_segments{B})", "{{instance}}"),
        ),
        graph(
            "Offline replicas",
            "Replicas whose log has failed, by broker.",
            "short",
            ("tidemark_replica_offline_count{B}", "{{instance}}"),
            steps=NONE_IS_GOOD,
        ),
        graph(
            "Recovery",
            "Logs still to be opened after a start, by broker: how far a restart is.",
            "short",
            ("sum by (instance) (tidemark_log_recovery_remaining_logs{B})", "{{instance}}"),
        ),
        graph(
            "Cleaner",
            "Bytes that went by cleaning, of compacted topics.",
            "Bps",
            (
                "sum by (instance) (rate(tidemark_broker_log_cleaner_freed_bytes_total{B}[$__rate_interval]))",
                "{{instance}}",
            ),
        ),
        graph(
            "Cleaner failures",
            "Logs that could not be cleaned: they grow until their cause is gone; it is in the broker's log.",
            "short",
            ("sum by (instance) (increase(tidemark_broker_log_cleaner_failures_total{B}[1h]))", "{{instance}}"),
            steps=NONE_IS_GOOD,
        ),
    ),
)

_ZOOKEEPER: Final = Row(
    "ZooKeeper",
    (
        graph(
            "Sessions that are not connected",
            "1 for a process whose session is suspended, expired or closed. A broker without one gives up leading when "
            "its lease ends, so that nobody else's leadership is in doubt.",
            "short",
            ('1 - tidemark_zookeeper_session_state{C,state="connected"}', "{{instance}}"),
            steps=NONE_IS_GOOD,
            maximum=1,
        ),
        graph(
            "Requests, 99 of 100",
            "From a request to its answer. Above some 100 ms: ZooKeeper's disk is slow, or shared.",
            "s",
            (quantile(0.99, "tidemark_zookeeper_request_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Lost connections and sessions",
            "Within the last ten minutes. A lost connection is repaired; an expired session makes a broker register "
            "anew.",
            "short",
            ("sum by (instance) (increase(tidemark_zookeeper_disconnects_total{C}[10m]))", "{{instance}} disconnected"),
            ("sum by (instance) (increase(tidemark_zookeeper_session_expiries_total{C}[10m]))", "{{instance}} expired"),
        ),
        graph(
            "Requests",
            "Requests with an answer, by process.",
            "reqps",
            ("sum by (instance) (rate(tidemark_zookeeper_request_seconds_count{C}[$__rate_interval]))", "{{instance}}"),
        ),
        graph(
            "Requests without an answer",
            "The connection was lost, or time was up.",
            "reqps",
            ("sum by (instance) (rate(tidemark_zookeeper_requests_failed_total{C}[$__rate_interval]))", "{{instance}}"),
            steps=NONE_IS_BEST,
        ),
        graph(
            "Lease",
            "Until the lease of the session ends, unless a request is answered before: a broker that gets near 0 is "
            "about to stop leading.",
            "s",
            ("tidemark_zookeeper_lease_seconds{C} > 0", "{{instance}}"),
        ),
    ),
)

CLUSTER: Final = Board(
    "cluster",
    "Tidemark: cluster",
    "Is the cluster healthy, what goes through it, and what do its machines have left.",
    (_HEALTH, _TRAFFIC, _LATENCY, _MACHINES, _DISKS, _ZOOKEEPER),
)
