# Tidemark's images:
#   docker build --target tidemark -t tidemark/tidemark .            broker, controller, admin and the CLI
#   docker build --target tidemark-spark -t tidemark/tidemark-spark . Spark's driver and executors, with the connector
#   docker build --target tidemark-zookeeper ...                      ZooKeeper, where zookeeper:3.9 cannot be pulled
# All of them run as user 10001 and on a read-only root file system. docs/images.md says more.
#
# Any Debian-like base will do: what it lacks of Python's venv and of Java is installed in stages that are thrown away.
# Behind a proxy with an authority of its own, put its certificates in build/ca.crt: the images do not keep them.
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c
ARG JAVA_IMAGE=eclipse-temurin:17.0.17_10-jre-noble

# ---- Python with the client's, the CLI's and the services' requirements, then the wheel -------------------------
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
 || (apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null)
WORKDIR /src
COPY pyproject.toml constraints.txt build/ca.cr[t] deploy/images/requirements.py ./
# Requirements first: a change in the code does not fetch them again.
RUN if [ -f ca.crt ]; then export PIP_CERT=/src/ca.crt; fi \
 && python3 -m venv /opt/build && python3 -m venv /opt/tidemark \
 && /opt/build/bin/pip install -q $(python3 requirements.py build) \
 && /opt/tidemark/bin/pip install -q $(python3 requirements.py base cli server) -c constraints.txt
COPY README.md hatch_build.py ./
COPY proto proto
COPY services services
COPY spark spark
RUN /opt/build/bin/pip wheel -q --no-deps --no-build-isolation -w /wheels . \
 && /opt/tidemark/bin/pip install -q --no-deps /wheels/*.whl
# What nothing of ours imports: Arrow's Flight, its clouds' file systems, headers and tests; pip itself.
COPY deploy/images/slim.sh ./
RUN sh slim.sh /opt/tidemark

# ---- tidemark: the three services and the CLI --------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS tidemark
RUN echo 'tidemark:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'tidemark:x:10001:' >> /etc/group \
 && mkdir -p /var/lib/tidemark && chown 10001:10001 /var/lib/tidemark
COPY --from=build /opt/tidemark /opt/tidemark
ENV PATH=/opt/tidemark/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /var/lib/tidemark
CMD ["tidemark", "--help"]
