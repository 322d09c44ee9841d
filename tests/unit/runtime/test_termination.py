# SPDX-License-Identifier: Apache-2.0
"""The termination message: one line, within the length that a kubelet keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.runtime.configuration.settings import AdminSettings, BrokerSettings, load_settings
from tidemark.runtime.termination import MESSAGE_BYTES_MAX, write_termination_message


def test_a_long_message_is_cut_to_the_kubelets_limit_and_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "message"
    write_termination_message(str(path), "x" + "é" * 5000)
    written = path.read_bytes()
    assert MESSAGE_BYTES_MAX - 2 <= len(written) <= MESSAGE_BYTES_MAX
    assert set(written.decode().removeprefix("x")) == {"é", "\n"}


def test_a_message_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "message"
    write_termination_message(str(path), "one\n  two\tthree\n")
    assert path.read_text() == "one two three\n"


def test_a_path_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_termination_message(str(tmp_path), "why")
    assert "termination.message.path" in caplog.text


def test_without_a_path_nothing_is_written(caplog: pytest.LogCaptureFixture) -> None:
    write_termination_message("", "why")
    assert caplog.text == ""


@pytest.mark.parametrize("how", ["environment", "flag", "flag with ="])
def test_settings_that_are_wrong_are_the_termination_message_too(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "message"
    flags = {"flag": ["--termination.message.path", str(path)], "flag with =": [f"--termination.message.path={path}"]}
    environment = {"TIDEMARK_TERMINATION_MESSAGE_PATH": str(path)} if how == "environment" else {}
    with pytest.raises(SystemExit) as ended:
        load_settings(AdminSettings, flags.get(how, []), environment)
    assert ended.value.code == 2
    assert path.read_text().startswith("the settings are wrong: INVALID_CONFIG: zookeeper.connect must be given")
    assert path.read_text().strip().partition("INVALID_CONFIG: ")[2] in capsys.readouterr().err


def test_wrong_settings_without_a_path_are_reported_on_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(BrokerSettings, ["--no.such", "1"], {})
    assert "no.such" in capsys.readouterr().err
