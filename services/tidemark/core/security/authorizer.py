# SPDX-License-Identifier: Apache-2.0
"""Decides by the rules: an index of the rules of one generation, and the authorizer that keeps the newest.

A known decision costs one lookup in a mapping. Another decision costs a few lookups for each length of a
prefix, independent of the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from tidemark.core.security.acls import (
    A_RULE_DENIES,
    ALLOWED_BY,
    ANY,
    ANY_USER,
    DENIED_BY,
    NAME_CHARACTERS_MAX,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourceType,
)
from tidemark.errors import ErrorCode, TidemarkError

_KNOWN_MAX: Final = 10_000
"""Largest number of decisions that are kept for a principal; a larger number would be names that an attacker makes
up.
"""
_PRINCIPALS_MAX: Final = 1_000
"""Largest number of principals whose decisions are kept."""
_NOT_READY: Final = "the access rules have not been read from ZooKeeper yet; try again"


class Decision(NamedTuple):
    """Whether an operation is allowed, and the rule that decided.

    Attributes:
        allowed: whether the operation is allowed.
        rule: the rule that decided; None: no rule did.
        reason: the cause, without other principals' rules: "no rule allows it", "a rule denies it", ...
    """

    allowed: bool
    rule: Acl | None
    reason: str


_Asked: TypeAlias = tuple[str, Operation, Resource | ResourceType]
"""Parts of a question: host, operation, and a resource or a type of resources."""
_NONE: Final[Mapping[_Asked, Decision]] = {}
SUPER_USER: Final = Decision(True, None, "super user")
_BY_DEFAULT: Final = Decision(False, None, "no rule allows it")


class _Named:
    """The rules of one type of resource, principal and host, by name."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, list[Acl]] = {}
        self.prefixed: dict[str, list[Acl]] = {}
        self.lengths: list[int] = []
        """Lengths of the prefixes of rules, ascending."""

    def add(self, acl: Acl) -> None:
        by_name = self.prefixed if acl.pattern is Pattern.PREFIXED else self.literal
        by_name.setdefault(acl.name, []).append(acl)

    def matching(self, name: str) -> Iterator[Acl]:
        yield from self.literal.get(name, ())
        if name != ANY:
            yield from self.literal.get(ANY, ())
        for length in self.lengths:
            if length > len(name):
                return
            yield from self.prefixed.get(name[:length], ())

    def all(self) -> Iterator[Acl]:
        for by_name in (self.literal, self.prefixed):
            for acls in by_name.values():
                yield from acls


