# SPDX-License-Identifier: Apache-2.0
"""Settings in ZooKeeper (docs/formats.md): read at a version, written conditionally on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from tidemark.core.config_resource import ConfigKind, ConfigResource, VersionedConfigs
from tidemark.model import ErrorCode, TidemarkError, unknown_topic
from tidemark.ports import AdminRequest
from tidemark.zookeeper import codecs, paths, requests, topics
from tidemark.zookeeper.multis import LOST_RACES, Check, MultiFailed, Operation, commit, version_of, written
from tidemark.zookeeper.session_port import Session


def path_of(resource: ConfigResource) -> str:
    """Path of the node with the settings of a resource."""
    return f"/config/{resource.kind}/{resource.name}"


async def read(
    session: Session, resources: Sequence[ConfigResource], watch: Callable[[Any], None] | None
) -> Mapping[ConfigResource, VersionedConfigs]:
    """Explicit settings of each resource; a missing znode is watched, too."""
    config_paths = [path_of(resource) for resource in resources]
    if watch is not None:
        await session.gather([session.exists(path, watch) for path in config_paths])
    nodes = await session.read_many(config_paths) if config_paths else []
    found: dict[ConfigResource, VersionedConfigs] = {}
    for resource, path, node in zip(resources, config_paths, nodes, strict=True):
        configs = {} if node is None else codecs.decode_configs(path, node[0])
        found[resource] = VersionedConfigs(configs, version_of(node))
    return found


async def write(
    session: Session,
    resource: ConfigResource,
    configs: Mapping[str, str],
    *,
    version: int,
    topic_id: str = "",
    receipt: AdminRequest | None = None,
) -> bool:
    """Write settings and the receipt of the request in one multi.

    Returns False if the settings changed since `version` (-1: no node), the topic has another id ("": any id), or the
    request was answered. Raises UNKNOWN_TOPIC.

    Only the states of a topic tell it from the next topic of the name. If a topic without states is deleted and created
    again between the read and the write, the next topic gets the settings.
    """
    path, data = path_of(resource), codecs.encode_configs(configs)
    operations: list[Operation] = []
    if resource.kind is ConfigKind.TOPIC:
        operations.append(Check(paths.topic(resource.name)))
        try:  # the settings of the next topic of the name may have the same version
            ids = {resource.name: topic_id} if topic_id else {}
            operations += [Check(marker) for _, marker in await topics.incarnations(session, ids)]
        except TidemarkError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC or not await session.exists(paths.topic(resource.name)):
                raise
            return False
    operations.append(written(path, data, version))
    if receipt is not None:
        operations.append(requests.creation(receipt))
    try:
        await commit(session, operations)
    except MultiFailed as failed:
        if resource.kind is ConfigKind.TOPIC and failed.index == 0 and isinstance(failed.cause, NoNodeError):
            raise unknown_topic(resource.name) from None
        if isinstance(failed.cause, LOST_RACES):
            return False
        raise failed.error from failed
    return True
