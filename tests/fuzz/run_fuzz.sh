#!/bin/bash
# Usage: tests/fuzz/run_fuzz.sh SECONDS [TARGET...]
#        tests/fuzz/run_fuzz.sh fixed   [TARGET...]
#
# Builds the fuzz targets and runs each: first its corpus (tests/data/fuzz/TARGET), then new inputs,
# SECONDS long from another seed each time, or with `fixed` from one seed and as many as
# tests/fuzz/targets says, so that the same tree gives the same result. Fails if a target does not
# build, if an input crashes it, takes more than 1 s or 256 MiB, if too few inputs ran, or if the
# canary, which must crash, does not. As many targets run at once as there are processors. What was
# found lies in out/fuzz and is run again by: build/fuzz/TARGET FILE. When it is fixed, the file goes
# into the corpus.
set -u
cd "$(dirname "$0")/../.." || exit 2
[[ ${1:-} =~ ^([1-9][0-9]*|fixed)$ ]] || { echo "usage: $0 SECONDS|fixed [TARGET...]" >&2; exit 2; }
seconds=$1
fixed_seconds=300 # inputs of a fixed run: those of so many seconds on one busy core
shift
mapfile -t all < <(sed '/^#/d; s/ .*//' tests/fuzz/targets)
targets=("${@:-${all[@]}}")
[ $# -eq 0 ] && targets=("${all[@]}")

build=${MP_FUZZ_BUILD:-build/fuzz}
out=out/fuzz
mkdir -p "$out"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# A quarantine as large as libFuzzer's limit would count as the target's memory.
export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=8:allocator_may_return_null=1
limits=(-timeout=1 -rss_limit_mb=256 -malloc_limit_mb=128 -print_final_stats=1)

# From any job.
fail()
{
    echo "run_fuzz: $*" >&2
    : >"$work/failed"
}

cmake -S . -B "$build" --preset fuzz >"$work/configure.log" 2>&1 ||
    { cat "$work/configure.log"; echo "run_fuzz: cannot configure" >&2; exit 1; }
cmake --build "$build" --target canary_fuzz "${targets[@]}" >"$work/build.log" 2>&1 ||
    { tail -n 20 "$work/build.log"; echo "run_fuzz: a target does not build" >&2; exit 1; }

fuzz()
{
    local target=$1 per_second=$2 need corpus dict log executed end
    corpus=tests/data/fuzz/$target
    dict=tests/data/fuzz/$target.dict
    log=$out/$target.log
    if [ "$seconds" = fixed ]; then
        need=$((per_second * fixed_seconds))
        end=(-seed=1 -runs="$need")
    else
        need=$((per_second * seconds))
        end=(-max_total_time="$seconds")
    fi

    [ -n "$(ls "$corpus" 2>/dev/null)" ] || { fail "$target has no corpus in $corpus"; return; }
    "$build/$target" -runs=0 "${limits[@]}" -artifact_prefix="$out/$target-" "$corpus" \
        >"$log" 2>&1 || { tail -n 40 "$log"; fail "$target fails on its corpus"; return; }
    mkdir -p "$work/$target"
    [ -e "$dict" ] && set -- -dict="$dict" || set --
    timeout "$((${seconds/fixed/$((fixed_seconds * 3))} + 60))" \
        "$build/$target" "${limits[@]}" "$@" "${end[@]}" \
        -max_len=4096 -artifact_prefix="$out/$target-" "$work/$target" "$corpus" >"$log" 2>&1 ||
        { tail -n 40 "$log"; fail "$target failed, see $log and $out/$target-*"; return; }
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    [ "${executed:-0}" -ge "$need" ] ||
        { fail "$target ran ${executed:-no} inputs, need $need"; return; }
    echo "run_fuzz: $target ran $executed inputs (need $need), no failure"
}

# The canary has the same build and the same limits and starts from nothing.
canary()
{
    local log=$out/canary_fuzz.log
    mkdir -p "$work/canary"
    if "$build/canary_fuzz" "${limits[@]}" -max_total_time=30 -artifact_prefix="$work/" \
        "$work/canary" >"$log" 2>&1; then
        fail "canary_fuzz did not crash: the harness finds nothing"
    elif ! grep -q 'AddressSanitizer: heap-buffer-overflow' "$log"; then
        fail "canary_fuzz ended otherwise than by its planted overflow, see $log"
    else
        echo "run_fuzz: canary_fuzz crashed, as it must"
    fi
}

canary &
for target in "${targets[@]}"; do
    per_second=$(sed -n "s/^$target //p" tests/fuzz/targets)
    [ -n "$per_second" ] || { fail "$target is not in tests/fuzz/targets"; continue; }
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do
        wait -n
    done
    fuzz "$target" "$per_second" &
done
wait
if [ -e "$work/failed" ]; then
    echo "run_fuzz: FAILED"
    exit 1
fi
echo "run_fuzz: passed (${#targets[@]} targets)"
