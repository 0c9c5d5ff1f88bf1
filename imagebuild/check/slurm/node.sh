# What each task of the array does on its node; `folder`, `local_disk` and `allowance` come from the lines above, the rest of
# what it uses from the settings of the task.
set -u
task=$folder/tasks/${SLURM_ARRAY_TASK_ID:?}
state=$task/run
restarts=${SLURM_RESTART_COUNT:-0}
begin=0
said=null

# finish END CODE DETAIL: the task's result, whole or not at all.
finish() {
    local seconds=0
    if [ "$begin" -gt 0 ]; then
        seconds=$(($(date +%s%N) / 1000000 - begin))
    fi
    printf '{"end":"%s","code":%s,"detail":"%s","srun":%s,"milliseconds":%s,"node":"%s","job":"%s","restarts":%s}\n' \
        "$1" "$2" "$3" "$said" "$seconds" "${SLURMD_NODENAME:-}" "${SLURM_JOB_ID:-}" "$restarts" >"$task/status.partial"
    mv -f "$task/status.partial" "$task/status.json"
    exit 0
}

# What is on the node's own disk goes with the task.
scratch=
# shellcheck disable=SC2317  # the trap calls it
clean_up() {
    if [ -n "$scratch" ]; then
        chmod -R u+rwX "$scratch" 2>/dev/null
        rm -rf "$scratch"
    fi
}
trap clean_up EXIT

# The image as a squash file named by its digest, made by one task while the others wait.
squash_file() {
    local code partial
    [ -s "$squash" ] && return 0
    mkdir -p "$(dirname "$squash")" || return 1
    exec 9>"$squash.lock" || return 1
    flock -w "$allowance" 9 || return 1
    if [ ! -s "$squash" ]; then
        # We hold the lock, so what a killed task left is nobody's.
        rm -f "$squash".partial.*
        partial=$squash.partial.$SLURM_JOB_ID
        mkdir "$scratch/tmp" "$scratch/cache" "$scratch/data" "$scratch/run"
        ENROOT_TEMP_PATH=$scratch/tmp ENROOT_CACHE_PATH=$scratch/cache ENROOT_DATA_PATH=$scratch/data \
            ENROOT_RUNTIME_PATH=$scratch/run enroot import -a "$machine" -o "$partial" "$address" >"$task/import.log" 2>&1 9>&-
        code=$?
        if [ "$code" -ne 0 ] || [ ! -s "$partial" ]; then
            rm -f "$partial"
            return 1
        fi
        mv "$partial" "$squash"
    fi
    exec 9>&-
}

