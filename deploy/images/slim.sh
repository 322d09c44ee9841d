#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slim.sh VENV: takes out of a virtual environment what a container never runs.
set -eu
cd "$1"/lib/python3.*/site-packages
rm -rf pip pip-* setuptools setuptools-* pkg_resources _distutils_hack distutils-precedence.pth
# Arrow: Flight and the clouds' file systems are libraries of their own that only their modules open.
cd pyarrow
rm -rf tests src include includes
rm -f libarrow_flight.so.* libarrow_python_flight.so* _flight*.so libarrow_s3.so.* _s3fs*.so _gcsfs*.so _azurefs*.so
rm -f _hdfs*.so _orc*.so ./*.pyx ./*.pxd ./*.pxi ./*.h
# One file under three names where the wheel's archive held it three times.
for whole in lib*.so.*.*.*; do
    [ -f "$whole" ] || continue
    for name in "${whole%.*.*}" "${whole%.so.*}.so"; do
        if [ -f "$name" ] && [ ! -L "$name" ] && cmp -s "$name" "$whole"; then ln -sf "$whole" "$name"; fi
    done
done
find "$1" -name '*.a' -delete
find "$1" -type d -name tests -path '*/site-packages/*' -prune -exec rm -rf {} +
