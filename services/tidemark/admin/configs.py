# SPDX-License-Identifier: Apache-2.0
"""Plans, writes and describes settings of topics and brokers; a write applies to the version that was checked.

Topic settings reach brokers through the controller, broker settings through a watch (docs/configuring.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.admin.planning import check_configs
from tidemark.admin.schemas import check_may_be_compacted
from tidemark.admin.views import existing_topic
from tidemark.core.config_resource import CLUSTER_DEFAULT, EVERY_BROKER, ConfigKind, ConfigResource, VersionedConfigs
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    TidemarkError,
    TopicDescription,
    invalid_request,
    number_up_to,
)
from tidemark.ports import AdminRequest
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.config import entry_from_proto
from tidemark.rpc.receiver import receiver_headers
from tidemark.runtime.configuration.entries import (
    HEARTBEAT_KEY,
    LAG_KEY,
    ConfigChange,
    ConfigEntry,
    absent_broker_entries,
    changes_between,
    check_alterable,
    check_deletable,
    check_lag,
    cluster_entries,
    topic_entries,
)
from tidemark.v1 import admin_configs_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.zookeeper.store import MetadataStore

_ASK_TIMEOUT_S: Final = 3.0
POLICY_KEY: Final = "cleanup.policy"
_BROKER_ID_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Alteration:
    """Values to set, by key, and keys whose override is removed."""

    resource: ConfigResource
    set_: Mapping[str, str] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """The future settings of a resource, their changes, and the version of the current settings.

    `topic_id`: id of the topic; "" for a broker.
    """

    resource: ConfigResource
    configs: Mapping[str, str]
    version: int
    changes: Sequence[ConfigChange]
    topic_id: str


class ConfigAdministration:
    """Plans, writes and describes settings of topics and brokers.

    Args:
        store: started.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def plan(self, alteration: Alteration) -> ConfigPlan:
        """Check an alteration and compute the changes; write nothing.

        Raises:
            TidemarkError: UNKNOWN_CONFIG, INVALID_CONFIG, INVALID_TOPIC_NAME, UNKNOWN_TOPIC; INVALID_REQUEST for a
                name that cannot be a broker id.
        """
        resource = alteration.resource
        check_resource(resource)
        topic = await existing_topic(self._store, resource.name) if resource.kind is ConfigKind.TOPIC else None
        check_alterable(resource.kind, alteration.set_, alteration.deleted)
        if resource.kind is ConfigKind.BROKER and LAG_KEY in alteration.set_:
            await self._check_lag(resource, int(alteration.set_[LAG_KEY]))
        found = (await self._store.configs([resource]))[resource]
        check_deletable(resource.kind, alteration.deleted, found.configs)
        wanted = {key: value for key, value in found.configs.items() if key not in alteration.deleted}
        wanted |= alteration.set_
        if topic is not None:
            _check_topic(topic, alteration.set_, wanted)
            _check_stays_compacted(found.configs, wanted)
            check_may_be_compacted(topic, wanted)
        topic_id = "" if topic is None else topic.topic_id
        return ConfigPlan(resource, wanted, found.version, changes_between(found.configs, wanted), topic_id)

    async def carry_out(self, plan: ConfigPlan, receipt: AdminRequest | None) -> bool:
        """Write the settings and the receipt; returns False if another request changed the settings since the plan."""
        if plan.changes:
            return await self._store.write_configs(
                plan.resource, plan.configs, version=plan.version, topic_id=plan.topic_id, receipt=receipt
            )
        if receipt is not None:
            await self._store.finish_request(receipt)
        return True

    async def describe(self, resource: ConfigResource, keys: Sequence[str]) -> list[ConfigEntry]:
        """Describe settings (empty `keys`: all); raises UNKNOWN_CONFIG and the errors of `plan` for a resource."""
        check_resource(resource)
        if resource.kind is ConfigKind.TOPIC:
            return topic_entries((await existing_topic(self._store, resource.name)).configs, keys)
        found = await self._store.configs([EVERY_BROKER, resource])
        cluster, own = found[EVERY_BROKER].configs, found[resource].configs
        if resource == EVERY_BROKER:
            return cluster_entries(cluster, keys)
        entries = absent_broker_entries(cluster, own, keys)
        reported = {entry.key: entry for entry in await self._ask(BrokerId(int(resource.name)), found[resource])}
        return [reported.get(entry.key, entry) for entry in entries]

    async def _check_lag(self, resource: ConfigResource, lag_max_ms: int) -> None:
        """Compare the lag limit with the heartbeat intervals of the affected brokers that answer."""
        live = await self._store.live_brokers()
        concerned = [one for broker, one in live.items() if resource == EVERY_BROKER or str(broker) == resource.name]
        for entries in await asyncio.gather(*(_told_by(self._store, one) for one in concerned)):
            for entry in entries:
                if entry.key == HEARTBEAT_KEY and entry.value is not None:
                    check_lag(lag_max_ms, int(entry.value))

    async def _ask(self, broker: BrokerId, own: VersionedConfigs) -> Sequence[ConfigEntry]:
        """Return the settings that the broker reports; empty if it does not answer; raises if it is unknown."""
        registration = (await self._store.live_brokers()).get(broker)
        if registration is None:
            if own.version < 0 and broker not in await self._store.broker_epochs():
                raise TidemarkError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"broker {broker} never registered, and has no settings",
                    {"broker": str(broker)},
                )
            return ()
        return await _told_by(self._store, registration)


