# SPDX-License-Identifier: Apache-2.0
"""The entry point `tidemark`: runs the command, or names the extra that installs its packages.

The base installation is the client, without typer, rich and PyYAML. So this module imports the standard library only.
"""

from __future__ import annotations

import os
import sys

EXIT_NOT_INSTALLED = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the `tidemark` command; without the packages of its extra, a sentence and exit status 2."""
    try:
        _run()
    except KeyboardInterrupt:  # during the imports; later interrupts are those of the command
        sys.exit(EXIT_INTERRUPTED)


def _run() -> None:
    if "dev" not in sys.argv:  # the services of dev write the lines of gRPC's C library into their logs
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from tidemark.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "tidemark"):
            raise
        sys.stderr.write(f"error: the tidemark command needs {package}: pip install 'tidemark[cli]'\n")
        sys.exit(EXIT_NOT_INSTALLED)
    app.main()


if __name__ == "__main__":
    main()
