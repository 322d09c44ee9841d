# SPDX-License-Identifier: Apache-2.0
"""Rows of the cluster dashboard: memory, CPU and event loop of its processes, disks, ZooKeeper."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import GREEN, NONE_IS_BEST, NONE_IS_GOOD, RED, Row, graph, increase, quantile, rate, table

MACHINES: Final = Row(
    "Processes",
    (
        table(
            "Brokers",
            "The present state of each broker.",
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
            "Versions of the services. More than one version means a running or an incomplete upgrade.",
            (("service", "Service"), ("version", "Version")),
            ("Processes", "count by (version, service) (tidemark_build_info{C})"),
        ),
        graph(
            "Memory",
            "Resident memory, which grows with replicas and clients. Near the container's limit the kernel kills "
            "the process.",
            "bytes",
            ('process_resident_memory_bytes{C,component=~"broker|controller|admin|console"}', "{{instance}}"),
        ),
        graph(
            "CPU",
            "CPUs in use. A broker's event loop has one CPU: above about 0.9, requests wait.",
            "short",
            (
                'rate(process_cpu_seconds_total{C,component=~"broker|controller|admin|console"}[$__rate_interval])',
                "{{instance}}",
            ),
        ),
        graph(
            "Open files",
            "Share of the permitted file descriptors in use: segments and connections.",
            "percentunit",
            ('process_open_fds{C,component=~"broker|controller|admin|console"} / process_max_fds{C}', "{{instance}}"),
            steps=((None, GREEN), (0.8, RED)),
        ),
        graph(
            "Event loop: longest stall",
            "The longest stall of the last minute. Above 1 s heartbeats are at risk; the log has a line with the "
            "stack for each stall.",
            "s",
            ("tidemark_event_loop_stall_longest_seconds{C}", "{{instance}}"),
            steps=((None, GREEN), (1, RED)),
        ),
        graph(
            "Event loop: p99",
            "How late the event loop runs a task that is due.",
            "s",
            (quantile(0.99, "tidemark_event_loop_stall_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Garbage collection: longest pause",
            "The longest pause of the last minute.",
            "s",
            ("tidemark_gc_pause_longest_seconds{C}", "{{instance}}"),
        ),
        graph(
            "Admin calls",
            "Calls of the admin service, by method and result.",
            "reqps",
            ("sum by (method, code) (rate(tidemark_admin_requests_total{C}[$__rate_interval]))", "{{method}} {{code}}"),
        ),
        graph(
            "Admin calls, p99",
            "Duration of a call.",
            "s",
            (quantile(0.99, "tidemark_admin_request_seconds{C}", "method"), "{{method}}"),
        ),
        graph(
            "Scrapes",
            "Time to answer a scrape. With thousands of partitions, metrics.partitions=false makes scrapes short.",
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
            "Free share of the file system of each log directory.",
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
            "Time until the space is used up, at the rate of the last hour. Add a disk, reduce retention, or move "
            "replicas before.",
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
            "All replicas of a topic together, of the ten largest topics.",
            "bytes",
            ("topk(10, sum by (topic) (tidemark_partition_log_size_bytes{B}))", "{{topic}}"),
        ),
        graph(
            "Segments",
            "Segments of all logs of a broker. Each segment in use holds one open file.",
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
            "Logs that are not opened yet after a start, by broker: the progress of a restart.",
            "short",
            ("sum by (instance) (tidemark_log_recovery_remaining_logs{B})", "{{instance}}"),
        ),
        graph(
            "Cleaner",
            "Bytes that cleaning removed from compacted topics.",
            "Bps",
            rate("tidemark_broker_log_cleaner_freed_bytes_total{B}"),
        ),
        graph(
            "Cleaner failures",
            "Logs that could not be cleaned: they grow until the cause is removed. The broker's log names the cause.",
            "short",
            increase("tidemark_broker_log_cleaner_failures_total{B}", over="1h"),
            steps=NONE_IS_GOOD,
        ),
        graph(
            "Damaged batches",
            "Damaged ranges of logs that were found in an hour, and those without a good copy on another replica.",
            "short",
            increase("tidemark_broker_log_damaged_ranges_found_total{B}", over="1h"),
            ("tidemark_broker_log_damaged_ranges{B}", "{{instance}} without a good copy"),
            steps=NONE_IS_GOOD,
        ),
    ),
)

ZOOKEEPER: Final = Row(
    "ZooKeeper",
    (
        graph(
            "Sessions that are not connected",
            "1 for a process whose session is suspended, expired or closed. A broker without a session stops "
            "leading when its session lease ends, so that there are never two leaders.",
            "short",
            ('1 - tidemark_zookeeper_session_state{C,state="connected"}', "{{instance}}"),
            steps=NONE_IS_GOOD,
            maximum=1,
        ),
        graph(
            "Requests, p99",
            "Time from a request to its answer. Above some 100 ms, ZooKeeper's disk is slow or shared.",
            "s",
            (quantile(0.99, "tidemark_zookeeper_request_seconds{C}"), "{{instance}}"),
        ),
        graph(
            "Lost connections and sessions",
            "Within the last ten minutes. A service reconnects after a lost connection; after an expired session a "
            "broker registers again.",
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
            "The connection was lost, or the request timed out.",
            "reqps",
            rate("tidemark_zookeeper_requests_failed_total{C}"),
            steps=NONE_IS_BEST,
        ),
        graph(
            "Session lease",
            "Time until the session lease ends, unless a request is answered before. A broker near 0 is about to "
            "stop leading.",
            "s",
            ("tidemark_zookeeper_lease_seconds{C} > 0", "{{instance}}"),
        ),
    ),
)
