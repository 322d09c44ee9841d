# SPDX-License-Identifier: Apache-2.0
# preStop hook of a broker's pod: waits until a stop interrupts no client, for WAIT_S seconds at most. --claim: if several
# pods stop at the same moment, they stop one after the other. An upgrade also changes this file in running pods, whose image
# may have no --claim (exit status 2).
# If waiting does not help (topics without a replica to spare), ends immediately with a line in the pod's log.
# If the admin service does not answer SILENT_MAX times in a row (during an uninstall), ends too.
# Environment: TIDEMARK_BROKER_ID, ADMIN_ADDRESS, WAIT_S; PAUSE_S between two calls; LOG, the file for the line.
end=$(($(date +%s) + WAIT_S))
silent=0
claim=--claim
while [ "$(date +%s)" -lt "$end" ] && [ "$silent" -lt "${SILENT_MAX:-2}" ]; do
    answer=$(timeout "$WAIT_S" tidemark cluster safe-to-restart "$TIDEMARK_BROKER_ID" $claim --admin "$ADMIN_ADDRESS" -o json)
    case "$?$claim" in
        0*) exit 0 ;;
        2--claim) claim="" && continue ;;
    esac
    case "$answer" in
        *'"waiting_helps": false'*)
            echo "stopping although clients are interrupted: $answer" >>"${LOG:-/proc/1/fd/1}" 2>/dev/null
            exit 0
            ;;
    esac
    silent=$((silent + 1))
    [ -z "$answer" ] || silent=0
    sleep "${PAUSE_S:-1}"
done
exit 0
