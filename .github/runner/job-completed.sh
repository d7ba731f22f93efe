#!/usr/bin/env bash
# Run by GitHub's runner after each job, as its service user (ACTIONS_RUNNER_HOOK_JOB_COMPLETED): end what the job left
# running, give the clocks free, and say what remains.
#
# Always ends with 0. A failure here would turn the job's verdict on a change into one on the machine; what remains is a
# warning now, and job-started.sh refuses the next job as long as it is there.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=hook.bash
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/hook.bash"

looks() {
  local found
  step "ending what this job left running"
  "$PERFGATE" clean --job || warn "a process of this job may still run; the reason stands above"
  step "undoing clock locks"
  "$PERFGATE" clocks reset || warn "the clocks of a GPU may still be locked; the reason stands above"
  if [[ -n $NVIDIA_SMI ]]; then
    step "looking for processes on the GPUs"
    if ! found=$(lasting_occupants); then
      warn "nvidia-smi cannot tell whether the GPUs are idle: $found"
    elif [[ -n $found ]]; then
      warn "a GPU of this runner is still in use; the next job will be refused:"$'\n'"$found"
    fi
  fi
}

if [[ ${1-} == looks ]]; then
  looks
else
  status=0
  limited "${BASH_SOURCE[0]}" || status=$?
  case $status in
    0) ;;
    124) warn "cleaning up took longer than $LIMIT_S s; the last line above says at what" ;;
    *) warn "cleaning up failed with status $status; the reason stands above" ;;
  esac
fi
