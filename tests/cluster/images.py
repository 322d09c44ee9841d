# SPDX-License-Identifier: Apache-2.0
"""Images for a cluster without a registry: built with a separate Docker engine, measured, loaded on every node."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Final

from tests.cluster.kube import ROOT, Cluster, CommandError

TARGETS: Final = ("tidemark", "tidemark-zookeeper", "tidemark-spark")
TAG: Final = "dev"
_BASE: Final = "docker.io/kt/python:1"
_BUILD_TIMEOUT_S: Final = 900.0


def reference(target: str) -> str:
    """The name of an image in a pod."""
    return f"docker.io/tidemark/{target}:{TAG}"


def build_and_load(cluster: Cluster, target: str) -> None:
    """Build one target of the Dockerfile on the scripts' base image, and load it on every node."""
    if shutil.which("dockerd") is None:
        raise CommandError("building the images needs a Docker engine: apt-get install docker.io, or --no-images")
    base = cluster.programs / "python.tar"
    if not base.exists():
        cluster.script("python-image.sh", _BASE, str(base), timeout_s=_BUILD_TIMEOUT_S)
    _authorities()
    archive = archive_of(cluster, target)
    cluster.script(
        "docker-build.sh",
        str(archive),
        reference(target),
        str(ROOT),
        str(base),
        timeout_s=_BUILD_TIMEOUT_S,
        BUILD_FLAGS=f"--target {target} --build-arg PYTHON_IMAGE={_BASE} --build-arg JAVA_IMAGE={_BASE}",
    )
    cluster.script("cluster.sh", "load", str(archive), timeout_s=_BUILD_TIMEOUT_S)


def archive_of(cluster: Cluster, target: str) -> Path:
    """The path of an image's archive."""
    return cluster.programs.parent / f"{target}.tar"


def unpacked_megabytes(archive: Path) -> float:
    """The size of an image's files in MB of 1,000,000 bytes: all layers, unpacked."""
    total = 0
    with tarfile.open(archive) as image:
        for member in image:
            if not member.isfile() or member.name.endswith(".json"):
                continue
            file = image.extractfile(member)
            assert file is not None
            try:
                with tarfile.open(fileobj=file, mode="r|*") as layer:
                    total += sum(inner.size for inner in layer if inner.isfile())
            except tarfile.ReadError:
                continue  # not a layer
    return total / 1e6


def _authorities() -> None:
    """Give the build the certificate authorities of the local pip; behind a proxy, downloads fail without them."""
    certificates = os.environ.get("PIP_CERT")
    place = ROOT / "build" / "ca.crt"
    if certificates and not place.exists():
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(certificates, place)
