# SPDX-License-Identifier: Apache-2.0
"""Settings and their changes survive a round trip."""

from __future__ import annotations

import pytest
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import ErrorCode
from tidemark.rpc.codecs.config import (
    change_from_proto,
    change_to_proto,
    entry_from_proto,
    entry_to_proto,
    resource_from_proto,
    resource_to_proto,
)
from tidemark.runtime.configuration.entries import (
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    absent_broker_entries,
    broker_entries,
    topic_entries,
)
from tidemark.v1 import admin_configs_pb2 as pb

from tests.refusals import raises_code


@pytest.mark.parametrize("kind", list(ConfigKind))
def test_a_resource_survives_a_round_trip(kind: ConfigKind) -> None:
    resource = ConfigResource(kind, "7")
    assert resource_from_proto(resource_to_proto(resource)) == resource


def test_a_kind_of_a_later_version_is_refused() -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        resource_from_proto(pb.ConfigResource(type=9, name="x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [ConfigChange("a", None, "1"), ConfigChange("a", "", None), ConfigChange("a", "1", "2")]
)
def test_an_unset_value_differs_from_an_empty_one(change: ConfigChange) -> None:
    assert change_from_proto(change_to_proto(change)) == change


@pytest.mark.parametrize(
    "entries",
    [
        topic_entries({"retention.ms": "5"}),
        absent_broker_entries({"log.level": "debug"}, {}),
        broker_entries({"broker.id": "3", "broker.rack": ""}, {}, {"log.level": "error"}),
    ],
)
def test_every_setting_survives_a_round_trip(entries: list[ConfigEntry]) -> None:
    assert [entry_from_proto(entry_to_proto(entry)) for entry in entries] == entries


def test_a_source_of_a_later_version_is_unknown() -> None:
    entry = entry_to_proto(topic_entries({}, ["retention.ms"])[0])
    entry.source = 99  # type: ignore[assignment]
    assert entry_from_proto(entry).source is ConfigSource.UNKNOWN
