#!/usr/bin/env bash
# bash tools/null_gpu/setup.sh FOLDER TORCH, in the root of the repository
#
# Makes FOLDER/venv with torch's CUDA build (5 GB) and nmt, and compiles the null GPU into FOLDER. PY chooses the Python.
# Allocator, streams, events, captures, Dynamo, Inductor, Triton and ptxas are the real ones: host logic, launches,
# captures, memory and the host's time are real. Numbers are not, and no time of a GPU is measured.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(dirname "${BASH_SOURCE[0]}")
[[ -x $folder/venv/bin/python ]] || "${PY:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install "torch===$2"
"${pip[@]}" install -e ".[serve,tensorboard]" pytest hypothesis

# The headers of the runtime include those of the compiler, which torch does not bring.
find_runtime='from importlib.metadata import version; print(*version("nvidia-cuda-runtime").split(".")[:2], sep=".")'
runtime=$("$folder/venv/bin/python" -c "$find_runtime")
"${pip[@]}" download --no-deps --dest "$folder/wheels" "nvidia-cuda-crt==$runtime.*"
"$folder/venv/bin/python" -m zipfile -e "$folder"/wheels/nvidia_cuda_crt-*.whl "$folder/crt"
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
include=$(dirname "$(find "$site/nvidia" -name cuda_runtime_api.h -print -quit)")
crt=$(dirname "$(dirname "$(find "$folder/crt" -path '*crt/host_defines.h' -print -quit)")")

gcc -shared -fPIC -O1 -w -I"$include" -I"$crt" "$here/runtime.c" -o "$folder/libruntime.so" -lpthread
gcc -shared -fPIC -w "$here/driver.c" -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1"
