#!/bin/bash
# Usage: tests/system/install/install_test.sh BUILD CC
#
# Installs BUILD into an empty prefix, moves it, and uses it as a stranger would: the program runs,
# and starts others with the library under them,
# a C program is built with pkg-config and with the CMake package and reads experts through the
# library, and the header compiles alone as C11 and, if there is a compiler, as C++. A plug-in with
# a policy is built with the installed headers, loaded by the installed program, and decides.
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
[ "$(ls -p "$include" | tr "\n" " ")" = "moepager/ moepager.h " ]
echo '#include <moepager.h>' >"$work/only.c"
"$cc" -std=c11 -Wall -Wextra -Werror -pedantic -I"$include" -c "$work/only.c" -o "$work/only.o"
for cxx in c++ g++ clang++; do
    command -v "$cxx" >/dev/null || continue
    "$cxx" -std=c++11 -Wall -Wextra -Werror -I"$include" -x c++ -c "$work/only.c" -o "$work/only.o" || exit 1
    echo "compiles with $cxx"
    break
done

echo "plug-in"
program=$work/prefix/bin/moepager
mkdir -m 755 "$work/plugins"
"$cc" -std=gnu11 -Wall -Wextra -Werror -fPIC -shared -I"$include/moepager" "$here/newest.c" \
    -o "$work/plugins/newest.so"
chmod 755 "$work/plugins/newest.so"
# A trace whose one layer goes round and round over six experts, of which five have room.
{
    echo "# moepager trace v1"
    echo "# model=loop layers=1 experts=6 top_k=1 expert_bytes=4096"
    for step in $(seq 0 59); do echo "$step 0 0 $step $((step % 6)):1"; done
} >"$work/loop"
export MOEPAGER_PLUGINS=$work/plugins
"$program" info | grep -F "newest"
"$program" env | grep -F "MOEPAGER_NEWEST_BY_LAYER"
"$program" replay "$work/loop" --evict lru,newest --budget 20480 --csv | tee "$work/rates"
awk -F, 'NR > 1 { rate[$1] = $4 } END { exit !(rate["lru"] == 0 && rate["newest"] > 0.7) }' "$work/rates"
if MOEPAGER_NEWEST_BY_LAYER=7 "$program" info 2>"$work/log"; then exit 1; fi
grep -F "error[E_OPTION]: option 'MOEPAGER_NEWEST_BY_LAYER'" "$work/log"
chmod 777 "$work/plugins"
if "$program" info 2>"$work/log"; then exit 1; fi
grep -F "error[E_PLUGIN]" "$work/log" | grep -F "others may write to the folder"
unset MOEPAGER_PLUGINS
if "$program" simulate --machine host-disk --model qwen1.5-moe --evict newest 2>"$work/log"; then exit 1; fi
grep -F "error[E_POLICY]" "$work/log"

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
"$work/build/events" "$work/experts" | tee "$work/log"
grep -Fq equal "$work/log"
objdump -T "$lib/libmoepager.so" | grep -q 'MOEPAGER_0_2 *moepager_try_next'
objdump -T "$work/build/embed" | grep -q 'MOEPAGER_0[) ]* *moepager_open' # no newer library than it needs
