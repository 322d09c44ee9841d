# SPDX-License-Identifier: Apache-2.0
# preStop hook of a ZooKeeper server: at an uninstall, the server serves until the services have removed their
# registrations. A broker that cannot reach ZooKeeper leaves its registration on the volumes, and the next install begins
# with it.
#
#   before-stop.sh WAIT_S QUIET_S [PAUSE_S [PORT]]
#
# Registrations are ephemeral nodes, which `mntr` counts. The hook ends at the first of these:
# - no registration is left;
# - no registration was missing for QUIET_S: only this server stops, and the others continue;
# - the server has not answered SILENT_MAX times in a row: it has no quorum;
# - WAIT_S have passed.
wait_s=$1 quiet_s=$2 pause_s=${3:-1} port=${4:-2181}

registrations() {
    { exec 3<>"/dev/tcp/127.0.0.1/$port" && printf mntr >&3 && timeout 5 cat <&3; } 2>/dev/null |
        sed -n 's/^zk_ephemerals_count[[:space:]]*//p'
}

most=0 silent=0 full_at=$SECONDS end=$((SECONDS + wait_s))
while [ "$SECONDS" -lt "$end" ] && [ "$silent" -lt "${SILENT_MAX:-5}" ]; do
    count=$(registrations)
    case "$count" in
        "") silent=$((silent + 1)) ;;
        0) exit 0 ;;
        *)
            silent=0
            if [ "$count" -ge "$most" ]; then most=$count; else full_at=$SECONDS; fi
            ;;
    esac
    [ $((SECONDS - full_at)) -lt "$quiet_s" ] || exit 0
    sleep "$pause_s"
done
exit 0
