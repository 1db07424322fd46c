#!/usr/bin/env bash
# Script C, how good? base for four minutes on the mix, averaged, and scored on three test sets.
#
# The result has tokens per second over minutes, BLEU of each test set, and memory; metrics.jsonl has the loss curve.
# The data was prepared elsewhere and lies in runs/race/data; the model stays on the machine for script D.
# shellcheck source=benchmarks/gpu/call.sh
source "$(dirname "${BASH_SOURCE[0]}")/call.sh"

# shellcheck disable=SC2016
step quality 570 bash -c 'out=$1; shift; python3 benchmarks/quality_race.py "$@" > "$out"' \
  - "$OUT/ours.json" --sides ours --minutes 4 --commit "$COMMIT" \
  --test flickr=.gpu/text/flickr --test tatoeba=.gpu/text/tatoeba --test news=.gpu/text/news &&
  cat "$OUT/ours.json"
cp runs/race/ours/metrics.jsonl "$OUT/"
tail -n 3 runs/race/ours.log
finish
