# SPDX-License-Identifier: Apache-2.0
"""Settings and their changes: proto <-> model."""

from __future__ import annotations

from typing import Final

from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import invalid_request
from tidemark.rpc.codecs.message import OPTIONAL, Codec, enum
from tidemark.runtime.configuration.entries import ConfigChange, ConfigEntry, ConfigSource
from tidemark.v1 import admin_configs_pb2 as pb

_KINDS: Final = {
    ConfigKind.TOPIC: pb.CONFIG_RESOURCE_TYPE_TOPIC,
    ConfigKind.BROKER: pb.CONFIG_RESOURCE_TYPE_BROKER,
}
_SOURCES: Final = {
    ConfigSource.UNKNOWN: pb.CONFIG_SOURCE_UNSPECIFIED,
    ConfigSource.DEFAULT: pb.CONFIG_SOURCE_DEFAULT,
    ConfigSource.STATIC: pb.CONFIG_SOURCE_STATIC,
    ConfigSource.CLUSTER: pb.CONFIG_SOURCE_CLUSTER,
    ConfigSource.BROKER: pb.CONFIG_SOURCE_BROKER,
    ConfigSource.TOPIC: pb.CONFIG_SOURCE_TOPIC,
}


def resource_to_proto(resource: ConfigResource) -> pb.ConfigResource:
    """Encode a topic or a broker."""
    return pb.ConfigResource(type=_KINDS[resource.kind], name=resource.name)


def resource_from_proto(message: pb.ConfigResource) -> ConfigResource:
    """Decode a topic or a broker; raises INVALID_REQUEST for an unset type and for a type of a later version."""
    for kind, number in _KINDS.items():
        if number == message.type:
            return ConfigResource(kind, message.name)
    raise invalid_request(f"resource type {message.type} is unknown: name TOPIC or BROKER")


_CHANGE: Final = Codec(ConfigChange, pb.ConfigChange, before=OPTIONAL, after=OPTIONAL)
change_to_proto: Final = _CHANGE.to_proto
change_from_proto: Final = _CHANGE.from_proto

_ENTRY: Final = Codec(
    ConfigEntry,
    pb.ConfigEntry,
    value=OPTIONAL,
    source=enum(_SOURCES, otherwise=ConfigSource.UNKNOWN),
    default_value=OPTIONAL,
)
entry_to_proto: Final = _ENTRY.to_proto
entry_from_proto: Final = _ENTRY.from_proto