class Rules:
    """All rules of one generation. An instance never changes.

    Attributes:
        acls: the rules, sorted.
        generation: version of the node that holds them; -1: the node does not exist.
    """

    def __init__(self, acls: Iterable[Acl] = (), generation: int = -1) -> None:
        self.acls = tuple(sorted(set(acls)))
        self.generation = generation
        self._index: dict[tuple[ResourceType, str, str], _Named] = {}
        for acl in self.acls:
            self._index.setdefault((acl.resource_type, acl.principal, acl.host), _Named()).add(acl)
        for named in self._index.values():
            named.lengths = sorted({len(prefix) for prefix in named.prefixed})

    def decide(self, principal: str, host: str, operation: Operation, resource: Resource) -> Decision:
        """Whether the operation is allowed on one resource, and the rule that decides; a rule that denies wins."""
        allowing, denying = ALLOWED_BY[operation], DENIED_BY[operation]
        allow: Acl | None = None
        deny: Acl | None = None
        for named in self._of(resource.type, principal, host):
            for acl in named.matching(resource.name):
                if acl.permission is Permission.DENY:
                    if acl.operation in denying and (deny is None or acl < deny):
                        deny = acl
                elif acl.operation in allowing and (allow is None or acl < allow):
                    allow = acl
        return _decision(allow, deny)

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> Decision:
        """Whether there is a name for which `decide` allows the operation (KIP-679)."""
        allowing, denying = ALLOWED_BY[operation], DENIED_BY[operation]
        allows: list[Acl] = []
        literals: dict[str, Acl] = {}
        prefixes: dict[str, Acl] = {}
        for named in self._of(kind, principal, host):
            for acl in named.all():
                if acl.permission is Permission.ALLOW and acl.operation in allowing:
                    allows.append(acl)
                elif acl.permission is Permission.DENY and acl.operation in denying:
                    (prefixes if acl.pattern is Pattern.PREFIXED else literals)[acl.name] = acl
        if ANY in literals:
            return _decision(None, literals[ANY])
        lengths = sorted(map(len, prefixes))
        denied: Acl | None = None
        for allow in sorted(allows):
            # A prefix, or "*", covers more names than any number of literal rules deny.
            deny = literals.get(allow.name) if allow.pattern is Pattern.LITERAL and allow.name != ANY else None
            if deny is None and (allow.pattern is Pattern.PREFIXED or allow.name != ANY):
                covering = (allow.name[:length] for length in lengths if length <= len(allow.name))
                deny = next((prefixes[prefix] for prefix in covering if prefix in prefixes), None)
            if deny is None:
                return _decision(allow, None)
            denied = denied or deny
        return _decision(None, denied)

    def _of(self, kind: ResourceType, principal: str, host: str) -> Iterator[_Named]:
        for one in (principal,) if principal == ANY_USER else (principal, ANY_USER):
            for place in (ANY,) if host == ANY else (host, ANY):
                named = self._index.get((kind, one, place))
                if named is not None:
                    yield named


def _decision(allow: Acl | None, deny: Acl | None) -> Decision:
    if deny is not None:
        return Decision(False, deny, A_RULE_DENIES)
    return _BY_DEFAULT if allow is None else Decision(True, allow, "a rule allows it")


class Authorizer:
    """Decides by the newest rules. For one event loop.

    Args:
        super_users: principals that have all rights, even while no rules are known.

    Attributes:
        rules: the rules in effect; None: they have not been read yet.
    """

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self.rules: Rules | None = None
        self._super_users = frozenset(super_users)
        self._known: dict[str, dict[_Asked, Decision]] = {}
        """Decisions by principal, so that the names of one principal displace no decision of another principal."""

    @property
    def generation(self) -> int:
        """Generation of the rules in effect; -1 without rules."""
        return -1 if self.rules is None else self.rules.generation

    def use(self, rules: Rules) -> None:
        """Put rules into effect, and drop all cached decisions."""
        self.rules = rules
        self._known = {}

    def decide(self, principal: str, host: str, operation: Operation, resource: Resource) -> Decision:
        """The decision on one resource.

        Raises:
            TidemarkError: AUTHORIZER_NOT_READY while no rules are known.
        """
        asked = (host, operation, resource)
        known = self._known.get(principal, _NONE).get(asked)
        if known is not None:
            return known
        if principal in self._super_users:
            return SUPER_USER
        return self._keep(principal, asked, self._ready().decide(principal, host, operation, resource))

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> Decision:
        """Whether the operation is allowed on some resource of that type; raises the errors of `decide`."""
        if principal in self._super_users:
            return SUPER_USER
        asked = (host, operation, kind)
        known = self._known.get(principal, _NONE).get(asked)
        return known or self._keep(principal, asked, self._ready().decide_any(principal, host, operation, kind))

    def _ready(self) -> Rules:
        if self.rules is None:
            raise TidemarkError(ErrorCode.AUTHORIZER_NOT_READY, _NOT_READY)
        return self.rules

    def _keep(self, principal: str, asked: _Asked, decision: Decision) -> Decision:
        if len(asked[2].name) > NAME_CHARACTERS_MAX:  # a name may have megabytes, and no resource has a name that long
            return decision
        if principal not in self._known and len(self._known) >= _PRINCIPALS_MAX:
            self._known.clear()
        known = self._known.setdefault(principal, {})
        if len(known) >= _KNOWN_MAX:
            known.clear()
        known[asked] = decision
        return decision
