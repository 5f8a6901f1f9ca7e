#!/usr/bin/env python3
"""Do the tests notice? Seeds bugs of the kind "wrong weights, good exit code", one at a time.

usage: tests/mutation/run.py [--host | --cuda] [NUMBER...]

A copy of the tree in build/mutation; only what the tests below need is built there, and every test
has to pass. Then each change is made, its test's program built again, and the test run: it must
fail within SECONDS. A change that it does not fail on is a hole in the tests.

--host: the faults of a run on the CPU only; --cuda: those in the order of things on a device, which
the driver without a device (tests/device/fakecuda) has to see. Numbers count in the list that was chosen.

The last line is `N passed, N failed, N skipped`: noticed, not noticed (or the change does not apply
any more), and those whose tests this machine skips. Ends with 1 if one failed.
"""
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutation"
BUILD = COPY / "build"
SECONDS = 60           # for a test to notice
SECONDS_GOOD = 300     # for one that passes

LOGITS = ["model/logits_test"]
LAWS = ["device/cuda_laws_test:prompt"]
READER = ["unit/vmm/io/reader_test:threads", "unit/vmm/io/reader_test:io_uring"]

# What is wrong, the tests of which one has to notice, file, text that stands there exactly once,
# text instead.
HOST = [
    ("a lease is not taken", ["unit/vmm/space/space_test"], "vmm/space/space_move.c",
     "= mp_res_apply(&u->residency, MP_RES_EV_LEASE);",
     "= mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_LEASE, false).status;"),
    ("a leased unit can be evicted", ["unit/vmm/space/space_test"], "vmm/space/residency.c",
     "[MP_RES_EV_EVICT]         = GO_UNLEASED(ABSENT)", "[MP_RES_EV_EVICT]         = GO(ABSENT)"),
    ("a short read completes the chunk", ["unit/vmm/space/space_fault_test"], "vmm/io/reader_queue.c",
     "if (chunk->offset + got >= chunk->need_end)", "if (got > 0)"),
    ("a failed read is reported as done", READER, "vmm/io/reader_queue.c",
     "failed ? MP_TICKET_FAILED : MP_TICKET_DONE", "MP_TICKET_DONE"),
    ("a read that has started can be taken back", READER, "vmm/io/reader.c",
     "    if (state == MP_TICKET_QUEUED) {\n        if (!ticket->held)",
     "    if (state == MP_TICKET_STARTED)\n        state = MP_TICKET_IDLE;\n"
     "    if (state == MP_TICKET_QUEUED) {\n        if (!ticket->held)"),
    ("two slots share an address", LOGITS, "vmm/space/tier.c",
     "slot.index % class->slots_per_frame * class->slot_bytes",
     "(slot.index & ~1u) % class->slots_per_frame * class->slot_bytes"),
    ("the identity of a file is not checked", READER, "vmm/io/file.c",
     "if (identity_equal(&now, was))", "if (identity_equal(&now, was) || was != NULL)"),
    ("the size of a tensor may overflow", ["unit/vmm/format/safetensors_test"], "vmm/format/safetensors.c",
     "if (!mp_mul_u64(bits, tensor->shape[i], &bits))",
     "if (bits *= tensor->shape[i], false)"),
    ("the second piece is looked for where the first one is", LOGITS, "vmm/space/space_move.c",
     "slot + layout->piece_offset_bytes[i];", "slot + layout->piece_offset_bytes[i == 1 ? 0 : i];"),
    ("a prefetch counts as complete when it has started", LOGITS, "vmm/space/space_move.c",
     "    if (ticket == MP_TICKET_DONE) {\n        mp_space_must_apply",
     "    if (ticket == MP_TICKET_DONE || (!u->demand && ticket == MP_TICKET_STARTED)) {\n"
     "        mp_space_must_apply"),
    ("the last extent is not read, stale bytes stay", LOGITS, "vmm/space/space_move.c",
     "ticket->extent_count = layout->extent_count;",
     "ticket->extent_count = layout->extent_count - 1;"),
    ("weights of the experts are combined in the wrong order", LOGITS, "engine/forward/experts.c",
     "weights[r] / total, H)", "weights[R - 1 - r] / total, H)"),
    ("sequences share a KV cache", LOGITS, "engine/forward/forward.c",
     "(size_t)layer * c->sequences + sequence)", "(size_t)layer * c->sequences + 0 * sequence)"),
]

