# SPDX-License-Identifier: Apache-2.0
"""The access to Tidemark's znodes: open to every session, or closed to all except the certificates of one subject.

The ACL of the root (the chroot) shows the state: an open root has `world:anyone`, a closed root only the subject.
Services create znodes as their root is, so one command closes a tree while the cluster runs (`closing.py`), and no
setting can contradict the tree. A service refuses a root that is neither open nor closed. The first service with TLS
closes a new tree before it creates nodes below.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.exceptions import (
    EXCEPTIONS,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    UnimplementedError,
    ZookeeperError,
)
from kazoo.protocol.serialization import GetACL, GetChildren, SetACL, int_struct, read_string
from kazoo.security import ACL, ANYONE_ID_UNSAFE, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

_log = logging.getLogger(__name__)

_WHO_AM_I: Final = 107
_X509: Final = "x509"
_CERTIFICATE_REQUIRED: Final = -124
_SYSTEM: Final = "zookeeper"
_SYSTEM_NODES: Final = ("/zookeeper", "/zookeeper/quota")
"""ZooKeeper's own znodes that every session may write at first."""

CHECK_S: Final = 2.0
"""Interval at which each session checks whether the tree was closed or opened."""

SIGNED_ACL: Final = [*OPEN_ACL_UNSAFE, *CREATOR_ALL_ACL]
"""ACL of znodes in an open tree: open, with the subject of their creator."""

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request of kazoo, whose paths include the chroot, and returns its answer."""


class CertificateRequiredError(ZookeeperError):  # type: ignore[misc]  # kazoo has no types
    """`enforce.auth.enabled`: the server accepts only authenticated sessions. kazoo lacks this error."""

    code = _CERTIFICATE_REQUIRED


EXCEPTIONS[_CERTIFICATE_REQUIRED] = CertificateRequiredError

REFUSALS: Final = (NoAuthError, InvalidACLError, CertificateRequiredError)
"""Errors with which ZooKeeper refuses this process, not this request."""


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """A request for kazoo's connection, which kazoo does not have; the answer is (scheme, id) for each identity."""

    type: ClassVar[int] = _WHO_AM_I

    def serialize(self) -> bytes:
        """Encode no body: the request has none."""
        return b""

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[tuple[str, str]]:
        """Decode the identities of the session."""
        (count,) = int_struct.unpack_from(data, offset)
        offset += int_struct.size
        found = []
        for _ in range(count):
            scheme, offset = read_string(data, offset)
            name, offset = read_string(data, offset)
            found.append((scheme or "", name or ""))
        return found


class AccessError(Exception):
    """ZooKeeper cannot be used with this certificate, for the reason in the message."""


class NodeAccess:
    """The access of one process to Tidemark's znodes.

    Attributes:
        acl: of znodes that this process creates; None: open, by a session without TLS.
        subject: subject of the certificate, as ZooKeeper writes the name; "" before the first session with TLS.
    """

    def __init__(self) -> None:
        self.acl: list[ACL] | None = None
        self.subject = ""
        self._foreign = ""

    async def begin(self, ask: Ask, chroot: str) -> None:
        """Learn the subject and the state of the tree, at the start of a session with TLS; close a new tree.

        Raises:
            AccessError: ZooKeeper did not check the certificate, or the root grants rights to other sessions.
        """
        self.subject = await subject_of(ask)
        root = chroot or "/"
        is_new = not set(await children_of(ask, root)) - {_SYSTEM}
        acl = await acl_of(ask, root)  # after the children: another service closes the root before it creates any
        if acl is None or (is_open(acl) and is_new):
            await close_root(ask, chroot, self.subject)
            acl = closed_acl(self.subject)
        self._use(self._says_closed(acl, root), "at the start")

    async def check(self, ask: Ask, chroot: str) -> None:
        """Check whether the tree was closed or opened since the start. A root that is neither, or is missing, has no
        effect.
        """
        root = chroot or "/"
        acl = await acl_of(ask, root)
        if acl is None:
            return
        try:
            self._use(self._says_closed(acl, root), "meanwhile")
            self._foreign = ""
        except AccessError as error:
            if str(error) != self._foreign:
                self._foreign = str(error)
                _log.error("%s", error)

    @property
    def closed(self) -> bool:
        """Whether this process creates closed znodes."""
        return self.acl is CREATOR_ALL_ACL

    def refusal(self, error: KazooException) -> str:
        """A sentence for one of `REFUSALS`."""
        if not self.subject:
            return (
                "ZooKeeper accepts only sessions with a certificate: set zookeeper.tls.ca.file, and name ZooKeeper's "
                "TLS port in zookeeper.connect"
            )
        if isinstance(error, NoAuthError):
            return (
                f"the znodes are closed to certificates with the subject {self.subject}: give all services "
                "certificates with the subject that closed them"
            )
        return _UNCHECKED

    def _says_closed(self, acl: Sequence[ACL], root: str) -> bool:
        """Whether the root is closed; raises AccessError for a root that is neither closed nor open."""
        if is_open(acl):
            return False
        if set(acl) == set(closed_acl(self.subject)):
            return True
        found = ", ".join(f"{one.id.scheme}:{one.id.id} ({'+'.join(one.acl_list)})" for one in acl)
        raise AccessError(
            f"the ACL of {root} is {found}, but a closed root has only x509:{self.subject} (ALL). Find out which "
            f"session wrote the ACL, then delete {root} if no cluster is there, or run `tidemark zookeeper close`"
        )

    def _use(self, closed: bool, when: str) -> None:
        acl = CREATOR_ALL_ACL if closed else SIGNED_ACL
        if acl is self.acl:
            return
        self.acl = acl
        if closed:
            _log.info("the znodes are closed to other subjects", extra={"subject": self.subject, "since": when})
        else:
            _log.warning(
                "every session may change the znodes; close them with `tidemark zookeeper close`",
                extra={"subject": self.subject, "since": when},
            )


