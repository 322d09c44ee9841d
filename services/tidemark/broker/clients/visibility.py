# SPDX-License-Identifier: Apache-2.0
"""Metadata for clients: topics that a client may DESCRIBE."""

from __future__ import annotations

from tidemark.core.cluster_view import ClusterView
from tidemark.core.security.visible_views import visible
from tidemark.model import TidemarkError
from tidemark.rpc.security.access import Access
from tidemark.runtime.slices import InSlices


async def visible_to(access: Access, view: ClusterView, *, named: bool) -> ClusterView:
    """The part of the view that the client may see.

    Args:
        named: the request names the topics. Topics that are not visible then carry an error.

    Raises:
        TidemarkError: AUTHORIZER_NOT_READY.
    """
    names = set[str]()
    errors: dict[str, TidemarkError] = {}
    for some in (view.topics, view.deleted_topics, view.hidden_topics):
        async for name in InSlices(some):
            if access.may_describe(name):
                names.add(name)
            elif named and some is view.topics:
                errors[name] = access.hidden(name)
    return visible(view, names, errors)
