# SPDX-License-Identifier: Apache-2.0
"""Options of the Spark source and the ranges planned from them; pure, no Spark."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.rpc.security.paths import TlsFiles
from tidemark_spark.columns import Malformed, ValueFormat
from tidemark_spark.filters import Comparison, narrow
from tidemark_spark.options import parse_options, parse_schema_options
from tidemark_spark.ranges import SMALL_OFFSETS, TASKS_MIN, OffsetRange, PartitionBounds, pack, plan_ranges, times_of
from tidemark_spark.sink.options import parse_write_options

BOOTSTRAP = {"tidemark.bootstrap": "127.0.0.1:9192"}
FLIGHTS = {**BOOTSTRAP, "subscribe": "flights"}
HELD = {"flights": {0: PartitionBounds(10, 110), 1: PartitionBounds(0, 50), 2: PartitionBounds(7, 7)}}


def test_the_reader_reads_all_offsets_by_default() -> None:
    planned = plan_ranges(parse_options(FLIGHTS), HELD)
    assert planned == [OffsetRange("flights", 0, 10, 110), OffsetRange("flights", 1, 0, 50)]


def test_option_names_are_read_in_any_case() -> None:
    options = parse_options({**FLIGHTS, "ENDINGOFFSETS": "latest", "minpartitions": "3", "IncludeHeaders": "True"})
    assert (options.min_partitions, options.columns.names[-1]) == (3, "headers")


def test_explicit_offsets_are_inclusive_at_the_start_and_exclusive_at_the_end() -> None:
    offsets = {"startingOffsets": '{"flights": {"0": 20, "1": -2}}', "endingOffsets": '{"flights": {"0": 30, "1": -1}}'}
    planned = plan_ranges(parse_options({**FLIGHTS, **offsets}), HELD)
    assert planned == [OffsetRange("flights", 0, 20, 30), OffsetRange("flights", 1, 0, 50)]


def test_assign_reads_the_partitions_it_names_and_no_others() -> None:
    planned = plan_ranges(parse_options({**BOOTSTRAP, "assign": '{"flights": [1]}'}), HELD)
    assert planned == [OffsetRange("flights", 1, 0, 50)]


def test_no_task_gets_more_offsets_than_it_may_have() -> None:
    planned = plan_ranges(parse_options({**FLIGHTS, "maxRecordsPerPartition": "30"}), HELD)
    assert max(part.end - part.start for part in planned) <= 30
    assert sum(part.end - part.start for part in planned) == 150


def test_a_pattern_matches_whole_names_and_no_internal_topics() -> None:
    options = parse_options({**BOOTSTRAP, "subscribePattern": ".*s"})
    assert options.chosen(["trains", "flights", "trainsets-1", "__consumer_offsets"]) == ["flights", "trains"]


def test_a_kafka_job_moves_with_its_options() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:9192",
            "subscribe": "flights",
            "startingOffsets": '{"flights": {"0": -1, "1": -2, "2": 7}}',
            "maxOffsetsPerTrigger": "1000",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
            "kafka.group.id": "spark",
            "kafka.client.rack": "b",
            "fetchOffset.numRetries": "5",
        },
        streaming=True,
    )
    assert (options.bootstrap, options.rack) == ("127.0.0.1:9192", "b")
    assert options.starting.offsets == {"flights": {0: -1, 1: -2, 2: 7}}
    assert (options.max_offsets, options.min_offsets, options.max_delay_ms) == (1000, 10, 120_000)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("250", 250), ("250ms", 250), ("3s", 3000), ("2min", 120_000), ("1H", 3_600_000), ("1d", 86_400_000)],
)
def test_a_delay_is_written_as_for_sparks_kafka_source(text: str, delay_ms: int) -> None:
    assert parse_options({**FLIGHTS, "maxTriggerDelay": text}, streaming=True).max_delay_ms == delay_ms


def test_a_time_is_the_first_offset_at_or_after_it_and_the_end_where_nothing_is_so_young() -> None:
    times = {"startingOffsetsByTimestamp": '{"flights": {"0": 5}}', "endingTimestamp": "9"}
    options = parse_options({**FLIGHTS, **times})
    wanted = times_of(options, HELD)
    assert wanted == {("flights", 0, 5), ("flights", 0, 9), ("flights", 1, 9), ("flights", 2, 9)}
    by_time = {("flights", 0, 5): 33, ("flights", 0, 9): 44, ("flights", 1, 9): -1, ("flights", 2, 9): -1}
    assert plan_ranges(options, HELD, by_time) == [OffsetRange("flights", 0, 33, 44), OffsetRange("flights", 1, 0, 50)]


def test_a_start_time_after_every_record_is_an_error_or_the_end_as_asked() -> None:
    young = {("flights", partition, 9): -1 for partition in HELD["flights"]}
    with pytest.raises(ValueError, match=r"startingTimestamp names time 9 ms of flights-0"):
        plan_ranges(parse_options({**FLIGHTS, "startingTimestamp": "9"}), HELD, young)
    lenient = {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "latest"}
    assert plan_ranges(parse_options({**FLIGHTS, **lenient}), HELD, young) == []


def test_a_record_that_comes_while_a_read_is_planned_does_not_count() -> None:
    late = {("flights", partition, 9): held.end + 5 for partition, held in HELD["flights"].items()}
    assert plan_ranges(parse_options({**FLIGHTS, "startingTimestamp": "9"}), HELD, late) == []
    assert plan_ranges(parse_options({**FLIGHTS, "endingTimestamp": "9"}), HELD, late) == plan_ranges(
        parse_options(FLIGHTS), HELD
    )


def test_the_schema_follows_from_the_options() -> None:
    json_values = {"valueFormat": "json", "valueSchema": "carrier STRING, delay INT", "malformedValues": "deadLetter"}
    columns = parse_schema_options({**json_values, "columns": "offset, VALUE"})
    assert columns.ddl() == "offset bigint, value struct<carrier STRING, delay INT>, deadLetter binary"
    assert (columns.value_format, columns.malformed) == (ValueFormat.JSON, Malformed.DEAD_LETTER)


@settings(deadline=None)
@given(
    partition=st.integers(0, 3),
    offset=st.integers(-5, 60),
    operator=st.sampled_from(["=", "<", "<=", ">", ">="]),
    members=st.sets(st.integers(0, 4), max_size=3),
)
def test_no_row_that_passes_the_filters_is_left_out(
    partition: int, offset: int, operator: str, members: set[int]
) -> None:
    narrowing = narrow([Comparison("partition", "in", tuple(members)), Comparison("offset", operator, offset)])
    start, end = narrowing.offsets("flights", partition, 3, 50)
    passes = {"=": int.__eq__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}[operator]
    wanted = [at for at in range(3, 50) if partition in members and passes(at, offset)]
    assert list(range(start, end)) == wanted


@settings(deadline=None)
@given(least=st.integers(1, 400), lengths=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_splitting_covers_every_offset_once_in_order(least: int, lengths: list[int]) -> None:
    held = {"flights": {index: PartitionBounds(index, index + length) for index, length in enumerate(lengths)}}
    planned = plan_ranges(parse_options({**FLIGHTS, "minPartitions": str(least)}), held)
    covered = [(part.partition, offset) for part in planned for offset in range(part.start, part.end)]
    assert covered == [(index, index + offset) for index, length in enumerate(lengths) for offset in range(length)]
    assert len(planned) >= min(least, sum(lengths))
    assert all(part.end > part.start for part in planned)


@settings(deadline=None)
@given(
    least=st.none() | st.integers(1, 90),
    most=st.none() | st.integers(1, 2000),
    lengths=st.lists(st.integers(1, 40) | st.integers(1, 3000), max_size=120),
    brokers=st.integers(1, 4),
)
def test_tasks_share_small_ranges_of_one_leader_and_cover_each_range_once(
    least: int | None, most: int | None, lengths: list[int], brokers: int
) -> None:
    given_ = {"minPartitions": least, "maxRecordsPerPartition": most}
    options = parse_options({**FLIGHTS, **{name: str(value) for name, value in given_.items() if value is not None}})
    ranges = [OffsetRange("flights", index, 5, 5 + length) for index, length in enumerate(lengths)]
    tasks = pack(ranges, options, lambda part: part.partition % brokers)
    assert sorted((part for task in tasks for part in task), key=lambda part: part.partition) == ranges
    assert len(tasks) >= min(len(ranges), TASKS_MIN if least is None else least)
    for task in tasks:
        assert len({part.partition % brokers for part in task}) == 1
        length = sum(part.end - part.start for part in task)
        assert len(task) == 1 or length <= min(SMALL_OFFSETS, most or SMALL_OFFSETS)


def test_large_tasks_start_first_and_others_keep_their_order() -> None:
    lengths = [60_000, 1_100, 250_000, 140_000, 50_000, 240_000]
    ranges = [OffsetRange("flights", index, 0, length) for index, length in enumerate(lengths)]
    tasks = pack(ranges, parse_options(FLIGHTS), lambda part: 0)
    assert [one.partition for task in tasks for one in task] == [2, 3, 5, 0, 4, 1]


def test_many_small_ranges_become_few_tasks() -> None:
    ranges = [OffsetRange("flights", index, 0, 20) for index in range(500)]
    few = pack(ranges, parse_options(FLIGHTS), lambda part: part.partition % 3)
    assert TASKS_MIN <= len(few) <= TASKS_MIN + 2 * 3
    fewer = pack(ranges, parse_options({**FLIGHTS, "minPartitions": "1"}), lambda part: part.partition % 3)
    assert len(fewer) <= 500 * 20 // SMALL_OFFSETS + 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "flights"}, "tidemark.bootstrap"),
        (BOOTSTRAP, "one of the options"),
        ({**FLIGHTS, "tidemark.bootstrap": "localhost"}, "'localhost' is not host:port"),
        ({**FLIGHTS, "kafka.bootstrap.servers": "other:9192"}, "name different brokers"),
        ({**FLIGHTS, "kafka.security.protocol": "SSL"}, "'kafka.security.protocol'"),
        ({**FLIGHTS, "subscribePattern": "f.*"}, "subscribe and subscribePattern are"),
        ({**BOOTSTRAP, "subscribePattern": "["}, "is not a regular expression"),
        ({**FLIGHTS, "maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for streams"),
        ({**FLIGHTS, "startingTimestamp": "yesterday"}, "expected milliseconds since 1970"),
        ({**FLIGHTS, "startingOffsetsByTimestampStrategy": "guess"}, "expected error or latest"),
        ({**FLIGHTS, "columns": "value, size"}, "names 'size'"),
        ({**FLIGHTS, "columns": "value, value"}, "names a column twice"),
        ({**FLIGHTS, "valueFormat": "avro"}, "expected one of bytes, string, json, arrow"),
        ({**FLIGHTS, "valueSchema": "a INT"}, "'valueSchema' is for valueFormat=json"),
        ({**FLIGHTS, "malformedValues": "null"}, "'malformedValues' needs a valueFormat"),
        (
            {**BOOTSTRAP, "assign": '{"flights": [0]}', "startingOffsets": '{"flights": {"1": 5}}'},
            "startingOffsets names partitions of flights that 'assign' does not: [1]",
        ),
        ({**FLIGHTS, "assign": '{"flights": [0]}'}, "one of the options"),
        ({**BOOTSTRAP, "subscribe": " , "}, "names no topic"),
        (
            {**FLIGHTS, "startingOffset": "earliest"},
            "no option 'startingoffset' for reads; did you mean 'startingOffsets'?",
        ),
        ({"tidemark.bootstap": "h:1", "subscribe": "f"}, "did you mean 'tidemark.bootstrap'?"),
        ({"kafka.bootstrap.server": "h:1", "subscribe": "f"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({**FLIGHTS, "kafka.check.crcs": "c"}, "'kafka.check.crcs' for reads: it configures Kafka's client; remove it"),
        ({**FLIGHTS, "x": "y"}, "no option 'x' for reads; it has assign, columns, "),
        ({**FLIGHTS, "startingOffsets": "latest"}, "startingOffsets is 'latest'"),
        ({**FLIGHTS, "endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({**FLIGHTS, "startingOffsets": '{"flights": {"0": -1}}'}, "-2 for earliest"),
        ({**FLIGHTS, "endingOffsets": '{"flights": {"0": -2}}'}, "-1 for latest"),
        ({**FLIGHTS, "startingOffsets": '{"flights": {"0": 1}'}, "is not JSON"),
        ({**FLIGHTS, "startingOffsets": '{"trains": {"0": 1}}'}, "trains"),
        ({**BOOTSTRAP, "assign": '{"flights": [true]}'}, "expected a list of partitions"),
        ({**FLIGHTS, "startingOffsets": '{"flights": {"0": 1, "0": 2}}'}, "'startingOffsets' names '0' twice"),
        ({**BOOTSTRAP, "assign": '{"flights": [0], "flights": [1]}'}, "'assign' names 'flights' twice"),
        (
            {**FLIGHTS, "startingTimestamp": "9" * 17},
            "'startingTimestamp' is '99999999999999999'; expected milliseconds",
        ),
        ({**FLIGHTS, "minPartitions": "0"}, "expected a whole number from 1"),
        ({**FLIGHTS, "minPartitions": "１２"}, "expected a whole number from 1"),
        ({**FLIGHTS, "includeHeaders": "yes"}, "expected true or false"),
        ({**FLIGHTS, "failOnDataLoss": "maybe"}, "expected true or false"),
    ],
)
def test_a_wrong_option_is_refused_with_a_suggestion(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_options(options)


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_a_topic_that_an_option_names_and_no_topic_has_is_refused(which: str) -> None:
    """A mistyped name would otherwise start the right topic at the default: a stream at its end."""
    options = {**BOOTSTRAP, "subscribePattern": "f.*", f"{which}Offsets": '{"fligths": {"1": 12}}'}
    with pytest.raises(ValueError, match=f"{which}Offsets names topic fligths, which does not exist"):
        plan_ranges(parse_options(options), HELD)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": '{"flights": {"0": 9}}'}, "has 10 to 110"),
        ({"endingOffsets": '{"flights": {"0": 111}}'}, "has 10 to 110"),
        ({"startingOffsets": '{"flights": {"9": 0}}'}, "do not exist: [9]"),
        ({"startingOffsets": '{"flights": {"1": 9}}', "endingOffsets": '{"flights": {"1": 8}}'}, "is below"),
    ],
)
def test_offsets_that_the_topic_does_not_hold_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        plan_ranges(parse_options({**FLIGHTS, **options}), HELD)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is for batch reads"),
        ({"startingOffsets": "newest"}, 'it takes "earliest" or "latest", or JSON'),
        ({"maxOffsetsPerTrigger": "0"}, "expected a whole number from 1"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger 6 is above"),
        ({"maxTriggerDelay": "soon"}, "expected a duration"),
        (
            {"startingOffsetsByTimestamp": '{"flights": {"0": 99999999999999999}}'},
            "expected milliseconds since 1970, from 0",
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_with_a_suggestion(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_options({**FLIGHTS, **options}, streaming=True)


def test_json_values_need_a_schema() -> None:
    with pytest.raises(ValueError, match="needs the option 'valueSchema'"):
        parse_schema_options({"valueFormat": "json"}).ddl()


def test_deleted_records_are_skipped_only_by_option() -> None:
    options = {"startingOffsets": '{"flights": {"0": 4}}', "failOnDataLoss": "false"}
    assert plan_ranges(parse_options({**FLIGHTS, **options}), HELD)[0] == OffsetRange("flights", 0, 10, 110)


def test_tls_files_are_given_by_their_paths() -> None:
    paths = {"tidemark.tls.ca.file": "/c/ca.crt", "Tidemark.TLS.certificate.file": "/c/a.crt"}
    options = parse_options({**FLIGHTS, **paths, "tidemark.tls.key.file": "/c/a.key"})
    assert options.tls == TlsFiles("/c/ca.crt", "/c/a.crt", "/c/a.key")
    assert parse_options(FLIGHTS).tls is None


@pytest.mark.parametrize(
    ("given_options", "sentence"),
    [
        ({"tidemark.tls.ca.file": "/ca.crt", "tidemark.tls.key.file": "/a.key"}, "tidemark.tls.certificate.file"),
        ({"tidemark.tls.ca.file": "-----BEGIN CERTIFICATE-----"}, "give its path"),
        ({"tidemark.tls.ca.files": "/ca.crt"}, "tidemark.tls.ca.file"),
    ],
)
def test_tls_options_that_do_not_fit_together_are_refused(given_options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_options({**FLIGHTS, **given_options})


def test_a_token_is_given_by_the_path_of_its_file() -> None:
    given_options = {**FLIGHTS, "Tidemark.Token.File": "/var/run/secrets/tidemark/token"}
    assert parse_options(given_options).token_file == "/var/run/secrets/tidemark/token"
    assert parse_options(FLIGHTS).token_file is None
    written = parse_write_options({"tidemark.bootstrap": "b:1", "tidemark.token.file": "/t"})
    assert (written.token_file, written.settings.get("token_file")) == ("/t", None)


@pytest.mark.parametrize("name", ["tidemark.client.id", "Kafka.Client.Id"])
def test_a_client_id_is_given_under_its_own_and_kafkas_name(name: str) -> None:
    assert parse_options({**FLIGHTS, name: "nightly"}).client_id == "nightly"
    assert parse_options(FLIGHTS).client_id == ""
    written = parse_write_options({"tidemark.bootstrap": "b:1", name: "nightly"})
    assert written.settings["client_id"] == "nightly"
    for parse, others in ((parse_options, FLIGHTS), (parse_write_options, {"tidemark.bootstrap": "b:1"})):
        with pytest.raises(ValueError, match="printable ASCII"):
            parse({**others, name: "ä"})
        with pytest.raises(ValueError, match="contradict one another"):
            parse({**others, "tidemark.client.id": "a", "kafka.client.id": "b"})


@pytest.mark.parametrize(
    "token", [f"tidemark_{'x' * 43}", "eyJhbGciOiJFUzI1NiJ9.e30.c2ln", "Bearer x", "a\nb", "y" * 5000]
)
def test_a_token_itself_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="give its path") as refused:
        parse_options({**FLIGHTS, "tidemark.token.file": token})
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "streaming", "typed", "sentence"),
    [
        ({"history": "/archive"}, True, True, "option 'history' is for batch reads; this is a stream"),
        ({"history": "/archive"}, False, False, "option 'history' is for topics with a schema"),
        ({"history": " "}, False, True, "option 'history' is empty; expected the directory"),
        ({"history": "/archive", "startingTimestamp": "7"}, False, True, "option 'startingtimestamp' is not for reads"),
    ],
)
def test_an_archive_is_for_batch_reads_of_typed_topics_without_times(
    options: dict[str, str], streaming: bool, typed: bool, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_options({**FLIGHTS, **options}, streaming=streaming, typed=typed)


def test_reads_are_read_committed_unless_an_option_says_otherwise() -> None:
    assert parse_options(FLIGHTS).isolation_level == "read_committed"
    uncommitted = {**FLIGHTS, "kafka.isolation.level": "read_uncommitted"}
    assert parse_options(uncommitted).isolation_level == "read_uncommitted"
    with pytest.raises(ValueError, match="level' is 'serializable'; expected read_"):
        parse_options({**FLIGHTS, "tidemark.isolation.level": "serializable"})
    with pytest.raises(ValueError, match="contradict one another"):
        parse_options({**uncommitted, "tidemark.isolation.level": "read_committed"})
