#!/bin/bash
# Usage: tests/system/install/install_test.sh BUILD CC
#
# Installs BUILD into an empty prefix, moves it, and uses it as a stranger would: the program runs,
# a C program is built with pkg-config and with the CMake package and reads experts through the
# library, and the header compiles alone as C11 and, if there is a compiler, as C++.
set -eu
build=$1 cc=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "installing"
cmake --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/prefix"
(cd "$work/prefix" && find . -not -type d | sort)
"$work/prefix/bin/moepager" --version

echo "header alone"
include=$work/prefix/include
[ "$(ls "$include")" = moepager.h ]
echo '#include <moepager.h>' >"$work/only.c"
"$cc" -std=c11 -Wall -Wextra -Werror -pedantic -I"$include" -c "$work/only.c" -o "$work/only.o"
for cxx in c++ g++ clang++; do
    command -v "$cxx" >/dev/null || continue
    "$cxx" -std=c++11 -Wall -Wextra -Werror -I"$include" -x c++ -c "$work/only.c" -o "$work/only.o" || exit 1
    echo "compiles with $cxx"
    break
done

head -c $((3 * 8 * 12288)) /dev/urandom >"$work/experts"
pc=$(dirname "$(find "$work/prefix" -name moepager.pc)")
lib=$(dirname "$(find "$work/prefix" -name libmoepager.so)")

echo "pkg-config"
# shellcheck disable=SC2046  # several flags
"$cc" -std=c11 -Wall -Wextra -Werror "$here/embed.c" -o "$work/embed" \
    $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs moepager)
LD_LIBRARY_PATH=$lib "$work/embed" "$work/experts"

echo "CMake package"
cmake -G Ninja -S "$here" -B "$work/build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/prefix" \
    >"$work/log" 2>&1 && cmake --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/embed" "$work/experts"
