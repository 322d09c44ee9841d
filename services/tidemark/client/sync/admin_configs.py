# SPDX-License-Identifier: Apache-2.0
"""Settings of topics and brokers, for the blocking admin client."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidemark.client.aio.admin.configs import ConfigCalls as AsyncConfigCalls
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.core.config_resource import ConfigResource
from tidemark.runtime.configuration_entries import ConfigChange, ConfigEntry


class ConfigCalls:
    """Part of the blocking `AdminClient`."""

    _client: AsyncConfigCalls
    _background: BackgroundLoop

    def alter_configs(
        self,
        resource: ConfigResource,
        set_: Mapping[str, str] | None = None,
        *,
        delete: Collection[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ConfigChange]:
        """Change settings, all or none of them; gives what changed, by key."""
        return self._background.call(
            self._client.alter_configs(
                resource, set_, delete=delete, validate_only=validate_only, request_id=request_id
            )
        )

    def describe_configs(
        self, resources: Sequence[ConfigResource], keys: Sequence[str] = ()
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """All settings of each, or `keys` of them."""
        return self._background.call(self._client.describe_configs(resources, keys))
