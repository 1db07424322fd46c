#!/usr/bin/env bash
# bash tools/null_gpu/run.sh FOLDER COMMAND [ARGUMENT ...]
#
# Runs a command with the null GPU that setup.sh has made in FOLDER, on one thread. python and nmt are FOLDER/venv's:
#   bash tools/null_gpu/run.sh build/null-gpu/2.13.0 nmt train demo --device cuda --set training.updates=20
set -euo pipefail
folder=$(cd "$1" && pwd)
export PATH="$folder/venv/bin:$PATH"
export LD_PRELOAD="$folder/libruntime.so" LD_LIBRARY_PATH="$folder" TRITON_LIBCUDA_PATH="$folder"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
export TORCHINDUCTOR_CACHE_DIR="$folder/cache/inductor" TRITON_CACHE_DIR="$folder/cache/triton"
export TORCH_CUDNN_SDPA_DEPRIORITIZED=1
exec "${@:2}"
