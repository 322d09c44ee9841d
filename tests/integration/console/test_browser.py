# SPDX-License-Identifier: Apache-2.0
"""The console in a real browser: accessibility, without JavaScript, hostile names, live updates, login, keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.integration.console.conftest import ServedConsole, served
from tests.unit.console.conftest import FakeCluster, topic
from tests.unit.console.test_actions import ChangingCluster
from tests.unit.console.test_groups_pages import partition

HOSTILE = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'
RESET = "/reset-offsets/nightly"
LATER = (
    "/topics/flights/records",
    "/topics/flights/schema",
    "/groups",
    "/groups/readers",
    RESET,
    "/reset-offsets/readers",
    "/reassignments",
    "/reassignments/cancel",
    "/transactions",
    "/transactions/loader",
    "/acls",
    "/quotas",
    "/audit",
)
PAGES = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics/flights",
    "/topics/flights/0",
    "/elections",
    "/none",
    *LATER,
)
PHONE = {"width": 360, "height": 640}
EVERY_RULE: dict[str, Any] = {}
COLOURS = {"runOnly": ["color-contrast"]}
FAULTS_ONLY = {"resultTypes": ["violations"]}
"""With this, axe-core describes no element that passes."""
PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of a browser without history; a page with an error of a script or of the policy is a failure."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    try:
        yield page
        assert not errors
    finally:
        context.close()


def faults_of(page: Page, axe: str, rules: dict[str, Any] = EVERY_RULE) -> list[str]:
    """The findings of axe-core, which runs outside of the page's policy for scripts."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = page.evaluate("async rules => (await axe.run(rules)).violations", rules | FAULTS_ONLY)
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}" for one in found]


def test_axe_finds_no_fault_on_any_page_in_light_and_dark_colours(
    chromium: Browser, served_console: ServedConsole, axe: str
) -> None:
    cluster = served_console.cluster
    cluster.add(topic("offline", 2, leader=-1, isr=(1,)), topic("behind", isr=(0, 1)))
    cluster.live.remove(2)
    found = {}
    with opened(chromium, reduced_motion="reduce") as page:  # without transitions the colours change immediately
        for path in PAGES:
            page.emulate_media(color_scheme="light")
            page.goto(served_console.url + path)
            found[path, "light"] = faults_of(page, axe)
            page.emulate_media(color_scheme="dark")
            found[path, "dark"] = faults_of(page, axe, COLOURS)
    assert not {place: faults for place, faults in found.items() if faults}


def test_axe_finds_no_fault_at_the_login_and_among_problems(chromium: Browser, axe: str) -> None:
    with served(FakeCluster(), secure=True) as console, opened(chromium) as page:
        page.goto(console.url)
        assert faults_of(page, axe) == []
    with served(FakeCluster()) as console, opened(chromium) as page:
        page.goto(console.url)
        console.cluster.failure = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "ZooKeeper does not answer")
        expect(page.locator("text=No answer since").first).to_be_visible()
        assert faults_of(page, axe) == []


def test_axe_finds_a_fault_that_is_there(chromium: Browser, axe: str) -> None:
    with opened(chromium) as page:
        page.set_content("<html><body><input></body></html>")
        assert faults_of(page, axe)


def test_every_page_fits_a_phone(chromium: Browser, served_console: ServedConsole) -> None:
    widths = {}
    with opened(chromium, viewport=PHONE) as page:
        for path in PAGES:
            page.goto(served_console.url + path)
            widths[path] = page.evaluate("document.documentElement.scrollWidth")
    assert not {path: width for path, width in widths.items() if width > PHONE["width"]}


