# SPDX-License-Identifier: Apache-2.0
"""The benchmarks find their peer and parse its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import peers
from bench.compare import figures_of
from bench.measuring.figures import report
from bench.peers import OURS, beside, kafka_peer

SCRIPT = """\
#!/bin/sh
echo "$2 ${BATCH:-}" >>"$1/calls"
case $2 in
port) echo "${TIDEMARK_PEER_KAFKA_PORT:-}" ;;
produce) echo "1000 records sent, 250000.5 records/sec (23.84 MB/sec), 3.1 ms avg latency" ;;
consume) echo "2026-01-01 00:00:00:000, 2026-01-01 00:00:05:000, 19.0, 1.8, 1000, 200.0, 3000, 2000, 9.8, 98765.5" ;;
esac
"""
FOUND = {
    ("consume_records_per_s", "tidemark"): [10.0, 50.0, 20.0],
    ("consume_records_per_s", "kafka"): [5.0, 10.0, 20.0 / 3],
    ("consume_records_per_s", "aiokafka"): [5.0, 10.0, 1.0],
    ("e2e_p50_ms", "tidemark"): [2.0],
    ("e2e_p50_ms", "kafka"): [1.0],
}
"""Values of rounds, by figure and side."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output of a peer that is a script."""
    script = tmp_path / "peer.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setenv("TIDEMARK_PEER_KAFKA", str(script))
    monkeypatch.setenv("TIDEMARK_PEER_KAFKA_DIR", str(tmp_path))
    return tmp_path


def test_a_script_that_the_environment_names_is_the_peer_and_ends_with_its_use(directory: Path) -> None:
    with kafka_peer() as peer:
        assert peer is not None
        assert peer.produce_per_s("t", records=1000, size_bytes=100, batch_bytes=262_144) == 250_000.5
        assert peer.consume_per_s("t", records=1000) == 98_765.5
    calls = [line.strip() for line in (directory / "calls").read_text().splitlines()]
    assert calls == ["up", "produce 262144", "consume", "down"]


def test_a_peer_ends_when_its_benchmark_fails(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), kafka_peer():
        raise ZeroDivisionError
    assert (directory / "calls").read_text().split() == ["up", "down"]


def test_a_second_cluster_of_the_peer_has_its_own_directory_ports_and_variables(directory: Path) -> None:
    second = directory / "tls"
    second.mkdir()
    with kafka_peer() as peer:
        assert peer is not None
        with beside(peer, "tls", {"BATCH": "of the second"}) as other:
            assert other.produce_per_s("t", records=1000, size_bytes=100) == 250_000.5
            assert "19290" in other.call("port")
    assert (second / "calls").read_text().splitlines() == [
        "up of the second",
        "produce 65536",
        "port of the second",
        "down of the second",
    ]
    assert (directory / "calls").read_text().split() == ["up", "down"]


def test_without_a_peer_a_line_reports_this(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_PEER_KAFKA", "none")
    with kafka_peer(fetch=True) as peer:
        assert peer is None
    assert "no peer" in capsys.readouterr().err


def test_other_downloads_are_no_kafka(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("TIDEMARK_PEER_KAFKA", "TIDEMARK_PEER_KAFKA_LIBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(peers, "_DOWNLOADS", tmp_path)
    (tmp_path / "go").mkdir()
    with kafka_peer() as peer:
        assert peer is None
    assert "downloads Kafka" in capsys.readouterr().err


def test_a_directory_without_kafka_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIDEMARK_PEER_KAFKA", raising=False)
    monkeypatch.setenv("TIDEMARK_PEER_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no kafka_2\.13-\*\.jar: name libs/"), kafka_peer(fetch=True):
        pass
    assert OURS.stat().st_mode & 0o111


def test_figures_are_medians_and_ratios_above_one_are_ours() -> None:
    figures = figures_of(FOUND)
    assert {name: (figure.value, figure.peer, figure.ratio) for name, figure in figures.items()} == {
        "consume_records_per_s": (20.0, 20.0 / 3, 3.0),
        "consume_records_per_s_aiokafka": (20.0, 5.0, 5.0),
        "e2e_p50_ms": (2.0, 1.0, 0.5),
    }
    ratios = figures["consume_records_per_s"].ratios
    assert ratios is not None
    assert (ratios.low, ratios.high, ratios.confidence) == (2.0, 5.0, 0.75)


def test_a_disturbed_machine_gives_values_and_no_ratio(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figures = figures_of(FOUND, "other processes took 40% of the CPU time")
    report("compare", figures)
    *lines, last = capsys.readouterr().out.splitlines()
    assert "peer 6.67, no ratio: other processes took 40% of the CPU time" in lines[0]
    shown = json.loads(last)["figures"]["e2e_p50_ms"]
    assert shown == {
        "value": 2.0,
        "unit": "ms",
        "peer": 1.0,
        "ratio": None,
        "disturbed": "other processes took 40% of the CPU time",
    }
