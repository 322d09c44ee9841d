# SPDX-License-Identifier: Apache-2.0
"""Parses the file of `tidemark apply`, whose help has an example. Reports every error with its line, all together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from tidemark.cli.apply.acl_section import KEYS, PERMISSIONS, RESOURCES, WantedAcls, rules_of
from tidemark.cli.apply.quota_section import KEYS as QUOTA_KEYS
from tidemark.cli.apply.quota_section import WantedQuotas, quotas_of
from tidemark.cli.apply.schema_section import draft_in
from tidemark.core.config_resource import ConfigKind
from tidemark.core.quotas.quotas import QuotaEntity
from tidemark.core.schemas.model import SchemaDraft
from tidemark.core.security.acls import Acl
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, number_up_to
from tidemark.runtime.configuration.entries import check_alterable

_TOPIC_KEYS: Final = ("partitions", "replication_factor", "configs", "schema", "delete")
_COUNT_MAX: Final = (1 << 31) - 1


class Problem(NamedTuple):
    """An error in the file, or a refusal of a change that it requests; `line` counts from 1."""

    line: int
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """The desired state of a topic; None: not given in the file, so unchanged.

    Attributes:
        configs: all overrides of the topic; other overrides are removed.
        schema: all columns of a typed topic.
        lines: line of each key, settings included.
    """

    name: str
    line: int
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    delete: bool = False
    schema: SchemaDraft | None = None


@dataclass(frozen=True, slots=True)
class WantedBroker:
    """The overrides of one broker or of all brokers; other overrides are removed."""

    name: str
    line: int
    configs: Mapping[str, str]
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The desired state of the topics, brokers, access rules and quotas in a file."""

    topics: Mapping[str, WantedTopic] = field(default_factory=dict)
    brokers: Mapping[str, WantedBroker] = field(default_factory=dict)
    acls: Mapping[str, WantedAcls] = field(default_factory=dict)
    quotas: Sequence[WantedQuotas] = ()