async def _told_by(store: MetadataStore, registration: BrokerRegistration) -> Sequence[ConfigEntry]:
    """Return the settings that a broker reports; empty if it does not answer."""
    request = pb.DescribeBrokerConfigsRequest()
    headers = receiver_headers(await store.cluster_id(), registration.broker_id)
    try:
        async with channel_for_call(registration.address, f"broker {registration.broker_id}") as channel:
            stub: Any = BrokerServiceStub(channel)
            response = await stub.DescribeBrokerConfigs(request, timeout=_ASK_TIMEOUT_S, metadata=headers)
    except TidemarkError as refused:
        if refused.retriable or refused.code is ErrorCode.INVALID_REQUEST:
            return ()  # the broker is down, or its version lacks this RPC
        raise
    return [entry_from_proto(entry) for entry in response.entries]


def check_resource(resource: ConfigResource) -> None:
    """Refuse a name that no topic or broker can have: INVALID_TOPIC_NAME or INVALID_REQUEST."""
    name = resource.name
    if resource.kind is ConfigKind.TOPIC:
        check_topic_name(name)
    elif name != CLUSTER_DEFAULT and ((number := number_up_to(_BROKER_ID_MAX, name)) is None or str(number) != name):
        raise invalid_request(
            f"{name[:40]!r} is not a broker: give a broker id, or {CLUSTER_DEFAULT!r} for every broker"
        )


def _check_topic(topic: TopicDescription, set_: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check new values against the topic, also as it will be after running reassignments. Existing values are not
    checked, so that they cannot prevent a change of another key."""
    staying = (
        [replica for replica in replicas if replica not in topic.removing.get(index, ())]
        for index, replicas in topic.partitions.items()
    )
    factor = min((len(replicas) for replicas in staying), default=0)
    judged = {key: value for key, value in wanted.items() if key in set_}
    check_configs(judged, replication_factor=factor, typed=bool(topic.schemas))


def _check_stays_compacted(before: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse to end compaction: a compacted log has holes, which replicas accept only with that policy (rule L1)."""
    if "compact" in before.get(POLICY_KEY, "") and "compact" not in wanted.get(POLICY_KEY, ""):
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"{POLICY_KEY} is {before[POLICY_KEY]}: a compacted topic stays compacted. For retention as well, set "
            "compact,delete; to compact no further, set min.compaction.lag.ms to a long time",
            {"config": POLICY_KEY, "value": wanted.get(POLICY_KEY, "delete")},
        )
