# SPDX-License-Identifier: Apache-2.0
"""Access rules (ACLs), as Kafka has them: a rule allows or denies a principal, from a host, an operation on resources.

DENY wins over ALLOW. An ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, and an ALLOW of ALTER_CONFIGS implies
DESCRIBE_CONFIGS. A DENY covers only its own operation, or all if it names ALL. Without a rule no operation is allowed.
"""

from __future__ import annotations

import ipaddress
import shlex
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from tidemark.core.topic_name import check_topic_name
from tidemark.errors import ErrorCode, TidemarkError


class Operation(StrEnum):
    """An operation on a resource; Kafka's names."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    ALL = "ALL"


class ResourceType(StrEnum):
    """Types of resources that a rule can name."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    USER = "USER"


class Pattern(StrEnum):
    """How the name of a rule selects resources: LITERAL: the resource of that name ("*": all); PREFIXED: all
    resources whose names begin with that name.
    """

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Permission(StrEnum):
    """Effects of a rule: allow or deny."""

    ALLOW = "ALLOW"
    DENY = "DENY"


ANY: Final = "*"
"""Every host, or every name of a literal rule."""
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "cluster"
"""The name of the only resource of type CLUSTER."""
A_RULE_DENIES: Final = "a rule denies it"
"""The reason of a decision by a DENY rule, which no further ALLOW rule changes."""
NAME_CHARACTERS_MAX: Final = 255
PRINCIPAL_CHARACTERS_MAX: Final = 1024

_O, _R = Operation, ResourceType
APPLICABLE: Final = {
    _R.TOPIC: frozenset(
        {_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.ALL}
    ),
    _R.GROUP: frozenset({_O.READ, _O.DESCRIBE, _O.DELETE, _O.ALL}),
    _R.CLUSTER: frozenset(
        {_O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE}
        | {_O.ALTER, _O.DESCRIBE, _O.ALL}
    ),
    _R.TRANSACTIONAL_ID: frozenset({_O.DESCRIBE, _O.WRITE, _O.ALL}),
    _R.USER: frozenset({_O.DESCRIBE, _O.ALTER, _O.ALL}),
}
"""Operations that a rule on a resource of this type may name."""

_IMPLIED_BY: Final = {
    _O.DESCRIBE: (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.ALTER_CONFIGS,),
}
ALLOWED_BY: Final = {one: frozenset({one, _O.ALL, *_IMPLIED_BY.get(one, ())}) for one in Operation}
"""Operations of ALLOW rules that allow an operation."""
DENIED_BY: Final = {one: frozenset({one, _O.ALL}) for one in Operation}
"""Operations of DENY rules that deny an operation."""

