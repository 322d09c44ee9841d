# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the console: its pages through the chart's Service, from a pod that is not a service."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from tests.cluster import basics
from tests.cluster.secure import in_client, principal
from tests.cluster.world import RELEASE, World

_TOKEN_FILE: Final = "/var/run/tidemark/token"
_BY_NAME: Final = f"http://{RELEASE}-console:9195"
_OPEN: Final = """
import json, sys, urllib.error, urllib.request
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
opener, found = urllib.request.build_opener(Stay), []
for address, headers in json.loads(sys.argv[2]):
    if headers.get("Authorization") == "the token":
        headers["Authorization"] = "Bearer " + open(sys.argv[1]).read().strip()
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            found.append((answer.status, dict(answer.headers), answer.read().decode()))
    except urllib.error.HTTPError as refused:
        found.append((refused.code, dict(refused.headers), refused.read().decode()))
print(json.dumps(found))
"""
_JSON: Final = {"Accept": "application/json"}


class Answer(NamedTuple):
    """The answer of the console to a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        """The facts of a page in JSON."""
        assert self.status == 200, self
        return json.loads(self.text)["data"]


def console_shows_the_release(world: World) -> str:
    """Pages through the Service show live brokers and every record; a foreign host name is refused."""
    if world.secure:  # the overview is of the cluster
        world.cli("acl", "add", "--principal", principal(world), "--allow", "describe", "--cluster")
    mine = {"Authorization": "the token"} if world.secure else {}
    downloads = [f"/topics/kept/records/download?partition={index}&from=earliest&format=jsonl" for index in range(6)]
    overview, topic, page, foreign, *files = _opened(
        world,
        ("/", _JSON | mine),
        ("/topics/kept", _JSON | mine),
        ("/topics/kept/0", mine),
        ("/topics/kept", mine | {"Host": "console.example"}),
        *((path, mine) for path in downloads),
    )
    assert overview.data["brokers"] == [0, 1, 2], overview
    assert len(topic.data["partitions"]) == 6, topic
    assert page.status == 200, page
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"], page
    assert foreign.status == 421, foreign
    values = sorted(json.loads(line)["value"] for file in files for line in file.text.splitlines())
    assert values == basics.values_of(world, "kept"), f"{len(values)} values"
    return f"{overview.data['health']['sentence']} {len(values)} records downloaded"


def console_has_no_rights_of_its_own(world: World) -> str:
    """Without a token a page leads to the login; a token shows as much as its user may see."""
    world.cli("topic", "create", "hidden", "--partitions", "1", "--replication-factor", "3")
    mine = _JSON | {"Authorization": "the token"}
    anonymous, forged, hidden, audit = _opened(
        world,
        ("/topics/kept", {}),
        ("/topics/kept", _JSON | {"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."}),
        ("/topics/hidden", mine),
        ("/audit", mine),
    )
    world.cli("topic", "delete", "--yes", "hidden")
    assert anonymous.status == 303, anonymous
    assert anonymous.headers["location"].startswith("/login?"), anonymous
    assert forged.status == 401, forged
    assert hidden.status in (403, 404), hidden
    assert audit.status == 403, audit
    return f"hidden topic: {hidden.status}, audit: {audit.status}"


def _opened(world: World, *requests: tuple[str, dict[str, str]]) -> list[Answer]:
    """The answers to requests from the client pod, each with a path and headers."""
    asked = json.dumps([(_BY_NAME + path, headers) for path, headers in requests])
    return [Answer(*one) for one in json.loads(in_client(world, "python", "-c", _OPEN, _TOKEN_FILE, asked))]
