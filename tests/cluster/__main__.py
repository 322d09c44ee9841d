# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster [SCENARIO...]`: scenarios on a real Kubernetes cluster, one by one, with one release.

With KUBECONFIG it uses that cluster, which must have the images docker.io/tidemark/*:dev. Without KUBECONFIG it starts
a cluster with the scripts in the directory $KUBE, and builds and loads the images.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable

from tests.cluster import basics, console, day_two, secure, spark_job, under_load
from tests.cluster.images import TARGETS, build_and_load
from tests.cluster.kube import Cluster, CommandError
from tests.cluster.world import World

Scenario = Callable[[World], str]

SCENARIOS: tuple[Scenario, ...] = (
    basics.install_is_ready,
    basics.image_is_small,
    basics.helm_test_passes,
    basics.records_go_through,
    console.console_shows_the_release,
    basics.mistakes_are_refused,
    basics.apply_tells_differences,
    spark_job.spark_reads_a_topic,
    day_two.rolling_restart_loses_nothing,
    day_two.deleted_pod_comes_back_with_its_volume,
    day_two.brokers_are_added,
    day_two.brokers_are_removed,
    under_load.two_pods_are_deleted_at_once,
    under_load.node_is_drained,
    under_load.whole_release_is_upgraded,
    under_load.brokers_come_and_go_under_one_load,
    day_two.node_is_cut_off,
    under_load.starved_cluster_loses_nothing,
    day_two.uninstall_leaves_the_volumes,
    day_two.another_clusters_volume_is_refused,
)
"""The order matters: later scenarios use the state of earlier ones. The first scenario installs the release."""

SECURE: tuple[Scenario, ...] = (
    secure.install_is_ready,
    basics.helm_test_passes,
    secure.records_go_through,
    console.console_shows_the_release,
    console.console_has_no_rights_of_its_own,
    secure.caller_without_rights_is_refused,
    secure.zookeeper_refuses_other_pods,
    spark_job.spark_reads_a_topic,
    day_two.rolling_restart_loses_nothing,
    secure.authority_is_replaced_under_load,
    console.console_shows_the_release,
    under_load.whole_release_is_upgraded,
    secure.plain_release_becomes_secure,
)
"""Scenarios of a secure release, in this order; the last one begins with a plain release."""

WITH_ISSUER: tuple[Scenario, ...] = (
    secure.install_is_ready,
    basics.helm_test_passes,
    secure.records_go_through,
    secure.caller_without_rights_is_refused,
    secure.zookeeper_refuses_other_pods,
    secure.issuer_replaces_certificates_under_load,
    under_load.whole_release_is_upgraded,
)
"""Scenarios of a secure release with certificates of cert-manager."""

ENFORCED: tuple[Scenario, ...] = (secure.other_pods_reach_client_ports_only,)
"""Scenarios for a cluster whose network enforces NetworkPolicies; they follow the others."""

ON_OUR_OWN: frozenset[Scenario] = frozenset(
    {day_two.node_is_cut_off, under_load.node_is_drained, under_load.starved_cluster_loses_nothing}
)
"""Scenarios that disconnect or drain nodes, or take the CPU of this machine."""


def main(arguments: list[str]) -> int:
    """Run the scenarios; exit status 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    listed = [", ".join(one.__name__ for one in each) for each in (SCENARIOS, SECURE, WITH_ISSUER, ENFORCED)]
    of_all = "which (all): {}; with --secure: {}; with --issuer: {}; with --policies also: {}".format(*listed)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=of_all)
    parser.add_argument("--secure", action="store_true", help="the scenarios of a secure release")
    parser.add_argument(
        "--issuer",
        metavar="NAME",
        default="",
        help="with --secure: a ClusterIssuer of cert-manager, which makes the certificates (default: the chart does)",
    )
    parser.add_argument(
        "--policies", action="store_true", help="with --secure: the network of this cluster enforces NetworkPolicies"
    )
    parser.add_argument("--namespace", default="tidemark-test", help="created, and deleted at the end (%(default)s)")
    parser.add_argument("--no-images", action="store_true", help="the images are loaded already")
    parser.add_argument("--keep", action="store_true", help="keep namespace and cluster")
    parser.add_argument("--go-on", action="store_true", help="use the release of an earlier run with --keep")
    given = parser.parse_args(arguments)
    if (given.issuer or given.policies) and not given.secure:
        parser.error("--issuer and --policies are for a secure release: give --secure, too")
    scenarios = (WITH_ISSUER if given.issuer else SECURE) if given.secure else SCENARIOS
    if given.policies:
        scenarios += ENFORCED
    unknown = set(given.scenarios) - {scenario.__name__ for scenario in scenarios}
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    chosen = [scenario for scenario in scenarios if not given.scenarios or scenario.__name__ in given.scenarios]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    world = World(Cluster(given.namespace), secure=given.secure, issuer=given.issuer)
    if not world.cluster.own:
        chosen = [scenario for scenario in chosen if scenario not in ON_OUR_OWN]
    try:
        if not given.go_on:
            prepare(world, images=not given.no_images)
        passed, failed = run(world, chosen)
        world.numbers["load average of this machine at the end"] = f"{os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
        for name, number in world.numbers.items():
            print(f"{name}: {number}")
        print(f"{passed} passed, {failed} failed", flush=True)
    finally:
        if not given.keep:
            world.end()
            world.cluster.down()
    return 1 if failed else 0


def prepare(world: World, *, images: bool) -> None:
    """Prepare the cluster, the images on its nodes, an empty namespace, and the client pod."""
    begun_s = time.monotonic()
    world.cluster.up()
    print(f"the cluster runs [{time.monotonic() - begun_s:.0f} s]", flush=True)
    if images and world.cluster.own:
        for target in TARGETS:
            begun_s = time.monotonic()
            build_and_load(world.cluster, target)
            print(f"{target} is built and loaded [{time.monotonic() - begun_s:.0f} s]", flush=True)
    world.begin()
    if not world.secure:  # otherwise the pod needs the authority, which an install makes
        world.client()


def run(world: World, scenarios: list[Scenario]) -> tuple[int, int]:
    """Run the scenarios in order; returns the numbers of passed and failed. Without a release the rest fails too."""
    passed = failed = 0
    for index, scenario in enumerate(scenarios):
        sentence = (scenario.__doc__ or scenario.__name__).splitlines()[0].rstrip(".")
        begun_s = time.monotonic()
        try:
            outcome = scenario(world)
        except (AssertionError, CommandError) as error:
            failed += 1
            print(f"not ok [{time.monotonic() - begun_s:.0f} s] {sentence}\n{error}\n{evidence(world)}", flush=True)
            if scenario in (SCENARIOS[0], SECURE[0]) and isinstance(error, CommandError):
                failed += len(scenarios) - index - 1
                break
        else:
            passed += 1
            print(f"ok [{time.monotonic() - begun_s:.0f} s] {sentence}: {outcome}", flush=True)
    return passed, failed


def evidence(world: World) -> str:
    """State of the cluster, to diagnose a failure."""
    try:
        pods = world.cluster.kubectl("get", "pods", "-o", "wide")
        events = world.cluster.kubectl("get", "events", "--sort-by=.lastTimestamp")
    except CommandError as error:
        return str(error)
    return pods + os.linesep.join(events.splitlines()[-15:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
