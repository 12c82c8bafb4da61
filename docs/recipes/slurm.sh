#!/bin/sh
#SBATCH --nodes=4 --ntasks-per-node=1 --exclusive --time=08:00:00
# A fleet of whole nodes for as long as the job lasts, driven from the first of them:
#   sbatch slurm.sh benchmarks --commits main~20..main --on gpu=H200
set -eu
export RAY_AUTH_TOKEN="${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}"
export STEELYARD_CACHE="${TMPDIR:-/tmp}/steelyard-$SLURM_JOB_ID"
export HEAD="$(hostname -I | cut -d' ' -f1):6379"
steelyard fleet up --bind "$HEAD"
trap 'steelyard fleet down' EXIT
[ "$SLURM_JOB_NUM_NODES" = 1 ] || srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) \
  --exclude="$SLURMD_NODENAME" sh -c \
  'steelyard fleet up --address "$HEAD" --bind "$(hostname -I | cut -d" " -f1)" && sleep infinity' &
steelyard fleet run --address "$HEAD" "$@"
