/*
 * From tickets to chunks and back, for every engine that reads files: order, sizes, retries,
 * errors, final states. Engines move the bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/log.h"
#include "vmm/io/reader_int.h"

/* With by_extent: what is in flight before the next chunk waits, and as much again for so many
 * tickets. A disk that is given more at once may say of nothing that it has come before all has:
 * virtual ones work off their whole queue and notify once. It is enough to keep a disk busy; where
 * much is wanted, all of it counts more than its first bytes. */
#define EXTENT_FLIGHT_BYTES (UINT64_C(2) << 20)
#define EXTENT_FLIGHT_TICKETS 8

static void count(_Atomic(uint64_t) *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void mp_ticket_list_push_back(struct mp_ticket_list *list, struct mp_ticket *ticket)
{
    mp_assert(!ticket->linked);
    ticket->prev = list->last;
    ticket->next = NULL;
    if (list->last != NULL)
        list->last->next = ticket;
    else
        list->first = ticket;
    list->last = ticket;
    ticket->linked = true;
}

void mp_ticket_list_push_front(struct mp_ticket_list *list, struct mp_ticket *ticket)
{
    mp_assert(!ticket->linked);
    ticket->prev = NULL;
    ticket->next = list->first;
    if (list->first != NULL)
        list->first->prev = ticket;
    else
        list->last = ticket;
    list->first = ticket;
    ticket->linked = true;
}

void mp_ticket_list_remove(struct mp_ticket_list *list, struct mp_ticket *ticket)
{
    mp_assert(ticket->linked);
    if (ticket->prev != NULL)
        ticket->prev->next = ticket->next;
    else
        list->first = ticket->next;
    if (ticket->next != NULL)
        ticket->next->prev = ticket->prev;
    else
        list->last = ticket->prev;
    ticket->prev = ticket->next = NULL;
    ticket->linked = false;
}

bool mp_reader_has_work_locked(const struct mp_reader *reader)
{
    mp_assert_held(&reader->lock);
    return reader->lists[MP_PRIORITY_DEMAND].first != NULL ||
           reader->lists[MP_PRIORITY_PREFETCH].first != NULL;
}

void mp_reader_release_locked(struct mp_reader *reader, struct mp_ticket *ticket,
                              enum mp_ticket_state state)
{
    mp_assert_held(&reader->lock);
    mp_assert(!ticket->linked);
    mp_assert(reader->tickets > 0);
    reader->tickets--;
    /* Else a prefetch would wait for a demand that has ended. */
    mp_assert(reader->tickets > 0 || (reader->in_flight[MP_PRIORITY_DEMAND] == 0 &&
                                      reader->in_flight[MP_PRIORITY_PREFETCH] == 0));
    /* From here on the owner may use the memory for something else. */
    atomic_store_explicit(&ticket->state, state, memory_order_release);
    mp_cond_broadcast(&reader->final);
    if (reader->told_fd >= 0 && state != MP_TICKET_IDLE)
        (void)eventfd_write(reader->told_fd, 1); /* a full counter is readable, too */
}

void mp_reader_finish_locked(struct mp_reader *reader, struct mp_ticket *ticket)
{
    const struct mp_timeline_args args = {
        .key = { "unit", "bytes" },
        .value = { ticket->tag, ticket->read_bytes },
    };
    const bool failed = ticket->error.status != MP_OK;

    mp_assert_held(&reader->lock);
    mp_assert(ticket->track < MP_READER_TRACKS);
    mp_assert(ticket->chunks_in_flight == 0);
    ticket->done_ns = mp_clock_now_ns(reader->config.clock);
    mp_timeline_span(reader->config.timeline, reader->tracks[ticket->track],
                     failed                                   ? "failed"
                     : ticket->priority == MP_PRIORITY_DEMAND ? "demand"
                                                              : "prefetch",
                     ticket->started_ns, ticket->done_ns, &args);
    reader->tracks_used &= ~(1u << ticket->track);
    if (failed)
        count(&reader->errors, 1);
    mp_reader_release_locked(reader, ticket, failed ? MP_TICKET_FAILED : MP_TICKET_DONE);
}

/* Where to read an extent from, and how much of it. */
struct place {
    int fd;
    uint32_t align_bytes;
    uint64_t bytes;
};

/*
 * A direct read takes whole blocks, so it asks for the rest of the last one even where the file or
 * the need ends before. Buffered, only what is needed is read.
 */
static struct place place_of(const struct mp_reader *reader, const struct mp_ticket *ticket,
                             const struct mp_extent *extent)
{
    struct mp_files *files = reader->config.files;
    struct place place = { .fd = -1, .align_bytes = 1, .bytes = extent->need_bytes };

    mp_assert(extent->need_bytes <= extent->bytes);
    if (ticket->direct)
        place.fd = mp_files_direct_fd(files, extent->file, &place.align_bytes);
    if (place.fd < 0) {
        place.fd = mp_files_fd(files, extent->file);
        return place;
    }
    if (!mp_round_up_u64(extent->need_bytes, place.align_bytes, &place.bytes) ||
        place.bytes > extent->bytes)
        place.bytes = extent->bytes;
    return place;
}

/* Step over what is handed out or empty. */
static void advance(const struct mp_reader *reader, struct mp_ticket *ticket)
{
    mp_assert(ticket->extent_count <= MP_TICKET_EXTENTS_MAX);
    while (ticket->next_extent < ticket->extent_count) {
        const struct mp_extent *extent = &ticket->extents[ticket->next_extent];

        if (ticket->next_offset < place_of(reader, ticket, extent).bytes)
            return;
        ticket->next_extent++;
        ticket->next_offset = 0;
    }
}

/* Before anything is read: are these the files that were opened, and is it all in them? */
static enum mp_status check_files(const struct mp_reader *reader, const struct mp_ticket *ticket)
{
    for (uint32_t i = 0; i < ticket->extent_count; i++) {
        const struct mp_extent *extent = &ticket->extents[i];
        const uint64_t file_bytes = mp_files_bytes(reader->config.files, extent->file);
        const uint32_t file = extent->file;
        enum mp_status status;
        uint32_t before = 0;

        if (extent->offset + extent->need_bytes > file_bytes)
            return mp_files_fail_truncated(reader->config.files, file, file_bytes,
                                           extent->offset + extent->need_bytes);
        while (before < i && ticket->extents[before].file != file)
            before++;
        if (before < i)
            continue;
        status = mp_files_check(reader->config.files, file);
        if (status != MP_OK)
            return status;
        /* The probe of a direct descriptor reads; it must not run under the lock later. */
        (void)place_of(reader, ticket, extent);
    }
    return MP_OK;
}

void mp_reader_unlink_locked(struct mp_reader *reader, struct mp_ticket *ticket)
{
    uint32_t track = 0;

    mp_assert_held(&reader->lock);
    mp_assert(ticket->linked);
    while (track + 1 < MP_READER_TRACKS && (reader->tracks_used & (1u << track)) != 0)
        track++;
    reader->tracks_used |= 1u << track;
    ticket->track = track;
    mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
    atomic_store_explicit(&ticket->state, MP_TICKET_STARTED, memory_order_release);
}

static void start_locked(struct mp_reader *reader, struct mp_ticket *ticket)
{
    const enum mp_priority priority = ticket->priority;
    enum mp_status status;

    mp_assert_held(&reader->lock);
    mp_assert(mp_ticket_state(ticket) == MP_TICKET_QUEUED);
    mp_reader_unlink_locked(reader, ticket);
    /* Nobody is to find the lists without it and take what comes behind it. */
    reader->in_flight[priority]++;
    mp_unlock(&reader->lock);
    ticket->started_ns = mp_clock_now_ns(reader->config.clock);
    status = check_files(reader, ticket);
    mp_lock(&reader->lock);
    mp_assert(reader->in_flight[priority] > 0);
    reader->in_flight[priority]--;

    if (status != MP_OK) {
        ticket->error = *mp_error_last();
        mp_error_clear();
        mp_reader_finish_locked(reader, ticket);
        return;
    }
    advance(reader, ticket);
    if (ticket->next_extent == ticket->extent_count)
        mp_reader_finish_locked(reader, ticket);
    else
        mp_ticket_list_push_front(&reader->lists[ticket->priority], ticket);
}

/*
 * The chunks of an extent are equally long but for the last: a short rest would be a read of its
 * own, and costs as much to hand over as a long one.
 */
static uint64_t chunk_bytes_of(const struct mp_reader *reader, const struct place *place)
{
    const uint64_t most = reader->config.chunk_bytes;

    mp_assert(most > 0 && place->bytes > 0); /* nobody cuts what is empty */
    const uint64_t count = place->bytes / most + (place->bytes % most != 0);
    uint64_t bytes = place->bytes / count + (place->bytes % count != 0);

    if (!mp_round_up_u64(bytes, MP_CHUNK_ALIGN_BYTES, &bytes) ||
        !mp_round_up_u64(bytes, place->align_bytes, &bytes))
        return place->bytes;
    return bytes;
}

/* Its next extent comes behind those of the same number that others have. */
static void let_others_first(struct mp_ticket_list *list, struct mp_ticket *ticket)
{
    mp_ticket_list_remove(list, ticket);
    mp_ticket_list_push_back(list, ticket);
}

static void cut_locked(struct mp_reader *reader, struct mp_ticket *ticket, struct mp_chunk *chunk)
{
    const uint32_t index = ticket->next_extent;
    const struct mp_extent *extent = &ticket->extents[index];
    const struct place place = place_of(reader, ticket, extent);
    const uint64_t start = ticket->next_offset;
    uint64_t bytes = chunk_bytes_of(reader, &place);
    uint64_t need_end;

    if (bytes > place.bytes - start)
        bytes = place.bytes - start;
    mp_assert(bytes > 0);
    need_end = start + bytes < extent->need_bytes ? start + bytes : extent->need_bytes;
    *chunk = (struct mp_chunk){
        .ticket = ticket,
        .extent = index,
        .file = extent->file,
        .fd = place.fd,
        .align_bytes = place.align_bytes,
        .offset = extent->offset + start,
        .bytes = bytes,
        .cut_bytes = bytes,
        .need_end = extent->offset + need_end,
        .dst = (char *)extent->dst + start,
        .prefetch = ticket->priority == MP_PRIORITY_PREFETCH,
    };
    ticket->next_offset += bytes;
    ticket->chunks_in_flight++;
    ticket->extent_chunks[index]++;
    reader->in_flight[ticket->priority]++;
    reader->flight_bytes += bytes;
    advance(reader, ticket);
    if (ticket->next_extent == ticket->extent_count)
        mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
    else if (ticket->next_extent != index && reader->config.by_extent && !chunk->prefetch)
        let_others_first(&reader->lists[MP_PRIORITY_DEMAND], ticket);
}

struct mp_ticket *mp_reader_first_locked(const struct mp_reader *reader)
{
    struct mp_ticket *demand = reader->lists[MP_PRIORITY_DEMAND].first;

    mp_assert_held(&reader->lock);
    if (reader->config.by_extent &&
        reader->flight_bytes >= EXTENT_FLIGHT_BYTES * (1 + reader->tickets / EXTENT_FLIGHT_TICKETS))
        return NULL;
    if (demand != NULL || reader->in_flight[MP_PRIORITY_DEMAND] > 0 ||
        reader->in_flight[MP_PRIORITY_PREFETCH] >= reader->config.prefetch_depth)
        return demand;
    return reader->lists[MP_PRIORITY_PREFETCH].first;
}

bool mp_reader_take_locked(struct mp_reader *reader, struct mp_chunk *chunk)
{
    mp_assert_held(&reader->lock);
    for (;;) {
        struct mp_ticket *ticket = mp_reader_first_locked(reader);

        if (ticket == NULL)
            return false;
        if (mp_ticket_state(ticket) == MP_TICKET_STARTED) {
            cut_locked(reader, ticket, chunk);
            return true;
        }
        start_locked(reader, ticket);
    }
}

static bool chunk_fail(struct mp_chunk *chunk)
{
    mp_assert(mp_error_last()->status != MP_OK);
    chunk->failed = true;
    return false;
}

static void chunk_go_buffered(struct mp_reader *reader, struct mp_chunk *chunk)
{
    mp_assert(chunk->need_end > chunk->offset);
    chunk->fd = mp_files_fd(reader->config.files, chunk->file);
    chunk->align_bytes = 1;
    chunk->bytes = chunk->need_end - chunk->offset;
}

static bool chunk_read_failed(struct mp_reader *reader, struct mp_chunk *chunk, int error_number)
{
    mp_assert(error_number > 0);
    if (mp_read_again(&chunk->tries, error_number)) {
        count(&reader->retries, 1);
        return true;
    }
    /* The probe succeeded, but some file systems refuse single ranges (compressed ones, say), and
     * memory of some drivers cannot be read into directly (EFAULT). */
    if ((error_number == EINVAL || error_number == EFAULT) && chunk->align_bytes > 1) {
        mp_log_once(MP_LOG_WARN, "reader",
                    "direct read of '%s' at byte %" PRIu64 " refused, reading it buffered",
                    mp_files_name(reader->config.files, chunk->file), chunk->offset);
        count(&reader->retries, 1);
        chunk_go_buffered(reader, chunk);
        return true;
    }
    mp_files_fail_read(reader->config.files, chunk->file, chunk->offset, error_number);
    return chunk_fail(chunk);
}

bool mp_chunk_result(struct mp_reader *reader, struct mp_chunk *chunk, int64_t result)
{
    uint64_t got;

    mp_assert(!chunk->failed);
    count(&reader->requests, 1);
    if (result < 0)
        return chunk_read_failed(reader, chunk, (int)-result);
    if (result == 0) {
        mp_files_fail_truncated(reader->config.files, chunk->file, chunk->offset, chunk->need_end);
        return chunk_fail(chunk);
    }
    got = (uint64_t)result;
    if (got > chunk->bytes) /* Nobody knows what was overwritten. */
        return chunk_read_failed(reader, chunk, EOVERFLOW);
    count(&reader->read_bytes, got);
    chunk->read_bytes += got;
    if (chunk->offset + got >= chunk->need_end)
        return false;

    count(&reader->short_reads, 1);
    chunk->tries = (struct mp_read_tries){ 0 };
    if (got < chunk->align_bytes) {
        /* Not one whole block: the file ends here or the disk is odd. Buffered reads show it. */
        chunk->offset += got;
        chunk->dst += got;
        chunk_go_buffered(reader, chunk);
        return true;
    }
    /* A direct read goes on at a block, so part of one is read again. */
    got = mp_round_down_u64(got, chunk->align_bytes);
    chunk->offset += got;
    chunk->dst += got;
    chunk->bytes -= got;
    return true;
}

void mp_chunk_read(struct mp_reader *reader, struct mp_chunk *chunk)
{
    int64_t result;

    mp_assert(chunk->bytes > 0 && chunk->fd >= 0);
    do {
        const uint64_t want =
            chunk->bytes < MP_READ_CALL_BYTES_MAX ? chunk->bytes : MP_READ_CALL_BYTES_MAX;

        result = pread(chunk->fd, chunk->dst, want, (off_t)chunk->offset);
        if (result < 0)
            result = -errno;
    } while (mp_chunk_result(reader, chunk, result));
}

/* A chunk has ended, others of its ticket not yet: is that all of its extent, which others may use
 * before the rest? */
static void note_extent(struct mp_reader *reader, struct mp_ticket *ticket, uint32_t extent)
{
    mp_assert(ticket->extent_chunks[extent] > 0);
    if (--ticket->extent_chunks[extent] > 0 || ticket->next_extent <= extent ||
        ticket->error.status != MP_OK)
        return;
    atomic_fetch_or_explicit(&ticket->arrived, 1u << extent, memory_order_release);
    if (reader->config.by_extent)
        mp_cond_broadcast(&reader->final);
}

void mp_reader_landed_locked(struct mp_reader *reader, struct mp_chunk *chunk)
{
    mp_assert_held(&reader->lock);
    mp_assert(reader->flight_bytes >= chunk->cut_bytes);
    reader->flight_bytes -= chunk->cut_bytes;
    chunk->cut_bytes = 0;
}

void mp_reader_complete_locked(struct mp_reader *reader, struct mp_chunk *chunk)
{
    const enum mp_priority priority = chunk->prefetch ? MP_PRIORITY_PREFETCH : MP_PRIORITY_DEMAND;
    struct mp_ticket *ticket = chunk->ticket;

    mp_assert_held(&reader->lock);
    mp_assert(ticket->chunks_in_flight > 0);
    ticket->chunks_in_flight--;
    mp_assert(reader->in_flight[priority] > 0);
    reader->in_flight[priority]--;
    mp_reader_landed_locked(reader, chunk);
    ticket->read_bytes += chunk->read_bytes;
    if (chunk->failed) {
        /* The first error stays; the rest of the ticket is not read any more. */
        if (ticket->error.status == MP_OK)
            ticket->error = *mp_error_last();
        mp_error_clear();
        if (ticket->linked)
            mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
    }
    if (ticket->chunks_in_flight == 0 && !ticket->linked)
        mp_reader_finish_locked(reader, ticket);
    else
        note_extent(reader, ticket, chunk->extent);
}

void mp_reader_work(struct mp_reader *reader)
{
    struct mp_chunk chunk;

    mp_lock(&reader->lock);
    for (;;) {
        if (mp_reader_take_locked(reader, &chunk)) {
            /* One thread wakes the next while there is more, so a submit wakes only one. */
            if (mp_reader_has_work_locked(reader))
                mp_cond_signal(&reader->work);
            mp_unlock(&reader->lock);
            mp_chunk_read(reader, &chunk);
            mp_lock(&reader->lock);
            mp_reader_complete_locked(reader, &chunk);
        } else if (reader->stopping) {
            break;
        } else {
            mp_cond_wait(&reader->work, &reader->lock);
        }
    }
    mp_unlock(&reader->lock);
}
