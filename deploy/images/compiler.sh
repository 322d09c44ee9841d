#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compiler.sh VENV: installs a C compiler, Python's headers and mypyc for VENV, as far as they are missing. Where that fails,
# hatch_build.py says in the log what is missing, and builds a wheel of pure Python.
set -eu
python=$1/bin/python
if [ "${TIDEMARK_COMPILE:-auto}" = 0 ]; then exit; fi
packages=
if ! command -v gcc >/dev/null; then packages="gcc libc6-dev"; fi
if ! "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
    packages="gcc libc6-dev libpython3-dev"
fi
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086  # several words
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends $packages; } >/dev/null || exit 0
fi
"$python" -m pip install -q 'mypy[mypyc]' -c constraints.txt || exit 0
