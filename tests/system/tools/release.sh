#!/bin/bash
# Usage: tests/system/tools/release.sh BUILD
#
# tools/release: the same bytes from the same commit, checksums that hold, the version of the
# program, and no release of a version that CHANGELOG.md does not name. tools/sbom: every library
# that the program names, with its package. What a release builds is tried by `tools/release` itself.
set -eu
build=$1
cd "$(dirname "$0")/../../.."
command -v git >/dev/null && git rev-parse HEAD >/dev/null 2>&1 || { echo "skipped: no git here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "archive"
tools/release --no-build --out "$work/1" | tail -n 1 | grep "^release: ok, moepager-"
tools/release --no-build --out "$work/2" >/dev/null
diff -r "$work/1" "$work/2"
(cd "$work/1" && sha256sum -c SHA256SUMS)
name=$(basename "$work"/1/*.tar.gz .tar.gz)
tar -tzf "$work/1/$name.tar.gz" | sort >"$work/in_archive"
[ "$(grep -vc "^$name/" "$work/in_archive")" -eq 0 ]
git ls-tree -r --name-only HEAD | sed "s|^|$name/|" | sort >"$work/in_commit"
diff "$work/in_commit" <(grep -v '/$' "$work/in_archive")

echo "refusals"
mkdir "$work/repo" "$work/repo/tools"
cp tools/release "$work/repo/tools"
(
    cd "$work/repo"
    export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e
    git init -q .
    echo "project(moepager VERSION 7.8.9 LANGUAGES C)" >CMakeLists.txt
    echo "## 7.8.90" >CHANGELOG.md
    git add . && git commit -qm first
    if tools/release --no-build >said; then exit 1; fi
    grep -F "release: FAILED, CHANGELOG.md says nothing about 7.8.9" said
    echo "## 7.8.9" >>CHANGELOG.md
    if tools/release --no-build >said; then exit 1; fi # only what is committed counts
    git commit -qam second
    tools/release --no-build | grep -F "ok, moepager-7.8.9 of"
    if tools/release --no-build none >said; then exit 1; fi
    grep -F "there is no commit 'none'" said
)

echo "bill of materials"
tools/sbom --out "$work/bom" "$build"
tools/sbom "$build" | diff "$work/bom" -
version=$("$build/moepager" --version | awk 'NR == 1 { print $2 }')
readelf -d "$build/moepager" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
python3 - "$work/bom" "$version" "$work/needed" <<'END'
import json, sys
bom = json.load(open(sys.argv[1]))
assert bom["bomFormat"] == "CycloneDX" and bom["metadata"]["component"]["version"] == sys.argv[2]
parts = {part["bom-ref"]: part for part in bom["components"]}
for library in open(sys.argv[3]).read().split():
    assert parts[library]["scope"] == "required", library
assert parts["libmicrohttpd.so.12"]["scope"] == "optional" and parts["libcuda.so.1"]["scope"] == "optional"
assert set(bom["dependencies"][0]["dependsOn"]) == set(parts)
assert "deb" in parts["libjansson.so.4"].get("purl", "deb")
END
echo "ok: $(basename "$name")"
