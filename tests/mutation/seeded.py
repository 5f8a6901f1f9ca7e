"""Bugs that were put in by hand, of the kind "wrong weights, good exit code".

What is wrong, the tests of which one has to notice, file, text that stands there exactly once, text
instead. Files and tests are known by their names without folders.
"""
LOGITS = ["logits_test:cpu"]
LAWS = ["cuda_laws_test:prompt"]
READER = ["reader_test:threads", "reader_order_test:threads", "reader_test:io_uring"]

# Of a kernel in PTX: more values at a time than registers that it may have.
MANY = "".join(f"\tld.volatile.global.u64 \t%many{i}, [%many0];\n" for i in range(1, 41)) + \
       "".join(f"\tst.volatile.global.u64 \t[%many0], %many{i};\n" for i in range(1, 41))

HOST = [
    ("a lease is not taken", ["space_leases_test"], "space_move.c",
     "= mp_res_apply(&u->residency, MP_RES_EV_LEASE);",
     "= mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_LEASE, false).status;"),
    ("a leased unit can be evicted", ["space_leases_test"], "residency.c",
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
    ("the size of a tensor may overflow", ["safetensors_test"], "format/safetensors.c",
     "if (!mp_mul_u64(bits, tensor->shape[i], &bits))",
     "if (bits *= tensor->shape[i], false)"),
    ("the second piece is looked for where the first one is", LOGITS, "space_move.c",
     "slot + layout->piece_offset_bytes[i];", "slot + layout->piece_offset_bytes[i == 1 ? 0 : i];"),
    ("a prefetch counts as complete when it has started", LOGITS, "space_move.c",
     "    if (ticket == MP_TICKET_DONE) {\n        mp_space_must_apply",
     "    if (ticket == MP_TICKET_DONE || (!u->demand && ticket == MP_TICKET_STARTED)) {\n"
     "        mp_space_must_apply"),
    ("the last extent is not read, stale bytes stay", LOGITS, "space_layout.c",
     "ticket->extent_count = layout->extent_count;",
     "ticket->extent_count = layout->extent_count - 1;"),
    ("weights of the experts are combined in the wrong order", LOGITS, "cpu_experts.c",
     "weights[r] / total * scale, H)", "weights[R - 1 - r] / total * scale, H)"),
    ("columns of blocks are taken to be in order", ["quantised_families_test"], "cpu_delta.c",
     "    return job->w->in_order\n", "    return job->w->in_order || d->tiled\n"),
    ("heads of a file with blocks stand as in directories", ["quantised_families_test"],
     "cpu_delta.c", "d->tiled ? head % d->key_heads : head / each",
     "job->w->in_order && d->tiled ? head % d->key_heads : head / each"),
    ("layers share a KV cache", LOGITS, "forward/kv.c",
     "* config->sequences * config->ctx;", "* config->ctx;"),
    ("tries stay used up although bytes have come", ["reader_retry_test:threads"], "reader_queue.c",
     "    chunk->tries = (struct mp_read_tries){ 0 };\n", ""),
    ("a layer with its share takes another one's slot", ["pager_ahead_test"], "pager_room.c",
     "any ? pager->config.shape.layers : first + 1;", "pager->config.shape.layers;"),
    ("what was kept is kept for ever", ["pager_ahead_test"], "pager.c",
     "else if (flags & (MP_PAGER_NEEDED | MP_PAGER_KEEP))", "else if (flags & MP_PAGER_NEEDED)"),
    ("of equal classes the latest use leaves", ["evict_fading_test"], "evict/aged.c",
     "aged->base.set.stamp[id] > aged->base.set.stamp[best]",
     "aged->base.set.stamp[id] < aged->base.set.stamp[best]"),
    ("twice as likely is not enough", ["ema_test"], "evict/ema.c",
     "self->key[in] / BETTER < self->key[out]", "self->key[in] / BETTER <= self->key[out]"),
    ("the bound of low scores is not low", ["smoe_test"], "route/smoe.c",
     "r-- > 0 && weights[r] <= (1 + alpha) * bar;", "r-- > 0 && weights[r] < (1 + alpha) * bar;"),
    ("of equal plans the one with more work", ["assign_hand_test"], "assign/beam.c",
     "a->device_ns + a->cpu_ns < b->device_ns", "a->device_ns + a->cpu_ns > b->device_ns"),
    ("as soon here as there goes to the CPU", ["assign_hand_test"], "assign/greedy.c",
     "device_sum_ns + device_ns <= cpu_sum_ns", "device_sum_ns + device_ns < cpu_sum_ns"),
    ("one token more than top-p wants", ["sampler_test"], "sampler.c",
     "cut < s->top_p * total", "cut <= s->top_p * total"),
    ("epsilon outside of the root", ["pointwise_test"], "vector.h",
     "sqrtf(sum / (float)width + eps)", "(sqrtf(sum / (float)width) + eps)"),
    ("the stop that is listed first ends the text", ["generate_stops_test"], "answer.c",
     "if (at != NULL && (size_t)(at - out->text) <= first)", "if (at != NULL && !found)"),
    ("slots that came again are not looked for", ["tier_test"], "tier.c",
     "    if (first / WORD_BITS < class->hint_word)\n"
     "        class->hint_word = first / WORD_BITS;\n", "    (void)first;\n"),
]

# The same for what a device does.
CUDA = [
    ("a wait for copies is left out", LAWS, "reader_link.c",
     "status = backend->ops->event_wait(backend, state->stream, state->first);",
     "status = backend != NULL ? MP_OK : MP_ERR_DEVICE;"),
    ("a place in a window is not unmapped", LAWS, "space/window.c",
     "    if (backend->ops->window_unmap(backend, place->address, bytes) != MP_OK)",
     "    if (backend == NULL || bytes == 0)"),
    ("the device learns where experts have been", LAWS, "device_graph.c",
     "if (g->known && g->generation == generation)", "if (g->known && generation > 0)"),
    ("experts have ended before the device is done with them", LAWS, "device_ended.c",
     "        if (status == MP_OK && !ended)\n            return;\n",
     "        if (status != MP_OK && !ended)\n            return;\n"),
    ("the last bytes of a unit are not copied", LAWS, "reader_link.c",
     "piece.dst, piece.src,\n                                           flight.bytes);",
     "piece.dst, piece.src,\n                                           flight.bytes - 64);"),
    ("a unit is copied to another one's slot", LAWS, "space_move.c",
     "        .need_bytes = bytes,\n"
     "        .dst = mp_tier_address(space->tier, space->units[unit].slot),",
     "        .need_bytes = bytes,\n        .dst = mp_tier_address(space->tier,\n"
     "            (struct mp_slot){ space->units[unit].slot.class_index, 0 }),"),
    ("results of the CPU are used before they are there", LAWS, "device_queue.c",
     "    return status == MP_OK ? mp_gpu_await(device->gpu, batch->end, device->engine->config.spin)\n"
     "                           : status;\n", "    return status;\n"),
    ("a host slot is filled anew while it is copied from", ["space_cuda_test:table"],
     "host_tier.c",
     "    if (u->residency.leases > 0 ||\n        (mp_host_exclusive(tier)",
     "    if ((mp_host_exclusive(tier)"),
    ("a unit is mapped when another copy has ended", LAWS, "reader_link.c",
     "backend->ops->event_wait(backend, state->stream, state->first)",
     "backend->ops->event_wait(backend, state->stream, (state->first + 1) % MP_STREAM_EVENTS)"),
    ("the host's copy is given back before it was read in place", ["cuda_laws_test:in_place"],
     "device_executors.c",
     "    mp_device_hand_over(queue);\n",
     "    mp_device_hand_over(queue);\n    mp_device_release_host(queue->device);\n"),
    ("a place of the copy buffer is filled while it is read", ["cuda_machines_test:unpinned"],
     "cuda/staging.c",
     "enum mp_status status = wait_for(self, stage, i);", "enum mp_status status = MP_OK;"),
    ("the device does not hear of moves", ["cuda_laws_test:graphs"], "space_resize.c",
     "    *slot = to;\n    space->generation++;\n", "    *slot = to;\n"),
    ("kernels are first launched into a graph", ["cuda_laws_test:graphs"], "device_graph.c",
     "return segment->ran && segment->exec == NULL", "return segment->exec == NULL"),
    ("reads are under way while a graph is recorded", ["cuda_laws_test:graphs"], "device_graph.c",
     "    mp_pager_settle(device->engine->pager);", ""),
    ("a layer with a miss goes on from what the graph left", ["cuda_laws_test:graphs"],
     "device_graph_notify.c", "    resume(device, moe_layer);\n    return mp_device_status(device);",
     "    return mp_device_status(device);"),
    ("a kernel gets more shared memory than it was allowed", ["gpu_work_test"], "engine/gpu/gpu.c",
     "if (bytes <= SHARED_BYTES_FREE ||", "if (bytes <= 2 * SHARED_BYTES_FREE ||"),
    ("host frames are cut by the device's granule", ["cuda_devices_test:granules"],
     "host_frames.c", "if (host_bytes > device_bytes)",
     "if (host_bytes > device_bytes && device_bytes == 0)"),
    ("only the first NUMA node is tried", ["cuda_devices_test:by_driver"], "host_frames.c",
     "i < count && !config->no_host_handles", "i < 1 && !config->no_host_handles"),
    ("what a context takes counts as free", ["cuda_devices_test:context"], "backend_cuda.c",
     "        *free_bytes_p = free_bytes;", "        *free_bytes_p = total_bytes;"),
    ("what cuBLAS is given is not in the plan", ["device_room_test:auto"], "device_expert_gemm.c",
     "return count_streams() * mp_gemm_bytes(widest_input(c)) + scratch_bytes(c, c->model->hidden) +",
     "return scratch_bytes(c, c->model->hidden) +"),
    ("what the driver keeps for graphs is not in the plan", ["device_room_test:graphs"],
     "device_graph.c", "sum = driver_bytes(config, slices);", "sum = 0;"),
    ("graphs take more than was planned", ["device_room_test:larger"], "device_graph.c",
     "g->driver_bytes + count * g->largest_bytes <= g->driver_bytes_max",
     "count * g->driver_bytes_max > 0"),
    ("what is behind misses takes the room of whole steps", ["device_room_test:several"],
     "device_graph.c", "1 + (uint64_t)count_to_come(device)",
     "1 + 0 * (uint64_t)count_to_come(device)"),
    ("a branch of a graph writes what the rest does", ["cuda_laws_test:graphs"],
     "device_graph_pass.c",
     "    queue_route(device, moe_layer);\n    if (c->engine->config.model->shared_ffn != 0)",
     "    static mp_cu_stream branch;\n    static mp_cu_event event[2];\n    int now = 0;\n\n"
     "    queue_route(device, moe_layer);\n"
     "    for (int i = 0; i < 2 && event[i] == NULL; i++)\n"
     "        if (mp_gpu_event_open(device->gpu, false, &event[i]) != MP_OK ||\n"
     "            (i == 0 && mp_gpu_stream_open(device->gpu, &branch) != MP_OK))\n"
     "            return MP_ERR_DEVICE;\n"
     "    (void)mp_gpu_driver(device->gpu)->call.capturing(mp_device_stream(device), &now);\n"
     "    if (now == MP_CU_CAPTURE_ACTIVE &&\n"
     "        (mp_gpu_record(device->gpu, event[0], mp_device_stream(device)) != MP_OK ||\n"
     "         mp_gpu_order(device->gpu, branch, event[0]) != MP_OK ||\n"
     "         mp_gpu_clear(device->gpu, branch, device->state.rank, 64) != MP_OK ||\n"
     "         mp_gpu_record(device->gpu, event[1], branch) != MP_OK))\n"
     "        return MP_ERR_DEVICE;\n"
     "    queue_slice(device, moe_layer, 0);\n"
     "    if (now == MP_CU_CAPTURE_ACTIVE &&\n"
     "        mp_gpu_order(device->gpu, mp_device_stream(device), event[1]) != MP_OK)\n"
     "        return MP_ERR_DEVICE;\n"
     "    if (c->engine->config.model->shared_ffn != 0)"),
    ("kernels are for a newer device than the oldest one", ["static/ptxas:q8_0"], "kernels/cuda/q8_0.ptx",
     ".target sm_75", ".target sm_80"),
    ("a kernel for one token wants more than 64 registers", ["static/ptxas:q8_0"],
     "kernels/cuda/q8_0.ptx", "\tld.param.u64 \t%rd1, [mp_gemv1_q8_0_param_0];\n",
     "\tld.param.u64 \t%rd1, [mp_gemv1_q8_0_param_0];\n\t.reg .b64 \t%many<41>;\n"
     "\tcvta.to.global.u64 \t%many0, %rd1;\n" + MANY),
    ("devices of 8.6 and 8.9 have the shared memory of 9.0", ["gpu_shared_test"],
     "tests/device/fakecuda/module.c", "    case 120: return 99 << 10;", "    case 120: return 227 << 10;"),
]
