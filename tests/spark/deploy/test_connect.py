# SPDX-License-Identifier: Apache-2.0
"""Spark Connect: the client has neither the data source nor a connection to brokers, the server has both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession
from tidemark.client import AdminClient, Producer, read_table
from tidemark.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[RemoteSession]:
    """A session of a Connect server in the JVM of the other tests; a JVM starts one server only."""
    services = cast("Any", spark._jvm).org.apache.spark.sql.connect.service
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service.start(context)
    session = RemoteSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    yield session
    session.stop()
    service.stop(*(getattr(service, f"stop$default${number}")() for number in (1, 2)))


def test_a_connect_session_reads_and_writes_typed_topics(remote: RemoteSession, cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        for name in ("connected", "connected-copy"):
            schema = "carrier STRING, legs ARRAY<STRUCT<miles: INT>>"
            admin.create_topic(name, partitions=1, replication_factor=3, schema=schema)
    rows = [{"carrier": "UA", "legs": [{"miles": 700}]}, {"carrier": None, "legs": None}]
    with Producer(cluster.bootstrap) as producer:
        producer.send_table("connected", pa.Table.from_pylist(rows)).result(30)
    source = remote.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    table = source.load("connected")
    assert table.schema.simpleString() == "struct<carrier:string,legs:array<struct<miles:int>>>"
    assert [row.asDict(recursive=True) for row in table.collect()] == rows
    writer = table.write.format("tidemark").mode("append").option("tidemark.bootstrap", cluster.bootstrap)
    writer.save("connected-copy")
    assert read_table(cluster.bootstrap, "connected-copy").read_all().to_pylist() == rows
