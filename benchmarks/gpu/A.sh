#!/usr/bin/env bash
# Script A, is it right? The tests that need a GPU, then the demo from start to end on the GPU.
#
# The tests compare torch's and our own attention with float64 loops, replays with plain steps, and recorded searches
# with plain ones. BLEU of at least 90 (97 expected) says that training and search are right together. The number of
# lines that differ between float32 on the GPU and the CPU should be 0.
# shellcheck source=benchmarks/gpu/call.sh
source "$(dirname "${BASH_SOURCE[0]}")/call.sh"
nmt=(python3 -m nmt_cli)

nvidia-smi -L
python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
command -v gcc || echo "no gcc: Triton cannot build its launchers"

mapfile -t gpu_tests < <(grep -rl --include='test_*.py' '@pytest\.mark\.gpu\|pytestmark = \(pytest\.mark\.gpu\|MARKS\)' tests | sort)
step tests 400 python3 -m pytest -m gpu -q --tb=short --show-capture=no -p no:cacheprovider "${gpu_tests[@]}" &&
  shown tests 4
step train 200 "${nmt[@]}" train demo --device cuda -o runs/demo-cuda && shown train 12
step average 30 "${nmt[@]}" average runs/demo-cuda

# translate NAME OPTION ...: the demo's test set into $OUT/NAME.hyp.
translate() {
  local name=$1
  shift
  # shellcheck disable=SC2016
  step "$name" 60 bash -c 'out=$1; shift; python3 -m nmt_cli decode --beam 4 "$@" < data/demo/test.en > "$out"' \
    - "$OUT/$name.hyp" "$@"
}
translate bf16 --device cuda
translate fp32 --device cuda --precision fp32
translate cpu --device cpu
step score 30 "${nmt[@]}" score data/demo/test.de -i "$OUT/bf16.hyp" --metrics bleu --fail-under BLEU=90 && shown score 3
echo "lines that differ between float32 on the GPU and the CPU: $(diff "$OUT/fp32.hyp" "$OUT/cpu.hyp" | grep -c '^<')"

# Reads and writes outside of memory, if the tool is there; it slows kernels down, so running out of time is no failure.
if command -v compute-sanitizer > /dev/null; then
  timeout 60 compute-sanitizer --tool memcheck python3 -m pytest -m gpu -q --show-capture=no -p no:cacheprovider \
    tests/model/test_attention.py tests/model/kernels > "$OUT/sanitizer.log" 2>&1
  tail -n 3 "$OUT/sanitizer.log"
fi
finish
