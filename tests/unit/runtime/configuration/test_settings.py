# SPDX-License-Identifier: Apache-2.0
"""Settings: sources and their order, refusals, the generated page."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.docs import render_documentation
from tidemark.runtime.configuration.keys import keys_of
from tidemark.runtime.configuration.settings import (
    KEYS,
    TOPIC_KEYS,
    AdminSettings,
    BrokerSettings,
    ConsoleSettings,
    ControllerSettings,
    HostPort,
    TopicSettings,
    load_settings,
    read_settings,
    topic_settings,
)
from tidemark.runtime.host_port import Listeners

from tests.refusals import raises_code

REQUIRED = ("--zookeeper.connect", "zk:2181", "--broker.id", "0", "--log.dirs", "/a,/b")


def broker(*argv: str, **environ: str) -> BrokerSettings:
    return read_settings(BrokerSettings, [*REQUIRED, *argv], environ)


def refusal(*argv: str, **environ: str) -> TidemarkError:
    with pytest.raises(TidemarkError) as refused:
        broker(*argv, **environ)
    return refused.value


@pytest.mark.parametrize(
    ("cls", "owner"),
    [
        (BrokerSettings, "broker"),
        (ControllerSettings, "controller"),
        (AdminSettings, "admin"),
        (ConsoleSettings, "console"),
        (TopicSettings, "topic"),
    ],
)
def test_every_settings_class_has_an_attribute_for_each_of_its_keys(cls: type[object], owner: str) -> None:
    assert {field.name for field in dataclasses.fields(cls)} == {key.attribute for key in keys_of(owner).values()}


def test_every_default_of_the_table_is_valid() -> None:
    for key in KEYS.values():
        for owner in key.owners:
            default = key.default_for(owner)
            if default is not None:
                key.parse(default)


def test_the_configuration_page_is_current() -> None:
    page = Path(__file__).parents[4] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == render_documentation(), (
        "run python -m tidemark.runtime.configuration.docs docs/configuration.md"
    )


def test_a_missing_setting_has_its_default() -> None:
    settings = broker()
    assert settings.broker_id == 0
    assert settings.log_dirs == (Path("/a"), Path("/b"))
    assert settings.listeners == "127.0.0.1:9192"
    assert (settings.listeners.host, settings.listeners.port) == ("127.0.0.1", 9192)
    assert settings.advertised_listeners == settings.listeners
    assert settings.metrics_listeners == "127.0.0.1:9292"
    assert settings.admin_address is None
    assert settings.log_dirs_trust_boot_id is True


@pytest.mark.parametrize("anywhere", ["0.0.0.0:9192", "[::]:9192"])
def test_a_wildcard_listener_needs_an_advertised_address(anywhere: str) -> None:
    for arguments in (["--listeners", anywhere], ["--advertised.listeners", anywhere]):
        refused = refusal("--zookeeper.connect", "zk:2181", "--broker.id", "0", "--log.dirs", "/a", *arguments)
        assert refused.code is ErrorCode.INVALID_CONFIG
        assert f"advertised.listeners is {anywhere}, which is not an address to call" in refused.message
    assert broker("--listeners", anywhere, "--advertised.listeners", "tidemark-0:9192").listeners == anywhere


@pytest.mark.parametrize("connect", ["zk:port", "zk:2181,", ",zk", "zk:99999", "/root", "zk:2181,zk2:x/root"])
def test_an_address_of_zookeeper_that_is_none_is_refused(connect: str) -> None:
    refused = refusal("--zookeeper.connect", connect, "--broker.id", "0", "--log.dirs", "/a")
    assert (refused.code, refused.metadata) == (ErrorCode.INVALID_CONFIG, {"config": "zookeeper.connect"})
    assert "expected host:port[,host:port...][/chroot]" in refused.message


@pytest.mark.parametrize(
    "connect", ["zk", "zk:2181", "zk-0.zk:2181,zk-1.zk,10.0.0.3:1/root", "[::1]:2181", "[::1]", "zk:1/"]
)
def test_addresses_of_zookeeper_may_leave_out_the_port_and_name_a_root(connect: str) -> None:
    assert broker("--zookeeper.connect", connect).zookeeper_connect == connect


@pytest.mark.parametrize(("heartbeat_ms", "lag_ms"), [("10", "209"), ("100", "299"), ("500", "999")])
def test_a_lag_time_that_idle_followers_exceed_is_refused(heartbeat_ms: str, lag_ms: str) -> None:
    argv = ["--replica.heartbeat.interval.ms", heartbeat_ms, "--replica.lag.time.max.ms"]
    refused = refusal(*REQUIRED, *argv, lag_ms)
    assert (refused.code, refused.metadata) == (ErrorCode.INVALID_CONFIG, {"config": "replica.lag.time.max.ms"})
    assert broker(*argv, str(int(lag_ms) + 1)).replica_lag_time_max_ms == int(lag_ms) + 1


def test_each_service_has_its_port() -> None:
    common = ["--zookeeper.connect", "zk:2181"]
    assert read_settings(AdminSettings, common, {}).listeners.port == 9194
    assert read_settings(ControllerSettings, [*common, "--controller.id", "1"], {}).listeners.port == 9193


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "tidemark.yaml"
    file.write_text(
        "stray.grace.ms: 1\nnum.read.threads: 11\nreplica.lag.time.max.ms: 1111\n"
        "controller.id: 4\nlog: {level: debug}\nlog.dirs.trust.boot.id: false\n"
    )
    settings = broker(
        "--config",
        str(file),
        "--stray.grace.ms=3",
        TIDEMARK_STRAY_GRACE_MS="2",
        TIDEMARK_NUM_READ_THREADS="22",
        TIDEMARK_CONTROLLER_ID="5",
    )
    assert settings.stray_grace_ms == 3
    assert settings.num_read_threads == 22
    assert settings.replica_lag_time_max_ms == 1111
    assert settings.replica_fetch_max_bytes == 1 << 20
    assert settings.log_level == "debug"
    assert settings.log_dirs_trust_boot_id is False


def test_port_0_leaves_the_metrics_port_to_the_system_too() -> None:
    assert broker("--listeners", "127.0.0.1:0").metrics_listeners == "127.0.0.1:0"


NAMED = "internal://b0:9192,clients.mtls://0.0.0.0:9392,clients.token://b0:9492"
TLS = ("--tls.ca.file", "ca.crt")
TOKENS = ("--tokens.file", "tokens")


def test_one_listener_has_no_name() -> None:
    settings = broker("--listeners", "h:1")
    assert settings.listeners.by_name == {"": "h:1"}
    assert not settings.listeners.several


def test_listeners_with_names_each_have_an_address_and_an_advertised_one() -> None:
    settings = broker("--listeners", NAMED, "--advertised.listeners", "clients.mtls://b0.example.com:1", *TLS, *TOKENS)
    assert settings.listeners == NAMED
    assert settings.advertised_listeners.by_name == {
        "internal": "b0:9192",
        "clients.mtls": "b0.example.com:1",
        "clients.token": "b0:9492",
    }
    assert settings.listeners.main == "b0:9192"
    assert settings.metrics_listeners == "b0:9292"
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("listeners", "port"),
    [
        ("plain://b0:9192,internal://b0:9692,clients.mtls://b0:9392", 9192),
        ("clients.mtls://b0:9392,internal://b0:9692,plain://b0:9192", 9692),
    ],
)
def test_services_use_the_first_of_internal_and_plain(listeners: str, port: int) -> None:
    assert Listeners.parse(listeners).main.port == port


@pytest.mark.parametrize(
    ("cls", "argv", "says"),
    [
        (BrokerSettings, ["--listeners", NAMED, "--advertised.listeners", "clients.mtls://h:1"], "set tls.ca.file"),
        (BrokerSettings, ["--listeners", NAMED, *TLS], "needs tokens.file or tokens.issuers.file"),
        (BrokerSettings, ["--listeners", NAMED, *TLS, *TOKENS], "0.0.0.0:9392, which is not an address to call"),
        (BrokerSettings, ["--listeners", "clients.mtls://h:1", *TLS], "expected internal://host:port too"),
        (BrokerSettings, ["--listeners", "h:1,h:2"], "with different names"),
        (BrokerSettings, ["--listeners", "h:1,internal://h:2"], "several listeners need names"),
        (BrokerSettings, ["--listeners", "sasl://h:1"], "expected internal, clients.mtls, clients.token, plain"),
        (BrokerSettings, ["--listeners", "plain://h:1", *TLS], "expected internal://host:port too"),
        (BrokerSettings, ["--listeners", "plain://h:1,internal://h:2"], "listeners with names need TLS"),
        (BrokerSettings, ["--listeners", "internal://h:1,internal://h:2"], "with different names"),
        (BrokerSettings, ["--listeners", "internal://h:1,", *TLS], "expected host:port"),
        (BrokerSettings, ["--advertised.listeners", "internal://h:1"], "expected one host:port"),
        (
            BrokerSettings,
            ["--listeners", "internal://h:1", "--advertised.listeners", "h:1", *TLS],
            "advertised.listeners is h:1: expected internal",
        ),
        (ControllerSettings, ["--listeners", "internal://h:1,clients.mtls://h:2", *TLS], "serves no clients"),
    ],
)
def test_listeners_that_do_not_fit_together_are_refused(cls: Any, argv: list[str], says: str) -> None:
    required = REQUIRED if cls is BrokerSettings else ("--zookeeper.connect", "zk:2181", "--controller.id", "1")
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        read_settings(cls, [*required, *argv], {})
    assert says in refused.value.message


def test_an_admin_service_may_serve_clients_only() -> None:
    argv = ["--zookeeper.connect", "zk:2181", "--listeners", "clients.token://h:1", *TLS, *TOKENS]
    assert read_settings(AdminSettings, argv, {}).listeners.main == "h:1"


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--brokr.id", "1"], ErrorCode.UNKNOWN_CONFIG, "did you mean broker.id?"),
        (["--controller.id", "1"], ErrorCode.UNKNOWN_CONFIG, "it is a setting of: controller"),
        (["--segment.bytes", "4096"], ErrorCode.UNKNOWN_CONFIG, "it is a setting of: topic"),
        (["--broker.id", "-1"], ErrorCode.INVALID_CONFIG, "expected 0 and up"),
        (["--broker.id", "one"], ErrorCode.INVALID_CONFIG, "expected a whole number"),
        (["--broker.id"], ErrorCode.INVALID_CONFIG, "needs a value"),
        (["--num.read.threads", "0"], ErrorCode.INVALID_CONFIG, "expected 1 to 256"),
        (["--listeners", "localhost"], ErrorCode.INVALID_CONFIG, "expected host:port"),
        (["--listeners", ":9192"], ErrorCode.INVALID_CONFIG, "expected host:port"),
        (["--listeners", "h:65536"], ErrorCode.INVALID_CONFIG, "expected host:port"),
        (["--listeners", "h:65500"], ErrorCode.INVALID_CONFIG, "set metrics.listeners"),
        (["--log.level", "loud"], ErrorCode.INVALID_CONFIG, "expected debug or info"),
        (["--log.dirs", "/a,/a"], ErrorCode.INVALID_CONFIG, "different paths"),
        (["--log.dirs.trust.boot.id", "yes"], ErrorCode.INVALID_CONFIG, "expected true or false"),
        (["--super.users", "User:token:a;User:alice"], ErrorCode.INVALID_CONFIG, "no caller is User:alice"),
        (["--super.users", "User:*"], ErrorCode.INVALID_CONFIG, "no caller is User:*"),
        (["--super.users", "User:token:a;User:CN=*"], ErrorCode.INVALID_CONFIG, "no caller is User:CN=*"),
        (["--super.users", "User:ANONYMOUS"], ErrorCode.INVALID_CONFIG, "all callers without an identity"),
        (["--zookeeper.connect", ""], ErrorCode.INVALID_CONFIG, "must not be empty"),
        (["stop"], ErrorCode.INVALID_CONFIG, "not a setting"),
        (["--config", "/nowhere/at/all.yaml"], ErrorCode.INVALID_CONFIG, "cannot read"),
    ],
)
def test_invalid_settings_on_the_command_line_are_refused_with_a_suggestion(
    argv: list[str], code: ErrorCode, says: str
) -> None:
    error = refusal(*argv)
    assert error.code is code
    assert says in error.message
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("broker.idd: 1", "did you mean broker.id"),
        ("segment.bytes: 4096", "a setting of: topic"),
        ("a: [", "is not YAML"),
        ("broker.id: 2001-99-99", "is not YAML"),
        ("[" * 1_000, "is not YAML"),
        ("broker.id: 1\nbroker.id: 2", "broker.id is given twice, in lines 1 and 2"),
        ("broker: {id: 1}\nbroker.id: 2", "has broker.id twice"),
        ("- a", "must hold a mapping"),
        ("stray.grace.ms: soon", "expected a whole number"),
    ],
)
def test_invalid_settings_in_the_file_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "tidemark.yaml"
    file.write_text(text)
    error = refusal("--config", str(file))
    assert says in error.message
    assert "\n" not in str(error)


def test_a_misspelt_variable_is_refused_and_foreign_ones_are_ignored() -> None:
    assert refusal(TIDEMARK_STRAY_GRACEMS="1").code is ErrorCode.UNKNOWN_CONFIG
    broker(
        TIDEMARK_BOOTSTRAP="b:9192",
        TIDEMARK_ADMIN_SERVICE_HOST="10.0.0.1",
        TIDEMARK_ADMIN_PORT_9194_TCP_ADDR="10.0.0.1",
        HOME="/root",
    )


def test_a_missing_required_setting_is_reported_with_every_way_to_set_it() -> None:
    with pytest.raises(TidemarkError, match=r"--broker\.id VALUE, TIDEMARK_BROKER_ID"):
        read_settings(BrokerSettings, ["--zookeeper.connect", "zk:2181"], {})


def test_for_people_a_refusal_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(BrokerSettings, ["--broker.idd", "1"], {})
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "UNKNOWN_CONFIG" in output.err


def test_help_names_every_setting_of_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(BrokerSettings, ["--help"], {})
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for key in keys_of("broker").values():
        assert f"--{key.name}" in output
        assert key.environment_name in output


def test_topic_settings_fill_in_defaults() -> None:
    settings = topic_settings({"segment.bytes": "1024", "retention.ms": "-1"})
    assert settings.segment_bytes == 1024
    assert settings.retention_ms == -1
    assert settings.min_insync_replicas == 2
    assert settings.unclean_leader_election_enable is False


@pytest.mark.parametrize(
    ("configs", "code", "says"),
    [
        ({"segmnt.bytes": "1"}, ErrorCode.UNKNOWN_CONFIG, "did you mean segment.bytes?"),
        ({"broker.id": "1"}, ErrorCode.UNKNOWN_CONFIG, "it is a setting of: broker"),
        ({"segment.bytes": "1"}, ErrorCode.INVALID_CONFIG, "expected 1024 and up"),
        ({"retention.ms": "-2"}, ErrorCode.INVALID_CONFIG, "-1 for no limit"),
        ({"min.insync.replicas": "0"}, ErrorCode.INVALID_CONFIG, "expected 1 to"),
        ({"max.message.bytes": str(9 << 20)}, ErrorCode.INVALID_CONFIG, "to 8388608"),
        ({"flush.policy": "always"}, ErrorCode.INVALID_CONFIG, "expected os or group-commit or interval"),
        ({"flush.interval.ms": "0"}, ErrorCode.INVALID_CONFIG, "expected 1 to 86400000 (ms)"),
        ({"cleanup.policy": "squash"}, ErrorCode.INVALID_CONFIG, "expected delete or compact or compact,delete"),
        ({"min.cleanable.dirty.ratio": "1.5"}, ErrorCode.INVALID_CONFIG, "expected a number of 0 to 1"),
        ({"min.cleanable.dirty.ratio": "nan"}, ErrorCode.INVALID_CONFIG, "expected a number of 0 to 1"),
        ({"min.cleanable.dirty.ratio": "half"}, ErrorCode.INVALID_CONFIG, "expected a number of 0 to 1"),
        ({"message.timestamp.type": ""}, ErrorCode.INVALID_CONFIG, "expected CreateTime or LogAppendTime"),
    ],
)
def test_a_topic_setting_that_is_wrong_is_refused(configs: dict[str, str], code: ErrorCode, says: str) -> None:
    with raises_code(code) as refused:
        topic_settings(configs)
    assert says in refused.value.message
    assert refused.value.metadata["config"] == next(iter(configs))


def test_topic_keys_are_those_of_the_topic_scope() -> None:
    assert {key.scope for key in TOPIC_KEYS.values()} == {"topic"}


def test_an_address_of_ipv6_keeps_its_brackets_and_survives_pickling() -> None:
    address = HostPort.parse("[::1]:9192")
    assert (address.host, address.port, str(address)) == ("::1", 9192, "[::1]:9192")
    copied = pickle.loads(pickle.dumps(address))
    assert (copied, copied.host, copied.port) == (address, "::1", 9192)


NOT_ENFORCED: set[str] = set()
"""The page of settings states this for each setting."""


def test_an_unused_setting_is_not_offered() -> None:
    services = Path(__file__).parents[4] / "services" / "tidemark"
    shipped = "".join(
        path.read_text(encoding="utf-8")
        for path in services.rglob("*.py")
        if path.parent.name not in {"v1", "configuration"}
    )
    names = {
        key.attribute: key for owner in ("broker", "controller", "admin", "topic") for key in keys_of(owner).values()
    }
    unread = {name for name, key in names.items() if f".{name}" not in shipped and f'"{key.name}"' not in shipped}
    assert unread == NOT_ENFORCED
    assert all("not enforced yet" in names[name].doc for name in NOT_ENFORCED)


def console(*argv: str) -> ConsoleSettings:
    return read_settings(ConsoleSettings, ["--bootstrap", "b:9192", *argv], {})


def test_the_metrics_of_the_console_are_100_ports_above_its_pages() -> None:
    assert console("--console.listeners", "0.0.0.0:8000").metrics_listeners == "0.0.0.0:8100"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("--https.certificate.file", "a.crt"), "https.key.file"),
        (("--https.key.file", "a.key"), "https.certificate.file"),
        (("--console.listeners", "0.0.0.0:65500"), "metrics.listeners"),
        (("--zookeeper.connect", "zk:2181"), "zookeeper.connect"),
    ],
)
def test_the_console_refuses_settings_that_do_not_fit(argv: tuple[str, ...], name: str) -> None:
    with pytest.raises(TidemarkError, match=name):
        console(*argv)


def test_the_console_takes_its_brokers_from_the_variable_of_clients() -> None:
    assert read_settings(ConsoleSettings, [], {"TIDEMARK_BOOTSTRAP": "b:9192"}).bootstrap == "b:9192"
    with pytest.raises(TidemarkError, match="bootstrap must be given"):
        read_settings(ConsoleSettings, [], {})
