# Starts an OCI runtime in namespaces of its own (run by `unshare --mount --pid --fork`, so this is their first process).
# Whatever it mounts is seen by nobody else and goes with it.  Arguments: folder of the run, unpacked image, "1" for a
# user namespace, name of the container, file of the outcome, then the runtime's command up to its verb.
# Standard input is a pipe that closes when whoever waits for us ends, or wants the container to end.
set -eu
exec 3<&0 </dev/null
run=$1 lower=$2 in_user=$3 name=$4 said=$5
shift 5
cd "$run"
exec 4>&2 2>setup.log

# No resource limits are set here, so a runtime that finds no cgroups of its own is not kept from working.
overlay() {
    options=lowerdir=lower,upperdir=$1/upper,workdir=$1/work
    if [ "$in_user" = 1 ] && mount -t overlay overlay -o "$options,userxattr" bundle/rootfs; then
        return 0
    fi
    mount -t overlay overlay -o "$options" bundle/rootfs
}

mkdir -p lower disk/upper disk/work memory bundle/rootfs
mount --bind "$lower" lower
if overlay disk; then
    how=disk
elif mount -t tmpfs -o mode=700 tmpfs memory && mkdir memory/upper memory/work && overlay memory; then
    how=memory
else
    cp -a lower/. bundle/rootfs
    mount --bind bundle/rootfs bundle/rootfs
    how=copy
fi
echo "$how" >writable

(
    trap '' TERM INT
    cat <&3 >/dev/null
    exec "$@" kill "$name" KILL
) 2>/dev/null >/dev/null 4>&- &
exec 3<&-

code=0
"$@" run --bundle bundle "$name" 2>&4 4>&- || code=$?
echo "$code" >"$said"
exit "$code"
