# SPDX-License-Identifier: Apache-2.0
"""Settings of the services and of topics, parsed by the table in `keys`.

Order of the sources: flag, environment (`TIDEMARK_` + upper snake case), YAML file (`--config`), default.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tidemark.model import ErrorCode, TidemarkError, invalid_config
from tidemark.runtime.configuration.broker_settings import BrokerSettings
from tidemark.runtime.configuration.entries import check_lag
from tidemark.runtime.configuration.file_content import read_content
from tidemark.runtime.configuration.key import UNLIMITED, ConfigKey, Value
from tidemark.runtime.configuration.keys import KEYS, keys_of, unknown_config
from tidemark.runtime.configuration.service_settings import (
    AdminSettings,
    ClientFacingSettings,
    ConsoleSettings,
    ControllerSettings,
    ServiceSettings,
)
from tidemark.runtime.configuration.topic_settings import TopicSettings
from tidemark.runtime.host_port import HostPort, zookeeper_hosts
from tidemark.runtime.listener_settings import derive_listeners
from tidemark.runtime.termination import refuse_settings

__all__ = [
    "KEYS",
    "TOPIC_KEYS",
    "UNLIMITED",
    "AdminSettings",
    "BrokerSettings",
    "ClientFacingSettings",
    "ConfigKey",
    "ConsoleSettings",
    "ControllerSettings",
    "HostPort",
    "ServiceSettings",
    "TopicSettings",
    "load_settings",
    "read_settings",
    "topic_settings",
]

METRICS_PORT_STEP: Final = 100
"""Default distance from the service's port to its metrics port."""


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = keys_of("topic")
"""Settings of topics by their dotted names."""

Settings = TypeVar("Settings", BrokerSettings, ControllerSettings, AdminSettings, ConsoleSettings)


def topic_settings(configs: Mapping[str, str]) -> TopicSettings:
    """Settings of a topic with these stored explicit `configs`; raises UNKNOWN_CONFIG or INVALID_CONFIG."""
    for name in configs:
        if name not in TOPIC_KEYS:
            raise unknown_config(name, TOPIC_KEYS, "a topic")
    values: dict[str, Any] = {
        key.attribute: key.parse_stored(configs.get(name, key.default or "")) for name, key in TOPIC_KEYS.items()
    }
    return TopicSettings(**values)


def usable_topic_configs(configs: Mapping[str, str]) -> tuple[dict[str, str], list[TidemarkError]]:
    """The settings of `configs` that `topic_settings` accepts, and an error for each other one.

    A later version, or an operator manually, wrote the others.
    """
    usable: dict[str, str] = {}
    errors: list[TidemarkError] = []
    for name, text in configs.items():
        try:
            topic_settings({name: text})
        except TidemarkError as error:
            errors.append(error)
        else:
            usable[name] = text
    return usable, errors


