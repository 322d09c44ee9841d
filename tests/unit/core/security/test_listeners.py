# SPDX-License-Identifier: Apache-2.0
"""The address that a caller gets depends on its listener."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tidemark.core.cluster_view import ClusterView
from tidemark.core.security.listeners import (
    INTERNAL_SERVICES,
    Endpoint,
    Listener,
    ListenerViews,
    address_in,
    endpoint_of,
    for_services_of,
)
from tidemark.model import BrokerId, BrokerRegistration

BOTH = ("internal://b0:9192", "clients.mtls://b0.example.com:9392", "clients.token://[::1]:9492")


def broker(broker_id: int, endpoints: Sequence[str] = ()) -> BrokerRegistration:
    return BrokerRegistration(BrokerId(broker_id), f"b{broker_id}", 9192, endpoints=tuple(endpoints))


def view(*brokers: BrokerRegistration) -> ClusterView:
    return ClusterView("c", brokers={one.broker_id: one for one in brokers}, admin_address="admin:1")


@pytest.mark.parametrize(
    ("listener", "host", "port"),
    [
        (Listener.ONLY, "b0", 9192),
        (Listener.INTERNAL, "b0", 9192),
        (Listener.MTLS, "b0.example.com", 9392),
        (Listener.TOKEN, "::1", 9492),
    ],
)
def test_metadata_has_the_address_of_the_listener_of_its_caller(listener: Listener, host: str, port: int) -> None:
    told = ListenerViews({}).of(view(broker(0, BOTH)), listener).brokers[BrokerId(0)]
    assert (told.host, told.port, told.endpoints) == (host, port, ())


def test_a_broker_with_one_address_has_it_for_every_listener() -> None:
    for listener in Listener:
        assert endpoint_of(broker(1), listener) == (listener, "b1", 9192)


@pytest.mark.parametrize(
    ("listener", "port"), [(Listener.PLAIN, 9192), (Listener.INTERNAL, 9692), (Listener.ONLY, 9192)]
)
def test_a_service_calls_a_broker_at_its_own_listener_while_a_cluster_moves(listener: Listener, port: int) -> None:
    both = broker(0, ("plain://b0:9192", "internal://b0:9692", "clients.mtls://b0:9392"))
    assert for_services_of(listener, both) == replace(both, port=port)
    assert endpoint_of(both, Listener.PLAIN) == ("plain", "b0", 9192)


def test_a_broker_without_the_listener_of_a_service_keeps_its_address() -> None:
    for one in (broker(1), broker(0, BOTH)):
        assert for_services_of(Listener.PLAIN, one) is one


@pytest.mark.parametrize(
    ("addresses", "listener", "address"),
    [
        ("c:9193", Listener.INTERNAL, "c:9193"),
        ("plain://c:9193,internal://c:9693", Listener.INTERNAL, "c:9693"),
        ("plain://c:9193,internal://c:9693", Listener.PLAIN, "c:9193"),
        ("plain://c:9193,internal://c:9693", Listener.ONLY, "c:9193"),
        ("", Listener.ONLY, ""),
    ],
)
def test_the_controllers_address_is_that_of_the_callers_listener(
    addresses: str, listener: Listener, address: str
) -> None:
    assert address_in(addresses, listener) == address


def test_a_broker_without_the_listener_of_the_caller_is_left_out() -> None:
    known = view(broker(0, BOTH), broker(1, BOTH[:2]), broker(2))
    assert list(ListenerViews({}).of(known, Listener.TOKEN).brokers) == [0, 2]


def test_the_address_of_the_admin_service_is_by_listener_and_a_single_one_holds_for_all() -> None:
    by_name = ListenerViews({"clients.mtls": "admin:2", "clients.token": "admin:3"})
    assert by_name.of(view(), Listener.TOKEN).admin_address == "admin:3"
    assert by_name.of(view(), Listener.INTERNAL).admin_address == ""
    assert ListenerViews({"": "admin:4"}).of(view(), Listener.MTLS).admin_address == "admin:4"


def test_views_of_the_same_brokers_share_their_addresses() -> None:
    views, known = ListenerViews({}), view(broker(0, BOTH))
    first = views.of(known, Listener.MTLS)
    assert views.of(replace(known, controller_id=BrokerId(7)), Listener.MTLS).brokers is first.brokers
    moved = view(broker(0, ("internal://b0:1", "clients.mtls://b0:2")))
    assert views.of(moved, Listener.MTLS).brokers[BrokerId(0)].port == 2


def test_the_services_of_the_cluster_are_internal() -> None:
    assert {name.rpartition(".")[2] for name in INTERNAL_SERVICES} == {
        "BrokerControlService",
        "ControllerService",
        "ReplicaService",
        "TransactionCoordination",
    }


@pytest.mark.parametrize("text", ["", "b0", "internal://b0", "internal://b0:x", "://b0:1", "internal://b0:65536"])
def test_other_text_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", [*BOTH, "b0:9192"])
def test_an_endpoint_survives_a_round_trip(text: str) -> None:
    assert str(Endpoint.parse(text)) == text
