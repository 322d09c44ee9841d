# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md: `python -m tidemark.runtime.configuration.docs docs/configuration.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.runtime.configuration.keys import keys_of


def render_documentation() -> str:
    """Text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Start a service with its settings, and change dynamic settings while it runs:",
        "",
        "    python -m tidemark.broker --config broker.yaml --broker.id 0          # flags come before the file",
        "    TIDEMARK_BROKER_ID=0 python -m tidemark.broker --config broker.yaml   # and so does the environment",
        "    tidemark config set broker 0 log.level=debug",
        "    tidemark config set topic flights retention.ms=86400000",
        "",
        "A service takes each setting from the first of these sources: flag (`--broker.id 0`), environment",
        "(`TIDEMARK_BROKER_ID`), the YAML file that `--config` or `TIDEMARK_CONFIG` names, default. With an unknown",
        "key or a value out of range the service does not start; it prints one line with the valid values.",
        "",
        "| scope | how to change a setting |",
        "| --- | --- |",
        "| static | restart the service with the new value |",
        "| broker-dynamic | `tidemark config set broker`, for one broker or all, while they run |",
        "| topic | `tidemark topic create --config`, later `tidemark config set topic` |",
        "",
        "[configuring.md](configuring.md) has the details. This page is generated from",
        "the settings classes of `services/tidemark/runtime/configuration/`, by",
        "`python -m tidemark.runtime.configuration.docs`; a test compares both.",
    ]
    for owner in ("broker", "controller", "admin", "console", "topic"):
        lines += [
            "",
            f"## {owner.capitalize()}",
            "",
            "| key | meaning | default | values | unit | scope |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for key in keys_of(owner).values():
            default = key.default_for(owner)
            shown = "*required*" if default is None else f"`{default}`" if default else ""
            values = key.valid_values.replace("|", "\\|")
            lines.append(f"| `{key.name}` | {key.doc} | {shown} | {values} | {key.unit} | {key.scope_for(owner)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the page to the path in `argv`, or to stdout."""
    if argv:
        Path(argv[0]).write_text(render_documentation(), encoding="utf-8")
    else:
        sys.stdout.write(render_documentation())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
