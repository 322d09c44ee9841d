# SPDX-License-Identifier: Apache-2.0
"""`security.mode: secure`: listeners, certificates, identities, peers and rights; and refusals of incomplete values."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from tidemark.rpc.security.jwts import IssuersFile
from tidemark.runtime.configuration.settings import AdminSettings, BrokerSettings, ControllerSettings, read_settings

from tests.charts.rendering import NAME, NAMESPACE, ROOT, Manifest, Render, containers, manifests, one, pods

ENSEMBLE = {"zookeeper": {"tls": {"enabled": True}}}
SECURE: dict[str, Any] = {"security": {"mode": "secure"}, **ENSEMBLE}
SERVICES = {"broker": BrokerSettings, "controller": ControllerSettings, "admin": AdminSettings}
IDS = {"broker": "2", "controller": "101"}
CLUSTER = "tide-tidemark.streams"


ISSUER: dict[str, Any] = {
    "issuer": "https://login.example.com",
    "audience": "shop",
    "jwks": "https://login.example.com/k",
}


def secure(**more: Any) -> list[Manifest]:
    return manifests({**SECURE, "security": {"mode": "secure", **more}})


def settings_of(found: list[Manifest], component: str, directory: Path) -> Any:
    """The settings that the service reads in its container, as the kubelet sets the environment."""
    (container,) = dict(pods(found))[f"tide-tidemark-{component}"]["containers"]
    environment = {f"TIDEMARK_{component.upper()}_ID": IDS[component]} if component in IDS else {}
    environment |= {"POD_NAME": f"tide-tidemark-{component}-{IDS.get(component, 'x')}", "POD_IP": "10.0.0.9"}
    for each in container["env"]:
        if "value" in each:
            value = each["value"]
            for name, known in environment.items():
                value = value.replace(f"$({name})", known)
            environment[each["name"]] = value
    data = one(found, "ConfigMap", "tide-tidemark")["data"]
    file = directory / "settings.yaml"
    file.write_text(data[f"{component}.yaml"])
    environment["TIDEMARK_CONFIG"] = str(file)
    return read_settings(SERVICES[component], [], environment)


@pytest.mark.parametrize("component", SERVICES)
def test_the_service_reads_the_settings_of_the_chart(component: str, tmp_path: Path) -> None:
    found = secure(authorization={"superUsers": ["User:system:serviceaccount:ops:root"]})
    settings = settings_of(found, component, tmp_path)
    digit = {"broker": 2, "controller": 3, "admin": 4}[component]
    ports = {"internal": 9690 + digit, "clients.mtls": 9390 + digit, "clients.token": 9490 + digit}
    if component == "controller":
        ports = {"internal": 9693}
    assert {name: one.port for name, one in settings.listeners.by_name.items()} == ports
    assert {name: one.port for name, one in settings.advertised_listeners.by_name.items()} == ports
    assert settings.listeners.main.port == ports["internal"]
    hosts = {one.host for one in settings.advertised_listeners.by_name.values()}
    pod = f"tide-tidemark-{component}-{IDS.get(component)}.tide-tidemark-{component}-headless"
    assert hosts == {f"{pod if component in IDS else 'tide-tidemark-admin'}.{NAMESPACE}.svc.cluster.local"}
    assert settings.zookeeper_tls_certificate_file == settings.tls_certificate_file, "for tidemark zookeeper close"
    assert settings.zookeeper_tls_ca_file == settings.tls_ca_file == "/etc/tidemark-tls/ca.crt"
    pair = f"/etc/tidemark-tls/{component}-{IDS[component]}" if component in IDS else "/etc/tidemark-tls"
    assert (settings.tls_certificate_file, settings.tls_key_file) == (f"{pair}/tls.crt", f"{pair}/tls.key")
    if component != "controller":
        assert settings.authorization_enabled is True
        operator = f"User:tidemark://{CLUSTER}/user/operator"
        assert settings.super_users == (operator, "User:system:serviceaccount:ops:root")


def test_issuers_are_read_by_the_service(tmp_path: Path) -> None:
    other = {"issuer": "https://login.example.com", "audience": "tidemark", "jwks": "https://login.example.com/keys"}
    found = secure(tokens={"issuers": {"corp": other}, "serviceAccounts": {"keys": '{"keys": []}'}})
    data = one(found, "ConfigMap", "tide-tidemark")["data"]
    file = tmp_path / "issuers.yaml"
    file.write_text(data["issuers.yaml"])
    IssuersFile(str(file), 0)
    here = yaml.safe_load(data["issuers.yaml"])["kubernetes"]
    assert here["issuer"] == "https://kubernetes.default.svc.cluster.local"
    assert here["audience"] == f"tidemark:{NAMESPACE}/{NAME}"
    assert here["jwks"] == "/etc/tidemark/service-accounts.json"
    assert data["service-accounts.json"] == '{"keys": []}'
    mounts = [
        mount["mountPath"] for _, pod in pods(found) for each in pod["containers"] for mount in each["volumeMounts"]
    ]
    workloads = [dict(pods(found))[f"tide-tidemark-{component}"] for component in SERVICES]
    assert mounts
    assert not [
        mount
        for pod in workloads
        for each in pod["containers"]
        for mount in each["volumeMounts"]
        if "serviceaccount" in mount["mountPath"]
    ], "with given keys no service calls the API server"


def test_without_any_kind_of_token_there_is_no_listener_for_tokens() -> None:
    found = secure(tokens={"serviceAccounts": {"enabled": False}})
    assert "clients-token" not in json.dumps(found)
    with_static = secure(tokens={"serviceAccounts": {"enabled": False}, "existingSecret": "static"})
    broker = dict(pods(with_static))["tide-tidemark-broker"]
    assert {"name": "tokens", "mountPath": "/etc/tidemark-tokens", "readOnly": True} in broker["containers"][0][
        "volumeMounts"
    ]
    assert "clients-token" in json.dumps(with_static)


def test_the_certificate_of_each_pod_is_in_its_volume_under_its_own_path() -> None:
    found = secure()
    for component, ids in (("broker", range(12)), ("controller", (100, 101))):
        pod = dict(pods(found))[f"tide-tidemark-{component}"]
        (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == "tls"]
        secrets = {source["secret"]["name"]: source["secret"] for source in volume["sources"] if "secret" in source}
        assert set(secrets) == {f"tide-tidemark-{component}-{number}-tls" for number in ids}
        for number in ids:
            secret = secrets[f"tide-tidemark-{component}-{number}-tls"]
            paths = {item["key"]: item["path"] for item in secret["items"]}
            assert paths == {key: f"{component}-{number}/{key}" for key in ("tls.crt", "tls.key")}
            assert secret["optional"] is True, "a broker must start before later ones have a certificate"
        (waits,) = [each for each in pod["initContainers"] if each["name"] == "certificate"]
        names = [each["name"] for each in waits["env"]]
        assert names.index(f"TIDEMARK_{component.upper()}_ID") < names.index("TIDEMARK_TLS_CERTIFICATE_FILE")


def test_a_scale_up_restarts_no_broker() -> None:
    before, after = (
        one(manifests({**SECURE, "broker": {"replicas": number}}), "StatefulSet", "tide-tidemark-broker")
        for number in (3, 5)
    )
    assert before["spec"]["template"] == after["spec"]["template"]


def test_another_issuer_restarts_nothing() -> None:
    """Services read the file of issuers again when it changes."""
    other = {"issuer": "https://login.example.com", "audience": "tidemark", "jwks": "https://login.example.com/keys"}
    before, after = secure(), secure(tokens={"issuers": {"corp": other}})
    assert one(before, "ConfigMap", "tide-tidemark") != one(after, "ConfigMap", "tide-tidemark")
    for kind, name in (("StatefulSet", "tide-tidemark-broker"), ("Deployment", "tide-tidemark-admin")):
        assert one(before, kind, name) == one(after, kind, name)


@pytest.mark.parametrize("changed", [{"listener": "clients.mtls"}, {"type": "NodePort"}])
def test_other_external_addresses_restart_brokers(changed: dict[str, Any]) -> None:
    access = {"enabled": True, "hosts": ["a.example", "b.example", "c.example"], "nodePorts": [30001, 30002, 30003]}
    found = [manifests({**SECURE, "externalAccess": {**access, **more}}) for more in ({}, changed)]
    files, pods_before_after = [], []
    for each in found:
        files.append(one(each, "ConfigMap", "tide-tidemark")["data"]["broker-0.yaml"])
        pods_before_after.append(one(each, "StatefulSet", "tide-tidemark-broker")["spec"]["template"])
    assert files[0] != files[1]
    assert pods_before_after[0] != pods_before_after[1]


def test_metrics_with_tls_are_accepted_with_a_scrape_that_uses_it() -> None:
    endpoint = {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    scraped = {"monitoring": {"serviceMonitor": {"enabled": True, "endpoint": endpoint}}}
    manifests({**SECURE, "config": {"metrics.tls": "server"}, **scraped})
    manifests({**SECURE, "config": {"metrics.tls": "mutual"}})
    manifests({"config": {"metrics.tls": "none"}})


def test_names_as_long_as_kubernetes_permits_are_accepted() -> None:
    manifests({**SECURE, "fullnameOverride": "a" * 39})
    manifests({"fullnameOverride": "a" * 43})


def test_controllers_keep_their_ids() -> None:
    spec = one(secure(), "StatefulSet", "tide-tidemark-controller")["spec"]
    assert spec["ordinals"] == {"start": 100}
    assert spec["serviceName"] == "tide-tidemark-controller-headless"
    assert not [each for each in secure() if each["kind"] == "Deployment" and "controller" in each["metadata"]["name"]]


def admitted(policy: Manifest, labels: dict[str, str]) -> set[str]:
    """The ports that a pod of the namespace may call."""
    found: set[str] = set()
    for rule in policy["spec"]["ingress"]:
        for peer in rule.get("from", [{}]):
            selector = peer.get("podSelector", {})
            exact = selector.get("matchLabels", {}).items() <= labels.items()
            listed = all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []))
            if exact and listed and "namespaceSelector" not in peer:
                found |= {port["port"] for port in rule["ports"]}
    return found


def test_each_port_has_its_own_peers() -> None:
    named = [{"podSelector": {"matchLabels": {"is": name}}} for name in ("client", "prometheus")]
    found = manifests({**SECURE, "networkPolicy": {"clients": named[:1], "metrics": named[1:]}})
    ours = {"app.kubernetes.io/name": "tidemark", "app.kubernetes.io/instance": NAME}
    of_clients = {"clients-mtls", "clients-token"}
    callers = {
        "client": ({"is": "client"}, of_clients, set(), of_clients),
        "prometheus": ({"is": "prometheus"}, {"metrics"}, {"metrics"}, {"metrics"}),
        "other": ({"is": "other"}, set(), set(), set()),
        "broker": (ours | {"app.kubernetes.io/component": "broker"}, {"internal"}, {"internal"}, {"internal"}),
        "controller": (ours | {"app.kubernetes.io/component": "controller"}, {"internal"}, {"internal"}, {"internal"}),
        "admin": (
            ours | {"app.kubernetes.io/component": "admin"},
            {"internal", *of_clients},
            {"internal"},
            {"internal", *of_clients},
        ),
        "test": (ours | {"app.kubernetes.io/component": "test"}, of_clients, set(), of_clients),
        "certificates": (ours | {"app.kubernetes.io/component": "certificates"}, set(), set(), set()),
    }
    for name, (labels, *wanted) in callers.items():
        for component, ports in zip(("broker", "controller", "admin"), wanted, strict=True):
            policy = one(found, "NetworkPolicy", f"tide-tidemark-{component}")
            assert admitted(policy, labels) == ports, (name, component)
        ensemble = one(found, "NetworkPolicy", "tide-zookeeper")
        assert admitted(ensemble, labels) == ({"client-tls"} if name in SERVICES else set()), name


def test_the_operators_certificate_is_in_the_pods_of_admin_service_and_test_only() -> None:
    holders = [owner for owner, pod in pods(secure()) if "operator-tls" in json.dumps(pod.get("volumes"))]
    assert holders == ["tide-tidemark-admin", "tide-tidemark-test"]
    data = one(secure(), "ConfigMap", "tide-tidemark")["data"]
    assert f'bootstrap = "tide-tidemark-bootstrap.{NAMESPACE}.svc.cluster.local:9392"' in data["profiles.toml"]


@pytest.mark.parametrize(
    ("days", "renewal"),
    [
        *(
            (1, "*/10 * * * *"),
            (1, "0 */4 * * *"),
            (4, "17 3 * * *"),
            (4, "0 3 ? * ?"),
            (22, "0 3 1 * 0"),
            (94, "08 03 09 * *"),
        ),
        *((10, "0 3 * * 1-5"), (10, "0 3 * * MON-fri"), (7, "0 3 * * 1,3,5,6"), (7, "0 3 */2 * *"), (94, "0 0 1 * *")),
    ],
)
def test_a_schedule_that_replaces_certificates_in_time_is_accepted(days: int, renewal: str) -> None:
    job = one(secure(certificates={"days": days, "renewal": renewal}), "CronJob", "tide-tidemark-certificates")
    assert job["spec"]["schedule"] == renewal


def test_certificates_of_cert_manager_have_identity_names_and_one_subject() -> None:
    found = secure(certificates={"source": "certManager", "issuerRef": {"name": "company"}})
    made = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Certificate"}
    assert set(made) == {
        *(f"tide-tidemark-{name}-tls" for name in ("admin", "operator", "controller-100", "controller-101")),
        *(f"tide-tidemark-broker-{number}-tls" for number in range(3)),
        "tide-zookeeper-tls",
    }
    for name, spec in made.items():
        assert spec["secretName"] == name
        assert spec["issuerRef"] == {"name": "company", "kind": "Issuer", "group": "cert-manager.io"}
        assert spec["privateKey"]["encoding"] == "PKCS8", "ZooKeeper reads no other form"
        service = "operator" not in name and "zookeeper" not in name
        assert (spec["commonName"] == "services") is service, (
            "services share one subject, which no other certificate has"
        )
        assert ("server auth" in spec["usages"]) is ("operator" not in name)
    broker = made["tide-tidemark-broker-2-tls"]
    assert broker["uris"] == [f"tidemark://{CLUSTER}/broker/2"]
    assert f"tide-tidemark-broker-2.tide-tidemark-broker-headless.{NAMESPACE}.svc.cluster.local" in broker["dnsNames"]
    assert f"*.tide-zookeeper-headless.{NAMESPACE}.svc.cluster.local" in made["tide-zookeeper-tls"]["dnsNames"]
    assert not [each for each in found if each["kind"] in ("Job", "CronJob")]


def test_external_hosts_are_in_the_certificates_and_at_one_listener_only() -> None:
    hosts = ["b0.example.org", "b1.example.org:9492", "192.0.2.7"]
    values = {
        "security": {"mode": "secure", "certificates": {"source": "certManager", "issuerRef": {"name": "company"}}},
        "externalAccess": {"enabled": True, "hosts": hosts, "admin": {"host": "admin.example.org"}},
    }
    found = manifests({**ENSEMBLE, **values})
    data = one(found, "ConfigMap", "tide-tidemark")["data"]
    addresses = dict(
        address.split("://") for address in yaml.safe_load(data["broker-1.yaml"])["advertised.listeners"].split(",")
    )
    inside = f"tide-tidemark-broker-1.tide-tidemark-broker-headless.{NAMESPACE}.svc.cluster.local"
    assert addresses == {
        "internal": f"{inside}:9692",
        "clients.mtls": f"{inside}:9392",
        "clients.token": "b1.example.org:9492",
    }
    made = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Certificate"}
    assert "b1.example.org" in made["tide-tidemark-broker-1-tls"]["dnsNames"]
    assert made["tide-tidemark-broker-2-tls"]["ipAddresses"] == ["192.0.2.7"]
    balancer = one(found, "Service", "tide-tidemark-broker-1-external")["spec"]
    assert balancer["ports"] == [{"name": "clients-token", "port": 9492, "targetPort": "clients-token"}]


def test_the_job_may_change_only_the_secrets_that_it_makes() -> None:
    found = secure()
    rights = {name: one(found, "Role", f"tide-tidemark-certificates{name}")["rules"] for name in ("", "-now")}
    assert [rule["verbs"] for rule in rights["-now"][:-2]] == [["create"]]
    assert rights["-now"][-2:] == rights[""], "only the hook, whose account is deleted after it, may create"
    secrets, trust = rights[""]
    assert set(secrets["verbs"]) == {"get", "update"}
    job = one(found, "Job", "tide-tidemark-certificates-now")["spec"]["template"]["spec"]["containers"][0]
    made = {each["secret"] for each in json.loads(job["env"][0]["value"])["certificates"]}
    assert set(secrets["resourceNames"]) == {"tide-tidemark-authority", *made}
    assert trust["resourceNames"] == ["tide-tidemark-ca"]
    users = [owner for owner, pod in pods(found) if pod.get("serviceAccountName", "").endswith(("certificates", "now"))]
    assert sorted(users) == ["tide-tidemark-certificates", "tide-tidemark-certificates-now"]
    mounts = [owner for owner, pod in pods(found) if "authority" in json.dumps(pod.get("volumes"))]
    assert not mounts, "no pod has the key of the authority in a volume"


def test_production_values_are_secure_and_the_others_plain() -> None:
    production = yaml.safe_load((ROOT / "deploy" / "values-production.yaml").read_text())
    assert production["security"]["mode"] == "secure"
    production["image"]["digest"] = f"sha256:{'0' * 64}"
    found = manifests(production)
    assert "grpc" not in {
        port["name"] for _, pod in pods(found) for each in containers(pod) for port in each.get("ports", [])
    }
    assert not [each for each in manifests() if each["kind"] in ("Job", "CronJob", "Certificate")]


def with_security(**more: Any) -> dict[str, Any]:
    return {**SECURE, "security": {"mode": "secure", **more}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"security": {"mode": "secure"}}, "set zookeeper.tls.enabled: true"),
    (ENSEMBLE, "with security.mode: plain the chart makes no certificate"),
    ({"security": {"plainText": "open"}}, "security.plainText is open, but security.mode is plain"),
    (with_security(cluster="a..B"), "does not match pattern"),
    (
        {**with_security(certificates={"brokersMax": 2})},
        "broker.replicas is 3 and security.certificates.brokersMax 2",
    ),
    (
        with_security(certificates={"days": 3}),
        "the schedule 17 3 * * * of security.certificates.renewal may pause for 1 d",
    ),
    (with_security(certificates={"days": 21, "renewal": "0 3 * * 0"}), "may pause for 7 d: "),
    (with_security(certificates={"days": 18, "renewal": "0 3 * * 1,2"}), "may pause for 6 d: "),
    (with_security(certificates={"days": 9, "renewal": "0 3 * * 1-5"}), "may pause for 3 d: "),
    (with_security(certificates={"days": 21, "renewal": "0 3 */1 * 1"}), "may pause for 7 d: "),
    (with_security(certificates={"days": 93, "renewal": "0 3 31 * *"}), "may pause for 61 d: "),
    (with_security(certificates={"days": 90, "renewal": "0 3 1 FEB,mar *"}), "may pause for 337 d: "),
    (with_security(certificates={"days": 90, "renewal": "0 3 1 * *"}), "set days to 94 or more, or run the Job more"),
    (with_security(certificates={"renewal": "99 3 * * *"}), "renewal is 99 3 * * *, and 99 is no minute of a cron"),
    (with_security(certificates={"renewal": "0 24 * * *"}), "24 is no hour of a cron schedule: expected 0 to 23"),
    (with_security(certificates={"renewal": "0 3 0 * *"}), "0 is no day of the month of a cron schedule"),
    (with_security(certificates={"renewal": "0 3 * 1-13 *"}), "1-13 is no month of a cron schedule"),
    (
        with_security(certificates={"renewal": "0 3 * * 7"}),
        "7 is no day of the week of a cron schedule: expected 0 to 6",
    ),
    (with_security(certificates={"renewal": "0 3 * * monday"}), "monday is no day of the week"),
    (with_security(certificates={"renewal": "a 3 * * *"}), "a is no minute"),
    (with_security(certificates={"renewal": "0 5-3 * * *"}), "5-3 is no hour"),
    (with_security(certificates={"renewal": "*/0 3 * * *"}), "*/0 is no minute"),
    (with_security(certificates={"renewal": "0,,5 3 * * *"}), "renewal is 0,,5 3 * * *, and  is no minute"),
    (
        with_security(tokens={"serviceAccounts": {"keys": "https://kubernetes.default.svc/openid/v1/jwks"}}),
        "security.tokens.serviceAccounts.keys is not a JWKS",
    ),
    (with_security(tokens={"serviceAccounts": {"keys": '{"kty": "RSA"}'}}), "kubectl get --raw /openid/v1/jwks"),
    (with_security(authorization={"superUsers": ["User:ANONYMOUS"]}), "names User:ANONYMOUS"),
    (with_security(authorization={"superUsers": ["User:ANONYMOUS"]}, plainText="open"), "names User:ANONYMOUS, which"),
    (
        with_security(authorization={"superUsers": ["User:bob"]}),
        "superUsers names User:bob, and no caller",
    ),
    (with_security(authorization={"superUsers": ["User:oidc:bob"]}), "superUsers names User:oidc:bob, and no caller"),
    (with_security(certificates={"source": "certManager"}), "set security.certificates.issuerRef.name"),
    (
        with_security(certificates={"source": "existing", "generation": 2}),
        "replace the authority of your issuer, with both in security.trust.configMap meanwhile",
    ),
    (with_security(trust={"configMap": "company"}), "the chart's Job makes the authority and its ConfigMap"),
    (
        with_security(
            certificates={"source": "certManager", "issuerRef": {"name": "company"}}, trust={"configMap": "company"}
        ),
        "set both to the same ConfigMap",
    ),
    (with_security(plainText="used"), "set security.authorization.enabled: false for this step"),
    (
        {
            **with_security(tokens={"serviceAccounts": {"enabled": False}}),
            "externalAccess": {"enabled": True, "hosts": ["a", "b", "c"]},
        },
        "no tokens are accepted: set externalAccess.listener: clients.mtls",
    ),
    (with_security(tokens={"issuers": {"kubernetes": ISSUER}}), "choose another alias"),
    (with_security(tokens={"issuers": {"Corp": ISSUER}}), "/security/tokens/issuers"),
    (with_security(tokens={"issuers": {"corp": ISSUER | {"audiance": "x"}}}), "'audiance' not allowed"),
    (with_security(tokens={"issuers": {"corp": {"issuer": "https://a.example", "jwks": "/k"}}}), "'audience'"),
    (with_security(tokens={"issuers": {"corp": ISSUER | {"jwks": "http://a.example"}}}), "issuers/corp/jwks"),
    (
        with_security(tokens={"issuers": {"corp": ISSUER | {"kubernetes": True}}}),
        "corp has kubernetes: true, as security.tokens.serviceAccounts",
    ),
    (
        with_security(tokens={"issuers": {"corp": ISSUER, "shop": ISSUER}}),
        "corp and shop have the same issuer",
    ),
    (
        with_security(
            tokens={"issuers": {"corp": ISSUER | {"issuer": "https://kubernetes.default.svc.cluster.local"}}}
        ),
        "have the same issuer",
    ),
    (
        {**SECURE, "admin": {"extraEnv": [{"name": "XDG_CONFIG_HOME", "value": "/x"}]}},
        "admin.extraEnv names XDG_CONFIG_HOME: the chart sets this variable itself",
    ),
    ({"config": {"metrics.tls": "server"}}, "metrics.tls is server, and with security.mode: plain"),
    ({"broker": {"config": {"metrics.tls": "mutual"}}}, "metrics.tls is mutual, and with security.mode: plain"),
    (
        {
            **SECURE,
            "config": {"metrics.tls": "server"},
            "monitoring": {"serviceMonitor": {"enabled": True, "endpoint": {"tlsConfig": {}}}},
        },
        "set monitoring.serviceMonitor.endpoint to scheme: https",
    ),
    ({**SECURE, "fullnameOverride": "a" * 40}, "has 40 characters: a CronJob"),
    (with_security(cluster="a" * 65), "has 65 characters, and a certificate has 64 for it: set security.cluster"),
    (
        {
            **with_security(certificates={"source": "certManager", "issuerRef": {"name": "ca"}}),
            "fullnameOverride": "a" * 42,
        },
        "has 42 characters: a StatefulSet",
    ),
    (
        {"security": {"mode": "secure"}, "zookeeper": {"tls": {"existingSecret": "servers"}}},
        "services trust only the authority of the chart's Job",
    ),
    ({**SECURE, "config": {"tls.ca.file": "/x"}}, "which comes from security.certificates; remove it"),
    ({**SECURE, "broker": {"config": {"authorization.enabled": False}}}, "which comes from security.authorization"),
]


@pytest.mark.parametrize(("values", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_a_half_of_it_is_refused_with_the_next_step(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        manifests(values)
    assert sentence in str(refused.value)


def running(listeners: str, replicas: int = 3) -> dict[str, Any]:
    """The brokers' StatefulSet of a release with these listeners, as the API server has it."""
    container = {"name": "broker", "env": [{"name": "TIDEMARK_LISTENERS", "value": listeners}]}
    spec = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return {"StatefulSet/tide-tidemark-broker": {"spec": spec}}


