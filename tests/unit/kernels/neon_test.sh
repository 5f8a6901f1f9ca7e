#!/bin/bash
# Usage: neon_test.sh [full]
#
# The kernels for ARM: compiled for it and run by an emulator of a processor. The same tests as on
# this machine, whose pins say that bits are those of AVX2, and once without the instructions for products of
# bytes; `full`: products and pointwise kernels of all shapes instead, optimised, which takes minutes. Says
# nothing about speed. Exit 77 where a cross compiler or an emulator is missing.
set -u
cd "$(dirname "$0")/../../.." || exit 2
tests=(kernels_pinned_test quant_blocks_test quant_pinned_test math_test) optimise=-O1
[ "${1:-}" != full ] || { tests=(kernels_test pointwise_test quant_test) optimise=-O2; }

skip() { echo "skipped: $1"; exit 77; }
compiler=$(command -v aarch64-linux-gnu-gcc) || skip 'no aarch64-linux-gnu-gcc (package gcc-aarch64-linux-gnu)'
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip 'no qemu-aarch64 (package qemu-user)'
echo '#include <math.h>' | "$compiler" -E - >/dev/null 2>&1 ||
    skip 'no libc for aarch64-linux-gnu-gcc (package libc6-dev-arm64-cross)'
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

options=(-std=gnu11 "$optimise" -Wall -Wextra -Wshadow -Werror -fno-math-errno -ffp-contract=off
    -DMP_DEBUG_CHECKS=1 -DMP_KERNELS_NEON=1 -I.)
for source in kernels/cpu/{dispatch,neon,neonbf16,ref,self_test,types}.c \
    kernels/cpu/quant/{decode_32,decode_grid,decode_k,encode,encode_plain,grids,neon,quant,round}.c; do
    own=()
    [ "$source" != kernels/cpu/neonbf16.c ] || own=(-march=armv8.2-a+bf16)
    [ "$source" != kernels/cpu/quant/neon.c ] || own=(-march=armv8.2-a+dotprod)
    "$compiler" "${options[@]}" "${own[@]}" -c "$source" -o "$work/${source//\//_}.o" || exit 1
done
for test in "${tests[@]}"; do
    "$compiler" "${options[@]}" -static "tests/unit/kernels/$test.c" "$work"/*.o -lm -o "$work/$test" ||
        exit 1
    echo "$test"
    "$emulator" "$work/$test" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    if grep 'not here' "$work/log" | grep -qv amx; then # a self-test has failed
        cat "$work/log"
        exit 1
    fi
done
[ -x "$work/quant_pinned_test" ] || exit 0
echo 'quant_pinned_test, cortex-a72'
"$emulator" -cpu cortex-a72 "$work/quant_pinned_test" >"$work/log" 2>&1 && grep -q 'dotprod (not here)' "$work/log" ||
    { cat "$work/log"; exit 1; }