_UNCHECKED: Final = (
    "ZooKeeper does not check certificates: its configuration needs ssl.clientAuth=need and "
    "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider"
)


async def subject_of(ask: Ask) -> str:
    """The subject of this session's certificate, as ZooKeeper writes the name; raises AccessError if there is none."""
    try:
        identities: dict[str, str] = dict(await ask(WhoAmI()))
    except UnimplementedError:
        raise AccessError("TLS to ZooKeeper needs ZooKeeper 3.7 or later") from None
    if _X509 not in identities:
        raise AccessError(_UNCHECKED)
    return identities[_X509]


def closed_acl(subject: str) -> list[ACL]:
    """The ACL of a closed znode, as ZooKeeper stores it."""
    return [ACL(Permissions.ALL, Id(_X509, subject))]


def open_acl(subject: str) -> list[ACL]:
    """The ACL of a znode in an open tree, as ZooKeeper stores it."""
    return [*OPEN_ACL_UNSAFE, *closed_acl(subject)]


def is_open(acl: Sequence[ACL]) -> bool:
    """Whether every session may change the znode."""
    return any(one.id == ANYONE_ID_UNSAFE and one.perms & ~Permissions.READ for one in acl)


async def is_closed(ask: Ask, path: str, subject: str) -> bool | None:
    """Whether only the subject has access to the znode; None if the znode is missing."""
    acl = await acl_of(ask, path)
    return None if acl is None else set(acl) == set(closed_acl(subject))


async def close_root(ask: Ask, chroot: str, subject: str) -> None:
    """Close the root and the nodes above it that only this cluster has: the ACL of a parent decides on the deletion of
    a child."""
    await set_acl(ask, chroot or "/", closed_acl(subject))
    for path in await own_ancestors(ask, chroot):
        await set_acl(ask, path, closed_acl(subject))


async def own_ancestors(ask: Ask, chroot: str) -> list[str]:
    """Znodes above the root, from the root upwards, that have no other children; with "/", ZooKeeper's own znodes."""
    found: list[str] = []
    path = chroot
    while path:
        path, _, name = path.rpartition("/")
        if set(await children_of(ask, path or "/")) - {name, _SYSTEM}:
            return found  # another system also uses this ensemble
        found.append(path or "/")
    return [*found, *_SYSTEM_NODES]


async def set_acl(ask: Ask, path: str, acl: Sequence[ACL]) -> bool:
    """Replace the ACL; False if the znode is missing."""
    try:
        await ask(SetACL(path, acl, -1))
    except NoNodeError:
        return False
    return True


async def acl_of(ask: Ask, path: str) -> list[ACL] | None:
    """The ACL of a znode; None if the znode is missing."""
    try:
        acl, _ = await ask(GetACL(path))
    except NoNodeError:
        return None
    return list(acl)


async def children_of(ask: Ask, path: str) -> list[str]:
    """Names of the children of a znode; none if the znode is missing."""
    try:
        return list(await ask(GetChildren(path, None)))
    except NoNodeError:
        return []
