# SPDX-License-Identifier: Apache-2.0
"""`tidemark acl`: add, remove, list and try out access rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from tidemark.cli.common.options import Cluster, Commands, DryRunOption
from tidemark.cli.common.output import counted, print_json, print_line, print_table
from tidemark.core.security.acls import (
    ANY,
    CLUSTER_NAME,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourceType,
    check_acl,
    option,
)
from tidemark.model import invalid_request

EXIT_DENIED: Final = 1

acl_app = Commands(help="Add, remove, list and check access rules: they allow or deny operations to users.")


@dataclass(frozen=True, slots=True)
class Resources:
    """The options that name resources; each is repeatable."""

    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Topic; '*': all.")] = None
    topic_prefix: Annotated[
        list[str] | None,
        typer.Option("--topic-prefix", metavar="PREFIX", help="Topics whose names begin with this prefix."),
    ] = None
    group: Annotated[list[str] | None, typer.Option("--group", "-g", metavar="ID", help="Group; '*': all.")] = None
    group_prefix: Annotated[
        list[str] | None,
        typer.Option("--group-prefix", metavar="PREFIX", help="Groups whose ids begin with this prefix."),
    ] = None
    transactional_id: Annotated[
        list[str] | None, typer.Option("--transactional-id", metavar="ID", help="Transactional id; '*': all.")
    ] = None
    transactional_id_prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--transactional-id-prefix", metavar="PREFIX", help="Transactional ids that begin with this prefix."
        ),
    ] = None
    user: Annotated[list[str] | None, typer.Option("--user", metavar="NAME", help="User; '*': all.")] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster.")] = False

    def named(self) -> list[tuple[ResourceType, Pattern, str]]:
        """Type, pattern and name of each resource; raises INVALID_REQUEST without any."""
        given = (
            (ResourceType.TOPIC, Pattern.LITERAL, self.topic),
            (ResourceType.TOPIC, Pattern.PREFIXED, self.topic_prefix),
            (ResourceType.GROUP, Pattern.LITERAL, self.group),
            (ResourceType.GROUP, Pattern.PREFIXED, self.group_prefix),
            (ResourceType.TRANSACTIONAL_ID, Pattern.LITERAL, self.transactional_id),
            (ResourceType.TRANSACTIONAL_ID, Pattern.PREFIXED, self.transactional_id_prefix),
            (ResourceType.USER, Pattern.LITERAL, self.user),
            (ResourceType.CLUSTER, Pattern.LITERAL, [CLUSTER_NAME] if self.cluster else None),
        )
        return [(kind, pattern, name) for kind, pattern, names in given for name in names or ()]


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """The options that name rules, apart from their resources."""

    principal: Annotated[
        list[str],
        typer.Option(
            "--principal",
            metavar="PRINCIPAL",
            help="User:URI-OF-A-CERTIFICATE, User:token:NAME, ...; 'User:*': every caller; repeatable.",
        ),
    ]
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="OPERATION", help="Operation to allow; repeatable.")
    ] = None
    deny: Annotated[
        list[str] | None, typer.Option("--deny", metavar="OPERATION", help="Operation to deny; repeatable.")
    ] = None
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="ADDRESS", help="Address of the caller; default: all; repeatable."),
    ] = None

    def rules(self, resources: Resources) -> list[Acl]:
        """The rules of every combination of the options; raises INVALID_REQUEST if an option is missing or wrong."""
        operations = [(Permission.ALLOW, option(Operation, one)) for one in self.allow or ()]
        operations += [(Permission.DENY, option(Operation, one)) for one in self.deny or ()]
        if not operations:
            raise invalid_request("give --allow OPERATION or --deny OPERATION")
        named = resources.named()
        if not named:
            raise invalid_request("name a resource: --topic, --topic-prefix, --group, --group-prefix, --cluster, ...")
        return [
            check_acl(Acl(kind, pattern, name, principal, host, operation, permission))
            for principal in self.principal
            for host in self.host or (ANY,)
            for kind, pattern, name in named
            for permission, operation in operations
        ]


@acl_app.command(short_help="Add rules.")
def add(
    wanted: RuleOptions,
    resources: Resources = Resources(),
    dry_run: DryRunOption = False,
    options: Cluster = Cluster(),
) -> None:
    """Add access rules. All rules of a command take effect together, within a second.

    \b
    Operations: read, write, create, delete, alter, describe, describe-configs, alter-configs, cluster-action,
    idempotent-write, all. To allow read, write, delete or alter also allows describe. A rule that denies wins.

    \b
    Examples:
      tidemark acl add --principal User:token:alice --allow write --topic orders
      tidemark acl add --principal User:token:bob --allow read --topic-prefix shop. --group-prefix shop-
      tidemark acl add --principal 'User:*' --deny delete --topic orders --host 10.0.0.7
      tidemark acl add --principal User:token:carol --allow describe --allow alter --cluster --dry-run
    """
    _change(wanted.rules(resources), (), dry_run=dry_run, options=options)


@acl_app.command(short_help="Remove rules.")
def remove(
    wanted: RuleOptions,
    resources: Resources = Resources(),
    dry_run: DryRunOption = False,
    options: Cluster = Cluster(),
) -> None:
    """Remove access rules, named as in `tidemark acl add`.

    \b
    A rule is removed only if every part of it is as given: to remove the rule for a prefix, name the prefix.

    \b
    Example:
      tidemark acl remove --principal User:token:alice --allow write --topic orders
    """
    _change((), wanted.rules(resources), dry_run=dry_run, options=options)


@acl_app.command("list", short_help="List rules.")
def list_acls(
    principal: Annotated[
        str, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules for this principal.")
    ] = "",
    resources: Resources = Resources(),
    options: Cluster = Cluster(),
) -> None:
    """List access rules, or those that cover the given resources.

    \b
    With --topic orders the list also has the rules for all topics, and for prefixes of that name. With --topic-prefix
    the list has the rules for exactly that prefix.

    \b
    Examples:
      tidemark acl list
      tidemark acl list --topic orders
      tidemark acl list --principal User:token:alice --output json
    """
    from tidemark.rpc.codecs.acl import MATCH, AclFilter

    wanted = [
        AclFilter(kind, pattern if pattern is Pattern.PREFIXED else MATCH, name, principal)
        for kind, pattern, name in resources.named()
    ]
    with options.connect() as client:
        found = sorted({acl for one in wanted or [AclFilter(principal=principal)] for acl in client.list_acls(one)})
    if options.json:
        print_json([acl._asdict() for acl in found])
    elif found:
        rows = [
            (acl.permission, acl.principal, acl.host, acl.operation, _shown(acl), acl.pattern.lower()) for acl in found
        ]
        print_table(("permission", "principal", "host", "operation", "resource", "pattern"), rows)
    else:
        print_line("there is no such rule")


@acl_app.command(short_help="Show whether an operation is allowed, and why.")
def check(
    principal: Annotated[str, typer.Option("--principal", metavar="PRINCIPAL", help="User:NAME.")],
    operation: Annotated[
        str, typer.Option("--operation", metavar="OPERATION", help="For example read or alter-configs.")
    ],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address of the caller.")] = "",
    resources: Resources = Resources(),
    options: Cluster = Cluster(),
) -> None:
    """Show whether an operation is allowed, and which rule decides.

    Exit status 0: allowed on all resources. 1: denied, or refused.

    \b
    Example:
      tidemark acl check --principal User:token:alice --operation write --topic orders
    """
    wanted = option(Operation, operation)
    named = _literal(resources)
    with options.connect() as client:
        found = [(one, client.check_access(principal, wanted, one, host=host)) for one in named]
    if options.json:
        print_json(
            [
                {
                    "resource_type": resource.type,
                    "name": resource.name,
                    "allowed": one.allowed,
                    "reason": one.reason,
                    "rule": None if one.rule is None else one.rule._asdict(),
                }
                for resource, one in found
            ]
        )
    else:
        for resource, one in found:
            why = one.reason if one.rule is None else f"{one.reason}: {one.rule}"
            print_line(f"{principal} {'may' if one.allowed else 'may not'} {wanted} {resource} ({why})")
    if not all(one.allowed for _, one in found):
        raise typer.Exit(EXIT_DENIED)


def _literal(resources: Resources) -> list[Resource]:
    named = resources.named()
    if not named or any(pattern is Pattern.PREFIXED for _, pattern, _ in named):
        raise invalid_request("name the resources: --topic, --group, --transactional-id, --user or --cluster")
    return [Resource(kind, name) for kind, _, name in named]


def _change(add: Iterable[Acl], remove: Iterable[Acl], *, dry_run: bool, options: Cluster) -> None:
    with options.connect() as client:
        changed = client.alter_acls(add=list(add), remove=list(remove), validate_only=dry_run)
    if options.json:
        added, removed = ([acl._asdict() for acl in acls] for acls in (changed.added, changed.removed))
        print_json({"added": added, "removed": removed, "generation": changed.generation, "applied": not dry_run})
        return
    for sign, acls in (("+", changed.added), ("-", changed.removed)):
        for acl in acls:
            print_line(f"{sign} {acl}")
    count = len(changed.added) + len(changed.removed)
    if not count:
        print_line("nothing to change")
    else:
        print_line(f"{counted(count, 'rule')} to change" if dry_run else f"{counted(count, 'rule')} changed")


def _shown(acl: Acl) -> str:
    return str(Resource(acl.resource_type, acl.name))
