# SPDX-License-Identifier: Apache-2.0
# Sidecar of a ZooKeeper server: brings the files of a Secret into the form that ZooKeeper reads and watches.
#
#   certificates.sh FROM TO [PAUSE_S [ROUNDS]]
#
# FROM has tls.crt, tls.key and ca.crt, as a mounted Secret. TO gets server.pem (certificate and key in one file) and
# ca.crt. For connections between servers, ZooKeeper watches the names in the directory of its files. ZooKeeper notices a
# renamed file, and not that a kubelet renames the directory behind the links of a mounted Secret. Files that are missing
# or not whole leave the former ones in use.
from=$1 to=$2 pause_s=${3:-10} rounds=${4:-0}
umask 077

publish() { # publish NAME: replace TO/NAME with TO/NAME.new if they differ
    if cmp -s "$to/$1.new" "$to/$1"; then rm "$to/$1.new"; else mv "$to/$1.new" "$to/$1" && echo "$1 is new"; fi
}

whole() { # whole FILE: as many ends as beginnings of PEM blocks, and at least one
    begins=$(grep -c -e '-----BEGIN [A-Z0-9 ]*-----' "$1") && [ "$begins" = "$(grep -c -e '-----END [A-Z0-9 ]*-----' "$1")" ]
}

once() {
    # All files of one version, even while the kubelet replaces them.
    here=$from
    if [ -e "$from/..data" ]; then here=$(readlink -f "$from/..data"); fi
    for name in tls.crt tls.key ca.crt; do
        whole "$here/$name" 2>/dev/null || { echo "$name is missing or no whole PEM file" >&2; return 1; }
    done
    if ! grep -q -e '-----BEGIN PRIVATE KEY-----' "$here/tls.key"; then
        echo "tls.key is not PKCS#8, which ZooKeeper needs (cert-manager: privateKey.encoding: PKCS8)" >&2
        return 1
    fi
    { cat "$here/tls.crt" && echo && cat "$here/tls.key"; } >"$to/server.pem.new" && publish server.pem
    cat "$here/ca.crt" >"$to/ca.crt.new" && publish ca.crt
}

trap 'exit 0' TERM
round=0
while :; do
    once
    round=$((round + 1))
    [ "$round" != "$rounds" ] || exit 0
    sleep "$pause_s" &
    wait $!
done
