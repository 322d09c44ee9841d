# SPDX-License-Identifier: Apache-2.0
"""The rendered objects match Kubernetes' schemas and the rules of the chart."""

from __future__ import annotations

import copy
import json
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from tidemark.runtime.configuration.keys import KEYS

from tests.charts.rendering import (
    CHARTS,
    NAME,
    NAMESPACE,
    SETS,
    Manifest,
    containers,
    documents,
    manifests,
    one,
    pods,
    rendered,
    values_of,
)

PORTS = {
    owner: int((KEYS["listeners"].default_for(owner) or "").rpartition(":")[2])
    for owner in ("broker", "controller", "admin")
}
"""The ports of docs/configuration.md; metrics ports are 100 higher."""

VERSIONS = ("1.29", "1.34")
OPERATOR = "monitoring.coreos.com/v1"
DEFINED_ELSEWHERE = (OPERATOR, "cert-manager.io/v1")
SECURE = ("secure", "moving")
BROKER = "tide-tidemark-broker"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_every_object_is_strictly_valid(name: str, version: str) -> None:
    for manifest in rendered(name):
        if manifest["apiVersion"] not in DEFINED_ELSEWHERE:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_every_object_has_the_namespace_and_a_unique_name(name: str) -> None:
    found = rendered(name)
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(names)) == len(names)
    for each in found:
        if not each["kind"].startswith("ClusterRole"):
            assert each["metadata"]["namespace"] == NAMESPACE


@pytest.mark.parametrize("name", SETS)
def test_every_pod_meets_the_restricted_standard(name: str) -> None:
    found = pods(list(rendered(name)))
    assert found
    for owner, pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True, owner
        assert pod["securityContext"]["runAsUser"] > 0, owner
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), owner
        for volume in pod.get("volumes", []):
            assert set(volume) - {"name"} <= {"configMap", "emptyDir", "projected", "secret"}, owner
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, owner
            assert security["capabilities"] == {"drop": ["ALL"]}, owner
            assert security["readOnlyRootFilesystem"] is True, owner
            assert all("hostPort" not in port for port in container.get("ports", [])), owner


@pytest.mark.parametrize("name", SETS)
def test_only_containers_that_call_the_api_server_have_its_token(name: str) -> None:
    brokers = ["rack"] if name not in ("dev", "external") else []
    wanted = {BROKER: brokers}
    if name == "secure":
        wanted = {
            BROKER: [*brokers, "broker"],
            "tide-tidemark-admin": ["admin"],
            "tide-tidemark-certificates": ["certificates"],
            "tide-tidemark-certificates-now": ["certificates"],
        }
    for owner, pod in pods(list(rendered(name))):
        assert pod["automountServiceAccountToken"] is False, owner
        holders = [
            each["name"]
            for each in containers(pod)
            if any("serviceaccount" in mount["mountPath"] for mount in each.get("volumeMounts", []))
        ]
        assert holders == wanted.get(owner, [])


@pytest.mark.parametrize("name", SETS)
def test_every_container_has_requests_and_limits(name: str) -> None:
    for owner, pod in pods(list(rendered(name))):
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), owner
            assert "memory" in container["resources"]["limits"], owner


@pytest.mark.parametrize("name", SETS)
def test_every_mount_has_its_volume(name: str) -> None:
    for each in rendered(name):
        for owner, pod in pods([each]):
            claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
            volumes = {volume["name"] for volume in pod.get("volumes", [])} | set(claims)
            mounted = {mount["name"] for one in containers(pod) for mount in one.get("volumeMounts", [])}
            assert mounted == volumes, owner


