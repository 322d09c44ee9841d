# SPDX-License-Identifier: Apache-2.0
# Runs in a broker's pod before it is told to stop: waits until nobody will notice, WAIT_S seconds at most.
# Where waiting does not help, for topics with no replica to spare, it goes on at once and says so in the pod's log.
# Where the admin service answers nothing SILENT_MAX times in a row, as when all of the release goes, it waits no longer.
# Environment: TIDEMARK_BROKER_ID, ADMIN_ADDRESS, WAIT_S; PAUSE_S between two questions; LOG, where it speaks.
end=$(($(date +%s) + WAIT_S))
silent=0
while [ "$(date +%s)" -lt "$end" ] && [ "$silent" -lt "${SILENT_MAX:-2}" ]; do
    if answer=$(timeout "$WAIT_S" tidemark cluster safe-to-restart "$TIDEMARK_BROKER_ID" --admin "$ADMIN_ADDRESS" -o json); then
        exit 0
    fi
    case "$answer" in
        *'"waiting_helps": false'*)
            echo "stopping though somebody will notice: $answer" >>"${LOG:-/proc/1/fd/1}" 2>/dev/null
            exit 0
            ;;
    esac
    silent=$((silent + 1))
    [ -z "$answer" ] || silent=0
    sleep "${PAUSE_S:-1}"
done
exit 0
