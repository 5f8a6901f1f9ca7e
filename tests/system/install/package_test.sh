#!/bin/bash
# Usage: tests/system/install/package_test.sh BUILD
#
# Makes the Debian packages of BUILD and installs them into an empty root with dpkg itself: no file
# is in two packages, each package names what it needs, the program runs from there with the
# bundled model and starts others, and nothing is left when the packages are removed. Maintainer
# scripts and the packages that they need are not tried.
set -eu
build=$1
for program in cpack dpkg dpkg-shlibdeps fakeroot; do
    [ "$program" = fakeroot ] && [ "$(id -u)" -eq 0 ] && continue
    command -v "$program" >/dev/null || { echo "skipped: no $program here"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "packages"
cpack --config "$build/CPackConfig.cmake" -B "$work/packages" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
packages=("$work"/packages/*.deb)
names=()
for package in "${packages[@]}"; do
    name=$(dpkg-deb -f "$package" Package)
    names+=("$name")
    printf '%s needs %s\n' "$name" "$(dpkg-deb -f "$package" Depends)"
    dpkg-deb --fsys-tarfile "$package" | tar -t | grep -v '/$' >>"$work/files"
done
[ "$(printf '%s\n' "${names[@]}" | grep -v moepager-mpi | sort | tr '\n' ' ')" = \
    "libmoepager-dev libmoepager0 moepager moepager-preload " ]
[ -z "$(sort "$work/files" | uniq -d)" ]
dpkg-deb -f "$work"/packages/moepager_*.deb Depends | grep -q libjansson4
dpkg-deb -f "$work"/packages/libmoepager-dev_*.deb Depends | grep -q "libmoepager0 (= "

root=$work/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
: >"$root/var/lib/dpkg/status"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(fakeroot)
debian() { "${as_root[@]}" dpkg --root="$root" --force-depends --force-script-chrootless --log=/dev/null "$@"; }
debian --install "${packages[@]}" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

echo "use"
program=$root/usr/bin/moepager
"$program" --version
"$program" run --model models/tiny-moe --budget 25% --prompt 'sort 5 3 9 1 ->' --max-tokens 8 2>"$work/log" |
    grep -F "1 3 5 9" || { cat "$work/log"; exit 1; }
"$program" preload --check -- sh | grep -F "library "
[ -f "$root/usr/include/moepager.h" ]
[ -n "$(find "$root/usr/lib" -name moepager.pc)" ]

echo "removal"
debian --purge "${names[@]}" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
left=$(find "$root" -not -type d -not -path "$root/var/lib/dpkg/*")
[ -z "$left" ] || { echo "left: $left"; exit 1; }
echo "ok: ${#names[@]} packages"
