# SPDX-License-Identifier: Apache-2.0
"""Metadata for clients: topics that a client may DESCRIBE, and brokers without their epochs."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.core.cluster_view import ClusterView
from tidemark.core.security.visible_views import blanked, visible
from tidemark.model import BrokerId, BrokerRegistration, TidemarkError
from tidemark.rpc.security.access import Access
from tidemark.runtime.slices import InSlices


class Visibility:
    """Clients with the same rights get the same objects, so that their answers are written once."""

    def __init__(self) -> None:
        self._brokers: Mapping[BrokerId, BrokerRegistration] = {}
        self._blanked: Mapping[BrokerId, BrokerRegistration] = {}

    async def view(self, access: Access, view: ClusterView, *, named: bool) -> ClusterView:
        """The part of the view that the client may see.

        Args:
            named: the request names the topics. Topics that are not visible then carry an error.

        Raises:
            TidemarkError: AUTHORIZER_NOT_READY.
        """
        if self._brokers is not view.brokers:
            self._brokers, self._blanked = view.brokers, blanked(view.brokers)
        brokers, names = self._blanked, set[str]()
        errors: dict[str, TidemarkError] = {}
        for some in (view.topics, view.deleted_topics, view.hidden_topics):
            async for name in InSlices(some):
                if access.may_describe(name):
                    names.add(name)
                elif named and some is view.topics:
                    errors[name] = access.hidden(name)
        return visible(view, names, brokers, errors)
