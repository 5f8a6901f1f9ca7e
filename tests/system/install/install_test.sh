#!/bin/bash
# Usage: tests/system/install/install_test.sh BUILD CC
#
# Installs BUILD into an empty prefix, moves it, and uses it as a stranger would: the program runs,
# and starts others with the library under them,
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

echo "under another program"
"$work/prefix/bin/moepager" preload --check -- sh | grep -F "library       $work/prefix/bin/../lib"
preload=$(find "$work/prefix" -name libmoepager_preload.so)
ls "$(dirname "$preload")/libmoepager_interpose.so" "$(dirname "$preload")/libmoepager_safetensors.so"
ls "$work/prefix/share/moepager/python/moepager_experts.py"

echo "pages"
grep -q '^\.TH MOEPAGER' "$work/prefix/share/man/man1/moepager.1"
bash -n "$work/prefix/share/bash-completion/completions/moepager"
for page in zsh/site-functions/_moepager fish/vendor_completions.d/moepager.fish; do
    grep -q -- max-tokens "$work/prefix/share/$page"
done
# A sanitizer's runtime cannot come into a program that has started without it.
if ! nm -D "$preload" | grep -qE '__(asan|tsan|ubsan)_'; then
    # shellcheck disable=SC2016  # for the shell that is started
    "$work/prefix/bin/moepager" preload --budget 1MiB -- sh -c \
        'grep -q libmoepager_preload.so /proc/$$/maps && [ "$MOEPAGER_BUDGET" = 1MiB ]'
    if command -v python3 >/dev/null; then
        "$work/prefix/bin/moepager" preload --budget 1MiB -- python3 -c \
            "import os, sys; sys.exit('share/moepager/python' not in os.environ['PYTHONPATH'])"
    fi
fi

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