@pytest.mark.parametrize("component", PORTS)
@pytest.mark.parametrize("name", SETS)
def test_probes_use_grpc_and_ports_match_the_documentation(name: str, component: str) -> None:
    pod = dict(pods(list(rendered(name))))[f"tide-tidemark-{component}"]
    (container,) = pod["containers"]
    port = PORTS[component]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    environment = {each["name"]: each.get("value") for each in container["env"]}
    if name in SECURE:
        assert ports["metrics"] == port + 100
        assert environment["TIDEMARK_HEALTH_LISTENERS"] == f"0.0.0.0:{ports['health']}"
        assert environment["TIDEMARK_METRICS_LISTENERS"] == f"0.0.0.0:{port + 100}"
        probed = ports["health"]
    else:
        assert ports == {"grpc": port, "metrics": port + 100}
        assert environment["TIDEMARK_LISTENERS"] == f"0.0.0.0:{port}"
        probed = port
    assert container["startupProbe"]["grpc"] == {"port": probed, "service": "liveness"}
    assert container["livenessProbe"]["grpc"] == {"port": probed, "service": "liveness"}
    assert container["readinessProbe"]["grpc"] == {"port": probed, "service": "readiness"}
    assert environment["TIDEMARK_TERMINATION_MESSAGE_PATH"] == container["terminationMessagePath"]


