#!/bin/sh
# Starts a job's command in the image: inside.sh DEADLINE GRACE WATCH COMMAND…
#
# srun's exit code says little (0 after a cancel, 0 after a lost node), so how the command ended is written down here, in
# a folder that is only there if this really runs in the container.  `code` counts when it ends in a newline.  With
# WATCH 1 the file `stop` there ends the command.
state=/imagebuild/slurm
limit=$1
grace=$2
watch=$3
shift 3
IMAGEBUILD_IN=/imagebuild/in
IMAGEBUILD_OUT=/imagebuild/out
export IMAGEBUILD_IN IMAGEBUILD_OUT
# shellcheck source=/dev/null
. "$state/environment"
# The codes 126 and 127 may be the command's own, so whether it is there at all is asked before.
case $1 in
*/*) if [ ! -f "$1" ] || [ ! -x "$1" ]; then : >"$state/refused"; fi ;;
*) command -v "$1" >/dev/null || : >"$state/refused" ;;
esac
if [ -e "$state/refused" ]; then
    echo "there is no program $1 in the image" >&2
    exit 127
fi
: >"$state/started"

"$@" </dev/null &
child=$!
# As process 1 of a container the shell would not see TERM at all without a handler.  The command got the signal too:
# Slurm sends it to every process of a step.
trap ': >"$state/stopped"' TERM
(
    # Killing this shell alone would leave its `sleep` behind; a `sleep` that a signal ended is no deadline.
    trap 'kill "$nap"; exit' TERM
    if [ "$watch" = 1 ]; then
        left=$limit
        while [ "$left" -gt 0 ] && [ ! -e "$state/stop" ]; do
            sleep 1 &
            nap=$!
            wait "$nap" || exit
            left=$((left - 1))
        done
    else
        sleep "$limit" &
        nap=$!
        wait "$nap" || exit
    fi
    [ -e "$state/stop" ] || : >"$state/overrun"
    kill -TERM "$child"
    sleep "$grace" &
    nap=$!
    wait "$nap"
    kill -KILL "$child"
) </dev/null >/dev/null 2>&1 &
timer=$!

wait "$child"
code=$?
# A signal interrupts `wait`; the command is still there then.
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
kill "$timer" 2>/dev/null
printf '%s\n' "$code" >"$state/code"
exit "$code"
