# SPDX-License-Identifier: Apache-2.0
"""Answers of brokers of another cluster: a client ignores them until that cluster has replaced the client's cluster.

The address of a broker may pass to a broker of another cluster, such as the IP address of a pod. A client that then
used the other cluster would write its next records there. A new cluster may also have all addresses of an earlier one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from tidemark.core.cluster_view import ClusterView


def why_unusable(known: ClusterView, answer: ClusterView) -> str:
    """Return the reason for which a client ignores the answer of a broker; "": there is none."""
    if not answer.brokers:
        return "the broker has just started and has no metadata yet"
    if "" in (known.cluster_id, answer.cluster_id) or known.cluster_id == answer.cluster_id:
        return ""
    return f"the broker is of cluster {answer.cluster_id}, not of {known.cluster_id}"


def replacement(
    answers: Mapping[str, ClusterView | None], bootstrap: Container[str], *, is_silent: bool
) -> ClusterView | None:
    """Return the metadata of the cluster that has replaced the known one, as an address in `bootstrap` states.

    Args:
        answers: of every known address: the answer of a broker of another cluster; None: no answer.
        is_silent: the known cluster has not answered for long; otherwise every address must be of the other one.
    """
    others = {address: view for address, view in answers.items() if view is not None}
    named = [view for address, view in others.items() if address in bootstrap]
    return named[0] if named and (is_silent or len(others) == len(answers)) else None
