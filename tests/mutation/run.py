#!/usr/bin/env python3
"""Do the tests notice? Seeds bugs of the kind "wrong weights, good exit code", one at a time.

usage: tests/mutation/run.py [--cuda] [NUMBER...]

A copy of the tree in build/mutation is built; then each change below is made to it, built, and the
tests run until one fails. A change that no test fails on is a hole in the tests: the script ends
with 1. Takes about a minute per change on two cores.

With --cuda: faults in the order of things on a device, which the driver without a device
(tests/fakecuda) has to see; a few minutes for all.
"""
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutation"
BUILD = COPY / "build"

# What is wrong, file, text that stands there exactly once, text instead.
MUTATIONS = [
    ("a lease is not taken", "vmm/space.c",
     "= mp_res_apply(&u->residency, MP_RES_EV_LEASE);",
     "= mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_LEASE, false).status;"),
    ("a leased unit can be evicted", "vmm/residency.c",
     "[MP_RES_EV_EVICT]         = GO_UNLEASED(ABSENT)", "[MP_RES_EV_EVICT]         = GO(ABSENT)"),
    ("a short read completes the chunk", "vmm/reader_queue.c",
     "if (chunk->offset + got >= chunk->need_end)", "if (got > 0)"),
    ("a failed read is reported as done", "vmm/reader_queue.c",
     "failed ? MP_TICKET_FAILED : MP_TICKET_DONE", "MP_TICKET_DONE"),
    ("a read that has started can be taken back", "vmm/reader.c",
     "if (state == MP_TICKET_QUEUED) {\n        mp_ticket_list_remove",
     "if (state == MP_TICKET_STARTED)\n        return true;\n"
     "    if (state == MP_TICKET_QUEUED) {\n        mp_ticket_list_remove"),
    ("two slots share an address", "vmm/tier.c",
     "slot.index % class->slots_per_frame * class->slot_bytes",
     "(slot.index & ~1u) % class->slots_per_frame * class->slot_bytes"),
    ("the identity of a file is not checked", "vmm/file.c",
     "if (identity_equal(&now, was))", "if (identity_equal(&now, was) || was != NULL)"),
    ("products of sizes may overflow", "vmm/base/checked.h",
     "    if (__builtin_mul_overflow(a, b, &product))\n        return false;\n    *out = product;\n"
     "    return true;\n}\n\n/* The smallest",
     "    (void)__builtin_mul_overflow(a, b, &product);\n    *out = product;\n"
     "    return true;\n}\n\n/* The smallest"),
    ("the second piece is looked for where the first one is", "vmm/space.c",
     "slot + layout->piece_offset_bytes[i];", "slot + layout->piece_offset_bytes[i == 1 ? 0 : i];"),
    ("a prefetch counts as complete when it has started", "vmm/space.c",
     "    if (ticket == MP_TICKET_DONE) {\n        must_apply",
     "    if (ticket == MP_TICKET_DONE || (!u->demand && ticket == MP_TICKET_STARTED)) {\n"
     "        must_apply"),
    ("the last extent is not read, stale bytes stay", "vmm/space.c",
     "ticket->extent_count = layout->extent_count;",
     "ticket->extent_count = layout->extent_count - 1;"),
    ("weights of the experts are combined in the wrong order", "engine/experts.c",
     "weights[r] / total, H)", "weights[R - 1 - r] / total, H)"),
    ("sequences share a KV cache", "engine/forward.c",
     "(size_t)layer * c->sequences + sequence)", "(size_t)layer * c->sequences + 0 * sequence)"),
]

