# SPDX-License-Identifier: Apache-2.0
"""deploy/spark: its manifests for Kubernetes, and the effect of the flags of submit.sh. No cluster is needed here."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy" / "spark"
JOBS = sorted(path.stem for path in (ROOT / "spark" / "pipelines").glob("*.py"))
KUBECTL = """#!/bin/sh
case "$*" in
*server*) echo https://10.0.0.1:6443 ;;
*namespace*) echo data ;;
logs*) echo "3 findings" ;;
*exitCode*) echo 1 ;;
esac
"""
SPARK_SUBMIT = """#!/bin/sh
test -z "$REFUSED" || { echo "no such host"; exit 7; }
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A kubectl whose context is namespace data, and whose driver ended with 1; and a spark-submit."""
    for name, text in (("kubectl", KUBECTL), ("spark-submit", SPARK_SUBMIT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def submit(programs: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        [str(DEPLOY / "submit.sh"), *words],
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def driver(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """The job that `helm template audit deploy/spark` makes of these values."""
    with helm_python.Chart.load(DEPLOY) as chart:
        made = chart.render(values or {}, name="audit", namespace="data")
    job: dict[str, Any] = yaml.safe_load(made["tidemark-spark-driver/templates/driver.yaml"])
    return job


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return dict(only)


def bootstrap_of(job: dict[str, Any]) -> str:
    (address,) = [each["value"] for each in container_of(job)["env"] if each["name"] == "TIDEMARK_BOOTSTRAP"]
    return str(address)


def test_submitting_makes_pods_of_the_template_in_the_namespace_of_the_context(programs: Path) -> None:
    flags = ["--executors", "4", "--volume", "archives:/archives", "--conf", "a=b c", "--print"]
    done = submit(programs, *flags, "archive", "--bootstrap", "b:9192", "--topic", "orders", "--every", "1 minute")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[:5] == ["spark-submit", "--master", "k8s://https://10.0.0.1:6443", "--deploy-mode", "cluster"]
    assert words[words.index("--num-executors") + 1] == "4"
    settings = {words[index + 1] for index, word in enumerate(words) if word == "--conf"}
    claim = "volumes.persistentVolumeClaim.archives"
    assert settings >= {
        "spark.kubernetes.namespace=data",
        f"spark.kubernetes.driver.podTemplateFile={DEPLOY}/pod.yaml",
        f"spark.kubernetes.executor.{claim}.options.claimName=archives",
        f"spark.kubernetes.driver.{claim}.mount.path=/archives",
        "a=b c",
    }
    job = words.index("local:///opt/pipelines/archive.py")
    assert words[job + 1 :] == ["--bootstrap", "b:9192", "--topic", "orders", "--every", "1 minute"]


def settings_of(printed: str) -> set[str]:
    words = shlex.split(printed)
    return {words[index + 1] for index, word in enumerate(words) if word == "--conf"}


def test_every_flag_reaches_spark(programs: Path) -> None:
    flags = ["--namespace=jobs", "--image", "registry/spark:1", "--executors=3", "--cores", "2", "--memory", "4g"]
    flags += ["--service-account", "runner", "--master", "k8s://https://api:443", "--name", "nightly-1", "--detach"]
    done = submit(programs, *flags, "--print", "audit", "--topic", "orders", "--namespace", "the job's own")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    flags_of_spark = {words[index]: words[index + 1] for index in range(1, words.index("--conf"), 2)}
    assert flags_of_spark == {
        "--master": "k8s://https://api:443",
        "--deploy-mode": "cluster",
        "--name": "tidemark-audit",
        "--driver-memory": "4g",
        "--executor-memory": "4g",
        "--executor-cores": "2",
        "--num-executors": "3",
    }
    assert settings_of(done.stdout) >= {
        "spark.kubernetes.namespace=jobs",
        "spark.kubernetes.container.image=registry/spark:1",
        "spark.kubernetes.authenticate.driver.serviceAccountName=runner",
        "spark.kubernetes.driver.pod.name=nightly-1",
        "spark.kubernetes.submission.waitAppCompletion=false",
    }
    assert words[-4:] == ["--topic", "orders", "--namespace", "the job's own"]


def test_claims_with_dots_and_several_of_them_are_volumes_of_driver_and_executors(programs: Path) -> None:
    volumes = ["--volume", "team.archives:/archives", "--volume=state:/state/of jobs"]
    printed = submit(programs, *volumes, "--print", "archive").stdout
    for role in ("driver", "executor"):
        key = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim"
        assert settings_of(printed) >= {
            f"{key}.team-archives.options.claimName=team.archives",
            f"{key}.team-archives.mount.path=/archives",
            f"{key}.state.options.claimName=state",
            f"{key}.state.mount.path=/state/of jobs",
        }


def test_a_detached_submit_prints_how_to_follow_and_end_the_job(programs: Path) -> None:
    done = submit(programs, "--detach", "--name", "tail", "archive", "--topic", "orders")
    assert (done.returncode, done.stdout) == (0, "")
    assert "kubectl logs -f -n data tail" in done.stderr
    assert "kubectl delete pod -n data tail" in done.stderr


def test_submit_returns_the_drivers_status_and_output(programs: Path) -> None:
    done = submit(programs, "audit", "--bootstrap", "b:9192", "--topic", "orders")
    assert (done.returncode, done.stdout) == (1, "3 findings\n")
    refused = submit(programs, "audit", "--topic", "orders", REFUSED="yes")
    assert refused.returncode == 1
    assert "no such host" in refused.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a job: archive, replay, rollup, audit or flights"),
        (["compress"], "there is no job 'compress'"),
        (["--volume", "archives", "audit"], "--volume archives is not CLAIM:/PATH"),
        (["--cpus", "3", "audit"], "there is no option --cpus"),
        (["--cpus=3", "audit"], "there is no option --cpus"),
        (["-n", "data", "audit"], "there is no option -n"),
        (["--image"], "--image needs a value"),
        (["--image=", "audit"], "--image needs a value"),
        (["--cores", "--memory", "3g", "audit"], "--cores needs a value"),
        (["--cores", "1.5", "audit"], "--cores is 1.5; use a number from 1"),
        (["--executors", "0", "audit"], "--executors is 0; use a number from 1"),
        (["--conf", "spark.ui.enabled", "audit"], "--conf spark.ui.enabled is not KEY=VALUE"),
        (["--name", "My_Job", "audit"], "--name My_Job is not a valid pod name"),
    ],
)
def test_invalid_options_are_refused_with_a_sentence(programs: Path, words: list[str], sentence: str) -> None:
    done = submit(programs, *words)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_help_has_every_job_and_an_example(programs: Path) -> None:
    told = submit(programs, "--help").stdout
    assert "deploy/spark/submit.sh --namespace data audit --bootstrap" in told
    assert f"({', '.join(('archive', 'replay', 'rollup', 'audit', 'flights'))})" in told
    assert sorted(("archive", "replay", "rollup", "audit", "flights")) == JOBS


def test_pods_of_drivers_and_executors_satisfy_the_level_restricted() -> None:
    (pod,) = documents("pod.yaml")
    for spec in (pod["spec"], driver()["spec"]["template"]["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        written = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        empty = {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume}
        assert {written["/tmp"], written["/opt/spark-work"]} <= empty


def test_the_drivers_account_has_a_role_in_its_namespace_only() -> None:
    account, role, binding = documents("rbac.yaml")
    job = driver()
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    (rule,) = role["rules"]
    assert {"pods", "services", "configmaps"} <= set(rule["resources"])
    assert "secrets" not in rule["resources"]


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"release": "tide"}, "tide-tidemark-bootstrap:9192"),
        ({"release": "tide", "releaseNamespace": "streams"}, "tide-tidemark-bootstrap.streams:9192"),
        ({"release": "my-tidemark"}, "my-tidemark-bootstrap:9192"),
        ({"release": "tide", "bootstrap": "b0.example.org:9192"}, "b0.example.org:9192"),
    ],
)
def test_the_driver_calls_the_brokers_of_the_release(values: dict[str, Any], address: str) -> None:
    assert bootstrap_of(driver(values)) == address


@pytest.mark.parametrize("release", ["tide", "my-tidemark", "r" * 53])
def test_the_driver_names_the_service_that_the_chart_makes(release: str) -> None:
    with helm_python.Chart.load(ROOT / "charts" / "tidemark") as chart:
        made = chart.render({}, name=release, namespace="data")["tidemark/templates/services.yaml"]
    services = [each["metadata"]["name"] for each in yaml.safe_load_all(made)]
    assert bootstrap_of(driver({"release": release})).removesuffix(":9192") in services


def test_driver_and_executors_run_the_same_image_from_the_values() -> None:
    version = yaml.safe_load((DEPLOY / "Chart.yaml").read_text())["version"]
    assert container_of(driver())["image"] == f"docker.io/tidemark/tidemark-spark:{version}"
    digest = f"sha256:{'1' * 64}"
    container = container_of(driver({"image": {"repository": "registry/spark", "digest": digest}}))
    assert container["image"] == f"registry/spark@{digest}"
    assert f"--conf=spark.kubernetes.container.image=registry/spark@{digest}" in container["args"]


def test_job_arguments_settings_and_volume_come_from_the_values() -> None:
    job = driver(
        {
            "job": "archive",
            "args": ["--topic=orders", "--to=/archives/all orders"],
            "conf": {"spark.executor.cores": 2, "spark.ui.enabled": True},
            "executors": {"replicas": 5, "memory": "3g"},
            "volume": {"claim": "team.archives"},
        }
    )
    args = container_of(job)["args"]
    assert args[-3:] == ["/opt/pipelines/archive.py", "--topic=orders", "--to=/archives/all orders"]
    claim = "--conf=spark.kubernetes.executor.volumes.persistentVolumeClaim.team-archives"
    assert {
        "--num-executors=5",
        "--executor-memory=3g",
        "--conf=spark.executor.cores=2",
        "--conf=spark.ui.enabled=true",
        f"{claim}.options.claimName=team.archives",
        f"{claim}.mount.path=/archives",
    } <= set(args)
    assert {"name": "volume", "mountPath": "/archives"} in container_of(job)["volumeMounts"]
    assert container_of(driver({"job": "/job/mine.py"}))["args"][-2] == "/job/mine.py"


def test_a_schedule_makes_a_cron_job_of_the_same_pod() -> None:
    job = driver({"schedule": "0 * * * *"})
    assert (job["kind"], job["metadata"]["name"], job["spec"]["schedule"]) == ("CronJob", "audit", "0 * * * *")
    assert job["spec"]["jobTemplate"]["spec"] == driver()["spec"]


def identity_in(pod: dict[str, Any]) -> tuple[dict[str, str], str, str]:
    """Variables with the paths of token and authorities, audience of the token, and ConfigMap of the authorities."""
    (container,) = pod["containers"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "tidemark"]
    (volume,) = [each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "tidemark"]
    token, authorities = volume[0]["serviceAccountToken"], volume[1]["configMap"]
    paths = {name: f"{mount}/{part}" for name, part in (("TLS_CA_FILE", "ca.crt"), ("TOKEN_FILE", token["path"]))}
    assert {f"TIDEMARK_{name}": path for name, path in paths.items()}.items() <= variables.items()
    return variables, token["audience"], authorities["name"]


def test_driver_and_executors_of_a_job_have_a_token_for_a_secure_release() -> None:
    secure = {"release": "tide", "releaseNamespace": "streams", "security": {"enabled": True}}
    job = driver(secure)
    pod = job["spec"]["template"]["spec"]
    variables, *found = identity_in(pod)
    assert found == ["tidemark:streams/tide", "tide-tidemark-ca"]
    assert bootstrap_of(job) == "tide-tidemark-bootstrap.streams:9492"
    executor = yaml.safe_load(variables["EXECUTOR"])["spec"]
    assert identity_in(executor)[1:] == ("tidemark:streams/tide", "tide-tidemark-ca")
    assert executor["automountServiceAccountToken"] is False, "executors do not call the API server"
    assert executor["securityContext"] == documents("pod.yaml")[0]["spec"]["securityContext"]
    assert "--conf=spark.kubernetes.executor.podTemplateFile=/tmp/executor.yaml" in container_of(job)["args"]
    assert "eyJ" not in yaml.dump(job), "paths only"
    with pytest.raises(helm_python.HelmError, match="set releaseNamespace"):
        driver({"security": {"enabled": True}})


def test_submit_gives_the_pods_a_token_for_a_secure_release(programs: Path) -> None:
    flags = ("--audience", "tidemark:streams/tide", "--authorities=tide-tidemark-ca", "--print", "audit")
    printed = settings_of(submit(programs, *flags, TMPDIR=str(programs)).stdout)
    templates = {one.partition("=")[2] for one in printed if "podTemplateFile=" in one}
    (template,) = templates
    pod = yaml.safe_load(Path(template).read_text())["spec"]
    assert identity_in(pod)[1:] == ("tidemark:streams/tide", "tide-tidemark-ca")
    assert {each["name"] for each in pod["volumes"]} == {"tmp", "work", "tidemark"}
    assert "spark.kubernetes.authenticate.executor.serviceAccountName=tidemark-spark" in printed