PLAIN_ONLY = "0.0.0.0:9192"
USED = "plain://0.0.0.0:9192,internal://0.0.0.0:9692,clients.mtls://0.0.0.0:9392"
OPEN = "internal://0.0.0.0:9692,clients.mtls://0.0.0.0:9392,plain://0.0.0.0:9192"
CLOSED = "internal://0.0.0.0:9692,clients.mtls://0.0.0.0:9392"
BY_STEP: dict[str, dict[str, Any]] = {
    "plain": {},
    "used": with_security(plainText="used", authorization={"enabled": False}),
    "open": with_security(plainText="open"),
    "closed": SECURE,
}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (PLAIN_ONLY, "plain", ""),
        (PLAIN_ONLY, "used", ""),
        (PLAIN_ONLY, "open", "set security.mode: secure and security.plainText: used first"),
        (PLAIN_ONLY, "closed", "set security.mode: secure and security.plainText: used first"),
        (USED, "plain", ""),
        (USED, "open", ""),
        (USED, "closed", "set security.plainText: open first"),
        (OPEN, "plain", "and security.plainText: used first"),
        (OPEN, "used", ""),
        (OPEN, "closed", ""),
        (CLOSED, "closed", ""),
        (CLOSED, "open", ""),
        (CLOSED, "plain", "set security.plainText: open first"),
        (CLOSED, "used", "set security.plainText: open first"),
    ],
)
def test_a_running_release_takes_one_step_at_a_time(render: Render, before: str, after: str, sentence: str) -> None:
    refused = contextlib.nullcontext() if not sentence else pytest.raises(helm_python.HelmError, match=sentence)
    with refused:
        render(BY_STEP[after], None, running(before))
    render(BY_STEP[after], None, running(before, replicas=0))