# The same for what a device does.
CUDA = [
    ("a wait for copies is left out", LAWS, "vmm/io/reader_link.c",
     "status = backend->ops->lane_wait(backend, state->lane, state->first);",
     "status = backend != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("a place in a window is not unmapped", LAWS, "vmm/space/window.c",
     "    if (backend->ops->window_unmap(backend, place->address, bytes) != MP_OK)",
     "    if (backend == NULL || bytes == 0)"),
    ("the device is told where experts have been", LAWS, "engine/forward/cuda/device_graph.c",
     "    if (g->known && g->loads == c->loads", "    if (g->known && g->loads > 0 && c->loads > 0)"
     "\n        return MP_OK;\n    if (g->known && g->loads == c->loads"),
    ("experts have ended before the device is done with them", LAWS, "engine/forward/cuda/device_queue.c",
     "const enum mp_status status = mp_gpu_wait(queue->device->gpu, batch->end);",
     "const enum mp_status status = batch->end != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("the last bytes of a unit are not copied", LAWS, "vmm/io/reader_link.c",
     "piece.dst, piece.src,\n                                         flight.bytes);",
     "piece.dst, piece.src,\n                                         flight.bytes - 64);"),
    ("a unit is copied to another one's slot", LAWS, "vmm/space/space_move.c",
     "        .need_bytes = bytes,\n"
     "        .dst = mp_tier_address(space->tier, space->units[unit].slot),",
     "        .need_bytes = bytes,\n        .dst = mp_tier_address(space->tier,\n"
     "            (struct mp_slot){ space->units[unit].slot.class_index, 0 }),"),
    ("results of the CPU are used before they are there", LAWS, "engine/forward/cuda/device_queue.c",
     "    if (status == MP_OK)\n        status = mp_gpu_finish(device->gpu, stream);\n"
     "    if (status != MP_OK)\n        finish_stream(device, stream);\n    return status;\n}\n\n"
     "static enum mp_status await",
     "    return stream != NULL ? status : MP_ERR_DEVICE;\n}\n\nstatic enum mp_status await"),
    ("a host slot is filled anew while it is copied from", ["device/vmm/space_cuda_test:table"],
     "vmm/space/host_tier.c",
     "    if (u->residency.leases > 0 ||\n        (mp_host_exclusive(tier)",
     "    if ((mp_host_exclusive(tier)"),
    ("a unit is mapped when another copy has ended", LAWS, "vmm/io/reader_link.c",
     "backend->ops->lane_wait(backend, state->lane, state->first)",
     "backend->ops->lane_wait(backend, state->lane, (state->first + 1) % MP_LANE_MARKS)"),
    ("the host's copy is given back before it was read in place", ["device/cuda_laws_test:in_place"],
     "engine/forward/cuda/device_step.c",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n"
     "    mp_device_release_host(device);\n"),
]


def call(*command):
    return subprocess.run(command, cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)


def copy_tree():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE).stdout.decode().split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, COPY / name
        if not source.is_file() or name.startswith("tests/data/fuzz/"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)


def build(tests):
    targets = {name.partition(":")[0].replace("/", "_") for name in tests}
    return call("ninja", "-j2", "-C", str(BUILD), *sorted(targets))


def run_test(name, seconds):
    """passed, skipped, or how it failed: failed, timeout, exception ..."""
    text = call("ctest", "--test-dir", str(BUILD), "--timeout", str(seconds), "-R",
                f"^{re.escape(name)}$").stdout
    ended = re.search(r"Test +#\d+: \S+ \.*( +Passed|\*\*\*[A-Za-z]+)", text)
    if ended is None:
        sys.exit(f"ctest: {text[-2000:]}")
    return ended[1].strip(" *").lower()


def prepare(tests):
    """Build and run every test as it stands; those that can judge."""
    os.environ.setdefault("CCACHE_BASEDIR", str(COPY))
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree()
    result = call("cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja", "-DMP_WERROR=OFF",
                  *(["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []))
    if result.returncode == 0:
        result = build(tests)
    if result.returncode != 0:
        sys.exit(f"the tree does not build:\n{result.stdout[-2000:]}")
    results = {name: run_test(name, SECONDS_GOOD) for name in tests}
    wrong = [f"{name}: {how}" for name, how in results.items() if how not in ("passed", "skipped")]
    if wrong:
        sys.exit("without any change: " + ", ".join(wrong))
    return {name for name, how in results.items() if how == "passed"}


def try_one(tests, path, old, new):
    """What noticed, or None and why not."""
    file = COPY / path
    good = file.read_text()
    if good.count(old) != 1:
        return None, f"{path} has the text {good.count(old)} times"
    file.write_text(good.replace(old, new))
    try:
        result = build(tests)
        if result.returncode != 0:
            return None, f"does not build:\n{result.stdout[-2000:]}"
        for name in tests:
            how = run_test(name, SECONDS)
            if how not in ("passed", "skipped"):
                return f"{name} ({how})", ""
        return None, "no test failed"
    finally:
        file.write_text(good)


def main():
    faults = [fault for flag, faults in (("--cuda", HOST), ("--host", CUDA))
              if flag not in sys.argv for fault in faults]
    chosen = [int(arg) for arg in sys.argv[1:] if not arg.startswith("--")]
    chosen = chosen or range(1, len(faults) + 1)
    start = time.monotonic()
    passed = failed = skipped = 0
    usable = prepare(sorted({name for n in chosen for name in faults[n - 1][1]}))
    print(f"built, and every test passes ({time.monotonic() - start:.0f} s)", flush=True)
    for number in chosen:
        start = time.monotonic()
        what, tests, *change = faults[number - 1]
        tests = [name for name in tests if name in usable]
        noticed, why = try_one(tests, *change) if tests else ("skipped", "")
        skipped += not tests
        passed += bool(tests and noticed)
        failed += noticed is None
        print(f"{number:2} {what}: {noticed or f'NOT NOTICED: {why}'} "
              f"({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