def test_the_pages_work_without_javascript(chromium: Browser, served_console: ServedConsole) -> None:
    with opened(chromium, java_script_enabled=False) as page:
        page.goto(served_console.url)
        expect(page.locator(".health")).to_contain_text("Healthy: 3 brokers live")
        page.click("nav >> text=Topics")
        page.click("text=Next")
        expect(page.locator("[role=status]")).to_contain_text("page 2 of 3")
        page.fill("#q", "light")
        page.click("text=Search")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.click("tbody >> text=flights")
        page.click("tbody th >> text=2")
        expect(page.locator("h1")).to_have_text("Partition flights:2")


def test_hostile_names_and_values_never_run(chromium: Browser) -> None:
    cluster = FakeCluster()
    cluster.add(topic("flights"))
    cluster.topics[HOSTILE] = TopicView(HOSTILE, HOSTILE, configs={HOSTILE: HOSTILE})
    with served(cluster) as console, opened(chromium) as page:
        for path in ("/topics", f"/topics?q={HOSTILE}", f"/{HOSTILE}", f"/topics/{HOSTILE}"):
            page.goto(console.url + path)
            expect(page.locator("h1")).to_be_visible()
            assert page.title() not in ("1", "2")
            assert page.locator("main img").count() == 0
        page.goto(console.url + "/topics")
        expect(page.locator("tbody").get_by_text(HOSTILE, exact=True).first).to_be_visible()
        cluster.topics[f"{HOSTILE}2"] = TopicView(f"{HOSTILE}2", "t")
        expect(page.locator("tbody tr")).to_have_count(3)
        assert page.title() not in ("1", "2")


def test_hostile_names_of_groups_and_topics_never_run_on_the_pages_of_a_change(chromium: Browser) -> None:
    cluster = ChangingCluster()
    where = TopicPartition(HOSTILE, 0)
    cluster.add_group(HOSTILE, partition(0, 90)._replace(partition=where))
    cluster.moves = [replace(one, partition=where) for one in cluster.moves[:1]]
    with served(cluster) as console, opened(chromium) as page:
        page.goto(console.url + "/groups")
        page.locator("tbody a").first.click()
        page.get_by_role("button", name="Dry run").click()
        expect(page.locator("tbody").get_by_text(HOSTILE)).to_be_visible()
        page.get_by_role("button", name="Reset the offsets").click()
        expect(page.locator(".health")).to_be_visible()
        assert page.title() not in ("1", "2")
        assert page.locator("main img, main script").count() == 0
        page.goto(console.url + "/reassignments/cancel")
        page.get_by_role("button", name="Cancel the reassignments").click()
        expect(page.locator("tbody").get_by_text(HOSTILE)).to_be_visible()
        assert page.title() not in ("1", "2")
        assert page.locator("main img, main script").count() == 0
    assert [group for group, _ in cluster.set] == [HOSTILE]
    assert cluster.cancelled == [where]


def test_a_form_of_another_site_changes_nothing(chromium: Browser) -> None:
    cluster = ChangingCluster()
    cluster.add_group("nightly", partition(0, 90))
    with served(cluster) as console, opened(chromium) as page:
        page.goto(console.url + RESET)
        form = page.locator("form[method=post]").evaluate("form => form.outerHTML")
        other = form.replace(RESET, console.url + RESET)
        page.route("http://evil.example/", lambda route: route.fulfill(content_type="text/html", body=other))
        page.goto("http://evil.example/")
        page.get_by_role("button").click()
        expect(page.locator("body")).to_contain_text("A change must come from a page of this console")
    assert cluster.set == []


def test_hostile_records_never_run(chromium: Browser) -> None:
    cluster = FakeCluster()
    cluster.add(topic("flights"))
    hostile = HOSTILE.encode()
    cluster.log.add(hostile, key=hostile, headers=[(HOSTILE, hostile)])
    cluster.log.add(b"<script>document.title=3</script>" * 30_000, key=b"large")
    with served(cluster) as console, opened(chromium) as page:
        page.goto(console.url + "/topics/flights/records")
        expect(page.locator("main").get_by_text("onerror").first).to_be_visible()
        for link in page.locator("main a").evaluate_all("links => links.map(link => link.href)"):
            if link.startswith(console.url):
                assert page.request.get(link).headers["x-content-type-options"] == "nosniff"
        assert page.title() not in ("1", "2", "3")
        assert page.locator("main img, main script").count() == 0


