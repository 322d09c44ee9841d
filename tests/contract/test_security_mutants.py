# SPDX-License-Identifier: Apache-2.0
"""Known defects in the rules A1 to A5 and in identities (mutants); each must fail the test that it names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from tidemark.core.security import authorizer, principals, subject_mapping
from tidemark.core.security.acls import ANY, ANY_USER, Acl, Operation, Pattern, Permission, ResourceType, topic
from tidemark.core.security.authorizer import Authorizer, Decision, Rules
from tidemark.core.security.principals import Principal
from tidemark.core.security.rights import RIGHTS
from tidemark.core.security.service_rights import check_caller
from tidemark.model import TidemarkError
from tidemark.ports import StoreEvent
from tidemark.rpc.security import callers, gate, jwts, tokens
from tidemark.rpc.security.access import Access
from tidemark.rpc.security.files import uris_in
from tidemark.rpc.security.gate import Gate
from tidemark.rpc.security.jwts import IssuersFile
from tidemark.v1 import admin_brokers_pb2 as brokers_pb
from tidemark.zookeeper.feeds import NodeFeed
from tidemark.zookeeper.multis import Set, written
from tidemark.zookeeper.whole_nodes import packed

from tests.contract import test_access_rules as stored
from tests.contract.conftest import Cluster
from tests.integration.security import test_listeners as listeners
from tests.unit.core.security import test_authorizer as decisions
from tests.unit.core.security import test_principals as names
from tests.unit.core.security import test_rights as rows
from tests.unit.core.security import test_service_rights as service_rights
from tests.unit.core.security import test_subject_mapping as mappings
from tests.unit.rpc.security import test_callers as callers_tests
from tests.unit.rpc.security import test_gate as gates
from tests.unit.rpc.security import test_tokens as token_tests

IDENTITY = "identity"
CAUGHT = (AssertionError, pytest.fail.Exception, TidemarkError, PermissionError)
"""Errors of a failed test; any other error is one of the mutant itself."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: the rule that it breaks, and the test that must fail, with its arguments."""

    patch: Callable[[pytest.MonkeyPatch], None]
    rule: str
    caught_by: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.patch.__name__


# -- A1: a call without a row is refused


def serves_a_call_without_a_row(patch: pytest.MonkeyPatch) -> None:
    async def serve(*_: Any) -> None:
        return None

    patch.setattr(gate, "_NO_ROW", grpc.stream_stream_rpc_method_handler(serve))


def forgets_a_row(patch: pytest.MonkeyPatch) -> None:
    others = {path: right for path, right in RIGHTS.items() if path != "/tidemark.v1.BrokerService/Fetch"}
    patch.setattr(rows, "RIGHTS", others)


# -- A2: DENY wins; without a rule nothing is allowed; a decision holds until the rules change


def allow_wins(patch: pytest.MonkeyPatch) -> None:
    decide = authorizer._decision
    patch.setattr(authorizer, "_decision", lambda allow, deny: decide(allow, None if allow else deny))


def allows_without_a_rule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authorizer, "_BY_DEFAULT", Decision(True, None, "no rule denies it"))


def keeps_old_decisions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Authorizer, "use", lambda kept, rules: setattr(kept, "rules", rules))


# -- A3: the check precedes every read of state, and a denial does not reveal which objects exist


def checks_after_the_service(patch: pytest.MonkeyPatch) -> None:
    def unary(self: Gate, right: Any, handler: Any) -> Any:
        async def late(request: Any, context: Any) -> Any:
            response = await handler.unary_unary(request, context)
            await self._enter(right, request, context)
            return response

        return grpc.unary_unary_rpc_method_handler(late)

    patch.setattr(Gate, "_unary", unary)


def lets_denied_items_through(patch: pytest.MonkeyPatch) -> None:
    async def none(*_: Any) -> list[Any]:
        return []

    patch.setattr(gate, "_take_refused", none)


def tells_hidden_topics_from_missing_ones(patch: pytest.MonkeyPatch) -> None:
    def hidden(self: Access, name: str) -> TidemarkError:
        decision = Decision(False, None, "no rule allows it")
        return self._denied(Operation.DESCRIBE, topic(name), decision)

    patch.setattr(Access, "hidden", hidden)


def shows_every_item_of_an_answer(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        return None

    patch.setattr(gate, "_hide", nothing)


# -- A4: the rules are replaced as a whole, at the version that was read


def replaces_rules_of_any_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        packed, "written", lambda path, data, version: written(path, data, -1) if version < 0 else Set(path, data, -1)
    )


# -- A5: the last known rules hold, and without any only super users are allowed


def allows_everything_before_the_rules_are_read(patch: pytest.MonkeyPatch) -> None:
    everything = Acl(ResourceType.CLUSTER, Pattern.LITERAL, ANY, ANY_USER, ANY, Operation.ALL, Permission.ALLOW)
    patch.setattr(Authorizer, "_ready", lambda self: self.rules or Rules([everything]))