_SHOWN: Final = {
    _R.TOPIC: "Topic",
    _R.GROUP: "Group",
    _R.CLUSTER: "Cluster",
    _R.TRANSACTIONAL_ID: "TransactionalId",
    _R.USER: "User",
}
_FLAGS: Final = {
    _R.TOPIC: "--topic",
    _R.GROUP: "--group",
    _R.TRANSACTIONAL_ID: "--transactional-id",
    _R.USER: "--user",
}
_DENIALS: Final = {
    _R.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    _R.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _R.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_OptionT = TypeVar("_OptionT", bound=StrEnum)


class Resource(NamedTuple):
    """One resource; without a name, any resource of its type."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        shown = _SHOWN[self.type]
        if not self.name:
            return f"any {shown}"
        return shown if self.type is _R.CLUSTER else f"{shown}:{shortened(self.name)}"


def shortened(name: str) -> str:
    """A name for errors and logs. A caller without rights may send a name of any length."""
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}..."


CLUSTER: Final = Resource(_R.CLUSTER, CLUSTER_NAME)


def topic(name: str) -> Resource:
    """The topic of this name as a resource."""
    return Resource(_R.TOPIC, name)


def group(name: str) -> Resource:
    """The consumer group as a resource."""
    return Resource(_R.GROUP, name)


def transactional_id(name: str) -> Resource:
    """The transactional id as a resource."""
    return Resource(_R.TRANSACTIONAL_ID, name)


class Acl(NamedTuple):
    """One access rule. Rules are ordered by their members, so that the same rule of several decides everywhere.

    Attributes:
        resource_type: type of the resources.
        pattern: how `name` selects resources.
        name: name or prefix; "*" with LITERAL: all resources of that type.
        principal: "User:NAME"; "User:*": every caller, including anonymous callers.
        host: address of the caller's connection; "*": every address.
        operation: the operation; ALL: every operation.
        permission: allowed or denied.
    """

    resource_type: ResourceType
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        name = f"{self.name}*" if self.pattern is Pattern.PREFIXED else self.name
        resource = Resource(self.resource_type, name)
        return f"{self.permission} {self.principal} from {self.host} to {self.operation} {resource}"

    def matches(self, resource: Resource) -> bool:
        """Whether the rule covers this resource."""
        if resource.type is not self.resource_type:
            return False
        if self.pattern is Pattern.PREFIXED:
            return resource.name.startswith(self.name)
        return self.name in (ANY, resource.name)


def allow_rule(principal: str, operation: Operation, resource: Resource, *, host: str = ANY) -> Acl:
    """The rule that allows an operation on one resource, or with the name "*" on all of its type."""
    return Acl(resource.type, Pattern.LITERAL, resource.name, principal, host, operation, Permission.ALLOW)


def check_acl(acl: Acl) -> Acl:
    """The rule, with its host in normal form.

    Raises:
        TidemarkError: INVALID_REQUEST: the rule could never match, or its parts do not fit together.
    """
    if not acl.principal.startswith("User:") or len(acl.principal) <= len("User:"):
        raise _wrong(f"principal {acl.principal!r}: give User:NAME, User:ANONYMOUS or User:*", "principal")
    if len(acl.principal) > PRINCIPAL_CHARACTERS_MAX or not acl.principal.isprintable():
        raise _wrong(f"a principal has at most {PRINCIPAL_CHARACTERS_MAX} printable characters", "principal")
    _check_name(acl)
    if acl.operation not in APPLICABLE[acl.resource_type]:
        wanted = ", ".join(sorted(APPLICABLE[acl.resource_type]))
        raise _wrong(f"{acl.operation} does not apply to a {acl.resource_type}: give one of {wanted}", "operation")
    return acl._replace(host=normal_host(acl.host))


def _check_name(acl: Acl) -> None:
    if acl.resource_type is _R.CLUSTER and (acl.name, acl.pattern) != (CLUSTER_NAME, Pattern.LITERAL):
        raise _wrong(f"a CLUSTER has the literal name {CLUSTER_NAME!r}", "name")
    if not acl.name or len(acl.name) > NAME_CHARACTERS_MAX or not acl.name.isprintable():
        raise _wrong(f"a name has 1 to {NAME_CHARACTERS_MAX} printable characters", "name")
    if acl.pattern is Pattern.PREFIXED and ANY in acl.name:
        raise _wrong(f"prefix {acl.name!r}: give the prefix without *; the literal name * is all resources", "name")


def check_topic_of(acl: Acl) -> None:
    """Raise INVALID_REQUEST for a new rule with a name or prefix that no topic can have; other rules are accepted.

    Stored rules are not checked: a rule of an earlier version stays readable.
    """
    if acl.resource_type is not _R.TOPIC or acl.name == ANY:
        return
    if acl.name.endswith(ANY) and _is_topic_name(acl.name[:-1]):
        raise _wrong(f"no topic has the name {acl.name!r}: give the prefix {acl.name[:-1]!r} instead", "name")
    if acl.pattern is Pattern.PREFIXED and acl.name in {".", ".."}:
        return
    try:
        check_topic_name(acl.name)
    except TidemarkError as error:
        raise _wrong(error.message, "name") from None


def _is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except TidemarkError:
        return False
    return True


def normal_host(host: str) -> str:
    """The form of an address in rules and of callers: an IPv4 address in IPv6 is the IPv4 address.

    Raises:
        TidemarkError: INVALID_REQUEST if the text is neither an address without a zone nor "*".
    """
    if host == ANY:
        return host
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        found = None
    if found is None or "%" in host:
        raise _wrong(f"host {host!r}: give an IP address without a zone, or * for all", "host")
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def option(kind: type[_OptionT], text: str) -> _OptionT:
    """The member of an enumeration that a word names, in capitals or not, with "-" or "_".

    Raises:
        TidemarkError: INVALID_REQUEST for an unknown word, with the known words.
    """
    try:
        return kind(text.upper().replace("-", "_"))
    except ValueError:
        raise _wrong(f"{text!r} is none of {', '.join(kind)}", kind.__name__.lower()) from None


def denial(principal: str, operation: Operation, resource: Resource, reason: str) -> TidemarkError:
    """The error of a denied call: the missing right, and the command that grants it or lists the rules. Not retriable.

    The sentence does not depend on whether the resource exists.

    Args:
        reason: reason of `authorizer.Decision`.
    """
    name = shortened(resource.name)
    flag = "--cluster" if resource.type is _R.CLUSTER else f"{_FLAGS[resource.type]} {shlex.quote(name or 'NAME')}"
    word = operation.lower().replace("_", "-")
    remedy = f"an operator can run: tidemark acl add --principal {shlex.quote(principal)} --allow {word} {flag}"
    if reason == A_RULE_DENIES:
        remedy = f"an operator can find the rule: tidemark acl list {flag if name else ''}".rstrip()
    return TidemarkError(
        _DENIALS.get(resource.type, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        f"{principal} may not {operation} {resource} ({reason}); {remedy}",
        {
            "principal": principal,
            "operation": str(operation),
            "resource_type": str(resource.type),
            "resource": name,
        },
    )


def _wrong(sentence: str, fact: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_REQUEST, sentence, {"acl": fact})
