# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster ...`: show the cluster and change its brokers."""

from __future__ import annotations

import typer

from tidemark.cli.cluster.add_remove_brokers import add_brokers, create, remove_brokers
from tidemark.cli.cluster.safe_to_restart import safe_to_restart
from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, print_json, print_line, print_table

cluster_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show the cluster and change its brokers.")
cluster_app.command("create", short_help="Wait until exactly these brokers are live.")(create)
cluster_app.command("add-brokers", short_help="Give new brokers their share of replicas.")(add_brokers)
cluster_app.command("remove-brokers", short_help="Drain brokers and deregister them.")(remove_brokers)
cluster_app.command("safe-to-restart", short_help="Check if a broker can be restarted now.")(safe_to_restart)


@cluster_app.callback()
def cluster() -> None:
    """Show the cluster and change its brokers."""


@cluster_app.command("describe", short_help="Brokers, controller, counts of partitions.")
def describe(bootstrap: BootstrapOption = "", admin: AdminOption = "", output: OutputOption = Output.TEXT) -> None:
    """Show brokers, the active controller, and counts of under-replicated and offline partitions.

    \b
    Examples:
      tidemark cluster describe
      tidemark cluster describe --output json | jq .offline_count
    """
    with connect_admin(bootstrap, admin) as client:
        found = client.describe_cluster()
    brokers = [found.view.brokers[broker_id] for broker_id in sorted(found.view.brokers)]
    counts = {
        "topic_count": found.topic_count,
        "partition_count": found.partition_count,
        "under_replicated_count": found.under_replicated_count,
        "under_min_isr_count": found.under_min_isr_count,
        "offline_count": found.offline_count,
    }
    if output is Output.JSON:
        print_json(
            {
                "cluster_id": found.view.cluster_id,
                "controller_id": found.view.controller_id,
                "admin_address": found.view.admin_address,
                "brokers": [
                    {"broker_id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
                    for broker in brokers
                ],
                **counts,
                "draining_brokers": list(found.draining_brokers),
            }
        )
        return
    controller = found.view.controller_id if found.view.controller_id >= 0 else "none"
    print_line(f"cluster {found.view.cluster_id}, controller {controller}, admin {found.view.admin_address}")
    print_table(
        ("broker", "address", "rack", "epoch"),
        [(broker.broker_id, f"{broker.host}:{broker.port}", broker.rack, broker.broker_epoch) for broker in brokers],
    )
    if found.draining_brokers:
        listed = ", ".join(str(broker) for broker in found.draining_brokers)
        print_line(f"draining: broker {listed}; no new replicas until tidemark cluster add-brokers")
    print_table(("topics", "partitions", "under-replicated", "under min ISR", "offline"), [tuple(counts.values())])
