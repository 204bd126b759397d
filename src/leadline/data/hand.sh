# leadline's hand on this host: the only thing that changes the unit, and the dead-man that puts it back.
#
# It stands in $dir as long as the unit is not as it was found.  The lines above set unit, scope, dir, folder, dropin,
# lasting, timer, period_s, tick_s, grace_s.  Every verb that changes something takes the lock and the token first, so that
# a command that was long on its way changes nothing once the dead-man has acted.
#
#   arm TOKEN OWNER    note how the unit is found, start the timer          beat TOKEN    leadline still lives
#   put TOKEN BYTES    trial drop-in from standard input, daemon-reload     halt TOKEN    stop until nothing is left
#   keep TOKEN BYTES   the same, but lasting, under /etc                    start TOKEN   start, do not wait
#   commit TOKEN       the lasting drop-in stays, all else goes             kill TOKEN SIGNAL
#   restore WHY        everything as found                                  check         what the timer runs
#   undo               take a lasting drop-in back (after arm)
#
# Exit status: 0 done, 74 could not write, 75 systemd refused or it took too long (the timer tries again), 76 not armed
# with this token.

export LC_ALL=C
umask 022
state='' deadman=''
trap '' HUP INT PIPE # a cut connection or a Ctrl-C must not stop half-way

ctl() { if [ "$scope" = user ]; then systemctl --user "$@"; else systemctl "$@"; fi; }

# Sets state, invocation, group and pid from one call.
look() {
    state='' invocation='' group='' pid=0
    # none of these values holds a blank; a here-document would be a file to some shells, and the disk may be full
    for pair in $(ctl show -p ActiveState,InvocationID,ControlGroup,MainPID -- "$unit"); do
        case $pair in
        ActiveState=*) state=${pair#*=} ;;
        InvocationID=*) invocation=${pair#*=} ;;
        ControlGroup=*) group=${pair#*=} ;;
        MainPID=*) pid=${pair#*=} ;;
        esac
    done
}
shown() { ctl show -p ExecStart --value -- "$unit" | sed 's/ ; ignore_errors=.*//'; }
say() { echo "<5>leadline: $unit: $*" >&2; } # <5>: systemd's mark for a notice

# Sets up and up_cs, seconds and hundredths since boot: no step of the wall clock makes the dead-man early or late.
clock() {
    read -r up _ </proc/uptime
    up_cs=${up%.*}${up#*.} up=${up%.*}
}

# Overwrites in place, so that a full disk cannot make a living leadline look dead.
beat() { clock && printf '%-15s\n' "$up" 1<>"$dir/alive"; }

# Sets silent: seconds since leadline's last sign of life.
silence() {
    read -r alive <"$dir/alive" && clock || return 76
    case $alive in '' | *[!0-9]*) alive=0 ;; esac
    silent=$((up - alive))
}

hold() { # TOKEN (empty: anybody's), seconds to wait for the lock (0: not at all)
    [ -d "$dir" ] || exit 76
    exec 9>>"$dir/lock"
    if [ "${2:-120}" = 0 ]; then flock -n 9 || exit 75; else flock -w "${2:-120}" 9 || exit 75; fi
    [ -e "$dir/token" ] || exit 76
    [ -z "$1" ] || [ "$1" = "$(cat "$dir/token")" ] || exit 76
}

left() { # process ids of the unit's cgroup
    [ -n "$group" ] && cat "/sys/fs/cgroup$group/cgroup.procs" "/sys/fs/cgroup/systemd$group/cgroup.procs" 2>/dev/null
}

arm() {
    command -v flock >/dev/null || { say "flock (util-linux) is missing here"; return 75; }
    look
    printf '%s\n' "$2" >"$dir/owner" && echo "$state" >"$dir/active" && echo "$invocation" >"$dir/invocation" && shown >"$dir/exec" || return 74
    [ -d "$folder" ] || : >"$dir/made-folder" || return 74
    : >"$dir/alive" && beat || return 74
    # systemd refuses to reload with less than 16 MiB free under /run, and without a reload nothing can be put back: room for that day
    fallocate -l 20971520 "$dir/ballast" 2>/dev/null || head -c 20971520 /dev/zero >"$dir/ballast" || return 74
    ctl reset-failed "$timer.service" 2>/dev/null
    set -- "$1" --quiet --unit="$timer" --description="leadline restores $unit when it is not renewed" --service-type=oneshot
    [ "$scope" = user ] && set -- "$@" --user
    [ "$scope" = user ] || set -- "$@" --property=OOMScoreAdjust=-900
    token=$1
    shift
    systemd-run "$@" --on-calendar="*:*:0/$tick_s" --timer-property=AccuracySec=100ms --property=LogLevelMax=notice \
        --property=CollectMode=inactive-or-failed --property=SuccessExitStatus="75 76" /bin/sh "$dir/hand" check || return 75
    ctl is-active --quiet "$timer.timer" && printf '%s' "$token" >"$dir/token" && return 0
    ctl stop "$timer.timer"
    return 75
}

receive() { # BYTES FILE: standard input, complete or not at all
    mkdir -p -- "$(dirname -- "$2")" && cat >"$2.new" && [ "$(wc -c <"$2.new")" -eq "$1" ] && mv -f -- "$2.new" "$2" && return 0
    rm -f -- "$2.new"
    return 74
}

drop() {
    rm -f -- "$dropin"
    if [ -e "$dir/made-folder" ] && [ -d "$folder" ]; then rmdir -- "$folder" 2>/dev/null; fi
    return 0
}

