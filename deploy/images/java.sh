#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# java.sh PATH: provides a Java 17 runtime at PATH: the base image's, or else a copy of Debian's package.
set -eu
place=$1
if [ ! -x "$place/bin/java" ]; then
    mkdir -p /usr/share/man/man1 "$(dirname "$place")"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless >/dev/null
    found=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
    # Debian's runtime links to settings in /etc: replace the links by files, delete dangling ones.
    find "$found" -xtype l -delete
    cp -aL "$found" "$place"
fi
rm -rf "$place/man" "$place/legal" "$place/docs" "$place/release-notes" "$place/lib/src.zip"
"$place/bin/java" -version
