# SPDX-License-Identifier: Apache-2.0
"""`tidemark certs`: an authority and certificates for a laptop, or for machines without a certificate manager."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import Commands
from tidemark.cli.common.output import print_line
from tidemark.core.security.principals import Role
from tidemark.model import INT32_MAX

if TYPE_CHECKING:
    from tidemark.local.certificates import Authority
    from tidemark.rpc.security.paths import TlsFiles

_DAYS: Final = 365
_AUTHORITY_DAYS: Final = 3650

certs_app = Commands(help="Issue certificates for TLS, without a certificate manager.")

DirectoryOption = Annotated[
    Path, typer.Option("--directory", "-d", metavar="DIR", help="Directory of the authority and its certificates.")
]
HostOption = Annotated[
    list[str],
    typer.Option("--host", metavar="HOST", help="Name or address that callers use; repeat it for several."),
]
DaysOption = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=3650, help="Days until the certificate expires.")
]


@certs_app.command("init", short_help="Make an authority.")
def init(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the cluster, in every identity.")],
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _AUTHORITY_DAYS,
) -> None:
    """Make the authority of a cluster: ca.crt, which every process trusts, and ca.key, which signs.

    Keep ca.key away from brokers and clients: a process that reads ca.key can impersonate any service or user.

    \b
    Example:
      tidemark certs init shop
      tidemark certs broker 0 --host broker-0.example.com
      tidemark certs client alice
    """
    from tidemark.local.certificates import Authority

    files = Authority.create(directory, cluster, days=days).files("ca")
    print_line(f"{files.certificate}: the authority of cluster {cluster}")
    print_line(f"{files.key}: its key; keep this file secret")


@certs_app.command("broker", short_help="Issue a broker's certificate.")
def broker(
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, max=INT32_MAX, help="broker.id of the broker.")],
    host: HostOption,
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _DAYS,
) -> None:
    """Issue the certificate of a broker.

    A second call replaces the certificate; a running broker uses the new certificate.

    \b
    Example:
      tidemark certs broker 0 --host broker-0.example.com --host 10.0.0.5
    """
    _tell(_authority(directory).issue_service(Role.BROKER, str(broker_id), host, days=days))


@certs_app.command("controller", short_help="Issue a controller's certificate.")
def controller(
    controller_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, max=INT32_MAX, help="controller.id of the controller.")
    ],
    host: HostOption,
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _DAYS,
) -> None:
    """Issue the certificate of a controller.

    A second call replaces the certificate; a running controller uses the new certificate.

    \b
    Example:
      tidemark certs controller 100 --host controller-0.example.com
    """
    _tell(_authority(directory).issue_service(Role.CONTROLLER, str(controller_id), host, days=days))


@certs_app.command("admin", short_help="Issue the admin service's certificate.")
def admin(
    host: HostOption,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of this admin service.")] = "admin",
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _DAYS,
) -> None:
    """Issue the certificate of an admin service.

    A second call replaces the certificate; a running service uses the new certificate.

    \b
    Example:
      tidemark certs admin --host admin.example.com
    """
    _tell(_authority(directory).issue_service(Role.ADMIN, name, host, days=days))


@certs_app.command("zookeeper", short_help="Issue a ZooKeeper server's certificate.")
def zookeeper(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id of the server in its ensemble.")],
    host: HostOption,
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _DAYS,
) -> None:
    """Issue the certificate of a ZooKeeper server.

    A second call replaces the certificate. zookeeper-ID.pem has certificate and key, for ssl.keyStore.location.

    \b
    Example:
      tidemark certs zookeeper 1 --host zk-1.example.com
    """
    files = _authority(directory).issue_zookeeper(name, host, days=days)
    _tell(files)
    print_line(f"{Path(files.certificate).with_suffix('.pem')}: both in one file, for ssl.keyStore.location")


@certs_app.command("client", short_help="Issue a user's certificate.")
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = _DAYS,
) -> None:
    """Issue the certificate of a user, for producers, consumers, Spark and this command.

    \b
    Example:
      tidemark certs client alice
      export TIDEMARK_TLS_CA_FILE=certs/ca.crt
      export TIDEMARK_TLS_CERTIFICATE_FILE=certs/client-alice.crt
      export TIDEMARK_TLS_KEY_FILE=certs/client-alice.key
    """
    _tell(_authority(directory).issue_client(name, days=days))


def _authority(directory: Path) -> Authority:
    from tidemark.local.certificates import Authority

    return Authority.load(directory)


def _tell(files: TlsFiles) -> None:
    print_line(f"{files.certificate}: the certificate")
    print_line(f"{files.key}: its key")
