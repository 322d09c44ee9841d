# SPDX-License-Identifier: Apache-2.0
"""Headers, host names, changes of other sites, login, and text that would be markup."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tidemark.console.app import Console
from tidemark.console.identity import COOKIE, local_path
from tidemark.console.responses import Form, wanted_form
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode

from tests.unit.console.conftest import JSON, FakeCluster, refused, topic

SCRIPT = "<script>alert(1)</script>"
SECURE = pytest.mark.parametrize("secure", [True])


@pytest.mark.parametrize("path", ["/", "/none", "/healthz", "/static/live.js", "/static/none.js", "/login"])
async def test_every_response_has_the_security_headers(path: str, browser: httpx.AsyncClient) -> None:
    headers = (await browser.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == ("max-age=3600" if path == "/static/live.js" else "no-store")


async def test_a_page_has_no_inline_script_and_no_inline_style(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights"))
    for path in ("/", "/brokers", "/topics", "/topics/flights", "/topics/flights/0", "/none"):
        text = (await browser.get(path)).text
        assert "<style" not in text
        assert " style=" not in text
        assert " on" not in "".join(part.split(">")[0] for part in text.split("<")[1:] if " on" in part.split(">")[0])
        assert text.count("<script") == text.count('<script src="/static/')


async def test_markup_in_names_and_values_is_shown_as_text(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    hostile = TopicView(SCRIPT, SCRIPT, configs={SCRIPT: '" onmouseover="x'}, error=refused(ErrorCode.INTERNAL, SCRIPT))
    cluster.topics[SCRIPT] = hostile
    text = (await browser.get("/topics")).text
    assert SCRIPT not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert '" onmouseover=' not in text
    assert 'href="/topics/%3Cscript%3Ealert%281%29%3C%2Fscript%3E"' in text


async def test_markup_in_a_search_or_an_address_is_shown_as_text(browser: httpx.AsyncClient) -> None:
    for path in (f'/topics?q="><{SCRIPT}', f"/topics?sort={SCRIPT}", f"/{SCRIPT}", f"/topics/{SCRIPT}"):
        assert SCRIPT not in (await browser.get(path)).text


@pytest.mark.parametrize("path", ["//evil.example/topics", "///evil.example/?q=1"])
async def test_an_error_page_links_to_no_other_site(path: str, browser: httpx.AsyncClient) -> None:
    page = await browser.get(httpx.URL(scheme="http", host="localhost", port=9195, raw_path=path.encode()))
    assert page.status_code == 404
    assert 'href="//' not in page.text
    assert 'href="/evil.example/' in page.text


@pytest.mark.parametrize(
    "host", ["localhost:9195", "127.0.0.1", "[::1]:9195", "10.1.2.3:80", "console.example", "CONSOLE.example"]
)
async def test_the_console_answers_under_its_own_names(host: str, browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "[::1", "console.example.evil", "127.0.0.1.nip.io"]
)
async def test_the_console_refuses_a_foreign_host_name(host: str, browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/", headers={"Host": host})).status_code == 421


@SECURE
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9196"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_change_of_another_site_is_refused(headers: dict[str, str], browser: httpx.AsyncClient) -> None:
    for path in ("/login", "/logout", "/topics"):
        assert (await browser.post(path, data={"token": "good"}, headers=headers)).status_code == 403


async def test_the_console_only_reads_without_security(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    same = {"Origin": "http://localhost:9195"}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await browser.request(method, "/topics", headers=same)).status_code == 405
    assert cluster.calls == []
    assert "read-only" in (await browser.get("/")).text


@SECURE
async def test_a_page_without_a_token_leads_to_the_login_and_back(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    page = await browser.get("/topics?q=a&page=2")
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ftopics%3Fq%3Da%26page%3D2")
    assert (await browser.get("/topics", headers=JSON)).status_code == 401
    assert cluster.calls == []
    same = {"Origin": "http://localhost:9195"}
    back = await browser.post("/login", data={"token": "good", "next": "/topics?q=a&page=2"}, headers=same)
    assert (back.status_code, back.headers["location"]) == (303, "/topics?q=a&page=2")
    cookie = back.headers["set-cookie"].lower()
    for attribute in ("httponly", "secure", "samesite=strict", "path=/"):
        assert attribute in cookie
    assert "max-age" not in cookie
    assert "expires" not in cookie


@SECURE
@pytest.mark.parametrize(
    "path", ["/groups/a%20b", "/groups/a%2520b", "/groups/a%3Fb", "/groups/100%25", "/groups/%C3%A4"]
)
async def test_login_leads_back_to_a_group_with_any_name(path: str, browser: httpx.AsyncClient) -> None:
    page = await browser.get(f"{path}?sort=lag")
    following = parse_qs(urlsplit(page.headers["location"]).query)["next"][0]
    assert following == f"{path}?sort=lag"
    same = {"Origin": "http://localhost:9195"}
    back = await browser.post("/login", data={"token": "good", "next": following}, headers=same)
    assert back.headers["location"] == following


@SECURE
async def test_the_token_is_handed_on_to_the_cluster(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    await browser.get("/", headers={"Authorization": "Bearer of-a-header"})
    await browser.get("/", headers={"Cookie": f"{COOKIE}=of-a-cookie"})
    assert set(cluster.tokens) == {"of-a-header", "of-a-cookie"}


@SECURE
async def test_users_with_different_tokens_share_no_answer(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    for token in ("alice", "bob"):
        await browser.get("/topics", headers={"Authorization": f"Bearer {token}"})
    assert cluster.calls.count("describe_topics") == 2


@SECURE
@pytest.mark.parametrize("token", ["", "a b", "a\nb", "x" * 5000, 'a"b', "a;b", "ä"])
async def test_a_text_that_is_no_token_is_refused_without_a_question(
    token: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    page = await browser.post("/login", data={"token": token}, headers={"Origin": "http://localhost:9195"})
    assert page.status_code == 401
    assert "set-cookie" not in page.headers
    assert cluster.calls == []


@SECURE
async def test_a_token_that_the_cluster_refuses_is_not_kept(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.failure = refused(ErrorCode.AUTHENTICATION_FAILED, f"the token has expired {SCRIPT}")
    page = await browser.post("/login", data={"token": "old"}, headers={"Origin": "http://localhost:9195"})
    assert page.status_code == 401
    assert "the token has expired &lt;script&gt;" in page.text
    assert "set-cookie" not in page.headers


@SECURE
async def test_a_token_that_expires_leads_to_the_login_and_its_cookie_ends(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.failure = refused(ErrorCode.AUTHENTICATION_FAILED)
    page = await browser.get("/brokers", headers={"Cookie": f"{COOKIE}=old"})
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Fbrokers")
    assert "max-age=0" in page.headers["set-cookie"].lower()


@SECURE
async def test_a_logout_ends_the_cookie(browser: httpx.AsyncClient) -> None:
    same = {"Origin": "http://localhost:9195", "Cookie": f"{COOKIE}=good"}
    page = await browser.post("/logout", headers=same)
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert "max-age=0" in page.headers["set-cookie"].lower()


@SECURE
@pytest.mark.parametrize("path", ["/login", "/reset-offsets/billing"])
async def test_a_client_that_leaves_in_its_form_is_no_fault_of_the_console(path: str, console: Console) -> None:
    """Regression: each such request logged a traceback, and counted as one with status 500."""
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"authorization", b"Bearer good")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    received: list[Any] = [{"type": "http.request", "body": b"tok", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return received.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await console.app(scope, receive, send)
    assert sent[0]["status"] == 400


@SECURE
async def test_a_form_that_is_too_large_is_refused(browser: httpx.AsyncClient) -> None:
    page = await browser.post("/login", content=b"token=" + b"x" * 70_000, headers={"Origin": "http://localhost:9195"})
    assert page.status_code == 413


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "topics",
        "/a\r\nSet-Cookie: x=y",
        "/ /evil",
        "",
    ],
)
def test_a_login_never_leads_to_another_site(text: str) -> None:
    assert local_path(text) == "/"


def test_a_login_leads_back_to_a_page_of_the_console() -> None:
    assert local_path("/topics/flights?page=2") == "/topics/flights?page=2"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.HTML),
        ("*/*", Form.HTML),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Form.HTML),
        ("application/json", Form.JSON),
        ("Application/JSON; charset=utf-8", Form.JSON),
        ("text/event-stream", Form.EVENTS),
    ],
)
def test_the_accept_header_chooses_the_form_of_a_page(accept: str, form: Form) -> None:
    assert wanted_form(accept) is form


async def test_the_probe_of_the_kubelet_does_not_ask_the_cluster(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.failure = refused(ErrorCode.BROKER_NOT_AVAILABLE)
    assert (await browser.get("/healthz", headers={"Host": "10.0.0.7:9195"})).text == "ok\n"
    assert cluster.calls == []


@pytest.mark.parametrize("path", ["/groups/{}", "/transactions/{}", "/elections?topic={}"])
async def test_console_refuses_a_longer_name_than_the_cluster_has_without_a_question(
    path: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    """The console keeps each question for minutes: thousands of very long names would fill its memory."""
    page = await browser.get(path.format("x" * 250), headers=JSON)
    assert page.status_code == 400
    assert "at most 249" in page.json()["error"]["message"]
    assert cluster.calls == []


@pytest.mark.parametrize(("path", "following"), [("/topics/", "/topics"), ("/topics//?q=a", "/topics?q=a")])
async def test_console_redirects_within_the_scheme_of_the_browser(
    path: str, following: str, browser: httpx.AsyncClient
) -> None:
    """An Ingress that ends TLS calls the console by HTTP."""
    page = await browser.get(path)
    assert (page.status_code, page.headers["location"]) == (307, following)