def parse(text: str, directory: Path = Path()) -> tuple[ClusterFile, list[Problem]]:
    """Contents and errors, by line; with any error, the contents are not to be used.

    Args:
        text: YAML.
        directory: where paths of schema files begin.
    """
    reader = _Reader(directory)
    try:
        found = reader.file(yaml.compose(text, Loader=yaml.SafeLoader))
    except RecursionError:
        return ClusterFile(), [_problem(1, "this is nested too deeply")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "parse error"
        return ClusterFile(), [_problem(1 if mark is None else mark.line + 1, f"this is not YAML: {reason}")]
    except yaml.YAMLError as error:
        return ClusterFile(), [_problem(1, f"this is not YAML: {' '.join(str(error).split())}")]
    return found, sorted(reader.problems, key=lambda problem: problem.line)


def _problem(line: int, sentence: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Problem:
    return Problem(line, TidemarkError(code, sentence))


class _Reader:
    """Walks the YAML nodes, and collects errors instead of stopping at the first."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[Problem] = []
        self._directory = directory

    def file(self, root: yaml.Node | None) -> ClusterFile:
        topics: dict[str, WantedTopic] = {}
        brokers: dict[str, WantedBroker] = {}
        acls: dict[str, WantedAcls] = {}
        quotas: tuple[WantedQuotas, ...] = ()
        if root is None:
            self._wrong(1, "the file is empty: expected topics:, brokers:, acls: or quotas:")
            return ClusterFile()
        for section, line, node in self._mapping(root, "the file"):
            if section == "topics":
                topics = {name: self._topic(name, at, value) for name, at, value in self._mapping(node, "topics")}
            elif section == "brokers":
                brokers = {name: self._broker(name, at, value) for name, at, value in self._mapping(node, "brokers")}
            elif section == "acls":
                acls = {name: self._acls(name, at, value) for name, at, value in self._mapping(node, "acls")}
            elif section == "quotas":
                quotas = tuple(self._quotas(line, node))
            else:
                self._wrong(line, f"unknown section {section!r}: expected topics, brokers, acls or quotas")
        return ClusterFile(topics, brokers, acls, quotas)

    def _topic(self, name: str, line: int, node: yaml.Node) -> WantedTopic:
        partitions = replication_factor = None
        configs: dict[str, str] | None = None
        lines: dict[str, int] = {}
        delete = False
        schema: SchemaDraft | None = None
        try:
            if not name.isprintable():  # a request cannot carry half a surrogate pair; the service checks the rest
                check_topic_name(name)
        except TidemarkError as error:
            self.problems.append(Problem(line, error))
        for key, at, value in self._mapping(node, f"topic {name}"):
            lines[key] = at
            if key == "partitions":
                partitions = self._count(f"partitions of topic {name}", at, value)
            elif key == "replication_factor":
                replication_factor = self._count(f"replication_factor of topic {name}", at, value)
            elif key == "configs":
                configs, of_settings = self._configs(ConfigKind.TOPIC, value, f"configs of topic {name}")
                lines |= of_settings
            elif key == "schema":
                schema = self._schema(name, at, value)
            elif key == "delete":
                delete = self._flag(f"delete of topic {name}", at, value)
            else:
                self._wrong(at, f"unknown key {key!r} of a topic: expected {', '.join(_TOPIC_KEYS)}")
        return WantedTopic(name, line, partitions, replication_factor, configs, lines, delete, schema)

    def _schema(self, topic: str, line: int, node: yaml.Node) -> SchemaDraft | None:
        try:
            return draft_in(node, self._directory)
        except TidemarkError as error:
            sentence = f"schema of topic {topic}: {error.message}"
            self.problems.append(Problem(line, TidemarkError(error.code, sentence, error.metadata)))
            return None

    def _broker(self, name: str, line: int, node: yaml.Node) -> WantedBroker:
        configs, lines = self._configs(ConfigKind.BROKER, node, f"broker {name}")
        return WantedBroker(name, line, configs, lines)

    def _acls(self, principal: str, line: int, node: yaml.Node) -> WantedAcls:
        found: set[Acl] = set()
        if not isinstance(node, yaml.SequenceNode):
            self._wrong(_line(node), f"acls of {principal}: expected a list of rules; [] removes all of them")
            return WantedAcls(principal, line, frozenset())
        for one in node.value:
            entry: dict[str, list[str]] = {}
            for key, at, value in self._mapping(one, f"acls of {principal}"):
                if key not in KEYS:
                    self._wrong(at, f"unknown key {key!r} of a rule: expected {', '.join(KEYS)}")
                parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                if not parts:
                    self._wrong(at, f"{key} of {principal} has no value; remove the line, or give one")
                texts = [self._scalar(f"{key} of {principal}", at, part) for part in parts]
                entry[key] = [text for text in texts if text is not None]
            if not (entry.keys() & PERMISSIONS.keys() and entry.keys() & RESOURCES.keys()):
                self._wrong(_line(one), f"acls of {principal}: expected allow or deny, and a resource such as topic")
            try:
                found.update(rules_of(principal, entry))
            except TidemarkError as error:
                self.problems.append(Problem(_line(one), error))
        return WantedAcls(principal, line, frozenset(found))

    def _quotas(self, line: int, node: yaml.Node) -> list[WantedQuotas]:
        if not isinstance(node, yaml.SequenceNode):
            self._wrong(line, "quotas: expected a list of entries with user, client_id or both, and limits")
            return []
        found: dict[QuotaEntity, WantedQuotas] = {}
        for one in node.value:
            entry: dict[str, str] = {}
            for key, at, value in self._mapping(one, "an entry of quotas"):
                text = self._scalar(f"{key} of quotas", at, value)
                if key not in QUOTA_KEYS:
                    self._wrong(at, f"unknown key {key!r} of quotas: expected {', '.join(QUOTA_KEYS)}")
                elif text is not None:
                    entry[key] = text
            try:
                wanted = quotas_of(entry, _line(one))
            except TidemarkError as error:
                self.problems.append(Problem(_line(one), error))
                continue
            if wanted.entity in found:
                self._wrong(_line(one), f"quotas of {wanted.entity} are given twice")
            found[wanted.entity] = wanted
        return list(found.values())

    def _configs(self, kind: ConfigKind, node: yaml.Node, what: str) -> tuple[dict[str, str], dict[str, int]]:
        configs: dict[str, str] = {}
        lines: dict[str, int] = {}
        if _is_null(node):
            remedy = "{} removes all overrides; without this line they do not change"
            self._wrong(_line(node), f"{what} has no value: {remedy}")
        for key, line, value in self._mapping(node, what):
            text = self._scalar(f"{key} of {what}", line, value)
            if text is None:
                continue
            configs[key], lines[key] = text, line
            try:
                check_alterable(kind, {key: text}, ())
            except TidemarkError as error:
                self.problems.append(Problem(line, error))
        return configs, lines

    def _mapping(self, node: yaml.Node, what: str) -> Iterator[tuple[str, int, yaml.Node]]:
        """Key, line and value of each entry; a null node has no entries."""
        if _is_null(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self._wrong(_line(node), f"{what}: expected a mapping of names to values")
            return
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = _line(key)
            if not isinstance(key, yaml.ScalarNode):
                self._wrong(line, f"{what}: a name must be a scalar")
            elif key.value in seen:
                self._wrong(line, f"{what}: {key.value!r} is given twice; first in line {seen[key.value]}")
            else:
                seen[key.value] = line
                yield key.value, line, value

    def _scalar(self, what: str, line: int, node: yaml.Node) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(line, f"{what}: expected one value")
        elif _is_null(node):
            self._wrong(line, f"{what} has no value; remove the line to set nothing")
        else:
            text: str = node.value
            return text.lower() if node.tag == "tag:yaml.org,2002:bool" else text
        return None

    def _count(self, what: str, line: int, node: yaml.Node) -> int | None:
        text = self._scalar(what, line, node)
        if text is None:
            return None
        count = number_up_to(_COUNT_MAX, text)
        if not count:
            self._wrong(line, f"{what} is {text!r}: expected a whole number, 1 or more")
        return count or None

    def _flag(self, what: str, line: int, node: yaml.Node) -> bool:
        text = self._scalar(what, line, node)
        if text not in (None, "true", "false"):
            self._wrong(line, f"{what} is {text!r}: expected true or false")
        return text == "true"

    def _wrong(self, line: int, sentence: str) -> None:
        self.problems.append(_problem(line, sentence))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
