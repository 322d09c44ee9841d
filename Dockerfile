# SPDX-License-Identifier: Apache-2.0
# Tidemark's images (docs/images.md):
#   docker build --target tidemark -t tidemark/tidemark .            broker, controller, admin, console and the CLI
#   docker build --target tidemark-spark -t tidemark/tidemark-spark . Spark's driver and executors, with the connector
#   docker build --target tidemark-zookeeper ...                      ZooKeeper, where zookeeper:3.9 cannot be pulled
# All images run as user 10001 with a read-only root file system.
#
# Any Debian-like base works: stages that are discarded install Python's venv, a C compiler and Java if they are missing.
# Without a compiler, or with --build-arg TIDEMARK_COMPILE=0, Tidemark is pure Python in the images.
# Behind a proxy with its own certificate authority, put its certificates in build/ca.crt: the images do not keep them.
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c
ARG JAVA_IMAGE=eclipse-temurin:17.0.17_10-jre-noble

# ---- Requirements first: a code change does not download them again ---------------------------------------
FROM ${PYTHON_IMAGE} AS requirements
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
 || (apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null)
WORKDIR /src
COPY pyproject.toml constraints.txt build/ca.cr[t] deploy/images/requirements.py ./
RUN if [ -f ca.crt ]; then export PIP_CERT=/src/ca.crt; fi \
 && python3 -m venv /opt/build && python3 -m venv /opt/tidemark \
 && /opt/build/bin/pip install -q $(python3 requirements.py build) \
 && /opt/tidemark/bin/pip install -q $(python3 requirements.py base cli server console) -c constraints.txt

FROM requirements AS wheel
ARG TIDEMARK_COMPILE=auto
COPY deploy/images/compiler.sh ./
RUN if [ -f ca.crt ]; then export PIP_CERT=/src/ca.crt; fi && sh compiler.sh /opt/build
COPY README.md LICENSE NOTICE hatch_build.py ./
COPY deploy/tools/compiled.py deploy/tools/
COPY proto proto
COPY services services
COPY spark spark
RUN /opt/build/bin/python -m hatchling build -t wheel -d /wheels

FROM requirements AS build
COPY --from=wheel /wheels /wheels
COPY deploy/images/slim.sh ./
RUN /opt/tidemark/bin/pip install -q --no-deps /wheels/*.whl && sh slim.sh /opt/tidemark

# ---- tidemark: the services and the CLI --------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS tidemark
LABEL org.opencontainers.image.title="Tidemark" org.opencontainers.image.licenses="Apache-2.0"
RUN echo 'tidemark:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'tidemark:x:10001:' >> /etc/group \
 && mkdir -p /var/lib/tidemark && chown 10001:10001 /var/lib/tidemark
COPY --from=build /opt/tidemark /opt/tidemark
ENV PATH=/opt/tidemark/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /var/lib/tidemark
CMD ["tidemark", "--help"]

# ---- Java, and Spark from PyPI, whose jars include ZooKeeper -------------------------------------------------
FROM ${JAVA_IMAGE} AS java
COPY deploy/images/java.sh /tmp/java.sh
RUN sh /tmp/java.sh /opt/java/openjdk

FROM requirements AS spark-requirements
RUN if [ -f ca.crt ]; then export PIP_CERT=/src/ca.crt; fi \
 && /opt/tidemark/bin/pip install -q $(python3 requirements.py spark) -c constraints.txt
COPY deploy/images/slim-spark.sh spark/tidemark_spark/compile_pyspark.py ./
RUN sh slim-spark.sh /opt/tidemark && /opt/tidemark/bin/python compile_pyspark.py

# ---- tidemark-zookeeper, used like the official image: zkServer.sh start-foreground, /conf/zoo.cfg, /data -----------
FROM spark-requirements AS zookeeper-jars
RUN mkdir -p /opt/zookeeper/lib && cd /opt/tidemark/lib/python3*/site-packages/pyspark/jars \
 && cp zookeeper-* slf4j-api-* log4j-* netty-* commons-* metrics-core-* snappy-java-* /opt/zookeeper/lib/
COPY deploy/images/zookeeper /opt/zookeeper
RUN chmod 0755 /opt/zookeeper/bin/*

FROM ${PYTHON_IMAGE} AS tidemark-zookeeper
LABEL org.opencontainers.image.title="ZooKeeper for Tidemark" org.opencontainers.image.licenses="Apache-2.0"
RUN echo 'zookeeper:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'zookeeper:x:10001:' >> /etc/group \
 && mkdir -p /conf /data /datalog && chown 10001:10001 /conf /data /datalog
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=zookeeper-jars /opt/zookeeper /opt/zookeeper
ENV JAVA_HOME=/opt/java/openjdk ZOOCFGDIR=/conf \
    PATH=/opt/zookeeper/bin:/opt/java/openjdk/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 10001:10001
WORKDIR /data
EXPOSE 2181 2888 3888
CMD ["zkServer.sh", "start-foreground"]

# ---- tidemark-spark, like Spark's own Kubernetes images, with the connector and its requirements -----------------
FROM spark-requirements AS spark-build
COPY --from=wheel /wheels /wheels
COPY deploy/images/slim.sh ./
RUN /opt/tidemark/bin/pip install -q --no-deps /wheels/*.whl && sh slim.sh /opt/tidemark
COPY spark/pipelines /opt/pipelines

FROM ${PYTHON_IMAGE} AS tidemark-spark
LABEL org.opencontainers.image.title="Spark with the Tidemark connector" org.opencontainers.image.licenses="Apache-2.0"
RUN echo 'spark:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'spark:x:10001:' >> /etc/group \
 && mkdir -p /opt/spark-work && chown 10001:10001 /opt/spark-work
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=spark-build /opt/tidemark /opt/tidemark
COPY --from=spark-build /opt/pipelines /opt/pipelines
COPY deploy/images/spark-entrypoint.sh /opt/entrypoint.sh
# PYSPARK_UDS_MODE: rows go from Python to Spark through Unix sockets, unless spark.python.unix.domain.socket.enabled=false.
RUN chmod 0755 /opt/entrypoint.sh && ln -s /opt/tidemark/lib/python3*/site-packages/pyspark /opt/spark
ENV JAVA_HOME=/opt/java/openjdk SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/tidemark/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/tidemark/bin/python PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    PYSPARK_UDS_MODE=true PATH=/opt/tidemark/bin:/opt/spark/bin:/opt/java/openjdk/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 10001:10001
WORKDIR /opt/spark-work
ENTRYPOINT ["/opt/entrypoint.sh"]
