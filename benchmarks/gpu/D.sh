#!/usr/bin/env bash
# Script D, how fast is a search? With the model of script C, which is too large to travel: before the machine goes back.
#
# `bars` has the verdicts: share of the floor (the time that the bytes or products of a step need at least), milliseconds
# per step of a single sentence, BLEU of bf16 against float32, and float32 lines that are the same as on a CPU.
# shellcheck source=benchmarks/gpu/call.sh
source "$(dirname "${BASH_SOURCE[0]}")/call.sh"
model=runs/race/ours/averaged
if [[ ! -d $model ]]; then
  echo "$model is not there: script C makes it, on the same machine"
  exit 1
fi

# decoding NAME SECONDS OPTION ...: a run of the benchmark; its verdicts are shown.
decoding() {
  local name=$1 limit=$2
  shift 2
  # shellcheck disable=SC2016
  step "$name" "$limit" bash -c 'out=$1; shift; python3 benchmarks/decode_gpu.py "$@" > "$out"' - "$OUT/$name.json" \
    --model "$model" --input .gpu/text/news.en --reference .gpu/text/news.de --commit "$COMMIT" "$@" &&
    python3 - "$OUT/$name.json" << 'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    result = json.load(file)
for batch, figures in result.get("ours", {}).items():
    print(batch, {key: value for key, value in figures.items() if key != "tokens_per_second"})
print(json.dumps({key: result[key] for key in ("single_sentences", "identical_lines", "bleu", "bars") if key in result}, indent=1))
PYTHON
}

decoding speed 200 --parts speed latency --lines 3000 --batches 128 256 1024 --runs 1
decoding precision 150 --parts precision --lines 1000 --cpu-lines 300
finish
