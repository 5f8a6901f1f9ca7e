"""Bugs that were put in by hand, of the kind "wrong weights, good exit code".

What is wrong, the tests of which one has to notice, file, text that stands there exactly once, text
instead. Files and tests are known by their names without folders.
"""
LOGITS = ["logits_test"]
LAWS = ["cuda_laws_test:prompt"]
READER = ["reader_test:threads", "reader_test:io_uring"]

HOST = [
    ("a lease is not taken", ["space_test"], "space_move.c",
     "= mp_res_apply(&u->residency, MP_RES_EV_LEASE);",
     "= mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_LEASE, false).status;"),
    ("a leased unit can be evicted", ["space_test"], "residency.c",
     "[MP_RES_EV_EVICT]         = GO_UNLEASED(ABSENT)", "[MP_RES_EV_EVICT]         = GO(ABSENT)"),
    ("a short read completes the chunk", ["space_fault_test"], "reader_queue.c",
     "if (chunk->offset + got >= chunk->need_end)", "if (got > 0)"),
    ("a failed read is reported as done", READER, "reader_queue.c",
     "failed ? MP_TICKET_FAILED : MP_TICKET_DONE", "MP_TICKET_DONE"),
    ("a read that has started can be taken back", READER, "reader.c",
     "    if (state == MP_TICKET_QUEUED) {\n        if (!ticket->held)",
     "    if (state == MP_TICKET_STARTED)\n        state = MP_TICKET_IDLE;\n"
     "    if (state == MP_TICKET_QUEUED) {\n        if (!ticket->held)"),
    ("two slots share an address", LOGITS, "tier.c",
     "slot.index % class->slots_per_frame * class->slot_bytes",
     "(slot.index & ~1u) % class->slots_per_frame * class->slot_bytes"),
    ("the identity of a file is not checked", READER, "file.c",
     "if (identity_equal(&now, was))", "if (identity_equal(&now, was) || was != NULL)"),
    ("the size of a tensor may overflow", ["safetensors_test"], "safetensors.c",
     "if (!mp_mul_u64(bits, tensor->shape[i], &bits))",
     "if (bits *= tensor->shape[i], false)"),
    ("the second piece is looked for where the first one is", LOGITS, "space_move.c",
     "slot + layout->piece_offset_bytes[i];", "slot + layout->piece_offset_bytes[i == 1 ? 0 : i];"),
    ("a prefetch counts as complete when it has started", LOGITS, "space_move.c",
     "    if (ticket == MP_TICKET_DONE) {\n        mp_space_must_apply",
     "    if (ticket == MP_TICKET_DONE || (!u->demand && ticket == MP_TICKET_STARTED)) {\n"
     "        mp_space_must_apply"),
    ("the last extent is not read, stale bytes stay", LOGITS, "space_move.c",
     "ticket->extent_count = layout->extent_count;",
     "ticket->extent_count = layout->extent_count - 1;"),
    ("weights of the experts are combined in the wrong order", LOGITS, "experts.c",
     "weights[r] / total, H)", "weights[R - 1 - r] / total, H)"),
    ("sequences share a KV cache", LOGITS, "forward.c",
     "(size_t)layer * c->sequences + sequence)", "(size_t)layer * c->sequences + 0 * sequence)"),
    ("tries stay used up although bytes have come", ["reader_fault_test:threads"], "reader_queue.c",
     "    chunk->tries = (struct mp_read_tries){ 0 };\n", ""),
    ("a layer with its share takes another one's slot", ["pager_ahead_test"], "pager_room.c",
     "        if (!any)\n            break;\n", ""),
    ("what was kept is kept for ever", ["pager_ahead_test"], "pager.c",
     "else if (flags & (MP_PAGER_NEEDED | MP_PAGER_KEEP))", "else if (flags & MP_PAGER_NEEDED)"),
    ("of equal classes the latest use leaves", ["evict_fading_test"], "evict_aged.c",
     "aged->base.set.stamp[unit] > aged->base.set.stamp[best]",
     "aged->base.set.stamp[unit] < aged->base.set.stamp[best]"),
    ("twice as likely is not enough", ["ema_test"], "evict_ema.c",
     "self->key[in] / BETTER < self->key[out]", "self->key[in] / BETTER <= self->key[out]"),
    ("the bound of low scores is not low", ["smoe_test"], "route_smoe.c",
     "r-- > 0 && weights[r] <= (1 + alpha) * bar;", "r-- > 0 && weights[r] < (1 + alpha) * bar;"),
    ("of equal plans the one with more work", ["assign_test"], "assign_beam.c",
     "a->device_ns + a->cpu_ns < b->device_ns", "a->device_ns + a->cpu_ns > b->device_ns"),
    ("as soon here as there goes to the CPU", ["assign_test"], "assign_greedy.c",
     "device_sum_ns + device_ns <= cpu_sum_ns", "device_sum_ns + device_ns < cpu_sum_ns"),
    ("one token more than top-p wants", ["sampler_test"], "sampler.c",
     "cut < s->top_p * total", "cut <= s->top_p * total"),
    ("epsilon outside of the root", ["pointwise_test"], "vector.h",
     "sqrtf(sum / (float)width + eps)", "(sqrtf(sum / (float)width) + eps)"),
    ("the stop that is listed first ends the text", ["model/generate_test"], "generate.c",
     "if (at != NULL && (size_t)(at - out->text) <= first)", "if (at != NULL && !found)"),
    ("slots that came again are not looked for", ["tier_test"], "tier.c",
     "    if (first / WORD_BITS < class->hint_word)\n"
     "        class->hint_word = first / WORD_BITS;\n", "    (void)first;\n"),
]