def forgets_the_rules_with_a_damaged_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeFeed, "_complain", lambda feed, _why: feed._use(Rules()))


def forgets_the_rules_without_zookeeper(patch: pytest.MonkeyPatch) -> None:
    on_event = NodeFeed._on_event

    def forgetting(self: Any, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_SUSPENDED:
            self._use(Rules())
        on_event(self, event)

    patch.setattr(NodeFeed, "_on_event", forgetting)


# -- identities: kinds cannot be forged into one another, and a service is bound to its id


def takes_the_first_of_two_names(patch: pytest.MonkeyPatch) -> None:
    principal_of = principals.principal_of
    patch.setattr(callers, "principal_of", lambda uris: principal_of(uris[:1]))


def takes_dns_names(patch: pytest.MonkeyPatch) -> None:
    def all_names(pem: bytes) -> tuple[str, ...]:
        extension = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return tuple(str(name.value) for name in extension.value)

    patch.setattr(callers, "uris_in", all_names)


def ends_a_name_at_a_nul(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(callers, "uris_in", lambda pem: tuple(uri.partition("\0")[0] for uri in uris_in(pem)))


def takes_any_text_as_a_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(principals, "_URI", re.compile(".+", re.DOTALL))


def trusts_services_of_other_clusters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(service_rights, "check_caller", lambda path, caller, _: check_caller(path, caller, caller.cluster))


def needs_no_rule_of_services_of_other_clusters(patch: pytest.MonkeyPatch) -> None:
    make = Access.__init__
    patch.setattr(
        Access, "__init__", lambda self, a, b, caller, host, _: make(self, a, b, caller, host, caller.cluster)
    )


def lets_a_broker_act_as_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(callers, "check_service_id", lambda caller, service_id: None)


def makes_services_on_a_listener_of_clients(patch: pytest.MonkeyPatch) -> None:
    caller_of = callers.caller_of

    def trusting(context: Any) -> Principal | None:
        found = caller_of(context)
        return None if found is None else principals.principal_of([found.name.removeprefix("User:")])

    patch.setattr(listeners, "caller_of", trusting)


def names_a_user_of_a_token_as_one_of_a_certificate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tokens, "token_principal", lambda name: Principal(f"User:{name}"))


def makes_service_accounts_of_any_issuer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jwts, "issuer_principal", lambda _alias, subject: Principal(f"User:{subject}"))


def maps_subjects_that_could_be_misread(patch: pytest.MonkeyPatch) -> None:
    def subject_in(pem: bytes) -> str:
        return x509.load_pem_x509_certificate(pem).subject.rfc4514_string()

    patch.setattr(callers, "subject_in", subject_in)


def maps_subjects_to_names_of_any_kind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(subject_mapping, "_PREFIX", "")


async def at_every_listener(tmp_path: Path) -> None:
    shop = listeners.Shop(tmp_path)
    await shop.server.start()
    try:
        await listeners.test_the_authority_of_clients_makes_users_only(shop)
    finally:
        await shop.server.stop(0)


async def with_an_issuer(tmp_path: Path) -> None:
    keys = token_tests.key_set(tmp_path / "keys.json", token_tests.KEYS)
    text = f'corp: {{issuer: "{token_tests.ISSUER}", audience: tidemark, jwks: "{keys}"}}'
    issuers = IssuersFile(token_tests.issuers_file(tmp_path / "issuers.yaml", text), clock_skew_s=5)
    await token_tests.test_only_the_issuer_that_is_kubernetes_makes_service_accounts(tokens.Tokens(issuers=issuers))


