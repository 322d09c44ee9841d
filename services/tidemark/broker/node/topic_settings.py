# SPDX-License-Identifier: Apache-2.0
"""Topic settings as the controller sends them with each LeaderAndIsr."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidemark.broker.node.typed_layouts import Schemas, TypedLayouts
from tidemark.model import TidemarkError
from tidemark.record.checks import ProduceLimits
from tidemark.runtime.configuration import UNLIMITED, TopicSettings, topic_settings

_log = logging.getLogger(__name__)
_NO_CONFIGS: Final[Mapping[str, str]] = {}
_NO_SCHEMAS: Final[Schemas] = {}


class TopicRules(NamedTuple):
    """A topic's settings, and the produce limits that follow from them."""

    settings: TopicSettings
    limits: ProduceLimits

    @property
    def append_time(self) -> bool:
        """Whether the leader stamps the records (`LogAppendTime`)."""
        return self.limits.append_time


class TopicTable:
    """Settings by topic; an unknown topic has the defaults. The event loop writes, the append threads read."""

    def __init__(self) -> None:
        self._configs: dict[str, Mapping[str, str]] = {}
        self._rules: dict[str, TopicRules] = {}
        self._default = _rules_of({})
        self._schemas: dict[str, Schemas] = {}
        self.layouts = TypedLayouts(self.schemas)
        self._listener: Callable[[frozenset[str]], None] | None = None

    def listen(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Set the listener that receives the topics whose settings changed."""
        self._listener = listener

    def update(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Apply settings. Settings of a later version that do not parse are logged; the topic keeps the defaults."""
        changed = set()
        for topic, explicit in configs.items():
            if self._configs.get(topic) == explicit:
                continue
            known = dict(explicit)
            try:
                rules = _rules_of(known)
            except TidemarkError as error:
                _log.error("topic settings do not parse", extra={"topic": topic, "why": str(error)})
                known, rules = {}, self._default
            self._configs[topic] = known
            self._rules[topic] = rules
            changed.add(topic)
        if changed and self._listener is not None:
            self._listener(frozenset(changed))

    def update_schemas(self, topic: str, versions: Schemas) -> None:
        """Set the versions of a topic's schema; a version never changes."""
        self._schemas[topic] = versions

    def schemas(self, topic: str) -> Schemas:
        """The versions of a topic's schema; none of a topic of bytes."""
        return self._schemas.get(topic, _NO_SCHEMAS)

    def configs(self, topic: str) -> Mapping[str, str]:
        """The explicit settings of a topic."""
        return self._configs.get(topic, _NO_CONFIGS)

    def rules(self, topic: str) -> TopicRules:
        """All settings of a topic, and its produce limits."""
        return self._rules.get(topic, self._default)


def _rules_of(configs: Mapping[str, str]) -> TopicRules:
    settings = topic_settings(configs)
    limits = ProduceLimits(
        max_message_bytes=settings.max_message_bytes,
        max_uncompressed_bytes=settings.max_message_uncompressed_bytes,
        compacted="compact" in settings.cleanup_policy,
        timestamp_before_max_us=_us(settings.message_timestamp_before_max_ms),
        timestamp_after_max_us=_us(settings.message_timestamp_after_max_ms),
        append_time=settings.message_timestamp_type == "LogAppendTime",
    )
    return TopicRules(settings, limits)


def _us(limit_ms: int) -> int | None:
    return None if limit_ms == UNLIMITED else limit_ms * 1000
