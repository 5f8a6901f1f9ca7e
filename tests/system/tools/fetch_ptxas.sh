#!/bin/bash
# Usage: tests/system/tools/fetch_ptxas.sh
#
# install_deps --ptxas keeps ptxas of the package, where find_ptxas looks first, and says so where there is
# no such package. The package is made here: no network. 77: there is no pip.
cd "$(dirname "$0")/../../.." || exit 2
python3 -m pip --version >/dev/null 2>&1 || { echo "no pip"; exit 77; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/tools" "$work/packages" "$work/none"
cp tools/install_deps tools/find_ptxas "$work/tree/tools"
python3 - "$work/packages" <<'EOF' || exit 2
import sys
import zipfile

version = "13.0.88"
info = f"nvidia_cuda_nvcc-{version}.dist-info/"
with zipfile.ZipFile(f"{sys.argv[1]}/nvidia_cuda_nvcc-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr("nvidia/cu13/bin/nvcc", "larger")
    wheel.writestr("nvidia/cu13/bin/ptxas", "#!/bin/sh\necho assembles\n")
    wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: nvidia-cuda-nvcc\nVersion: {version}\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
EOF
export PIP_NO_INDEX=1
fetch() { PIP_FIND_LINKS=$1 "$work/tree/tools/install_deps" --ptxas >"$work/said" 2>&1; }
own=$work/tree/build/cuda/bin/ptxas
bad=0
wrong() { echo "$1"; cat "$work/said"; bad=1; }

fetch "$work/none" && wrong "a package that is not there was fetched"
grep -q 'static/ptxas.* skipped' "$work/said" || wrong "nothing says which tests are skipped"
[ ! -e "$own" ] || wrong "there is a ptxas of no package"
fetch "$work/packages" || wrong "the package was not fetched"
found=$("$work/tree/tools/find_ptxas")
[ "$found" = "$own" ] || wrong "found is '$found'"
[ "$("$found")" = assembles ] || wrong "it does not run"
[ "$(ls "$work/tree/build/cuda/bin")" = ptxas ] || wrong "more than ptxas was kept"
exit $bad
