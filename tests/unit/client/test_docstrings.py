# SPDX-License-Identifier: Apache-2.0
"""Docstrings of public methods explain every argument, and have an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from tidemark import client
from tidemark.client import aio

CLASSES = ("Producer", "Consumer", "Groups", "AdminClient")
PLUMBING = {"start", "close", "add", "send_now", "serialized", "partition_count", "starts"}
PLUMBING |= {
    "within_one_transaction",
    "give_back",
    "not_done_with_last",
    "ready",
    "has_newer_schema",
    "works_on",
    "commit_before",
}
"""Methods without an example: those of sync clients over async ones, and the life cycle of every client."""


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package in (client, aio):
        for name in CLASSES:
            kind = getattr(package, name)
            for method, part in inspect.getmembers(kind, callable):
                if not method.startswith("_") and method not in PLUMBING:
                    yield f"{package.__name__}.{name}.{method}", part


def test_a_docstring_explains_every_argument_and_has_an_example() -> None:
    missing = []
    for name, method in methods():
        told = inspect.getdoc(method) or ""
        arguments = [one for one in inspect.signature(method).parameters if one != "self"]
        missing += [f"{name}: {one}" for one in arguments if f"{one}:" not in told.split("Args:")[-1]]
        missing += [] if "Example: `" in told else [f"{name}: Example"]
    assert not missing, "\n".join(missing)


def test_an_example_awaits_coroutines_of_async_clients_only() -> None:
    wrong = []
    for name, method in methods():
        example = (inspect.getdoc(method) or "").partition("Example:")[2]
        waits = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        wrong += [name] if waits != bool(re.search(r"\bawait |\basync ", example)) else []
    assert wrong == ["tidemark.client.aio.Producer.transaction"], "its block awaits"


def test_the_example_of_a_sync_method_calls_the_async_example() -> None:
    assert "Example: `admin.list_topics()`" in (client.AdminClient.list_topics.__doc__ or "")
    assert "Example: `admin.describe_cluster().offline_count`" in (client.AdminClient.describe_cluster.__doc__ or "")
    assert "Example: `for update in admin.remove_brokers([2]): ...`" in (
        client.AdminClient.remove_brokers.__doc__ or ""
    )


@pytest.mark.parametrize("package", [client, aio])
@pytest.mark.parametrize("name", CLASSES)
def test_the_docstring_of_a_class_explains_every_argument(package: ModuleType, name: str) -> None:
    kind = getattr(package, name)
    explained = (inspect.getdoc(kind) or "").partition("Args:")[2]
    assert [one for one in inspect.signature(kind).parameters if f"{one}:" not in explained] == []
