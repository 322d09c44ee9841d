# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from tidemark.core.security.principals import ANONYMOUS, Principal, Role, principal_of, service_uri
from tidemark.core.security.service_rights import INTERNAL, check_caller, check_service_id
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import controller_service_pb2, replica_service_pb2, transaction_service_pb2

from tests.refusals import raises_code

SERVICES = [principal_of([service_uri("shop", role, "1")]) for role in Role]
STRANGERS = [
    ANONYMOUS,
    principal_of(["tidemark://shop/user/mallory"]),
    *(principal_of([service_uri("other", role, "1")]) for role in Role),
]


def test_every_call_of_the_services_own_rpc_services_has_a_row() -> None:
    """A call that is added to one of them would be open to every identity without a row."""
    paths = {
        f"/{service.full_name}/{method.name}"
        for module in (controller_service_pb2, replica_service_pb2, transaction_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        if service.name != "TransactionService"
        for method in service.methods
    }
    assert paths == INTERNAL.keys()


@pytest.mark.parametrize("path", INTERNAL)
@pytest.mark.parametrize("caller", [*SERVICES, *STRANGERS], ids=lambda caller: caller.name)
def test_only_services_of_the_same_cluster_with_the_right_role_pass(path: str, caller: Principal) -> None:
    if caller in SERVICES and caller.role in INTERNAL[path]:
        check_caller(path, caller, "shop")
        return
    with raises_code(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "may not call") as refused:
        check_caller(path, caller, "shop")
    assert refused.value.metadata["principal"] == caller.name


def test_other_calls_are_open_to_every_identity() -> None:
    check_caller("/tidemark.v1.BrokerService/Fetch", ANONYMOUS, "shop")


@pytest.mark.parametrize("name", ["2", "01", "1 ", "+1", ""])
def test_a_service_acts_under_its_own_id_only(name: str) -> None:
    check_service_id(SERVICES[0], 1)
    with pytest.raises(TidemarkError, match="may not act as broker 1"):
        check_service_id(Principal("x", "shop", Role.BROKER, name), 1)