def test_an_inline_script_does_not_run(chromium: Browser, served_console: ServedConsole) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(served_console.url)
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'run'";
            document.body.append(script);
        }"""
    )
    assert page.title() == "Overview · Tidemark"
    context.close()


def test_an_open_page_follows_the_cluster_and_says_when_it_cannot(
    chromium: Browser, served_console: ServedConsole
) -> None:
    with opened(chromium) as page:
        page.goto(served_console.url + "/topics?q=new")
        expect(page.locator("[role=status]")).to_have_text("0 topics")
        served_console.cluster.add(topic("new-one"))
        expect(page.locator("tbody th")).to_have_text("new-one")
        served_console.stop()
        expect(page.locator("#live-state")).to_contain_text("updates have stopped")


def test_an_open_page_asks_for_updates_again_after_an_answer_that_has_none(
    chromium: Browser, served_console: ServedConsole
) -> None:
    """An Ingress answers 502 or 503 while the console restarts; a browser gives such a stream up by itself."""
    refused: list[str] = []

    def refuse_the_first(route: Route) -> None:
        if "text/event-stream" not in route.request.headers.get("accept", "") or len(refused) == 2:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.fulfill(status=503, body="the console restarts")

    with opened(chromium) as page:
        page.route("**/*", refuse_the_first)
        page.goto(served_console.url + "/topics?q=late")
        expect(page.locator("#live-state")).to_contain_text("trying again")
        served_console.cluster.add(topic("late-one"))
        expect(page.locator("tbody th")).to_have_text("late-one")
        expect(page.locator("#live-state")).to_contain_text("updated while it is open")
    assert len(refused) == 2


def test_a_page_that_is_used_keeps_the_focus_during_updates(chromium: Browser, served_console: ServedConsole) -> None:
    with opened(chromium) as page:
        page.goto(served_console.url + "/topics?q=flights")
        link = page.locator("tbody a")
        link.focus()
        served_console.cluster.add(topic("flights-2"))
        for _ in range(2):  # the page shows the time of its last update, in seconds: an update has arrived in between
            expect(page.locator("#read-at")).not_to_have_text(page.locator("#read-at").inner_text())
        expect(link).to_be_focused()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.locator("#q").focus()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_a_search_shows_results_while_the_user_types_and_has_an_address(
    chromium: Browser, served_console: ServedConsole
) -> None:
    with opened(chromium) as page:
        page.goto(served_console.url + "/topics")
        page.locator("#q").press_sequentially("light")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#q")).to_be_focused()
        expect(page).to_have_url(re.compile("q=light&"))
        served_console.cluster.add(topic("lightning"))
        expect(page.locator("tbody tr")).to_have_count(2)
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_the_keyboard_skips_to_the_content(chromium: Browser, served_console: ServedConsole) -> None:
    with opened(chromium) as page:
        page.goto(served_console.url)
        page.keyboard.press("Tab")
        expect(page.locator("text=Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_a_login_keeps_the_token_out_of_reach_of_scripts_until_the_logout(chromium: Browser) -> None:
    cluster = FakeCluster()
    cluster.add(topic("flights"))
    with served(cluster, secure=True) as console, opened(chromium) as page:
        page.goto(console.url + "/topics?q=fli")
        page.fill("#token", "a-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("tbody th")).to_have_text("flights")
        assert page.url == console.url + "/topics?q=fli"
        assert page.evaluate("document.cookie") == ""
        assert set(cluster.tokens) == {"a-token"}
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("h1")).to_have_text("Log in")
        page.goto(console.url + "/topics")
        expect(page.locator("h1")).to_have_text("Log in")
