# SPDX-License-Identifier: Apache-2.0
"""Settings of topics and brokers, for the async admin client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tidemark.core.config_resource import ConfigResource
from tidemark.rpc.config_codec import change_from_proto, entry_from_proto, resource_to_proto
from tidemark.runtime.configuration_entries import ConfigChange, ConfigEntry
from tidemark.v1 import admin_configs_pb2 as pb


class ConfigCalls(ABC):
    """Part of `AdminClient`."""

    @abstractmethod
    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any: ...

    async def alter_configs(
        self,
        resource: ConfigResource,
        set_: Mapping[str, str] | None = None,
        *,
        delete: Collection[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ConfigChange]:
        """Change settings, all or none of them; gives what changed, by key: nothing where all was so already.

        Args:
            resource: a topic, a broker, or every broker.
            set_: values by key.
            delete: keys whose value shall be what it would be had nobody set it.
            validate_only: check, and give what would change; change nothing.
            request_id: makes a retry harmless.

        Raises:
            TidemarkError: UNKNOWN_CONFIG, INVALID_CONFIG, UNKNOWN_TOPIC, INVALID_TOPIC_NAME, INVALID_REQUEST,
                REQUEST_ID_REUSED.
        """
        request = pb.AlterConfigsRequest(
            resource=resource_to_proto(resource),
            set=dict(set_ or {}),
            delete=sorted(delete),
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.AlterConfigs, request)
        return [change_from_proto(change) for change in response.changes]

    async def describe_configs(
        self, resources: Sequence[ConfigResource], keys: Sequence[str] = ()
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """All settings of each, or `keys` of them; raises as `alter_configs`, and BROKER_NOT_AVAILABLE."""
        request = pb.DescribeConfigsRequest(
            resources=[resource_to_proto(resource) for resource in resources], keys=list(keys)
        )
        response = await self._call(lambda stub: stub.DescribeConfigs, request)
        return {
            resource: [entry_from_proto(entry) for entry in found.entries]
            for resource, found in zip(resources, response.resources, strict=True)
        }
