# SPDX-License-Identifier: Apache-2.0
"""Invalid values end `helm template` with a sentence that names the next step."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.charts.rendering import texts

EXTERNAL = {"enabled": True, "hosts": ["a.example", "b.example", "c.example"]}

SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "a name that Kubernetes refuses": (
        {"fullnameOverride": "Tide_Mark"},
        'names of objects would begin with "Tide_Mark"',
    ),
    "a name with a better one": (
        {"fullnameOverride": "Tide_Mark"},
        "set fullnameOverride, for example to tide-mark",
    ),
    "a name that begins with a digit": ({"fullnameOverride": "3tide"}, "for example to t-3tide"),
    "a name from a part": ({"nameOverride": "Log.One"}, "for example to tide-log-one"),
    "a name of the ensemble": (
        {"zookeeper": {"fullnameOverride": "Zoo.Keeper"}},
        "set zookeeper.fullnameOverride, for example to zoo-keeper",
    ),
    "a name that YAML reads as a boolean": ({"fullnameOverride": "on"}, "for example to t-on"),
    "a name of the ensemble that YAML reads as nothing": (
        {"zookeeper": {"fullnameOverride": "null"}},
        "set zookeeper.fullnameOverride, for example to zk-null",
    ),
    "a label of the selector": (
        {"broker": {"podLabels": {"app.kubernetes.io/name": "log"}}},
        "broker.podLabels names app.kubernetes.io/name, which the chart or Kubernetes sets itself; remove it",
    ),
    "a label of all pods": (
        {"admin": {"podLabels": {"app.kubernetes.io/part-of": "shop"}}},
        "admin.podLabels names app.kubernetes.io/part-of",
    ),
    "the label with the broker id": (
        {"broker": {"podLabels": {"apps.kubernetes.io/pod-index": "7"}}},
        "broker.podLabels names apps.kubernetes.io/pod-index",
    ),
    "a label of the ensemble": (
        {"zookeeper": {"podLabels": {"app.kubernetes.io/component": "zk"}}},
        "zookeeper: podLabels names app.kubernetes.io/component",
    ),
    "the annotation that restarts pods": (
        {"controller": {"podAnnotations": {"checksum/config": "0"}}},
        "controller.podAnnotations names checksum/config",
    ),
    "the annotation that restarts the ensemble": (
        {"zookeeper": {"podAnnotations": {"checksum/config": "0"}}},
        "zookeeper: podAnnotations names checksum/config",
    ),
    "a label of a monitor": (
        {"monitoring": {"serviceMonitor": {"labels": {"helm.sh/chart": "mine"}}}},
        "monitoring.serviceMonitor.labels names helm.sh/chart",
    ),
    "a field of a scrape that the chart writes": (
        {"monitoring": {"serviceMonitor": {"endpoint": {"relabelings": [{"action": "labeldrop", "regex": "pod"}]}}}},
        "monitoring.serviceMonitor.endpoint names relabelings, which the chart",
    ),
    "evictions of a quorum": (
        {"zookeeper": {"podDisruptionBudget": {"maxUnavailable": 2}}},
        "podDisruptionBudget.maxUnavailable is 2: of 3 servers too few for a quorum would remain; use at most 1",
    ),
    "a port of a broker for the admin service": (
        {
            "externalAccess": {
                "enabled": True,
                "type": "NodePort",
                "hosts": ["a", "b", "c"],
                "nodePorts": [30001, 30002, 30003],
                "admin": {"host": "a", "nodePort": 30002},
            }
        },
        "externalAccess.admin.nodePort is 30002, which a broker has",
    ),
    "a tag where a digest is required": (
        {"image": {"digestRequired": True}},
        "image.digestRequired is true and image.digest is empty: a tag such as docker.io/tidemark/tidemark:0.1.0",
    ),
    "a tag of the ensemble where a digest is required": (
        {"zookeeper": {"image": {"digestRequired": True}}},
        "set zookeeper.image.digest to the digest",
    ),
    "registrations that outlive the ensemble": (
        {"broker": {"shutdownSeconds": 300}},
        "zookeeper.registrationWaitSeconds is 100, but a broker may take broker.safeToRestartWaitSeconds and "
        "broker.shutdownSeconds, 330 s together",
    ),
    "no broker": ({"broker": {"replicas": 0}}, "a cluster needs a broker"),
    "fewer brokers than min ISR": (
        {"broker": {"replicas": 1}},
        "no record could ever be acknowledged",
    ),
    "min ISR above the factor": (
        {"topics": {"replicationFactor": 2, "minInsyncReplicas": 3}},
        "topics.minInsyncReplicas is 3 and topics.replicationFactor 2: no topic has that many replicas",
    ),
    "factor above the brokers": (
        {"broker": {"replicas": 2}},
        "topics.replicationFactor is 3 and broker.replicas 2: a broker holds one replica of a partition at most",
    ),
    "no controller": ({"controller": {"replicas": 0}}, "without a controller no leader is elected"),
    "no admin service": ({"admin": {"replicas": 0}}, "use at least 1"),
    "a disruption budget below min ISR": (
        {"broker": {"replicas": 5, "podDisruptionBudget": {"maxUnavailable": 2}}},
        "fewer than topics.minInsyncReplicas, 2, would remain; use at most 1",
    ),
    "two ZooKeepers": ({"externalZookeeper": {"connect": "zk:2181"}}, "choose one ensemble"),
    "no ZooKeeper": ({"zookeeper": {"enabled": False}}, "there is no ZooKeeper"),
    "an even ensemble": ({"zookeeper": {"replicas": 4}}, "choose 1, 3, 5 or 7"),
    "requests ZooKeeper would cut": ({"zookeeper": {"juteMaxBufferBytes": 1048576}}, "use at least 8388608"),
    "ZooKeeper's own lines": ({"zookeeper": {"config": {"clientPort": 1}}}, "which the chart writes itself"),
    "one log directory twice": (
        {"broker": {"logDirs": [{"name": "a", "size": "1Gi"}, {"name": "a", "size": "1Gi"}]}},
        "broker.logDirs names a twice",
    ),
    "a log directory called as another volume": (
        {"broker": {"logDirs": [{"name": "config", "size": "1Gi"}]}},
        "which is another volume of the pod",
    ),
    "external access without hosts": (
        {"externalAccess": {"enabled": True}},
        "externalAccess.hosts has 0 entries and broker.replicas is 3",
    ),
    "node ports too few": (
        {"externalAccess": {**EXTERNAL, "type": "NodePort", "nodePorts": [30920]}},
        "with 3 hosts and 1 nodePorts: add a port for each host",
    ),
    "a node port twice": (
        {"externalAccess": {**EXTERNAL, "type": "NodePort", "nodePorts": [30920, 30920, 30921]}},
        "names a port twice",
    ),
    "an admin host without its port": (
        {
            "externalAccess": {
                **EXTERNAL,
                "type": "NodePort",
                "nodePorts": [30920, 30921, 30922],
                "admin": {"host": "d.example"},
            }
        },
        "without externalAccess.admin.nodePort",
    ),
    "one load balancer for two": (
        {"externalAccess": {"enabled": True, "hosts": ["a.example", "a.example", "b.example"]}},
        "names a host twice",
    ),
    "a load balancer's port": (
        {"externalAccess": {"enabled": True, "hosts": ["a.example:80", "b.example", "c.example"]}},
        "the load balancer of a broker listens on 9192",
    ),
    "less time than the stop takes": (
        {"config": {"controlled.shutdown.max.wait.ms": 90000}},
        "brokers would be killed during their shutdown; use at least 116",
    ),
    "a setting as a variable": (
        {"broker": {"extraEnv": [{"name": "TIDEMARK_BROKER_ID", "value": "7"}]}},
        "broker.extraEnv names TIDEMARK_BROKER_ID: the chart sets this variable itself",
    ),
    "an unknown setting": (
        {"config": {"log.levle": "debug"}},
        "config names log.levle, which no service has",
    ),
    "another service's setting": (
        {"admin": {"config": {"num.read.threads": 3}}},
        "admin.config names num.read.threads, which is a setting of: broker",
    ),
    "a setting that the chart writes": (
        {"broker": {"config": {"broker.id": 7}}},
        "broker.config names broker.id, which comes from the pod's ordinal; remove it",
    ),
    "a number out of range": (
        {"broker": {"config": {"num.read.threads": 0}}},
        "broker.config: num.read.threads is 0: expected 1 to 256",
    ),
    "no number": ({"broker": {"config": {"num.read.threads": "two"}}}, "expected a whole number"),
    "half a number": ({"broker": {"config": {"num.read.threads": 1.5}}}, "expected a whole number"),
    "no such choice": ({"config": {"log.level": "loud"}}, "expected debug | info | warning | error"),
    "a scrape that outlasts its interval": (
        {"monitoring": {"serviceMonitor": {"enabled": True, "interval": "15s", "scrapeTimeout": "1m"}}},
        "monitoring.serviceMonitor.scrapeTimeout is 1m and interval 15s",
    ),
    "neither true nor false": ({"broker": {"config": {"log.cleaner.enable": "yes"}}}, "expected true | false"),
}

SCHEMA: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"brokre": {}}, "additional properties 'brokre' not allowed"),
    "an unknown value deep down": ({"broker": {"probes": {"ready": {}}}}, "additional properties 'ready' not allowed"),
    "an unknown value of the ensemble": ({"zookeeper": {"relicas": 3}}, "additional properties 'relicas' not allowed"),
    "no number of brokers": ({"broker": {"replicas": "three"}}, "/broker/replicas"),
    "no size": ({"broker": {"logDirs": [{"name": "a", "size": "big"}]}}, "/broker/logDirs/0/size"),
    "no log directory": ({"broker": {"logDirs": []}}, "/broker/logDirs"),
    "a rack from nowhere": ({"rack": {"source": "sky"}}, "/rack/source"),
    "an address that is none": ({"externalZookeeper": {"connect": "zk"}}, "/externalZookeeper/connect"),
    "a label that Kubernetes refuses": ({"broker": {"podLabels": {"team": "a b"}}}, "/broker/podLabels/team"),
    "a label's name that Kubernetes refuses": (
        {"broker": {"podLabels": {"a/b/c": "d"}}},
        "'a/b/c' does not match pattern",
    ),
    "a label of the ensemble that Kubernetes refuses": (
        {"zookeeper": {"podLabels": {"team": "-"}}},
        "/podLabels/team",
    ),
    "a tag that is none": ({"image": {"tag": "0.1 beta"}}, "/image/tag"),
    "a tag with its repository": ({"image": {"repository": "a.example/tidemark:1"}}, "/image/repository"),
    "a tag of the ensemble that is none": ({"zookeeper": {"image": {"tag": ":3"}}}, "/image/tag"),
    "scrapes without a pause": ({"monitoring": {"serviceMonitor": {"interval": "0s"}}}, "/serviceMonitor/interval"),
    "a setting that is a list": ({"config": {"log.level": ["debug"]}}, "/config/log.level"),
}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(helm_python.HelmError) as caught:
        texts(values)
    return str(caught.value)


@pytest.mark.parametrize("case", SENTENCES)
def test_an_invalid_combination_is_refused_with_a_sentence(case: str) -> None:
    values, sentence = SENTENCES[case]
    assert sentence in refusal(values)


@pytest.mark.parametrize("case", SCHEMA)
def test_a_value_of_the_wrong_type_is_refused_by_the_schema(case: str) -> None:
    values, sentence = SCHEMA[case]
    assert sentence in refusal(values)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (1073741824, '"1073741824"'),
        (-1, '"-1"'),
        ("12", '"12"'),
    ],
)
def test_a_number_reaches_the_services_unchanged(given: object, written: str) -> None:
    key = "replica.alter.log.dirs.io.max.bytes.per.second" if given != "12" else "num.read.threads"
    config = texts({"broker": {"config": {key: given}}})["tidemark/templates/configmap.yaml"]
    assert f"{key}: {written}" in config


@pytest.mark.parametrize("enabled", ["auto", False])
def test_times_of_scrapes_are_free_without_a_monitor(enabled: object) -> None:
    monitor = {"enabled": enabled, "interval": "5s"}
    assert texts({"monitoring": {"serviceMonitor": monitor}}), "scrapeTimeout is 10s by default"


def test_an_image_with_a_digest_may_also_have_a_tag_in_its_repository() -> None:
    """Kubernetes ignores the tag beside a digest; the chart of 0.1.0 took such a value."""
    digest = f"sha256:{'0' * 64}"
    image = {"repository": "a.example:5000/tidemark:1.2", "digest": digest}
    rendered = texts({"image": image, "zookeeper": {"image": image}})
    assert f"a.example:5000/tidemark:1.2@{digest}" in rendered["tidemark/templates/admin-deployment.yaml"]
