# SPDX-License-Identifier: Apache-2.0
"""Settings, and changes of them: proto <-> what people are shown."""

from __future__ import annotations

from typing import Final

from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration_entries import ConfigChange, ConfigEntry, ConfigSource
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
_SOURCE_OF: Final = {number: source for source, number in _SOURCES.items()}


def resource_to_proto(resource: ConfigResource) -> pb.ConfigResource:
    """A topic or a broker."""
    return pb.ConfigResource(type=_KINDS[resource.kind], name=resource.name)


def resource_from_proto(message: pb.ConfigResource) -> ConfigResource:
    """A topic or a broker; raises INVALID_REQUEST for a type that is not set, or of a later version."""
    for kind, number in _KINDS.items():
        if number == message.type:
            return ConfigResource(kind, message.name)
    raise TidemarkError(ErrorCode.INVALID_REQUEST, f"nothing of type {message.type} has settings: say TOPIC or BROKER")


def change_to_proto(change: ConfigChange) -> pb.ConfigChange:
    """One change."""
    return pb.ConfigChange(key=change.key, before=change.before, after=change.after)


def change_from_proto(message: pb.ConfigChange) -> ConfigChange:
    """One change."""
    return ConfigChange(
        message.key,
        message.before if message.HasField("before") else None,
        message.after if message.HasField("after") else None,
    )


def entry_to_proto(entry: ConfigEntry) -> pb.ConfigEntry:
    """One setting."""
    return pb.ConfigEntry(
        key=entry.key,
        value=entry.value,
        source=_SOURCES[entry.source],
        type=entry.type,
        unit=entry.unit,
        scope=entry.scope,
        documentation=entry.documentation,
        valid_values=entry.valid_values,
        default_value=entry.default_value,
    )


def entry_from_proto(message: pb.ConfigEntry) -> ConfigEntry:
    """One setting; a source of a later version is unknown."""
    return ConfigEntry(
        key=message.key,
        value=message.value if message.HasField("value") else None,
        source=_SOURCE_OF.get(message.source, ConfigSource.UNKNOWN),
        type=message.type,
        unit=message.unit,
        scope=message.scope,
        documentation=message.documentation,
        valid_values=message.valid_values,
        default_value=message.default_value if message.HasField("default_value") else None,
    )
