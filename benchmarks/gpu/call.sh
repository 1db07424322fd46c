# shellcheck shell=bash
# What the four scripts share: the environment, steps with a time limit, and the list of those that failed.
# Read by A.sh to D.sh. Results are written into $OUT. $COMMIT names the code; without .git, it comes from outside.
set -uo pipefail
if [[ ${1:-} == --help ]]; then # the comment at the head of the script
  sed -n '2,/^[^#]/{/^# shellcheck/d;s/^# \{0,1\}//p;}' "$0"
  exit
fi
OUT=${OUT:-build/gpu}
COMMIT=${COMMIT:-$(git rev-parse --short HEAD 2> /dev/null || echo unknown)}
FAILED=()
mkdir -p "$OUT"
# cuDNN's attention plans anew for each shape, and shapes change from batch to batch: a baseline must not pay for it.
export TORCH_CUDNN_SDPA_DEPRIORITIZED=1 PYTHONUNBUFFERED=1 PYTHONPATH=/tmp/site:src:.
if compgen -G '.whl/*.whl' > /dev/null && [[ ! -d /tmp/site ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target /tmp/site .whl/*.whl || exit 1
fi

# step NAME SECONDS COMMAND [ARG ...]: stdout and stderr go to $OUT/NAME.log; its end is shown if the command fails.
step() {
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1 || code=$?
  if [[ $code -eq 0 ]]; then
    echo "== $name: $((SECONDS - start)) s"
  else
    echo "== $name: FAILED with $code after $((SECONDS - start)) s (124: out of time)"
    tail -n 25 "$OUT/$name.log"
    FAILED+=("$name")
  fi
  return "$code"
}

# shown NAME LINES: the end of what a step has printed.
shown() {
  tail -n "$2" "$OUT/$1.log"
}

# finish: names what failed.
finish() {
  if [[ ${#FAILED[@]} -gt 0 ]]; then
    echo "FAILED: ${FAILED[*]}"
    exit 1
  fi
  echo "all steps passed"
}
