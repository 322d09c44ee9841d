# SPDX-License-Identifier: Apache-2.0
"""The identity of a service process: from its settings, checked against its role and id."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tidemark.core.security.principals import SCHEME, Role, principal_of
from tidemark.model import TidemarkError, invalid_config
from tidemark.rpc.channel import use_identity
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.listeners import ListenerPort, listener_ports
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.tokens import REASONS
from tidemark.runtime.configuration.settings import ClientFacingSettings, ServiceSettings
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.termination import refuse_settings

_NAME: Final = "tls.certificate.file"


def load_ports(settings: ServiceSettings, role: Role, service_id: int | None = None) -> list[ListenerPort]:
    """The ports of this process, and its TLS files for its channels and its metrics.

    Invalid files end the process with status 2 and one line on stderr, as do invalid settings.
    """
    files = TlsFiles(settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
    clients = settings if isinstance(settings, ClientFacingSettings) else None
    try:
        identity = service_identity(files, role, service_id)
        ports = listener_ports(settings.listeners, identity, clients, _count_refusals, settings.connections_max_age_ms)
    except TidemarkError as error:
        refuse_settings(role, settings.termination_message_path, error)
    use_identity(ports[0].identity, ports[0].listener)
    _show({id(one.identity): one.identity for one in ports if one.identity is not None}.values())
    return ports


def _count_refusals(reason: str) -> None:
    _REFUSALS.labels(reason).inc()


_REFUSALS: Final = METRICS.counter(
    "authentication_failures", "Calls that were refused because of their token, by reason", ["reason"]
)
for _reason in REASONS:
    _REFUSALS.labels(_reason)


def _show(identities: Collection[TlsIdentity]) -> None:
    expiry = METRICS.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "End of the validity of this service's certificate that ends first; 0: plain text",
    )
    refused = METRICS.gauge(
        "tls_refused_changes", "Changes of the TLS files that were not used: they did not fit together"
    )
    if identities:
        expiry.set_function(lambda: min(one.current().not_after_s for one in identities))
        refused.set_function(lambda: sum(one.failures for one in identities))


def service_identity(files: TlsFiles, role: Role, service_id: int | None = None) -> TlsIdentity | None:
    """The TLS files of a service; None if no file is named: plain text.

    Args:
        files: the paths.
        role: role of the service.
        service_id: id of the broker or controller; None: an admin service, which may have any name.

    Raises:
        TidemarkError: INVALID_CONFIG: the files do not fit together, or the certificate is another service's.
    """
    if not files.is_set:
        return None
    if not files.certificate:
        raise invalid_config(_NAME, f"{_NAME} is not set: a service needs a certificate")
    identity = TlsIdentity(files)
    uris = identity.current().uris
    own = principal_of(uris)
    if own.role is not role or (service_id is not None and own.service != str(service_id)):
        wanted = f"{SCHEME}://CLUSTER/{role}/{'NAME' if service_id is None else service_id}"
        raise invalid_config(
            _NAME,
            f"{_NAME} is {files.certificate}, whose URI names are [{', '.join(uris)}]: this service needs {wanted} "
            "(`tidemark certs` makes such certificates)",
        )
    return identity
