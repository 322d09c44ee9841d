# SPDX-License-Identifier: Apache-2.0
"""The cost of authorization and of TLS; clusters with and without take turns.

`authorized_of_plain`, `authorized_reads_of_plain`: the rate with 10,000 access rules, of that without authorization.
`acl_decision_us`, `acl_first_decision_us`: one decision among the rules, known and new.
`tls_of_plain`: the rate of records that are produced and then consumed with TLS on both hops, of that on plain text;
`tls_produced_of_plain` and `tls_consumed_of_plain`: its parts. Peer: the same of Kafka, with the same cipher suite.
`rotation_pause_s`: the longest time without an acknowledgement while all certificates are renewed; none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.client.acls import CLUSTER, Acl, Operation, Pattern, Permission, ResourceType
from tidemark.core.security.acls import topic
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.local.cluster import LocalCluster

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.tls import TOPIC, read_per_s, tls_figures
from bench.produce import PARTITIONS, arrow_per_s

RULES = 10_000
ANONYMOUS = "User:ANONYMOUS"
DECISIONS = 100_000


def rules() -> list[Acl]:
    """The rules that the clients and services need on plain text, and many of other users."""
    prefixed = Acl(ResourceType.TOPIC, Pattern.PREFIXED, "meas", ANONYMOUS, "*", Operation.ALL, Permission.ALLOW)
    cluster = Acl(CLUSTER.type, Pattern.LITERAL, CLUSTER.name, ANONYMOUS, "*", Operation.ALL, Permission.ALLOW)
    others = [
        prefixed._replace(name=f"team-{number}.", principal=f"User:token:{number % 500}", pattern=pattern)
        for number in range(RULES // 2)
        for pattern in Pattern
    ]
    return [prefixed, cluster, *others[: RULES - 2]]


@contextlib.contextmanager
def cluster_of(directory: Path, *, authorized: bool) -> Iterator[LocalCluster]:
    """A cluster with the topic, and if `authorized` with the rules in force."""
    with LocalCluster(directory) as made, AdminClient(made.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        if authorized:
            admin.alter_acls(add=rules())
        else:
            yield made
            return
    flags = {"authorization.enabled": "true"}
    with LocalCluster(directory, settings={"broker": flags, "admin": flags}) as made:
        yield made


def decision_us() -> tuple[float, float]:
    """A known decision, and the median of new ones, in microseconds."""
    authorizer = Authorizer()
    authorizer.use(Rules(rules()))
    new = []
    for number in range(1000):
        started_s = time.perf_counter()
        authorizer.decide(ANONYMOUS, "127.0.0.1", Operation.WRITE, topic(f"measured-{number}"))
        new.append(time.perf_counter() - started_s)
    resource = topic("measured-1")
    started_s = time.perf_counter()
    for _ in range(DECISIONS):
        authorizer.decide(ANONYMOUS, "127.0.0.1", Operation.WRITE, resource)
    return (time.perf_counter() - started_s) / DECISIONS * 1e6, statistics.median(new) * 1e6


def main() -> int:
    """Medians of the rounds' ratios; the clusters take turns, so that other load of the machine affects all of them."""
    parser = flags_of("security", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    writes, reads = [], []
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        cluster_of(Path(directory) / "plain", authorized=False) as plain,
        cluster_of(Path(directory) / "authorized", authorized=True) as authorized,
    ):
        both = (authorized.bootstrap, plain.bootstrap)
        for _ in range(arguments.rounds):
            with_rules, without = (arrow_per_s(one, TOPIC, records=arguments.records) for one in both)
            writes.append((with_rules / without, with_rules, without))
            with_rules, without = (asyncio.run(read_per_s(one, TOPIC, arguments.records)) for one in both)
            reads.append((with_rules / without, with_rules, without))
            print(f"produced {writes[-1]}, read {reads[-1]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory:
        with_tls = tls_figures(Path(directory), arguments.rounds, arguments.records)
    known_us, new_us = decision_us()
    figures = {
        "authorized_of_plain": Figure(statistics.median(ratio for ratio, *_ in writes), "of plain"),
        "authorized_reads_of_plain": Figure(statistics.median(ratio for ratio, *_ in reads), "of plain"),
        "acl_decision_us": Figure(known_us, "us", lower_is_better=True),
        "acl_first_decision_us": Figure(new_us, "us", lower_is_better=True),
        **with_tls,
    }
    report("security", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
