#!/usr/bin/env bash
# All that only a GPU can show, in under 8 minutes: `scripts/gpu.sh [FOLDER]`. It needs a Python with torch for CUDA, NumPy,
# cloudpickle, pytest, pytest-timeout and a C compiler; nothing is installed. Each part has its time and its own file in FOLDER
# (build/gpu), so a part that hangs or fails costs no other. The first parts matter most.
# A dry run without a GPU: GPU_FAKE=1 scripts/gpu.sh
set -u
cd "$(dirname "$0")/.."
out=${1:-${OUT:-build/gpu}}
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
fake=${GPU_FAKE:+--accelerator fake}
log=$out/log.txt
: > "$log"

native=src/stoker/_core/native
for one in native: "jpeg:-ldl -lm -pthread"; do
  name=${one%%:*}
  # shellcheck disable=SC2086
  [ -e $native/$name.bin ] || ${CC:-cc} -std=c11 -O3 -fPIC -shared -fvisibility=hidden -o $native/$name.bin \
    $native/$name.c ${one#*:} >> "$log" 2>&1 || echo "without the compiled part: $name" | tee -a "$log"
done

limit=470 failed=0
part() {  # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 begun=$SECONDS status left=$((limit - SECONDS))
  shift 2
  if [ $left -lt 15 ]; then
    echo "$name: left out, the time is over" | tee -a "$log"
    return
  fi
  [ $seconds -le $left ] || seconds=$left
  echo "== $name (at most $seconds s): $*" >> "$log"
  timeout --kill-after=5 "$seconds" "$@" >> "$log" 2>&1
  status=$?
  [ $status = 0 ] || failed=1
  echo "$name: $([ $status = 0 ] && echo passed || echo "FAILED, status $status"), $((SECONDS - begun)) s" | tee -a "$log"
}

bench() {  # FILE CASE SECONDS
  # shellcheck disable=SC2086
  part "benchmark $1, $2" "$3" "$python" "benchmarks/$1.py" --quick --case "$2" --json "$out/$1.json" \
    $([ "$1" = device ] && echo "$fake")
}

{ nvidia-smi; "$python" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())'; } \
  >> "$log" 2>&1
part "tests" 130 "$python" -m pytest -q -s -p no:cacheprovider tests/device/test_on_gpu.py
bench device "rate, 38 MB" 75
[ -n "$fake" ] || bench registered_memory "dropped" 60
bench device "random orders" 45
bench device "step, 38 MB" 60
bench device "rate, 256 MB" 90
bench device "pin_memory" 60
bench device "augmented" 45
bench device "rate, 4 MB" 60
echo "$SECONDS s; results in $out" | tee -a "$log"
exit $failed
