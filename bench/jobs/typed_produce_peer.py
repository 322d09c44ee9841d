# SPDX-License-Identifier: Apache-2.0
"""Rows through confluent-kafka and its own serializers, in a separate Python: needs confluent-kafka[avro,json].

usage: python typed_produce_peer.py TOPIC ROWS.jsonl SCHEMA.avsc; its last line is JSON: rows a second by serializer.
The schema registry is confluent-kafka's own one in memory, so that no request of a registry is measured.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINGER_MS = 5
BATCH_BYTES = 65_536


def serializers(avro: str) -> dict[str, Callable[[Any, Any], bytes]]:
    registry: Any = importlib.import_module("confluent_kafka.schema_registry")
    client = registry.SchemaRegistryClient.new_client({"url": "mock://bench"})
    made: dict[str, Callable[[Any, Any], bytes]] = {
        "avro": importlib.import_module("confluent_kafka.schema_registry.avro").AvroSerializer(client, avro)
    }
    kinds = {"string": "string", "int": "integer", "double": "number"}
    properties = {
        one["name"]: {"type": kinds.get(one["type"], "string") if isinstance(one["type"], str) else "integer"}
        for one in json.loads(avro)["fields"]
    }
    text = json.dumps({"title": "flight", "type": "object", "properties": properties})
    made["json"] = importlib.import_module("confluent_kafka.schema_registry.json_schema").JSONSerializer(text, client)
    return made


def per_s(topic: str, rows: list[dict[str, Any]], serialize: Callable[[Any, Any], bytes]) -> float:
    confluent: Any = importlib.import_module("confluent_kafka")
    serialization: Any = importlib.import_module("confluent_kafka.serialization")
    context = serialization.SerializationContext(topic, serialization.MessageField.VALUE)
    producer = confluent.Producer(
        {
            "bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
        }
    )
    started_s = time.perf_counter()
    for row in rows:
        value = serialize(row, context)
        while True:
            try:
                producer.produce(topic, value, key=row["carrier"])
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
    return len(rows) / (time.perf_counter() - started_s)


def main(topic: str, rows_path: str, schema_path: str) -> None:
    rows = [json.loads(line) for line in Path(rows_path).read_text().splitlines()]
    made = serializers(Path(schema_path).read_text())
    print(json.dumps({name: max(per_s(topic, rows, one) for _ in range(3)) for name, one in made.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
