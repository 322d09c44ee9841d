# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidemark.v1
from tidemark.core.security.acls import APPLICABLE, ResourceType
from tidemark.core.security.principals import Role
from tidemark.core.security.rights import RIGHTS, Need, Right


def methods() -> Iterator[tuple[str, Any]]:
    for module in pkgutil.iter_modules(tidemark.v1.__path__):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(f"tidemark.v1.{module.name}").DESCRIPTOR.services_by_name.values()
            for service in services:
                for method in service.methods:
                    yield f"/{service.full_name}/{method.name}", method


METHODS = dict(methods())
ROWS = sorted(RIGHTS.items())


def field_at(message: Any, path: str) -> Any:
    """The field at a path through messages; raises if there is none."""
    field = None
    for name in path.split("."):
        field = message.fields_by_name[name]
        message = field.message_type
    return field


def is_text(field: Any) -> bool:
    return bool(field.type == field.TYPE_STRING)


def in_words(need: Need) -> str:
    if need.type is None:
        return f"{need.operation} TOPIC, of a broker's settings {need.operation} CLUSTER"
    words = f"{need.operation} {'any ' if not need.field and need.type is not ResourceType.CLUSTER else ''}{need.type}"
    return f"with `{need.when}` {words}" if need.when else words


def right_in_words(right: Right) -> str:
    """The row as docs/security.md states it."""
    if right.internal:
        roles = " or ".join(sorted(f"the {role}" if role is Role.ADMIN else f"a {role}" for role in right.roles))
        return f"{roles}" if len(right.roles) < len(Role) else "any service of the cluster"
    needs = list(dict.fromkeys(in_words(need) for need in right.needs))
    needs += [f"DESCRIBE {one.type}, others are omitted" for one in right.hides if not right.needs]
    words = " and ".join(needs)
    return words if right.instead is None else f"{words}, or {in_words(right.instead)}"


def test_every_rpc_has_a_row_and_every_row_an_rpc() -> None:
    assert len(METHODS) > 50
    assert set(RIGHTS) == set(METHODS)


@pytest.mark.parametrize(("path", "right"), ROWS)
def test_the_needs_of_a_row_name_fields_of_its_request(path: str, right: Right) -> None:
    request = METHODS[path].input_type
    for need in (*right.needs, *([right.instead] if right.instead else [])):
        if need.type is None:
            assert field_at(request, need.field).message_type.name == "ConfigResource"
            continue
        assert need.operation in APPLICABLE[need.type]
        if need.field:
            assert is_text(field_at(request, need.field))


@pytest.mark.parametrize(("path", "right"), ROWS)
def test_the_hidden_items_of_a_row_are_repeated_fields_of_its_response(path: str, right: Right) -> None:
    for hidden in right.hides:
        items = field_at(METHODS[path].output_type, hidden.items)
        assert items.is_repeated
        assert is_text(field_at(items.message_type, hidden.name) if hidden.name else items)


@pytest.mark.parametrize(("path", "right"), [(path, right) for path, right in ROWS if right.items])
def test_each_item_of_a_request_has_an_answer_with_an_error(path: str, right: Right) -> None:
    assert right.items is not None
    asked = field_at(METHODS[path].input_type, right.items.asked)
    answers = field_at(METHODS[path].output_type, right.items.answers)
    assert asked.is_repeated
    assert answers.is_repeated
    assert answers.message_type.fields_by_name["error"].message_type.full_name == "tidemark.v1.Error"
    for key in right.items.key:
        assert answers.message_type.fields_by_name[key]
        assert asked.message_type is None or asked.message_type.fields_by_name[key]
    last = right.needs[-1]
    assert last.field.split(".")[0] == right.items.asked


@pytest.mark.parametrize(("path", "right"), ROWS)
def test_a_row_without_needs_hides_its_items(path: str, right: Right) -> None:
    assert right.needs or right.hides, f"{path} is open"
    assert not (right.by_service and (right.items or right.hides or right.internal))
    assert right_in_words(right)


@pytest.mark.parametrize(("path", "right"), [(path, right) for path, right in ROWS if right.by_service])
def test_streams_and_filtered_answers_only_are_checked_by_their_service(path: str, right: Right) -> None:
    assert path.rpartition("/")[2] in {
        *("GetMetadata", "WatchMetadata", "Produce", "Fetch", "FetchStream", "DescribeTopics")
    }


def test_requests_are_streamed_in_internal_calls_and_calls_that_check_themselves_only() -> None:
    streamed = {path for path, method in METHODS.items() if method.client_streaming}
    assert all(RIGHTS[path].internal or RIGHTS[path].by_service for path in streamed)


def test_the_security_page_states_the_right_for_each_rpc() -> None:
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+/\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(path.removeprefix("/tidemark.v1."), right_in_words(right)) for path, right in RIGHTS.items()]
