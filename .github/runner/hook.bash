# What both hooks share: their settings, their time limit, and what they look at. Sourced, never run.
# shellcheck shell=bash

# These come from runner.conf, which the installer writes:
#   PERFGATE      the program
#   NVIDIA_SMI    the program; empty on a runner without a GPU, where nothing is looked for
#   MIN_FREE_GIB  a job needs so much room in the runner's work folder
#   LIMIT_S       a hook takes no longer
#   IDLE_WAIT_S   a process that has just ended gets so long to leave the GPU
# shellcheck source=/dev/null
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/runner.conf"

readonly INVISIBLE_MIB=1024 # an idle GPU shows less than this, driver and all

step() { printf 'perfgate: %s\n' "$1"; }

# GitHub shows these on the page of the job. Names of processes are part of them, and a line ends with a carriage return too.
annotate() {
  local text=${2//'%'/%25}
  text=${text//$'\r'/%0D}
  text=${text//$'\n'/%0A}
  printf '::%s title=perfgate::%s\n' "$1" "${text//[[:cntrl:]]/?}"
}
warn() { annotate warning "$1"; }
refuse() {
  annotate error "$1"
  exit 1
}

# limited HOOK: run a hook's looks, the function `looks` of its file, under LIMIT_S, for GitHub sets no limit. timeout
# can only start a program, so the hook starts itself again. Returns 124 when time is up.
limited() {
  local status=0
  timeout --kill-after=2 "$LIMIT_S" "$BASH" "$1" looks || status=$?
  # 137 is SIGKILL, which ended timeout along with a process that SIGTERM did not.
  if ((status == 137)); then status=124; fi
  return "$status"
}

# The GPUs of this runner: those that CUDA_VISIBLE_DEVICES in its .env names, else all.
smi() { "$NVIDIA_SMI" ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} "$@" --format=csv,noheader,nounits; }

# Print what occupies the GPUs, a line each; nothing when they are idle. Where that cannot be told, fail and print why.
occupants() {
  local processes memory gpu pid mib name user
  processes=$(smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name 2>&1) || { echo "$processes"; return 1; }
  while IFS=, read -r gpu pid mib name; do
    [[ -n $gpu ]] || continue
    user=$(ps -o user= -p "${pid# }" 2>/dev/null) || user="not visible from here"
    echo "${name# } (pid ${pid# }, user $user,$mib MiB) on $gpu"
  done <<<"$processes"
  memory=$(smi --query-gpu=gpu_uuid,memory.used 2>&1) || { echo "$memory"; return 1; }
  while IFS=, read -r gpu mib; do
    # Without a number ("[N/A]") GPU and host share one memory, which says nothing.
    if [[ ${mib# } =~ ^[0-9]+$ && $processes != *"$gpu"* ]] && ((mib > INVISIBLE_MIB)); then
      echo "a process that cannot be seen from here (another container?) holds$mib MiB on $gpu"
    fi
  done <<<"$memory"
}

# As occupants, but waits up to IDLE_WAIT_S for them to go.
lasting_occupants() {
  local found until=$((SECONDS + IDLE_WAIT_S))
  while found=$(occupants) || { echo "$found"; return 1; }; do
    if [[ -z $found ]] || ((SECONDS >= until)); then break; fi
    sleep 1
  done
  echo "$found"
}
