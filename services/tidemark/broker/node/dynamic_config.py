# SPDX-License-Identifier: Apache-2.0
"""Dynamic settings of a broker: read from /config/brokers, watched, and applied.

A setting of this broker overrides the cluster default, and both override the setting of the process start. A value that
does not parse was not written by the admin service; the broker logs and ignores it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from tidemark.core.config_resource import EVERY_BROKER, ConfigKind, ConfigResource
from tidemark.model import TidemarkError
from tidemark.ports import StoreEvent
from tidemark.runtime.configuration.entries import (
    LAG_KEY,
    ConfigEntry,
    broker_entries,
    changes_between,
    check_lag,
    text_of,
)
from tidemark.runtime.configuration.key import Scope
from tidemark.runtime.configuration.keys import keys_of
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.zookeeper.feeds import Reread
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)


class DynamicConfig(Reread):
    """Reads, watches and applies the dynamic settings of this broker.

    Args:
        settings: settings of the process start.
        store: a started store. Its session may be replaced; the settings are then read again.
        apply: applies settings; called with the first settings, and after every change.
        fail: called with the error that ended the watch.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        apply: Callable[[BrokerSettings], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__("dynamic configuration", fail)
        self._settings = settings
        self._store = store
        self._apply = apply
        self._own = ConfigResource(ConfigKind.BROKER, str(settings.broker_id))
        self._cluster_configs: Mapping[str, str] = {}
        self._own_configs: Mapping[str, str] = {}
        self._texts = {
            field.name.replace("_", "."): text_of(getattr(settings, field.name)) for field in fields(settings)
        }
        self._in_use: dict[str, str] = {}
        store.listen(self._on_store_event)

    def entries(self) -> list[ConfigEntry]:
        """The settings in effect, and the source of each."""
        return broker_entries(self._texts, self._cluster_configs, self._own_configs)

    def _on_store_event(self, event: StoreEvent) -> None:
        if event in (StoreEvent.CONFIGS, StoreEvent.SESSION_RESTORED):
            self.read_again()

    async def _read_once(self) -> bool:
        try:
            cluster = await self._read(EVERY_BROKER, self._cluster_configs)
            own = await self._read(self._own, self._own_configs)
        except TidemarkError as error:
            _log.warning("cannot read the settings", extra={"why": error.message})
            return False
        self._cluster_configs, self._own_configs = self._usable(cluster), self._usable(own)
        self._use({**self._cluster_configs, **self._own_configs})
        return True

    async def _read(self, resource: ConfigResource, before: Mapping[str, str]) -> Mapping[str, str]:
        """The stored settings; `before`, the earlier ones, while the node does not parse.

        A corrected node fires the watch.
        """
        try:
            return (await self._store.configs([resource], watch=True))[resource].configs
        except TidemarkError as error:
            if error.retriable:
                raise
            _log.error("settings do not parse; the previous ones stay in effect", extra={"why": error.message})
            return before

    def _use(self, configs: dict[str, str]) -> None:
        changes = changes_between(self._in_use, configs)
        if not changes:
            return
        table = keys_of("broker")
        values: dict[str, Any] = {
            table[name].attribute: table[name].parse_stored(text) for name, text in configs.items()
        }
        self._in_use = configs
        self._apply(replace(self._settings, **values))
        for change in changes:
            before = self._texts[change.key] if change.before is None else change.before
            after = self._texts[change.key] if change.after is None else change.after
            _log.info("setting changed", extra={"config": change.key, "before": before, "after": after})

    def _usable(self, configs: Mapping[str, str]) -> dict[str, str]:
        """The settings that this version can apply together with the settings of the process start."""
        known = _known(configs)
        if LAG_KEY in known:
            try:
                check_lag(int(known[LAG_KEY]), self._settings.replica_heartbeat_interval_ms)
            except TidemarkError as error:
                _log.error("setting ignored", extra={"config": LAG_KEY, "why": error.message})
                del known[LAG_KEY]
        return known


def _known(configs: Mapping[str, str]) -> dict[str, str]:
    """The settings that this version of the broker can change while it runs, and whose values parse."""
    table = keys_of("broker")
    known = {}
    for name, text in configs.items():
        if name not in table or table[name].scope is Scope.STATIC:
            _log.warning("setting ignored: it is not a dynamic broker setting", extra={"config": name})
            continue
        try:
            table[name].parse_stored(text)
        except TidemarkError as error:
            _log.error("setting ignored", extra={"config": name, "why": error.message})
            continue
        known[name] = text
    return known
