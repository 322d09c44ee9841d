# SPDX-License-Identifier: Apache-2.0
"""What the processes of a cluster have left: memory, processor, event loop, disks, ZooKeeper; rows of its dashboard."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    GREEN,
    NONE_IS_BEST,
    NONE_IS_GOOD,
    RED,
    Row,
    graph,
    increase,
    quantile,
    rate,
    table,
)

MACHINES: Final = Row(
    "Processes",
    (
        table(
            "Brokers",
            "Each broker as it is now.",
            (("instance", "Broker"), ("state", "State")),
            ("Up for", 'max by (instance) (time() - process_start_time_seconds{B,component="broker"})'),
            ("Replicas", "max by (instance) (tidemark_replica_count{B})"),
            ("Leads", "max by (instance) (tidemark_replica_leader_count{B})"),
            ("Under-replicated", "max by (instance) (tidemark_replica_under_replicated{B})"),
            ("", "max by (instance, state) (tidemark_broker_state{B} == 1)"),
            width=16,
            units={"Up for": "s"},
        ),
        table(
            "Versions",
            "What runs where; more than one version is an upgrade under way, or one that was left half done.",
            (("service", "Service"), ("version", "Version")),
            ("Processes", "count by (version, service) (tidemark_build_info{C})"),
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
            "Share of the file descriptors that a process may open: segments in use, and connections.",
            "percentunit",
            ('process_open_fds{C,component=~"broker|controller|admin"} / process_max_fds{C}', "{{instance}}"),
            steps=((None, GREEN), (0.8, RED)),
        ),
        graph(
            "Event loop: longest stall",
            "The longest of the last minute that anything due had to wait. Above 1 s heartbeats are at risk; the log "
            "has a line for each with where it stood.",
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

DISKS: Final = Row(
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
            "Segments of all logs of a broker; those in use hold a file open each.",
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
            rate("tidemark_broker_log_cleaner_freed_bytes_total{B}"),
        ),
        graph(
            "Cleaner failures",
            "Logs that could not be cleaned: they grow until their cause is gone; it is in the broker's log.",
            "short",
            increase("tidemark_broker_log_cleaner_failures_total{B}", over="1h"),
            steps=NONE_IS_GOOD,
        ),
    ),
)

ZOOKEEPER: Final = Row(
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
            increase("tidemark_zookeeper_disconnects_total{C}", legend="{{instance}} disconnected", over="10m"),
            increase("tidemark_zookeeper_session_expiries_total{C}", legend="{{instance}} expired", over="10m"),
        ),
        graph(
            "Requests",
            "Requests with an answer, by process.",
            "reqps",
            rate("tidemark_zookeeper_request_seconds_count{C}"),
        ),
        graph(
            "Requests without an answer",
            "The connection was lost, or time was up.",
            "reqps",
            rate("tidemark_zookeeper_requests_failed_total{C}"),
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
