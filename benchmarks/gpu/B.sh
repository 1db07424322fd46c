#!/usr/bin/env bash
# Script B, how fast is a step? Its parts by themselves, then base and big beside the eager loop, each with a profile.
#
# `bars` has the verdicts. If one falls short: the profile has the largest costs, `own_products` the time of the model's
# matrix products alone, and `python benchmarks/gpu/step_model.py build/null-gpu/parts/2.11.0 --measured
# build/gpu/step-base.json build/gpu/step-big.json build/gpu/micro.json` puts modelled parts beside measured ones.
# shellcheck source=benchmarks/gpu/call.sh
source "$(dirname "${BASH_SOURCE[0]}")/call.sh"

step micro 120 python3 benchmarks/gpu/micro.py --json "$OUT/micro.json" && shown micro 60

# The figures of a result that fit on a screen.
summary() {
  python3 - "$1" << 'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    result = json.load(file)
for key in ("milliseconds_an_update", "ratios", "bars", "matrix_rate_teraflops", "facts"):
    print(key, result.get(key))
print({key: value for key, value in result["own_products"].items() if key != "products"})
print("\n".join(result.get("profile", [])[:40]))
PYTHON
}

for size in base big; do
  # shellcheck disable=SC2016
  step "step-$size" 220 bash -c 'out=$1; shift; python3 benchmarks/step_rate.py "$@" > "$out"' \
    - "$OUT/step-$size.json" --size "$size" --data runs/race/data --rounds 1 --windows 3 --updates 20 \
    --profile "$OUT/$size" --profiled-updates 5 --commit "$COMMIT" && summary "$OUT/step-$size.json"
done
finish
