# SPDX-License-Identifier: Apache-2.0
"""Options of a write, with the names of Spark's Kafka sink, and its input columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType
from tidemark.client.settings import producer_settings
from tidemark.model import TidemarkError
from tidemark.rpc.security.paths import TlsFiles

from tidemark_spark.common_options import (
    ADDRESSES,
    TLS_FILES,
    TOKEN_FILE,
    parse_boolean,
    parse_bootstrap,
    parse_tls,
    parse_token_file,
    parse_whole,
    unknown_option,
)
from tidemark_spark.transactions.settings import TransactionSettings, parse_transactions

_PREFIXES: Final = ("tidemark.", "kafka.")

_BESIDE: Final = frozenset(
    {
        "topic",
        "deadlinems",
        "typed",
        "transactional",
        "txnappid",
        "txnversion",
        "tidemark.transaction.timeout.ms",
        "kafka.transaction.timeout.ms",
    }
)
"""Options that are not settings of the producer."""

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options that Spark also passes to the sink. `path` is the argument of save() and start(): a topic."""

_OF_BOTH: Final = frozenset({"includeheaders"})
"""Options of reads, accepted and ignored: headers are written if there is such a column."""


def _word(name: str, text: str) -> str:
    return text.strip().lower()


def _number(name: str, text: str) -> int:
    number = parse_whole(text)
    if number is None:
        raise ValueError(f"option {name!r} is {text!r}; expected a whole number")
    return number


def _acks(name: str, text: str) -> str:
    return {"-1": "all"}.get(text.strip(), text.strip().lower())


_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "acks": ("acks", _acks),
    "enable.idempotence": ("enable_idempotence", parse_boolean),
    "batch.size": ("batch_bytes", _number),
    "buffer.memory": ("buffer_bytes", _number),
    "compression.type": ("codec", _word),
    "max.in.flight.requests.per.connection": ("max_in_flight", _number),
    "delivery.timeout.ms": ("delivery_timeout_ms", _number),
    "request.timeout.ms": ("request_timeout_ms", _number),
    "client.id": ("client_id", lambda _, text: text.strip()),
}
"""Producer settings by Kafka's name."""

_NAMES: Final = (
    *ADDRESSES,
    *TLS_FILES,
    TOKEN_FILE,
    "topic",
    "typed",
    "deadlineMs",
    "transactional",
    "txnAppId",
    "txnVersion",
    *(prefix + "transaction.timeout.ms" for prefix in _PREFIXES),
    *(prefix + name for prefix in _PREFIXES for name in _SETTINGS),
)

BATCH_BYTES: Final = 512 << 10
"""Default batch size; larger than the client's, since no caller waits for a single record of a task."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write.

    Attributes:
        bootstrap: host:port[,host:port...] of brokers.
        topic: topic of all rows, regardless of a column `topic`; None: the column decides.
        settings: keyword arguments of the producer.
        deadline_ms: time limit of the driver for an answer of a broker.
        tls: the TLS files; None: files of the environment, or plain text.
        token_file: path of a file with a bearer token; None: the token of the environment, or no token.
        is_typed: whether the job states that the topic has a schema.
        transactions: whether and how the write is transactional.
    """

    bootstrap: str
    topic: str | None
    settings: Mapping[str, Any]
    deadline_ms: int = 120_000
    tls: TlsFiles | None = None
    token_file: str | None = None
    is_typed: bool = False
    transactions: TransactionSettings = field(default_factory=TransactionSettings)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options that Spark passes, with names in any case; ValueError names the valid form."""
    given = {name.lower(): value for name, value in options.items()}
    settings = _settings(given)
    bootstrap = parse_bootstrap(given)
    topic = given.get("topic", given.get("path"))
    if topic is not None and not topic.strip():
        raise ValueError("option 'topic' names no topic")
    deadline_ms = _number("deadlineMs", given.get("deadlinems", "120000"))
    if deadline_ms < 1:
        raise ValueError(f"option 'deadlineMs' is {given['deadlinems']!r}; expected a whole number from 1")
    settings.setdefault("delivery_timeout_ms", deadline_ms)
    files = parse_tls(given), parse_token_file(given)
    typed = parse_boolean("typed", given.get("typed", "false"))
    transactions = parse_transactions(given, settings)
    return WriteOptions(bootstrap, topic and topic.strip(), settings, deadline_ms, *files, typed, transactions)


def _settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments of the producer; ValueError names the option."""
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, text in given.items():
        if name in ADDRESSES or name in TLS_FILES or name == TOKEN_FILE or name in _BESIDE | _SPARKS_OWN | _OF_BOTH:
            continue
        setting = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), "")
        if setting not in _SETTINGS:
            raise unknown_option(name, _NAMES, "writes")
        keyword, parse = _SETTINGS[setting]
        value = parse(name, text)
        if settings.setdefault(keyword, value) != value:
            raise ValueError(f"options {names[keyword]!r} and {name!r} contradict one another; remove one of them")
        names[keyword] = name
    settings.setdefault("batch_bytes", BATCH_BYTES)
    try:
        producer_settings(**settings)
    except TidemarkError as error:
        word, _, rest = error.message.partition(" ")
        sentence = f"option {names[word]!r} {rest}" if word in names else error.message
        raise ValueError(sentence) from error
    return settings


def looks_like_bytes(schema: StructType, options: WriteOptions) -> bool:
    """Whether rows of this schema are records of bytes, unless the option `typed` states otherwise.

    So a streaming write of bytes does not request a schema from brokers in each micro-batch.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    return not options.is_typed and "value" in kinds and _is_bytes(kinds["value"])


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Check that rows of this schema can be written; ValueError names the column and the valid type."""
    found: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise ValueError(f"a write needs the column 'value', string or binary; there are {', '.join(found) or 'none'}")
    if "topic" not in found and options.topic is None:
        raise ValueError("a write needs the option 'topic' or a column 'topic', and has neither")
    for name, (accepts, wanted) in _COLUMNS.items():
        if name in found and not accepts(found[name]):
            raise ValueError(f"column {name!r} is {found[name].simpleString()}; expected {wanted}")


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_COLUMNS: Final[Mapping[str, tuple[Callable[[DataType], bool], str]]] = {
    "key": (_is_bytes, "string or binary"),
    "value": (_is_bytes, "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "topic": (lambda kind: isinstance(kind, StringType), "string"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int"),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "timestamp"),
}
"""Columns that are written; other columns, such as the offset of the source row, are ignored."""