# One object of config.json for a character node, and the rule that lets the container open it.
device() {
    local major minor
    major=$((16#$(stat -L -c %t "$1"))) minor=$((16#$(stat -L -c %T "$1")))
    nodes+="${nodes:+,}{\"path\":\"/dev/${1#"$device_folder"/}\",\"type\":\"c\",\"major\":$major,\"minor\":$minor,\"fileMode\":438,\"uid\":0,\"gid\":0}"
    rules+=",{\"allow\":true,\"type\":\"c\",\"major\":$major,\"minor\":$minor,\"access\":\"rwm\"}"
}

# Slurm passes neither nodes nor variables of accelerators into a container step, so the bundle gets those of this job;
# what the container writes to its folders goes to the node's own disk.
complete_bundle() {
    local config number path count=0 visible='' nodes='' rules='' user=''
    for path in "${layered[@]}"; do mkdir -p "$scratch/upper/$path" "$scratch/work/$path"; done
    if [ "$(id -u)" -ne 0 ]; then user=',"userxattr"'; fi
    if [ "$vendor" = nvidia ]; then
        for number in $(expand "${SLURM_JOB_GPUS:-${SLURM_STEP_GPUS:-}}"); do
            [ -c "$device_folder/nvidia$number" ] || continue
            device "$device_folder/nvidia$number"
            visible+="${visible:+,}$count" count=$((count + 1))
        done
        for path in nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset; do
            if [ -c "$device_folder/$path" ]; then device "$device_folder/$path"; fi
        done
        visible="\"CUDA_VISIBLE_DEVICES=$visible\""
    elif [ "$vendor" = amd ]; then
        for path in "$device_folder"/kfd "$device_folder"/dri/renderD*; do
            if [ -c "$path" ]; then device "$path"; fi
        done
        visible="\"ROCR_VISIBLE_DEVICES=${ROCR_VISIBLE_DEVICES:-}\""
    fi
    config=$(cat "$task/bundle/template.json")
    config=${config//\"@DEVICES@\"/$nodes}
    config=${config//,\"@RULES@\"/$rules}
    config=${config//\"@VISIBLE@\"/${visible:-\"IMAGEBUILD_DEVICES=none\"}}
    config=${config//@SCRATCH@/$scratch}
    config=${config//,\"@USER@\"/$user}
    printf '%s\n' "$config" >"$task/bundle/config.json"
}

# 0,2-4 as words
expand() {
    local piece
    for piece in ${1//,/ }; do
        case $piece in
        *-*) seq "${piece%-*}" "${piece#*-}" ;;
        *) echo "$piece" ;;
        esac
    done
}

if [ -e "$task/status.json" ]; then exit 0; fi
# shellcheck source=/dev/null
. "$task/settings"
if [ "$restarts" -gt 1 ]; then finish lost null "the node was lost twice"; fi
if [ "$(uname -m)" != "$machine" ]; then finish not-started null "the node is $(uname -m), the image is for $machine"; fi

# What an earlier try on a lost node left is no part of this one.
rm -rf "$local_disk/imagebuild-$SLURM_JOB_ID".*
rm -rf "$task/out" "$task/stdout" "$task/stderr" "$state/started" "$state/code" "$state/overrun" "$state/stopped" "$state/refused"
mkdir "$task/out" && chmod 1777 "$task/out"

scratch=$(mktemp -d "$local_disk/imagebuild-$SLURM_JOB_ID.XXXXXX") || finish not-started null "no room on the node's own disk"
if [ "$container" = pyxis ]; then
    squash_file || finish not-started null "the image could not be imported as a squash file"
    # Exported variables that the image sets too are the image's in pyxis, unless they are named.
    step=(--container-image="$squash" --container-mounts="$mounts" --container-workdir="$workdir")
    step+=(--container-writable --container-remap-root --no-container-mount-home --no-container-entrypoint)
    if [ -n "$names" ]; then step+=(--container-env="$names"); fi
else
    complete_bundle || finish not-started null "the bundle could not be completed on the node"
    # The exported environment would win over the image's.
    step=(--export=NONE --container="$task/bundle")
fi

srun=$(command -v srun) || finish not-started null "there is no srun on the node"
clean=(PATH="$PATH" HOME="${HOME:-/}" USER="${USER:-}" LOGNAME="${LOGNAME:-}" LANG=C.UTF-8)
for name in "${!SLURM_@}" "${!ENROOT_@}" "${!CUDA_@}" "${!ROCR_@}"; do clean+=("$name=${!name}"); done

printf '%s\n' "${SLURM_JOB_ID:-}" >"$task/job"
printf '%s\n' "${SLURMD_NODENAME:-}" >"$task/node"
begin=$(($(date +%s%N) / 1000000))
env -i "${clean[@]}" "${variables[@]}" "$srun" --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --input=none \
    --output="$task/stdout" --error="$task/stderr" "${step[@]}" /bin/sh "/imagebuild/slurm/$inside" "$deadline" "$grace" "$watch" "${command[@]}" \
    </dev/null >"$task/srun.log" 2>&1 &
running=$!
(
    # The container ends the command at its deadline; this is for one that does not.  Killing this shell alone would leave
    # its `sleep` behind.
    trap 'kill "$nap"; exit' TERM
    sleep $((deadline + grace + allowance)) &
    nap=$!
    wait "$nap" || exit
    : >"$state/overrun"
    scancel --signal=KILL "$SLURM_JOB_ID.0"
    sleep 30
    kill -KILL "$running"
) </dev/null >/dev/null 2>&1 &
backstop=$!
wait "$running"
said=$?
kill "$backstop" 2>/dev/null

code=
if [ -s "$state/code" ]; then code=$(cat "$state/code"); fi
if [ -e "$state/refused" ]; then finish not-started null "the image has no such program"; fi
if [ -e "$state/overrun" ]; then finish deadline null "stopped at its deadline"; fi
if [ -e "$state/stopped" ]; then finish stopped "${code:-null}" "stopped by a signal to the step"; fi
# The shell's own words, by a name that nobody else knows: the command could not be started.
if [ "${code:-0}" = 126 ] || [ "${code:-0}" = 127 ]; then
    if grep -qs "^/imagebuild/slurm/$inside: " "$task/stderr"; then finish not-started null "the command cannot be started"; fi
fi
if [ -n "$code" ]; then finish exited "$code" ""; fi
if [ -e "$state/started" ]; then finish lost null "the step ended and the command did not"; fi
if [ "$container" = oci ]; then
    finish not-started null "the command did not run in the image: srun ran it on the node (no oci.conf?) or the runtime refused"
fi
finish not-started null "the command did not run in the image: see srun's words"
