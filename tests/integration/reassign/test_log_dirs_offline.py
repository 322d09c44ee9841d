# SPDX-License-Identifier: Apache-2.0
"""A log directory that is offline, as `tidemark log-dirs` and `tidemark reassign` show it (rule M3)."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from kazoo.client import KazooClient
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from tests.integration.cli.test_cli import Ended, refused, succeeds, tidemark
from tests.integration.harness.broken_disk import DEADLINE_S, led, two_disks
from tests.integration.harness.waiting import wait_for
from tests.integration.reassign.test_reassign_log_dirs import moved
from tests.integration.reassign.test_reassignments import assigned, file_of
from tests.integration.storage.test_broken_disks import PARTITIONS, cluster, create, metric

__all__ = ["cluster"]


def test_nothing_is_moved_into_or_out_of_a_directory_that_is_offline(
    cluster: LocalCluster,
    broken: Path,
    tmp_path: Path,
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        bad, good = two_disks(cluster, admin, lambda: create(admin, "safe", replicas=2), leaderships=PARTITIONS)
        inside, outside = led(bad)[0], led(good)[0]
        broken.write_text(f"{errno.EIO} {bad.path}\n")
        producer.send("safe", b"record", partition=inside.partition).result(DEADLINE_S)
        wait_for(lambda: metric(cluster, "offline_log_directories") == 1, "the directory is known to be offline")

        (told,) = json.loads(succeeds(cluster, "log-dirs", "describe", "--broker", "0", "-o", "json"))
        assert [one["path"] for one in told["log_dirs"] if one["error"] is not None] == [bad.path]
        described = succeeds(cluster, "log-dirs", "describe", "--broker", "0", "--replicas")
        rows = [line.split()[5] for line in described.splitlines() if bad.path in line and " safe:" not in line]
        assert rows[0] == "offline"
        assert f"broker 0, {bad.path}: " in described
        into = tidemark(
            cluster, "log-dirs", "move", f"safe:{outside.partition}", "--broker", "0", "--to", bad.directory_id
        )
        refused(into, "LOG_DIR_OFFLINE")
        answers: list[Ended] = []

        def out_of_it_is_refused() -> bool:
            """While the broker tries to open the log again, the failure is not known yet."""
            answers.append(
                tidemark(cluster, "log-dirs", "move", f"safe:{inside.partition}", "--broker", "0", "--to", good.path)
            )
            return answers[-1].status != 0

        wait_for(out_of_it_is_refused, "a replica that cannot be read cannot be moved")
        refused(answers[-1], "REPLICA_OFFLINE")
        (replicas,) = [assigned(admin, "safe")[outside.partition]]
        placed = [bad.path if broker == 0 else "any" for broker in replicas]
        file = file_of(tmp_path, moved("safe", outside.partition, replicas, placed))
        refused(tidemark(cluster, "reassign", "execute", file), "LOG_DIR_OFFLINE")
        told = json.loads(tidemark(cluster, "reassign", "verify", file, "-o", "json").out)
        assert [one["why"]["code"] for one in told[0]["log_dirs"]] == ["LOG_DIR_OFFLINE"]

        zookeeper = KazooClient(cluster.zookeeper.connect, timeout=20)
        zookeeper.start()
        try:
            entry = moved("safe", outside.partition, replicas, placed)
            zookeeper.create("/admin/reassign_partitions", json.dumps(entry).encode())
            wait_for(lambda: zookeeper.exists("/admin/reassign_partitions") is None, "the entry is removed too")
        finally:
            zookeeper.stop()
            zookeeper.close()
        refusals = json.loads(succeeds(cluster, "reassign", "list", "-o", "json"))["refusals"]
        assert [one["error"]["code"] for one in refusals] == ["LOG_DIR_OFFLINE"]
