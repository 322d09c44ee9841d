#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slim.sh VENV: removes files that a container never uses from a virtual environment.
set -eu
cd "$1"/lib/python3.*/site-packages
rm -rf pip pip-* setuptools setuptools-* pkg_resources _distutils_hack distutils-precedence.pth
# Arrow: Flight and the cloud file systems are separate libraries that only their own modules load.
cd pyarrow
rm -rf tests src include includes
rm -f libarrow_flight.so.* libarrow_python_flight.so* _flight*.so libarrow_s3.so.* _s3fs*.so _gcsfs*.so _azurefs*.so
rm -f _hdfs*.so _orc*.so ./*.pyx ./*.pxd ./*.pxi ./*.h
# The wheel has some libraries three times under three names: keep one file and two links.
for whole in lib*.so.*.*.*; do
    [ -f "$whole" ] || continue
    for name in "${whole%.*.*}" "${whole%.so.*}.so"; do
        if [ -f "$name" ] && [ ! -L "$name" ] && cmp -s "$name" "$whole"; then ln -sf "$whole" "$name"; fi
    done
done
find "$1" -name '*.a' -delete
find "$1" -type d -name tests -path '*/site-packages/*' -prune -exec rm -rf {} +
