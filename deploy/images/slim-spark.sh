#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slim-spark.sh VENV: removes PySpark's examples, and native libraries of other systems.
set -eu
cd "$1"/lib/python3.*/site-packages/pyspark
rm -rf examples data licenses
cd jars
machine=$(uname -m)
for jar in *-linux-* *-osx-* *-windows-*; do
    case $jar in *-linux-"$machine".jar | *-linux-aarch_64.jar) ;; *) rm -f "$jar" ;; esac
done
if [ "$machine" != aarch64 ]; then rm -f ./*-linux-aarch_64.jar; fi