# The same for what a device does.
CUDA_MUTATIONS = [
    ("a wait for copies is left out", "vmm/reader_link.c",
     "status = backend->ops->lane_wait(backend, state->lane, state->first);",
     "status = backend != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("a place in a window is not unmapped", "vmm/window.c",
     "    if (backend->ops->window_unmap(backend, place->address, bytes) != MP_OK)",
     "    if (backend == NULL || bytes == 0)"),
    ("the device is told where experts have been", "engine/device_graph.c",
     "    if (g->known && g->loads == c->loads", "    if (g->known && g->loads > 0 && c->loads > 0)"
     "\n        return MP_OK;\n    if (g->known && g->loads == c->loads"),
    ("experts have ended before the device is done with them", "engine/device_queue.c",
     "const enum mp_status status = mp_gpu_wait(queue->device->gpu, batch->end);",
     "const enum mp_status status = batch->end != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("the last bytes of a unit are not copied", "vmm/reader_link.c",
     "piece.dst, piece.src,\n                                         flight.bytes);",
     "piece.dst, piece.src,\n                                         flight.bytes - 64);"),
    ("a unit is copied to another one's slot", "vmm/space_move.c",
     "        .need_bytes = bytes,\n"
     "        .dst = mp_tier_address(space->tier, space->units[unit].slot),",
     "        .need_bytes = bytes,\n        .dst = mp_tier_address(space->tier,\n"
     "            (struct mp_slot){ space->units[unit].slot.class_index, 0 }),"),
    ("results of the CPU are used before they are there", "engine/device_queue.c",
     "    if (status == MP_OK)\n        status = mp_gpu_finish(device->gpu, stream);\n"
     "    if (status != MP_OK)\n        finish_stream(device, stream);\n    return status;\n}\n\n"
     "static enum mp_status await",
     "    return stream != NULL ? status : MP_ERR_DEVICE;\n}\n\nstatic enum mp_status await"),
    ("a host slot is filled anew while it is copied from", "vmm/host_tier.c",
     "    if (u->residency.leases > 0 ||\n        (mp_host_exclusive(tier)",
     "    if ((mp_host_exclusive(tier)"),
    ("a unit is mapped when another copy has ended", "vmm/reader_link.c",
     "backend->ops->lane_wait(backend, state->lane, state->first)",
     "backend->ops->lane_wait(backend, state->lane, (state->first + 1) % MP_LANE_MARKS)"),
    ("the host's copy is given back before it was read in place", "engine/device_step.c",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n    return MP_OK;",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n"
     "    mp_device_release_host(device);\n    return MP_OK;"),
]

QUICK = ["-R", "^(vmm|policy|engine)/", "-E", "fault|stress|tokenizer|chat|repack|sweep"]
CUDA = ["-R", "^(engine/cuda_laws_test|vmm/space_cuda_test)"]
CUDA_TARGETS = ["engine_cuda_laws_test", "vmm_space_cuda_test", "fakecuda"]
SLOW = ["-R", "^(vmm|policy|engine)/.*(fault|stress|sweep)", "-E", "repack|engine_fault"]


def call(*command, **more):
    return subprocess.run(command, cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **more)


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


def build(targets):
    return call("ninja", "-j2", "-C", str(BUILD), *targets)


def first_failure(choices):
    """The name of a test that fails, or None."""
    for choice in choices:
        result = call("ctest", "--test-dir", str(BUILD), "-j2", "--stop-on-failure", "--timeout",
                      "120", *choice)
        failed = re.findall(r"Test +#\d+: (\S+) \.*\s*\*\*\*(?!Skipped)", result.stdout)
        if failed:
            return failed[0]
        if result.returncode != 0:
            sys.exit(f"ctest: {result.stdout[-2000:]}")
    return None


def try_one(targets, choices, what, path, old, new):
    file = COPY / path
    good = file.read_text()
    if good.count(old) != 1:
        sys.exit(f"{path}: '{old}' stands there {good.count(old)} times, need 1")
    file.write_text(good.replace(old, new))
    try:
        built = build(targets)
        if built.returncode != 0:
            sys.exit(f"'{what}' does not build:\n{built.stdout[-2000:]}")
        return first_failure(choices)
    finally:
        file.write_text(good)


def main():
    on_device = "--cuda" in sys.argv
    mutations = CUDA_MUTATIONS if on_device else MUTATIONS
    targets, choices = (CUDA_TARGETS, [CUDA]) if on_device else ([], [QUICK, SLOW])
    chosen = ([int(a) for a in sys.argv[1:] if a != "--cuda"] or
              range(1, len(mutations) + 1))
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree()
    configured = call("cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja",
                      "-DCMAKE_BUILD_TYPE=Release", "-DMP_WERROR=OFF",
                      *(["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []))
    if configured.returncode != 0 or build(targets).returncode != 0:
        sys.exit("the tree does not build")
    failed = first_failure(choices)
    if failed is not None:
        sys.exit(f"{failed} fails without any change")
    missed = 0
    for number in chosen:
        start = time.monotonic()
        caught_by = try_one(targets, choices, *mutations[number - 1])
        missed += caught_by is None
        print(f"{number:2} {mutations[number - 1][0]}: {caught_by or 'NOT NOTICED'} "
              f"({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