put() {
    : >"$dir/put" && receive "$1" "$dropin" || { drop; return 74; }
    ctl daemon-reload && return 0
    drop
    ctl daemon-reload
    return 75
}

keep() {
    etc=$(dirname -- "$lasting")
    [ -d "$etc" ] || : >"$dir/made-etc" || return 74
    [ ! -e "$lasting" ] || cp -p -- "$lasting" "$lasting.before" || return 74
    : >"$dir/kept" && receive "$1" "$lasting" || { unkeep; return 74; }
    drop
    ctl daemon-reload && return 0
    unkeep
    ctl daemon-reload
    return 75
}

unkeep() { # the lasting drop-in away, or the one before it back
    if [ -e "$lasting.before" ]; then mv -f -- "$lasting.before" "$lasting"; else rm -f -- "$lasting"; fi
    if [ -e "$dir/made-etc" ] || [ -e "$dir/undo" ]; then rmdir -- "$(dirname -- "$lasting")" 2>/dev/null; fi
    rm -f -- "$dir/kept"
    return 0
}

halt() { # from the state that was looked at last
    clock
    began_cs=$up_cs kill_cs=$((up_cs + 100 * grace_s))
    case $state in
    inactive | failed) ;;
    *) ctl stop --no-block -- "$unit" || return 75 ;;
    esac
    while :; do
        look
        case $state in
        inactive | failed) [ -z "$(left)" ] && return 0 ;;
        esac
        clock
        # some engines never end while a client is connected; a requested stop that needs KILL is no crash
        if [ "$up_cs" -ge "$kill_cs" ]; then
            ctl kill -s KILL -- "$unit" 2>/dev/null
            kill_cs=$((up_cs + 100 * grace_s))
        fi
        [ $((up_cs - began_cs)) -gt $((100 * (grace_s + 60))) ] && return 75
        sleep 0.2
    done
}

start() {
    [ "$state" = inactive ] || ctl reset-failed -- "$unit" 2>/dev/null
    ctl start --no-block -- "$unit" || return 75
}

up() { # wait until the unit runs; its own readiness is not awaited
    half_s=0
    while [ "$half_s" -lt 60 ]; do
        look
        case $state in
        active) return 0 ;;
        activating) [ "$pid" != 0 ] && return 0 ;;
        failed) return 75 ;;
        esac
        half_s=$((half_s + 1))
        sleep 0.5
    done
    return 75
}

restore() {
    [ ! -e "$dir/kept" ] || unkeep
    drop
    if [ -e "$dir/put" ] || [ -e "$dir/undo" ]; then
        rm -f -- "$dir/ballast"
        ctl daemon-reload || { reloads=no; return 75; }
    fi
    read -r was <"$dir/active"
    read -r before <"$dir/invocation"
    look
    if [ "$invocation" != "$before" ] || [ "$state" != "$was" ] || [ -e "$dir/undo" ]; then
        halt || return 75
        case $was in
        active | activating | reloading | deactivating) start && up || return 75 ;;
        *) ctl reset-failed -- "$unit" 2>/dev/null ;;
        esac
    fi
    return 0
}

clean() {
    parent=$(dirname -- "$dir")
    rm -rf -- "$dir"
    rmdir -- "$parent" 2>/dev/null
    ctl stop "$timer.timer" || { sleep 1; ctl stop "$timer.timer"; } || say "the timer $timer.timer could not be stopped"
}

again() { # restore, or leave it to the next tick; a service that does not come up is not started for ever
    tries=0 reloads=yes
    [ ! -e "$dir/tries" ] || read -r tries <"$dir/tries"
    tries=$((tries + 1))
    if restore; then
        silence
        say "as found again ($1)${deadman:+, $silent s after its last sign of life}"
        if [ ! -e "$dir/undo" ] && [ "$(shown)" != "$(cat "$dir/exec")" ]; then say "note: the unit's own files were changed meanwhile"; fi
    elif [ "$reloads" = no ]; then
        say "not yet as found ($1): daemon-reload failed"
        return 75
    elif [ "$tries" -lt 30 ]; then
        echo "$tries" >"$dir/tries"
        say "not yet as found ($1), attempt $tries"
        return 75
    else
        say "leadline's settings are gone, but the service did not come up in $tries attempts ($1)"
    fi
    clean
}

case $1 in
arm)
    arm "$2" "$3"
    ;;
beat)
    [ "$2" = "$(cat "$dir/token" 2>/dev/null)" ] || exit 76
    beat
    ;;
put | keep)
    hold "$2"
    beat
    "$1" "$3"
    ;;
halt)
    hold "$2"
    beat
    look
    halt
    ;;
start)
    hold "$2"
    beat
    start
    ;;
kill)
    hold "$2"
    beat
    ctl kill --kill-who=main -s "$3" -- "$unit"
    ;;
commit)
    hold "$2"
    clean
    ;;
undo)
    hold "$2"
    : >"$dir/undo" && : >"$dir/kept" || exit 74
    ! grep -qx '# The service was not running before.' "$lasting" || echo inactive >"$dir/active" || exit 74
    again "the lasting setting was taken back"
    ;;
restore)
    hold ""
    again "$2"
    ;;
check) # mostly nothing is due, which costs no process beyond this one
    silence || exit 76
    [ "$silent" -ge "$period_s" ] || exit 0
    hold "" 0
    deadman=yes
    again "leadline was silent for $period_s s"
    ;;
esac
