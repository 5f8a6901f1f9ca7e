"""The bundle of tools/gpu/run for a machine without compilers; no program of its own."""
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAMS = ["moepager", "gpu_driver_codes", "gpu_driver_laws", "gpu_check_remap",
            "gpu_check_kernels", "gpu_bench_kernels", "gpu_bench_step", "gpu_bench_model",
            "libmoepager_preload.so", "libmoepager_interpose.so"]
# For a dry run: what stands in for a CUDA program, and the runtime that it is linked with.
DRY = ["device_interpose_llama_like_13", "device_interpose_experts_on_host_13",
       "fakecudart/13/libcudart.so.13", "fakecudart/13/libfakeggml13.so"]
CARRIED = ["tools/gpu/run", "tools/gpu/steps.py", "tools/gpu/pack.py", "tools/make_bench_model",
           "models/tiny-moe", "tests/data/driver", "tests/device/interpose/models.py"]
FAKE = "fakecuda/libcuda.so.1"
OF_THE_SYSTEM = ("libc.so", "libm.so", "ld-linux", "libpthread", "libdl.so", "librt.so")
BYTES_MAX = 63 << 20  # of a file, which somebody may have to send


def copy(source, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True)
    elif source.exists():
        shutil.copy2(source, to)


def copy_program(source, to):
    """Stripped; the libraries that it loads, but the C library's, once each."""
    copy(source, to)
    subprocess.run(["strip", str(to)], check=True)
    text = subprocess.run(["ldd", str(source)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[1] == "=>" and not fields[0].startswith(OF_THE_SYSTEM):
            library = source_of(to) / "lib" / fields[0]
            if not library.exists():
                copy(Path(fields[2]), library)


def source_of(program):
    return next(folder for folder in program.parents
                if folder.name not in ("fakecuda", "fakecudart", "13"))


def fill(top, build, to, trace):
    for name in CARRIED:
        copy(top / name, to / name)
    for name in PROGRAMS + DRY + [FAKE]:
        copy_program(build / name, to / name)
    if trace:
        copy(Path(trace), to / "trace.csv")
    made = subprocess.run(["tools/make_cubins", str((to / "cubins").resolve())], cwd=top,
                          check=False)
    if made.returncode != 0:
        shutil.rmtree(to / "cubins", ignore_errors=True)
        print("pack: no compiled kernels; the driver compiles them there", file=sys.stderr)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=top, text=True,
                            capture_output=True, check=False).stdout.strip()
    (to / "commit").write_text((commit or "unknown") + "\n")


def pack(top, build, to, trace):
    """Returns the exit status: 1 where the file is larger than it may be."""
    if to.suffixes[-2:] != [".tar", ".gz"]:
        fill(top, build, to, trace)
        size = sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
        print(f"{to}: {size / (1 << 20):.1f} MiB")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        name = to.name.removesuffix(".tar.gz")
        fill(top, build, Path(folder) / name, trace)
        with tarfile.open(to, "w:gz") as tar:
            tar.add(Path(folder) / name, name)
    size = to.stat().st_size
    print(f"{to}: {size / (1 << 20):.1f} MiB")
    if size > BYTES_MAX:
        print(f"pack: more than {BYTES_MAX >> 20} MiB", file=sys.stderr)
    return int(size > BYTES_MAX)