@pytest.mark.parametrize("name", SETS)
def test_every_service_selects_existing_ports(name: str) -> None:
    found = list(rendered(name))
    labelled = [
        (each["spec"]["template"]["metadata"]["labels"], each["spec"]["template"]["spec"])
        for each in found
        if each["kind"] in ("StatefulSet", "Deployment")
    ]
    for service in (each for each in found if each["kind"] == "Service"):
        wanted = {
            key: value
            for key, value in service["spec"]["selector"].items()
            if key != "statefulset.kubernetes.io/pod-name"
        }
        chosen = [pod for labels, pod in labelled if wanted.items() <= labels.items()]
        assert len(chosen) == 1, service["metadata"]["name"]
        names = {port["name"] for port in chosen[0]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_claims_of_log_directories_outlive_the_release() -> None:
    broker = one(rendered("production"), "StatefulSet", BROKER)["spec"]
    claims = {each["metadata"]["name"]: each["spec"] for each in broker["volumeClaimTemplates"]}
    assert list(claims) == ["data-0", "data-1"]
    assert claims["data-1"]["resources"]["requests"]["storage"] == "500Gi"
    assert broker["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    config = one(rendered("production"), "ConfigMap", "tide-tidemark")["data"]["broker.yaml"]
    assert yaml.safe_load(config)["log.dirs"] == "/var/lib/tidemark/data-0/log,/var/lib/tidemark/data-1/log"


def test_broker_id_is_the_ordinal_and_address_the_pod_name() -> None:
    (container,) = dict(pods(list(rendered("default"))))[BROKER]["containers"]
    environment = {each["name"]: each for each in container["env"]}
    index = environment["TIDEMARK_BROKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.labels['apps.kubernetes.io/pod-index']"
    advertised = f"$(POD_NAME).{BROKER}-headless.{NAMESPACE}.svc.cluster.local:9192"
    assert environment["TIDEMARK_ADVERTISED_LISTENERS"]["value"] == advertised
    headless = one(rendered("default"), "Service", f"{BROKER}-headless")["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_grace_period_covers_wait_and_stop() -> None:
    pod = dict(pods(list(rendered("default"))))[BROKER]
    assert pod["terminationGracePeriodSeconds"] == 30 + 60 + 10
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    script = hook[-1].removeprefix("/etc/tidemark/")
    assert "safe-to-restart" in one(rendered("default"), "ConfigMap", "tide-tidemark")["data"][script]
    at_once = dict(pods(manifests({"broker": {"safeToRestartWaitSeconds": 0}})))[BROKER]
    assert at_once["terminationGracePeriodSeconds"] == 70
    assert "lifecycle" not in at_once["containers"][0]


def test_grace_period_of_the_ensemble_covers_the_brokers_stop_and_its_own() -> None:
    pod = dict(pods(list(rendered("default"))))["tide-zookeeper"]
    broker = dict(pods(list(rendered("default"))))[BROKER]
    _, script, wait_s, _ = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert int(wait_s) >= 30 + 60
    assert pod["terminationGracePeriodSeconds"] == int(wait_s) + 30 > broker["terminationGracePeriodSeconds"]
    assert "mntr" in one(rendered("default"), "ConfigMap", "tide-zookeeper")["data"][script.removeprefix("/hooks/")]
    at_once = dict(pods(manifests({"zookeeper": {"registrationWaitSeconds": 0}})))["tide-zookeeper"]
    assert at_once["terminationGracePeriodSeconds"] == 30
    assert "lifecycle" not in at_once["containers"][0]


def test_min_insync_replicas_of_the_values_reaches_new_topics() -> None:
    data = one(manifests({"topics": {"minInsyncReplicas": 1}}), "ConfigMap", "tide-tidemark")["data"]
    assert yaml.safe_load(data["admin.yaml"])["default.min.insync.replicas"] == "1"


def test_broker_of_0_1_0_that_restarts_during_an_upgrade_knows_its_settings() -> None:
    """Old pods read the new ConfigMap while `broker.updatePartition` delays their upgrade."""
    known = {
        *("admin.address", "log.dirs", "log.dirs.trust.boot.id", "log.format"),
        *("offsets.topic.replication.factor", "zookeeper.connect"),
    }
    data = one(rendered("default"), "ConfigMap", "tide-tidemark")["data"]
    assert set(yaml.safe_load(data["broker.yaml"])) <= known
    two = one(manifests({"topics": {"replicationFactor": 2, "minInsyncReplicas": 1}}), "ConfigMap", "tide-tidemark")
    assert yaml.safe_load(two["data"]["broker.yaml"])["transaction.state.log.replication.factor"] == "2"


def test_the_ensemble_tolerates_the_fsyncs_of_a_starved_machine() -> None:
    """Fsyncs of 2.9 s were seen; a follower that acknowledges no write for `syncLimit` ticks is dropped."""
    lines = one(rendered("default"), "ConfigMap", "tide-zookeeper")["data"]["zoo.cfg"].splitlines()
    config = dict(line.split("=", 1) for line in lines)
    assert int(config["tickTime"]) * int(config["syncLimit"]) > 2900


def test_lines_of_the_ensembles_configuration_may_be_added_changed_and_removed() -> None:
    values = {"zookeeper": {"config": {"syncLimit": 20, "globalOutstandingLimit": 1000, "snapCount": None}}}
    lines = one(manifests(values), "ConfigMap", "tide-zookeeper")["data"]["zoo.cfg"].splitlines()
    assert {"syncLimit=20", "globalOutstandingLimit=1000", "tickTime=500"} <= set(lines)
    assert not [line for line in lines if line.startswith("snapCount")]


def test_only_broker_settings_restart_brokers() -> None:
    def checksums(values: dict[str, Any]) -> dict[str, str]:
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in manifests(values)
            if each["kind"] in ("StatefulSet", "Deployment")
        }

    before = checksums({})
    changed = checksums({"broker": {"config": {"num.read.threads": 4}}})
    assert {name for name in before if before[name] != changed[name]} == {BROKER}
    assert checksums({"broker": {"replicas": 5}}) == before


def test_scale_up_with_listed_hosts_changes_no_running_broker() -> None:
    values = values_of("external")
    grown = copy.deepcopy(values) | {"broker": {"replicas": 4}}
    before, after = (one(manifests(each), "StatefulSet", BROKER) for each in (values, grown))
    assert before["spec"]["template"] == after["spec"]["template"]


def test_each_broker_has_its_own_load_balancer() -> None:
    found = rendered("balanced")
    balancers = [each for each in found if each["kind"] == "Service" and each["spec"].get("type") == "LoadBalancer"]
    assert len(balancers) == 3 + 1
    for each in balancers:
        assert each["spec"]["loadBalancerClass"] == "example.org/balancer"
        assert each["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    data = one(found, "ConfigMap", "tide-tidemark")["data"]
    assert [yaml.safe_load(data[f"broker-{number}.yaml"])["advertised.listeners"] for number in range(3)] == [
        "b0.example.org:9192",
        "b1.example.org:9192",
        "b2.example.org:9192",
    ]


def test_upgrade_with_hard_anti_affinity_needs_no_extra_node() -> None:
    for values, surge in ((rendered("default"), 1), (rendered("production"), 0)):
        update = one(values, "Deployment", "tide-tidemark-controller")["spec"]["strategy"]["rollingUpdate"]
        assert update == {"maxSurge": surge, "maxUnavailable": 1 - surge}


def test_another_external_address_restarts_brokers() -> None:
    values = values_of("external")
    moved = copy.deepcopy(values)
    moved["externalAccess"]["nodePorts"][0] = 30950
    before, after = (one(manifests(each), "StatefulSet", BROKER) for each in (values, moved))
    assert before["spec"]["template"] != after["spec"]["template"]


def test_names_fit_for_a_long_release_name() -> None:
    with helm_python.Chart.load(CHARTS / "tidemark") as chart:
        found = chart.render(values_of("external"), name="r" * 53, namespace=NAMESPACE)
    with helm_python.Chart.load(CHARTS / "tidemark") as chart:
        found |= chart.render({}, name="r" * 53, namespace=NAMESPACE)
    longest = {"Service": 63, "StatefulSet": 63 - len("-0123456789"), "Deployment": 63}
    for text in found.values():
        for each in documents(text) if "kind:" in text else ():
            if each["kind"] in longest:
                assert len(each["metadata"]["name"]) <= longest[each["kind"]], each["metadata"]["name"]


@pytest.mark.parametrize("name", SETS)
def test_chart_writes_names_that_look_like_numbers_as_texts(name: str) -> None:
    """A namespace may be a short commit id such as 12e4567, which YAML reads as a number."""
    with helm_python.Chart.load(CHARTS / "tidemark") as chart:
        found = chart.render(values_of(name), name="on", namespace="12e4567")
    for path, text in found.items():
        for each in documents(text) if path.endswith(".yaml") and "kind:" in text else ():
            if each["apiVersion"] not in DEFINED_ELSEWHERE:
                kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
            assert each["metadata"].get("namespace", "12e4567") == "12e4567"
            assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "on"
            if each["kind"] == "ServiceMonitor":
                assert each["spec"]["namespaceSelector"] == {"matchNames": ["12e4567"]}


def test_chart_writes_given_names_that_look_like_numbers_as_texts() -> None:
    ensemble = {"priorityClassName": "123", "tls": {"enabled": True, "existingSecret": "456", "trustConfigMap": "123"}}
    found = manifests(
        {
            "serviceAccount": {"name": "123"},
            "broker": {"priorityClassName": "1e3", "logDirs": [{"name": "0", "size": "1Gi"}]},
            "externalAccess": {"enabled": True, "hosts": ["a", "b", "c"], "loadBalancerClass": "123"},
            "zookeeperTls": {"existingSecret": "123"},
            "zookeeper": ensemble,
        }
    )
    security = {"mode": "secure", "trust": {"configMap": "123"}, "tokens": {"existingSecret": "1"}}
    security["certificates"] = {"source": "existing"}
    found += manifests({"security": security, "zookeeper": ensemble})
    for each in found:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)


def test_settings_of_a_service_override_those_of_all_services_also_if_false_or_zero() -> None:
    of_all, own = (
        {"metrics.partitions": True, "shutdown.grace.ms": 5000},
        {"metrics.partitions": False, "shutdown.grace.ms": 0},
    )
    found = manifests({"config": of_all, "broker": {"config": own}})
    settings = yaml.safe_load(one(found, "ConfigMap", "tide-tidemark")["data"]["broker.yaml"])
    assert (settings["metrics.partitions"], settings["shutdown.grace.ms"]) == ("false", "0")


def test_stop_without_a_wait_of_its_own_needs_less_time() -> None:
    manifests({"broker": {"config": {"controlled.shutdown.max.wait.ms": 0}, "shutdownSeconds": 26}})


def test_certificates_of_cert_manager_have_a_cluster_name_that_looks_like_a_number() -> None:
    certificates = {"source": "certManager", "issuerRef": {"name": "company"}}
    security = {"mode": "secure", "cluster": "123", "certificates": certificates}
    found = manifests({"security": security, "zookeeper": {"tls": {"enabled": True}}})
    subjects = [each["spec"]["subject"] for each in found if each["kind"] == "Certificate"]
    assert subjects == [{"organizations": ["123"]}] * len(subjects)
    assert subjects


def test_pods_of_hooks_run_on_the_nodes_of_the_admin_service() -> None:
    """On other nodes, which may all have taints, the Job before an installation would stay Pending."""
    admin = {"nodeSelector": {"pool": "kafka"}, "tolerations": [{"operator": "Exists"}]}
    found = dict(pods(manifests({**values_of("secure"), "admin": admin})))
    for name in ("test", "certificates", "certificates-now"):
        pod = found[f"tide-tidemark-{name}"]
        assert {field: pod[field] for field in admin} == admin


def zookeeper_policy(found: list[Manifest] | tuple[Manifest, ...]) -> Manifest:
    return one(found, "NetworkPolicy", f"{NAME}-zookeeper")["spec"]


def admits(policy: Manifest, labels: dict[str, str], port: str) -> bool:
    """Whether the policies allow a pod of the same namespace with these labels to call this port."""

    def matches(selector: dict[str, Any]) -> bool:
        exact = selector.get("matchLabels", {}).items() <= labels.items()
        return exact and all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []))

    for rule in policy["ingress"]:
        if any(each["port"] == port for each in rule["ports"]):
            peers = rule.get("from")
            if peers is None or any(matches(peer["podSelector"]) for peer in peers if set(peer) == {"podSelector"}):
                return True
    return False


@pytest.mark.parametrize("name", ["default", "production"])
def test_zookeeper_is_reachable_from_services_only(name: str) -> None:
    policy = zookeeper_policy(rendered(name))
    of = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in rendered(name)
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    test = one(rendered(name), "Pod", "tide-tidemark-test")["metadata"]["labels"]
    for component in PORTS:
        assert admits(policy, of[f"tide-tidemark-{component}"], "client"), component
        assert not admits(policy, of[f"tide-tidemark-{component}"], "election"), component
        other = of[f"tide-tidemark-{component}"] | {"app.kubernetes.io/instance": "other"}
        assert not admits(policy, other, "client")
    for port in ("client", "follower", "election"):
        assert admits(policy, of["tide-zookeeper"], port)
        assert not admits(policy, test, port)
        assert not admits(policy, {}, port)


@pytest.mark.parametrize(
    ("policy", "broker", "admin"),
    [
        ({}, {"client", "operator", "prometheus"}, {"client", "operator", "prometheus"}),
        ({"clients": ["client"]}, {"client"}, {"client"}),
        ({"clients": ["client"], "admin": ["operator"]}, {"client"}, {"operator"}),
        ({"clients": ["client"], "admin": []}, {"client"}, {"client", "operator", "prometheus"}),
        ({"admin": ["operator"]}, {"client", "operator", "prometheus"}, {"operator"}),
    ],
)
def test_clients_operators_and_metrics_have_separate_lists(
    policy: dict[str, list[str]], broker: set[str], admin: set[str]
) -> None:
    peers = {name: [{"podSelector": {"matchLabels": {"is": each}}} for each in given] for name, given in policy.items()}
    metrics = [{"podSelector": {"matchLabels": {"is": "prometheus"}}}]
    found = manifests({"networkPolicy": {**peers, "metrics": metrics}})
    pods_of = {"broker": broker, "admin": admin, "controller": set()}
    for component, callers in pods_of.items():
        spec = one(found, "NetworkPolicy", f"tide-tidemark-{component}")["spec"]
        for name in ("client", "operator", "prometheus"):
            assert admits(spec, {"is": name}, "grpc") is (name in callers), (component, name)
            assert admits(spec, {"is": name}, "metrics") is (name == "prometheus"), (component, name)


def test_named_clients_may_not_call_controllers() -> None:
    stranger = {"app": "anything"}
    for component, open_to_all in (("broker", True), ("admin", True), ("controller", False)):
        policy = one(rendered("default"), "NetworkPolicy", f"tide-tidemark-{component}")["spec"]
        assert admits(policy, stranger, "grpc") is open_to_all
        named = one(rendered("production"), "NetworkPolicy", f"tide-tidemark-{component}")["spec"]
        assert not admits(named, stranger, "grpc")
        ours = {"app.kubernetes.io/name": "tidemark", "app.kubernetes.io/instance": NAME}
        assert admits(policy, ours, "grpc")
        assert admits(named, ours, "grpc")


def test_disruption_budget_allows_one_pod_if_there_are_several() -> None:
    budgets = {
        each["metadata"]["name"]: each["spec"]["maxUnavailable"]
        for each in rendered("production")
        if each["kind"] == "PodDisruptionBudget"
    }
    assert budgets == {
        "tide-tidemark-broker": 1,
        "tide-tidemark-controller": 1,
        "tide-tidemark-admin": 1,
        "tide-zookeeper": 1,
    }
    assert not [each for each in rendered("dev") if each["kind"] == "PodDisruptionBudget"]


def test_four_letter_words_are_limited_and_servers_are_listed() -> None:
    config = one(rendered("default"), "ConfigMap", "tide-zookeeper")["data"]["zoo.cfg"].splitlines()
    assert "4lw.commands.whitelist=ruok,srvr,mntr" in config
    assert "admin.enableServer=false" in config
    members = [line for line in config if line.startswith("server.")]
    host = f"tide-zookeeper-{{}}.tide-zookeeper-headless.{NAMESPACE}.svc.cluster.local"
    assert members == [f"server.{number}={host.format(number)}:2888:3888" for number in (1, 2, 3)]
    ensemble = one(rendered("default"), "StatefulSet", "tide-zookeeper")["spec"]
    assert ensemble["ordinals"] == {"start": 1}
    broker = one(rendered("default"), "ConfigMap", "tide-tidemark")["data"]["broker.yaml"]
    connect = ",".join(f"{host.format(number)}:2181" for number in (1, 2, 3))
    assert yaml.safe_load(broker)["zookeeper.connect"] == connect


def test_each_broker_advertises_its_own_external_address() -> None:
    found = rendered("external")
    data = one(found, "ConfigMap", "tide-tidemark")["data"]
    for ordinal in range(4):
        settings = yaml.safe_load(data[f"broker-{ordinal}.yaml"])
        assert settings["advertised.listeners"] == f"broker-{ordinal}.example.org:3092{ordinal}"
        assert settings["admin.address"] == "admin.example.org:30940"
    for ordinal in range(3):
        service = one(found, "Service", f"{BROKER}-{ordinal}-external")["spec"]
        assert service["type"] == "NodePort"
        assert service["ports"][0]["nodePort"] == 30920 + ordinal
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"{BROKER}-{ordinal}"
    (container,) = dict(pods(list(found)))[BROKER]["containers"]
    environment = {each["name"]: each for each in container["env"]}
    assert "TIDEMARK_ADVERTISED_LISTENERS" not in environment
    assert environment["TIDEMARK_CONFIG"]["value"] == "/etc/tidemark/broker-$(TIDEMARK_BROKER_ID).yaml"
    rack = environment["TIDEMARK_BROKER_RACK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert rack == "metadata.labels['topology.kubernetes.io/zone']"


def test_monitoring_objects_exist_when_enabled() -> None:
    assert not [each for each in rendered("default") if each["apiVersion"] == OPERATOR]
    enabled: dict[str, dict[str, Any]] = {
        name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")
    }
    enabled["serviceMonitor"]["endpoint"] = {"scheme": "https", "tlsConfig": {"serverName": "tide"}}
    secure = {"security": {"mode": "secure"}, "zookeeper": {"tls": {"enabled": True}}}
    found = manifests({**secure, "monitoring": enabled, "config": {"metrics.tls": "server"}})
    monitor = one(found, "ServiceMonitor", "tide-tidemark")["spec"]
    assert monitor["endpoints"][0]["port"] == "metrics"
    assert monitor["endpoints"][0]["tlsConfig"] == {"serverName": "tide"}
    (components,) = monitor["selector"]["matchExpressions"]
    watched = [
        each["metadata"]["name"]
        for each in found
        if each["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        and each["metadata"]["labels"][components["key"]] in components["values"]
    ]
    assert sorted(watched) == ["tide-tidemark-admin", f"{BROKER}-headless", "tide-tidemark-controller-headless"]
    rules = [each["spec"]["groups"] for each in found if each["kind"] == "PrometheusRule"]
    assert len(rules) == len(list((CHARTS / "tidemark" / "files" / "prometheus").glob("tidemark-*.yaml")))
    assert all(group["rules"] for groups in rules for group in groups)
    boards = [each for each in found if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    assert len(boards) == len(list((CHARTS / "tidemark" / "files" / "grafana").glob("*.json")))
    assert all(json.loads(text)["panels"] for board in boards for text in board["data"].values())
