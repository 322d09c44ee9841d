# SPDX-License-Identifier: Apache-2.0
"""The part of the cluster's metadata that a client may see. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.security.acls import Operation, denial, shortened, topic
from tidemark.errors import ErrorCode, TidemarkError


def hidden_topic(principal: str, name: str, reason: str) -> TidemarkError:
    """The error for a topic that the caller may not DESCRIBE: the same whether the topic exists or not."""
    denied = denial(principal, Operation.DESCRIBE, topic(name), reason)
    _, _, command = denied.message.partition("; ")
    shown = shortened(name)
    sentence = f"topic {shown!r} does not exist, or {principal} may not DESCRIBE it ({reason}); {command}"
    return TidemarkError(ErrorCode.UNKNOWN_TOPIC, sentence, {**denied.metadata, "topic": shown})


def visible(view: ClusterView, names: Collection[str], errors: Mapping[str, TidemarkError]) -> ClusterView:
    """The view with the topics in `names` only.

    Args:
        errors: errors of other topics, by name; a topic without an error is omitted.
    """
    topics: dict[str, TopicView] = {}
    for name, found in view.topics.items():
        if name in names:
            topics[name] = found
        elif name in errors:
            topics[name] = TopicView(name, "", error=errors[name])
    return replace(
        view,
        topics=topics,
        deleted_topics=tuple(name for name in view.deleted_topics if name in names),
        hidden_topics=tuple(name for name in view.hidden_topics if name in names),
    )
