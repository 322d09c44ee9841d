# SPDX-License-Identifier: Apache-2.0
"""Settings as a command shows them, and which of them may change."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.core.config_resource import ConfigKind
from tidemark.model import ErrorCode
from tidemark.runtime.configuration.entries import (
    ConfigChange,
    ConfigSource,
    broker_entries,
    changes_between,
    check_alterable,
    cluster_entries,
    text_of,
    topic_entries,
)
from tidemark.runtime.configuration.key import Scope
from tidemark.runtime.configuration.keys import keys_of
from tidemark.runtime.configuration.settings import KEYS, BrokerSettings, read_settings, topic_settings
from tidemark.runtime.host_port import HostPort

from tests.refusals import raises_code


def test_a_setting_is_described_from_the_table() -> None:
    (entry,) = topic_entries({"max.message.bytes": "2048"}, ["max.message.bytes"])
    key = KEYS["max.message.bytes"]
    assert (entry.value, entry.source, entry.default_value) == ("2048", ConfigSource.TOPIC, "1048576")
    assert (entry.type, entry.unit, entry.scope) == ("int", "bytes", "topic")
    assert (entry.documentation, entry.valid_values) == (key.doc, key.valid_values)


def test_all_settings_of_an_owner_are_shown_in_the_order_of_the_table() -> None:
    assert [entry.key for entry in topic_entries({})] == list(keys_of("topic"))
    assert [entry.key for entry in cluster_entries({})] == list(keys_of("broker"))


@pytest.mark.parametrize("keys", [["nonsense"], ["retention.ms", "broker.id"]])
def test_a_key_that_a_topic_does_not_have_is_refused(keys: list[str]) -> None:
    with raises_code(ErrorCode.UNKNOWN_CONFIG):
        topic_entries({}, keys)


def test_a_static_setting_in_zookeeper_is_not_shown_as_if_it_held() -> None:
    (entry,) = broker_entries({"num.read.threads": "4"}, {"num.read.threads": "8"}, {}, ["num.read.threads"])
    assert (entry.value, entry.source) == ("4", ConfigSource.STATIC)


def test_the_texts_of_values_are_read_as_the_same_values() -> None:
    arguments = ["--broker.id=3", "--zookeeper.connect=z:1", "--log.dirs=/a,/b", "--admin.address=[::1]:9194"]
    settings = read_settings(BrokerSettings, arguments, {})
    for key in keys_of("broker").values():
        value = getattr(settings, key.attribute)
        assert key.parse(text_of(value)) == value, key.name
    assert text_of((Path("/a"), Path("/b"))) == "/a,/b"
    assert text_of(HostPort("::1", 9)) == "[::1]:9"
    assert text_of(False) == "false"


def test_only_dynamic_settings_may_change_in_a_broker() -> None:
    for key in keys_of("broker").values():
        value = key.default or "1"
        if key.scope is Scope.BROKER_DYNAMIC:
            check_alterable(ConfigKind.BROKER, {key.name: value}, ())
            continue
        with raises_code(ErrorCode.INVALID_CONFIG) as refused:
            check_alterable(ConfigKind.BROKER, {key.name: value}, ())
        assert key.environment_name in refused.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "1_000"),
        ("retention.ms", "１０００"),
        ("retention.ms", "1000.0"),
        ("retention.ms", "9" * 5_000),
        ("min.cleanable.dirty.ratio", "0_0.5"),
        ("min.cleanable.dirty.ratio", "０.5"),
    ],
)
def test_a_topic_accepts_numbers_in_plain_digits_only(name: str, text: str) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG):
        check_alterable(ConfigKind.TOPIC, {name: text}, ())


def test_a_topic_accepts_a_number_with_its_sign_and_spaces_around() -> None:
    check_alterable(ConfigKind.TOPIC, {"retention.ms": " +1000 ", "min.cleanable.dirty.ratio": "5e-1"}, ())


def test_a_stored_number_keeps_the_meaning_that_it_had_in_earlier_versions() -> None:
    assert topic_settings({"retention.ms": "9_000"}).retention_ms == 9_000
    assert topic_settings({"min.cleanable.dirty.ratio": "0_0.2_5"}).min_cleanable_dirty_ratio == 0.25


def test_a_service_that_watches_no_settings_has_static_ones_only() -> None:
    for owner in ("controller", "admin"):
        assert {key.scope_for(owner) for key in keys_of(owner).values()} == {Scope.STATIC}


def test_changes_are_by_key_and_contain_only_differences() -> None:
    before, after = {"b": "1", "c": "1", "a": "1"}, {"b": "2", "c": "1", "d": "4"}
    assert changes_between(before, after) == [
        ConfigChange("a", "1", None),
        ConfigChange("b", "1", "2"),
        ConfigChange("d", None, "4"),
    ]