# The same for what a device does.
CUDA = [
    ("a wait for copies is left out", LAWS, "reader_link.c",
     "status = backend->ops->lane_wait(backend, state->lane, state->first);",
     "status = backend != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("a place in a window is not unmapped", LAWS, "window.c",
     "    if (backend->ops->window_unmap(backend, place->address, bytes) != MP_OK)",
     "    if (backend == NULL || bytes == 0)"),
    ("the device is told where experts have been", LAWS, "device_graph.c",
     "    if (g->known && g->loads == c->loads", "    if (g->known && g->loads > 0 && c->loads > 0)"
     "\n        return MP_OK;\n    if (g->known && g->loads == c->loads"),
    ("experts have ended before the device is done with them", LAWS, "device_queue.c",
     "const enum mp_status status = mp_gpu_wait(queue->device->gpu, batch->end);",
     "const enum mp_status status = batch->end != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("the last bytes of a unit are not copied", LAWS, "reader_link.c",
     "piece.dst, piece.src,\n                                         flight.bytes);",
     "piece.dst, piece.src,\n                                         flight.bytes - 64);"),
    ("a unit is copied to another one's slot", LAWS, "space_move.c",
     "        .need_bytes = bytes,\n"
     "        .dst = mp_tier_address(space->tier, space->units[unit].slot),",
     "        .need_bytes = bytes,\n        .dst = mp_tier_address(space->tier,\n"
     "            (struct mp_slot){ space->units[unit].slot.class_index, 0 }),"),
    ("results of the CPU are used before they are there", LAWS, "device_queue.c",
     "    if (status == MP_OK)\n        status = mp_gpu_finish(device->gpu, stream);\n"
     "    if (status != MP_OK)\n        finish_stream(device, stream);\n    return status;\n}\n\n"
     "static enum mp_status await",
     "    return stream != NULL ? status : MP_ERR_DEVICE;\n}\n\nstatic enum mp_status await"),
    ("a host slot is filled anew while it is copied from", ["space_cuda_test:table"],
     "host_tier.c",
     "    if (u->residency.leases > 0 ||\n        (mp_host_exclusive(tier)",
     "    if ((mp_host_exclusive(tier)"),
    ("a unit is mapped when another copy has ended", LAWS, "reader_link.c",
     "backend->ops->lane_wait(backend, state->lane, state->first)",
     "backend->ops->lane_wait(backend, state->lane, (state->first + 1) % MP_LANE_MARKS)"),
    ("the host's copy is given back before it was read in place", ["cuda_laws_test:in_place"],
     "device_step.c",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n",
     "            mp_device_hand_over(&device->queues[x]);\n    }\n"
     "    mp_device_release_host(device);\n"),
    ("a place of the copy buffer is filled while it is read", ["cuda_machines_test:unpinned"],
     "backend_cuda_stage.c",
     "enum mp_status status = wait_for(self, stage, i);\n\n    if (status != MP_OK)",
     "enum mp_status status = MP_OK;\n\n    if (status != MP_OK)"),
    ("the device is not told of moves", ["cuda_laws_test:graphs"], "device_graph.c",
     "g->moves == mp_space_moves(engine->space))", "true)"),
    ("kernels are first launched into a graph", ["cuda_laws_test:graphs"], "device_graph.c",
     "if (g->warm[tokens] && g->execs[tokens] == NULL", "if (g->execs[tokens] == NULL"),
    ("reads are under way while a graph is recorded", ["cuda_laws_test:graphs"], "device_graph.c",
     "    mp_pager_settle(device->engine->pager);", ""),
]