STRANGER = service_rights.STRANGERS[-1]
MUTANTS = [
    Mutant(
        serves_a_call_without_a_row,
        "A1",
        gates.test_a_call_without_a_row_reaches_no_service_and_health_needs_no_right,
    ),
    Mutant(forgets_a_row, "A1", rows.test_every_rpc_has_a_row_and_every_row_an_rpc),
    Mutant(allow_wins, "A2", decisions.test_a_deny_wins_and_covers_its_own_operation_only),
    Mutant(allows_without_a_rule, "A2", decisions.test_nothing_is_allowed_without_a_rule),
    Mutant(keeps_old_decisions, "A2", decisions.test_new_rules_replace_the_decisions_of_the_old_ones),
    Mutant(
        checks_after_the_service, "A3", gates.test_services_of_the_same_cluster_need_no_rule_for_their_own_calls_only
    ),
    Mutant(
        lets_denied_items_through,
        "A3",
        gates.test_denied_items_do_not_reach_the_service_and_are_answered_at_their_positions,
    ),
    Mutant(
        tells_hidden_topics_from_missing_ones,
        "A3",
        gates.test_a_named_topic_that_may_not_be_described_is_refused_before_a_lookup_tells_it_from_a_missing_one,
        ("PlanBrokers", brokers_pb.PlanBrokersRequest(topics=["a", "hidden"]), brokers_pb.PlanBrokersResponse()),
    ),
    Mutant(
        shows_every_item_of_an_answer,
        "A3",
        gates.test_items_of_an_answer_that_may_not_be_seen_are_left_out_at_every_depth,
    ),
    Mutant(
        allows_everything_before_the_rules_are_read,
        "A5",
        decisions.test_an_authorizer_without_rules_refuses_all_but_super_users,
    ),
    Mutant(takes_the_first_of_two_names, IDENTITY, callers_tests.test_no_name_and_two_names_are_no_identity),
    Mutant(takes_dns_names, IDENTITY, callers_tests.test_a_dns_name_that_looks_like_a_uri_is_no_identity),
    Mutant(
        ends_a_name_at_a_nul,
        IDENTITY,
        callers_tests.test_a_name_with_a_control_character_is_no_identity,
        (f"{callers_tests.BROKER}\0/x",),
    ),
    Mutant(
        takes_any_text_as_a_name,
        IDENTITY,
        names.test_a_name_that_could_pose_as_another_kind_of_identity_is_anonymous,
        ("token:alice",),
    ),
    Mutant(
        trusts_services_of_other_clusters,
        IDENTITY,
        service_rights.test_only_services_of_the_same_cluster_with_the_right_role_pass,
        ("/tidemark.v1.ControllerService/AskReplicas", STRANGER),
    ),
    Mutant(
        needs_no_rule_of_services_of_other_clusters,
        IDENTITY,
        gates.test_services_of_the_same_cluster_need_no_rule_for_their_own_calls_only,
    ),
    Mutant(
        lets_a_broker_act_as_another,
        IDENTITY,
        callers_tests.test_a_broker_under_another_id_is_refused_with_a_line_of_the_audit_log,
    ),
    Mutant(makes_services_on_a_listener_of_clients, IDENTITY, at_every_listener),
    Mutant(names_a_user_of_a_token_as_one_of_a_certificate, IDENTITY, token_tests.test_a_new_token_is_accepted_at_once),
    Mutant(makes_service_accounts_of_any_issuer, IDENTITY, with_an_issuer),
    Mutant(
        maps_subjects_that_could_be_misread,
        IDENTITY,
        callers_tests.test_a_subject_that_could_be_misread_names_no_user,
        ([(NameOID.ORGANIZATIONAL_UNIT_NAME, "cn=root"), (NameOID.COMMON_NAME, "alice")],),
    ),
    Mutant(
        maps_subjects_to_names_of_any_kind,
        IDENTITY,
        mappings.test_the_first_rule_that_matches_the_whole_subject_names_the_user,
        ("RULE:^CN=(.*)$/CN=$1/", "CN=alice", "User:CN=CN=alice"),
    ),
]
OF_THE_STORE = [
    (
        "zookeeper",
        Mutant(replaces_rules_of_any_version, "A4", stored.test_one_of_two_changes_of_the_same_rules_is_written),
    ),
    (
        "fake",
        Mutant(
            forgets_the_rules_with_a_damaged_node,
            "A5",
            stored.test_changed_rules_take_effect_at_once_and_a_damaged_node_changes_nothing,
        ),
    ),
    (
        "fake",
        Mutant(
            forgets_the_rules_without_zookeeper,
            "A5",
            stored.test_the_last_known_rules_hold_while_zookeeper_is_silent,
        ),
    ),
]
"""Mutants that need a cluster for their test."""


async def run(mutant: Mutant, **fixtures: Any) -> None:
    """Run the test that must fail, with the fixtures that the test takes."""
    wanted = inspect.signature(mutant.caught_by).parameters
    given = {name: value for name, value in fixtures.items() if name in wanted}
    result = mutant.caught_by(*mutant.arguments, **given)
    if inspect.isawaitable(result):
        await result


async def catch(mutant: Mutant, **fixtures: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        with pytest.raises(CAUGHT):
            await run(mutant, **fixtures)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
async def test_a_mutant_is_caught_by_the_test_that_it_names(
    mutant: Mutant, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    await run(mutant, tmp_path=tmp_path_factory.mktemp("sound"), caplog=caplog)
    caplog.clear()
    await catch(mutant, tmp_path=tmp_path_factory.mktemp("mutant"), caplog=caplog)


@pytest.mark.parametrize(("cluster", "mutant"), OF_THE_STORE, indirect=["cluster"], ids=str)
async def test_a_mutant_of_the_stored_rules_is_caught_by_the_test_that_it_names(
    cluster: Cluster, mutant: Mutant
) -> None:
    await catch(mutant, cluster=cluster)


def test_each_rule_of_the_protocol_has_a_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    rules = set(re.findall(r"\[(A\d)\]", page))
    assert rules == {one.rule for one in (*MUTANTS, *(one for _, one in OF_THE_STORE))} - {IDENTITY}
