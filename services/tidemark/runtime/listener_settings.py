# SPDX-License-Identifier: Apache-2.0
"""The checks of `listeners` and `advertised.listeners`, and the addresses of each listener."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from tidemark.core.security.listeners import Listener
from tidemark.model import TidemarkError, invalid_config
from tidemark.runtime.host_port import HostPort, Listeners

_LISTENERS: Final = "listeners"
_ADVERTISED: Final = "advertised.listeners"


def derive_listeners(owner: str, values: dict[str, Any]) -> None:
    """Check both settings of a service, and complete the advertised addresses; raises INVALID_CONFIG.

    Args:
        owner: "broker", "controller" or "admin".
        values: all settings of the service, by attribute.
    """
    listeners: Listeners = values["listeners"]
    if listeners.several:
        _check_names(owner, listeners, values)
    advertised = values["advertised_listeners"] or listeners
    extra = sorted(advertised.by_name.keys() - listeners.by_name.keys())
    if extra:
        wanted = ", ".join(listeners.by_name) if listeners.several else "one host:port, as listeners has"
        raise _wrong(_ADVERTISED, advertised, f"expected {wanted}")
    values["advertised_listeners"] = Listeners.of({**listeners.by_name, **advertised.by_name})
    for address in values["advertised_listeners"].by_name.values():
        _check_callable(address)


def _check_names(owner: str, listeners: Listeners, values: dict[str, Any]) -> None:
    if not values["tls_ca_file"]:
        raise _wrong(_LISTENERS, listeners, "listeners with names need TLS: set tls.ca.file, or give one host:port")
    if owner != "admin" and Listener.INTERNAL not in listeners.by_name:
        raise _wrong(
            _LISTENERS, listeners, f"expected {Listener.INTERNAL}://host:port too, for the cluster's own calls"
        )
    if owner == "controller" and not listeners.by_name.keys() <= {Listener.INTERNAL, Listener.PLAIN}:
        wanted = f"{Listener.INTERNAL} only, and {Listener.PLAIN} while the cluster moves to TLS"
        raise _wrong(_LISTENERS, listeners, f"a controller serves no clients: expected {wanted}")
    if Listener.TOKEN in listeners.by_name and not (values.get("tokens_file") or values.get("tokens_issuers_file")):
        raise _wrong(_LISTENERS, listeners, f"{Listener.TOKEN} needs tokens.file or tokens.issuers.file")


def _check_callable(advertised: HostPort) -> None:
    try:
        anywhere = ipaddress.ip_address(advertised.host).is_unspecified
    except ValueError:
        return  # a name
    if anywhere:
        raise _wrong(
            _ADVERTISED,
            advertised,
            "which is not an address to call: set an address that other hosts can reach; listeners may stay as it is",
        )


def _wrong(name: str, value: str, sentence: str) -> TidemarkError:
    joint = ", " if sentence.startswith("which") else ": "
    return invalid_config(name, f"{name} is {value}{joint}{sentence}")
