#!/usr/bin/env bash
# Run by GitHub's runner before each job, as its service user (ACTIONS_RUNNER_HOOK_JOB_STARTED): undo what dead runs left
# behind, and refuse a machine on which a measurement would be wrong. Ending with non-zero fails the job before it starts.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=hook.bash
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/hook.bash"

# Print the whole GiB free in the file system of a folder; fail where that cannot be told.
free_gib() {
  local kib
  kib=$(df --output=avail -k -- "$1" | tail -n 1)
  echo $((kib / 1024 / 1024))
}

room() {
  local work free unknown
  work=$(dirname -- "${RUNNER_TEMP:?GitHub sets it; to try this hook by hand, set it to a folder in the work folder}")
  unknown="cannot tell how much room there is in $work"
  free=$(free_gib "$work") || refuse "$unknown"
  if ((free < MIN_FREE_GIB)); then
    step "only $free GiB free; removing what earlier runs of perfgate left in $work"
    "$PERFGATE" clean --runs "$work" || refuse "perfgate clean --runs failed; its message stands above"
    free=$(free_gib "$work") || refuse "$unknown"
  fi
  ((free >= MIN_FREE_GIB)) || refuse "$free GiB are free in $work, $MIN_FREE_GIB are needed: make room on the runner"
}

looks() {
  local found
  [[ -x $PERFGATE ]] || refuse "there is no program $PERFGATE: mend PERFGATE in runner.conf beside the hooks"
  step "ending processes of dead runs"
  "$PERFGATE" clean || refuse "a process of a dead run does not end; it is named above"
  step "undoing clock locks of dead runs"
  "$PERFGATE" clocks reset || refuse "the clocks of a GPU are locked and could not be reset; the reason stands above"
  if [[ -n $NVIDIA_SMI ]]; then
    step "looking for processes on the GPUs"
    found=$(lasting_occupants) || refuse "nvidia-smi cannot tell whether the GPUs are idle: $found"
    [[ -z $found ]] || refuse "a GPU of this runner is in use, so nothing can be measured on it:"$'\n'"$found"
  fi
  step "looking for room"
  room
  step "the machine is ready"
}

if [[ ${1-} == looks ]]; then
  looks
else
  status=0
  limited "${BASH_SOURCE[0]}" || status=$?
  ((status != 124)) || refuse "the looks before the job took longer than $LIMIT_S s; the last line above says at what"
  exit "$status"
fi