def load_settings(
    cls: type[Settings], argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read a service's settings at its start, print errors and help.

    Args:
        cls: a settings class of a service.
        argv: arguments after the program's name; default: sys.argv.
        environ: default: os.environ.

    `--help` prints every setting and exits with status 0. An error prints one line on stderr and exits with status 2.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(_help(cls.owner))
        raise SystemExit(0)
    try:
        return read_settings(cls, arguments, os.environ if environ is None else environ)
    except TidemarkError as error:
        path = _termination_path(arguments, os.environ if environ is None else environ)
        refuse_settings(cls.owner, path, error, " (--help lists all settings)")


def _termination_path(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """`termination.message.path` from flag or environment, for settings that cannot be read as a whole."""
    flag = "--" + KEYS["termination.message.path"].name
    for argument, following in itertools.pairwise([*argv, ""]):
        if argument == flag:
            return following
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return environ.get(KEYS["termination.message.path"].environment_name, "")


def read_settings(cls: type[Settings], argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from flags, environment, file and defaults; raises UNKNOWN_CONFIG or INVALID_CONFIG."""
    keys = keys_of(cls.owner)
    flags, config_file = _read_flags(cls.owner, keys, argv)
    config_file = config_file or environ.get("TIDEMARK_CONFIG") or None
    from_file = _read_file(Path(config_file)) if config_file else {}
    from_environment = _read_environment(keys, environ)
    values: dict[str, Value] = {}
    for name, key in keys.items():
        default = key.default_for(cls.owner)
        text = flags.get(name, from_environment.get(name, from_file.get(name, default)))
        if text is None:
            raise invalid_config(
                name, f"{name} must be given: --{name} VALUE, {key.environment_name}, or {name} in the --config file"
            )
        values[key.attribute] = key.parse(text)
    _derive(cls.owner, values)
    arguments: dict[str, Any] = dict(values)
    return cls(**arguments)


def _derive(owner: str, values: dict[str, Value]) -> None:
    if owner == ConsoleSettings.owner:
        _derive_metrics("console.listeners", values)
        _check_https(values)
    else:
        derive_listeners(owner, values)
        _check_connect(str(values["zookeeper_connect"]))
        if owner == BrokerSettings.owner:
            _check_lag(values["replica_lag_time_max_ms"], values["replica_heartbeat_interval_ms"])
        _derive_metrics("listeners", values)


def _derive_metrics(name: str, values: dict[str, Value]) -> None:
    """The default of metrics.listeners, from the setting `name`."""
    listeners = values[KEYS[name].attribute]
    assert isinstance(listeners, HostPort)
    if values["metrics_listeners"] is None:
        port = listeners.port + METRICS_PORT_STEP if listeners.port else 0
        if port > 65535:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is {listeners}: set metrics.listeners, because port + 100 is not a valid port",
            )
        values["metrics_listeners"] = HostPort(listeners.host, port)


def _check_https(values: Mapping[str, Value]) -> None:
    if bool(values["https_certificate_file"]) != bool(values["https_key_file"]):
        missing = "https.key.file" if values["https_certificate_file"] else "https.certificate.file"
        raise invalid_config(missing, f"{missing} is not set: a certificate and its key are set together")


def _check_lag(lag_max_ms: Value, heartbeat_interval_ms: Value) -> None:
    assert isinstance(lag_max_ms, int)
    assert isinstance(heartbeat_interval_ms, int)
    check_lag(lag_max_ms, heartbeat_interval_ms)


def _check_connect(connect: str) -> None:
    try:
        zookeeper_hosts(connect)
    except ValueError as error:
        raise invalid_config(
            "zookeeper.connect",
            f"zookeeper.connect is {connect!r}: {error}; expected host:port[,host:port...][/chroot]",
        ) from error


def _read_flags(owner: str, keys: Mapping[str, ConfigKey], argv: Sequence[str]) -> tuple[dict[str, str], str | None]:
    found: dict[str, str] = {}
    config_file: str | None = None
    position = 0
    while position < len(argv):
        flag, equals, value = argv[position].partition("=")
        if not flag.startswith("--"):
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{argv[position]!r} is not a setting: expected --NAME VALUE")
        name = flag[2:]
        if name != "config" and name not in keys:
            raise unknown_config(name, [*keys, "config"], f"the {owner}")
        position += 1
        if not equals:
            if position == len(argv):
                raise invalid_config(name, f"--{name} needs a value")
            value = argv[position]
            position += 1
        if name == "config":
            config_file = value
        else:
            found[name] = value
    return found, config_file


_OF_CLIENTS: Final = ("TIDEMARK_TOKEN_FILE", "TIDEMARK_PROFILE")
"""Variables of clients, which have names like settings and are not settings."""
_SERVICE_LINK: Final = re.compile(r"TIDEMARK_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")
"""Variables that Kubernetes sets for a Service named tidemark-..."""


def _read_environment(keys: Mapping[str, ConfigKey], environ: Mapping[str, str]) -> dict[str, str]:
    """Settings from the environment.

    An unknown variable is an error only if it resembles a known variable: clients and Kubernetes also use the prefix.
    """
    names = {key.environment_name: key.name for key in KEYS.values()}
    found: dict[str, str] = {}
    for variable, text in environ.items():
        if variable in names:
            if names[variable] in keys:
                found[names[variable]] = text
        elif variable.startswith("TIDEMARK_") and variable not in _OF_CLIENTS and not _SERVICE_LINK.fullmatch(variable):
            nearest = difflib.get_close_matches(variable, names, n=1, cutoff=0.9)
            if nearest:
                raise TidemarkError(
                    ErrorCode.UNKNOWN_CONFIG,
                    f"no setting has the environment variable {variable}; did you mean {nearest[0]}?",
                    {"config": variable},
                )
    return found


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, in which no mapping has a key twice; None if the file is empty.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not YAML, or a key is given twice; the text is one line and names the file.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # the base keeps the last value of a repeated key
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.YAMLError(f"{name} is given twice, in lines {lines[name]} and {line}")
                lines[name] = line
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(read_content(path).decode(), Loader=Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that does not exist is a ValueError
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _read_file(path: Path) -> dict[str, str]:
    """Settings from a YAML file, dotted or nested; several services may share a file."""
    try:
        content = read_yaml(path)
    except OSError as error:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, str(error)) from error
    found: dict[str, str] = {}
    _flatten(path, "", content if content is not None else {}, found)
    for name in found:
        if name not in KEYS or KEYS[name].owners == ("topic",):
            raise unknown_config(name, [key for key in KEYS if key not in TOPIC_KEYS], str(path))
    return found


def _flatten(path: Path, prefix: str, content: object, found: dict[str, str]) -> None:
    if isinstance(content, dict):
        for name, value in content.items():
            _flatten(path, f"{prefix}.{name}" if prefix else str(name), value, found)
    elif not prefix:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{path} must hold a mapping of setting: value")
    elif prefix in found:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{path} has {prefix} twice, dotted and nested")
    elif isinstance(content, bool):
        found[prefix] = str(content).lower()
    elif isinstance(content, list):
        found[prefix] = ",".join(str(item) for item in content)
    else:
        found[prefix] = "" if content is None else str(content)


def _help(owner: str) -> str:
    lines = [
        f"Usage: python -m tidemark.{owner} [--config FILE.yaml] [--NAME VALUE]...",
        "",
        "Sources of a setting, first match: flag, environment variable, file, default.",
        "",
    ]
    for key in keys_of(owner).values():
        default = key.default_for(owner)
        tail = "required" if default is None else f"default {default}" if default else "optional"
        unit = f" {key.unit}" if key.unit else ""
        lines += [
            f"  --{key.name}  ({key.environment_name})",
            f"      {key.doc}. {key.valid_values}; {tail}{unit}.",
        ]
    return "\n".join(lines) + "\n"
