#!/bin/sh
# A shell on a GPU node, whose folder is saved when the node goes away, and found again in the next session of the same name.
#
#   sh session.sh NAME [option of srun]…
#
# Slurm does not bring back what was started by srun, so the same command does it, on another node.
name=${1:?a name for the session}
shift
exec srun --gres=gpu:1 "$@" --pty spotburst run --run "$name" --state-dir "${STATE:-/tmp/$(id -un)-$name}" -- "${SHELL:-bash}"
