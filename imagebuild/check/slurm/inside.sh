#!/bin/sh
# Starts a job's command in the image: inside.sh DEADLINE GRACE COMMAND…
#
# srun's exit code says little (0 after a cancel, 0 after a lost node), so how the command ended is written down here, in
# a folder that is only there if this really runs in the container.  `code` counts when it ends in a newline.
state=/imagebuild/slurm
limit=$1
grace=$2
shift 2
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
# As process 1 of a container the shell would not see TERM at all without a handler.
trap ': >"$state/stopped"; kill -TERM "$child" 2>/dev/null' TERM
(
    sleep "$limit"
    : >"$state/overrun"
    kill -TERM "$child"
    sleep "$grace"
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
