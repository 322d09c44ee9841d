# SPDX-License-Identifier: Apache-2.0
"""Names for the completion of a shell: topics, partitions, groups, transactional ids, brokers, settings of a cluster.

The cluster is that of --bootstrap or --admin before the cursor, or of TIDEMARK_BOOTSTRAP or TIDEMARK_ADMIN. A lookup
raises nothing and prints nothing. Without a cluster, or after LOOKUP_S, it finds no names.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from tidemark.cli.common.connection import connect_admin, drop_other_address
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.core.transactions.phases import Phase
from tidemark.runtime.configuration.key import Scope
from tidemark.runtime.configuration.keys import keys_of

if TYPE_CHECKING:
    from tidemark.client import AdminClient

LOOKUP_S: Final = 1.5
"""Time limit of a lookup, with the import of the client's libraries."""
_CALL_S: Final = 1.0
_INTERNAL: Final = "__"


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names; internal topics only for a word that begins like an internal topic."""
    hidden = not incomplete.startswith(_INTERNAL)
    names = _asked(ctx, lambda client: client.list_topics())
    return [name for name in names if not (hidden and name.startswith(_INTERNAL))]


def places(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names; after a colon, the partitions of the topic as TOPIC:PARTITION."""
    topic, colon, _ = incomplete.partition(":")
    if not colon:
        return topics(ctx, incomplete)
    return _asked(
        ctx,
        lambda client: (
            f"{topic}:{index}" for view in client.describe_topics([topic]) for index in sorted(view.partitions)
        ),
    )


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the live brokers."""
    return _asked(ctx, lambda client: map(str, sorted(client.describe_cluster().view.brokers)))


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the consumer groups."""
    bootstrap = _address(ctx, "bootstrap")
    if not bootstrap:
        return []

    def ask(found: list[str]) -> None:
        # A late import: commands without a lookup do not wait for the client's libraries.
        from tidemark.client.sync.groups import Groups

        with Groups(bootstrap, timeout_s=_CALL_S) as client:
            found.extend(one.group for one in client.list_groups()[0])

    return _bounded(ask)


def transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """All transactional ids, to complete an argument."""
    return _transactional_ids(ctx, ())


def open_transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids with a transaction that can be aborted."""
    return _transactional_ids(ctx, (str(Phase.ONGOING),))


def transaction_phases(ctx: typer.Context, incomplete: str) -> list[str]:
    """Phases that a transactional id can have."""
    return [str(phase) for phase in Phase]


def _transactional_ids(ctx: typer.Context, phases: Sequence[str]) -> list[str]:
    bootstrap = _address(ctx, "bootstrap")
    if not bootstrap:
        return []

    async def ask() -> list[str]:
        # A late import: commands without a lookup do not wait for the client's libraries.
        from tidemark.client.aio.transaction_admin import TransactionAdmin

        async with TransactionAdmin(bootstrap, timeout_s=_CALL_S) as client:
            return [one.transactional_id for one in (await client.list_transactions(phases))[0]]

    return _bounded(lambda found: found.extend(asyncio.run(ask())))


def config_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the resources that have settings: topics, or brokers and all brokers together."""
    if _kind(ctx) is ConfigKind.TOPIC:
        return topics(ctx, incomplete)
    return [CLUSTER_DEFAULT, *brokers(ctx, incomplete)]


def config_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of the named resource."""
    return [key for key, _ in _settings(ctx)]


def config_changes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of the named resource that can change while the cluster runs, as KEY= for a value to follow."""
    return [f"{key}=" for key, scope in _settings(ctx) if scope != Scope.STATIC]


def topic_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of a new topic as KEY= for a value to follow; a new topic is unknown to the cluster."""
    return [f"{key}=" for key in keys_of("topic")]


def _settings(ctx: typer.Context) -> list[tuple[str, str]]:
    """Setting and scope, from the cluster; from the table of this version if the cluster does not answer."""
    kind = _kind(ctx)
    resource = ConfigResource(kind, str(ctx.params.get("name") or ""))
    found = _asked(
        ctx, lambda client: (f"{one.key} {one.scope}" for one in client.describe_configs([resource])[resource])
    )
    if not found:
        return [(key, str(one.scope)) for key, one in keys_of(kind.name.lower()).items()]
    return [(key, scope) for key, _, scope in (one.partition(" ") for one in found)]


def _kind(ctx: typer.Context) -> ConfigKind:
    return ConfigKind.BROKER if str(ctx.params.get("whose")) == "broker" else ConfigKind.TOPIC


def _address(ctx: typer.Context, option: str) -> str:
    drop_other_address(ctx)
    return str(ctx.params.get(option) or "")


def _asked(ctx: typer.Context, ask: Callable[[AdminClient], Iterable[str]]) -> list[str]:
    """Names in the answer of the admin service; none without an address or an answer."""
    bootstrap, admin = _address(ctx, "bootstrap"), _address(ctx, "admin")
    if not (bootstrap or admin):
        return []

    def look_up(found: list[str]) -> None:
        with connect_admin(bootstrap, admin, timeout_s=_CALL_S) as client:
            found.extend(ask(client))

    return _bounded(look_up)


def _bounded(look_up: Callable[[list[str]], None]) -> list[str]:
    """Names that `look_up` adds to its argument within LOOKUP_S; the thread ends with the process."""
    found: list[str] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            look_up(found)

    thread = threading.Thread(target=run, name="completion", daemon=True)
    thread.start()
    thread.join(LOOKUP_S)
    return list(found)
