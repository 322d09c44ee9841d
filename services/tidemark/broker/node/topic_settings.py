# SPDX-License-Identifier: Apache-2.0
"""Topic settings and schemas as the controller sends them with each LeaderAndIsr."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidemark.broker.node.typed_layouts import TypedLayouts
from tidemark.core.messages import NewSchemas
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.text import from_text
from tidemark.model import TidemarkError
from tidemark.record.checks import ProduceLimits
from tidemark.runtime.configuration.settings import UNLIMITED, TopicSettings, topic_settings, usable_topic_configs

_log = logging.getLogger(__name__)
_NO_CONFIGS: Final[Mapping[str, str]] = {}


class TopicRules(NamedTuple):
    """A topic's settings, and the produce limits that follow from them."""

    settings: TopicSettings
    limits: ProduceLimits


class TopicSchemas:
    """The schema of a typed topic, as far as this broker knows its versions; replaced, never changed.

    Attributes:
        topic_id: id of the topic.
        texts: the versions as JSON.
    """

    __slots__ = ("_before", "_parsed", "texts", "topic_id")

    def __init__(
        self, topic_id: str, texts: Mapping[int, str], before: Mapping[int, TopicSchema] | None = None
    ) -> None:
        self.topic_id = topic_id
        self.texts = texts
        self._before = before or {}
        self._parsed: Mapping[int, TopicSchema] | None = None

    @property
    def versions(self) -> Mapping[int, TopicSchema]:
        """The versions that this broker understands; each is parsed once, when the versions are first needed."""
        if self._parsed is None:
            found = {version: self._before.get(version) or self._version(version) for version in self.texts}
            self._parsed = {version: schema for version, schema in found.items() if schema is not None}
        return self._parsed

    def extended(self, topic_id: str, texts: Mapping[int, str]) -> TopicSchemas:
        """The schema with these versions added; versions are never replaced.

        Another topic id starts without versions.
        """
        if topic_id != self.topic_id:
            return TopicSchemas(topic_id, texts)
        return TopicSchemas(topic_id, {**self.texts, **texts}, self._before if self._parsed is None else self._parsed)

    def _version(self, version: int) -> TopicSchema | None:
        try:
            return from_text(self.texts[version])
        except TidemarkError as error:
            extra = {"topic_id": self.topic_id, "version": version, "why": error.message}
            _log.error("a version of a schema is damaged, or of a later Tidemark: its batches are refused", extra=extra)
            return None


NO_SCHEMAS: Final = TopicSchemas("", {})


class TopicTable:
    """Settings and schemas by topic; an unknown topic has the defaults, and no schema.

    The event loop writes, the append threads read.
    """

    def __init__(self) -> None:
        self._schemas: dict[str, TopicSchemas] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        self._rules: dict[str, TopicRules] = {}
        self._topic_ids: dict[str, str] = {}
        self._default = _rules_of({})
        self.layouts = TypedLayouts(self.schemas, lambda topic: topic in self._schemas)
        self._listener: Callable[[frozenset[str]], None] | None = None

    def listen(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Set the listener that receives the topics whose settings changed."""
        self._listener = listener

    def update(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Apply settings. A setting that does not parse, such as one of a later version, is logged and omitted."""
        changed = set()
        for topic, explicit in configs.items():
            if self._configs.get(topic) == explicit:
                continue
            known = dict(explicit)
            try:
                rules = _rules_of(known)
            except TidemarkError:
                known, errors = usable_topic_configs(explicit)
                for error in errors:
                    _log.error("topic setting ignored", extra={"topic": topic, "why": str(error)})
                rules = _rules_of(known)
            self._configs[topic] = known
            self._rules[topic] = rules
            changed.add(topic)
        if changed and self._listener is not None:
            self._listener(frozenset(changed))

    def update_schemas(self, topic_ids: Mapping[str, str], new: Mapping[str, NewSchemas]) -> None:
        """Add versions of schemas (rule S3). `topic_ids` come from a command: another id is another topic, whose
        versions are forgotten."""
        self._topic_ids.update(topic_ids)
        for topic, topic_id in topic_ids.items():
            known = self._schemas.get(topic)
            if known is not None and known.topic_id != topic_id:
                self._forget_schemas(topic)
        for topic, added in new.items():
            known = self._schemas.get(topic, NO_SCHEMAS)
            self._schemas[topic] = known.extended(added.topic_id, added.texts)

    def typed_topics(self) -> list[tuple[str, str]]:
        """Name and topic id of each topic whose schema is known."""
        return [(topic, schemas.topic_id) for topic, schemas in self._schemas.items()]

    def forget(self, topic_ids: Mapping[str, str]) -> None:
        """Remove the settings and schemas of deleted topics; those of a newer topic of the name stay."""
        for topic, topic_id in topic_ids.items():
            if self._topic_ids.get(topic, topic_id) == topic_id:
                for known in (self._configs, self._rules, self._topic_ids):
                    known.pop(topic, None)
                self._forget_schemas(topic)

    def _forget_schemas(self, topic: str) -> None:
        self._schemas.pop(topic, None)
        self.layouts.forget(topic)

    def schema_texts(self, topic: str) -> TopicSchemas:
        """The versions of a topic's schema that this broker has received; `NO_SCHEMAS` for a topic without any."""
        return self._schemas.get(topic, NO_SCHEMAS)

    def schemas(self, topic: str) -> Mapping[int, TopicSchema]:
        """The versions of a topic's schema that this broker has received and understands; empty for a topic without a
        schema."""
        return self._schemas.get(topic, NO_SCHEMAS).versions

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
