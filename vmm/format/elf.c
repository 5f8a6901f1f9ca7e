/*
 * Reads ELF files of this machine's word size and byte order. Tables are copied out piece by piece:
 * offset and length are checked against the file, counts against limits, strings against the end of
 * their table, which gets a NUL of its own.
 */
#include "vmm/format/elf.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"
#include "vmm/base/error.h"

#if UINTPTR_MAX > UINT32_MAX
#define NATIVE_CLASS ELFCLASS64
typedef Elf64_Ehdr header;
typedef Elf64_Phdr segment;
typedef Elf64_Shdr section;
typedef Elf64_Dyn dynamic_entry;
typedef Elf64_Sym symbol;
#else
#define NATIVE_CLASS ELFCLASS32
typedef Elf32_Ehdr header;
typedef Elf32_Phdr segment;
typedef Elf32_Shdr section;
typedef Elf32_Dyn dynamic_entry;
typedef Elf32_Sym symbol;
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE_ORDER ELFDATA2LSB
#else
#define NATIVE_ORDER ELFDATA2MSB
#endif

struct reader {
    const struct mp_elf_source *source;
    const char *name;
};

static enum mp_status damaged(const struct reader *reader, const char *what)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_ELF", "'%s' is no whole ELF file: %s",
                   mp_quote(quoted, reader->name, strlen(reader->name)), what);
}

static bool is_inside(const struct reader *reader, uint64_t offset, uint64_t bytes)
{
    uint64_t end;

    return mp_add_u64(offset, bytes, &end) && end <= reader->source->file_bytes;
}

static enum mp_status read_at(const struct reader *reader, uint64_t offset, uint64_t bytes,
                              void *dst)
{
    char quoted[MP_QUOTE_BYTES];

    if (!is_inside(reader, offset, bytes))
        return damaged(reader, "it ends before one of its tables");
    if (!reader->source->read(reader->source->context, offset, bytes, dst))
        return mp_fail(MP_ERR_IO, "E_READ", "cannot read '%s'",
                       mp_quote(quoted, reader->name, strlen(reader->name)));
    return MP_OK;
}

/* `count` entries of so many bytes as a new array with `extra` zero bytes behind it. */
static enum mp_status read_table(const struct reader *reader, uint64_t offset, uint64_t count,
                                 uint64_t entry_bytes, size_t extra, void **table_p)
{
    enum mp_status status;
    uint64_t bytes;
    char *table;

    if (!mp_mul_u64(count, entry_bytes, &bytes) || !is_inside(reader, offset, bytes))
        return damaged(reader, "it ends before one of its tables");
    table = malloc((size_t)bytes + extra + (bytes + extra == 0));
    if (table == NULL)
        return mp_fail_no_memory("a table of a program", bytes + extra);
    memset(table + bytes, 0, extra);
    status = read_at(reader, offset, bytes, table);
    if (status != MP_OK) {
        free(table);
        return status;
    }
    *table_p = table;
    return MP_OK;
}

bool mp_elf_is(const struct mp_elf_source *source)
{
    char magic[SELFMAG];

    return source->file_bytes >= SELFMAG && source->read(source->context, 0, SELFMAG, magic) &&
           memcmp(magic, ELFMAG, SELFMAG) == 0;
}

/* *foreign_p: the rest of the header is not there. */
static enum mp_status read_header(const struct reader *reader, header *head, bool *foreign_p)
{
    unsigned char start[EI_NIDENT + 4];
    enum mp_status status = read_at(reader, 0, sizeof(start), start);

    if (status != MP_OK)
        return status;
    if (memcmp(start, ELFMAG, SELFMAG) != 0)
        return damaged(reader, "it does not begin like one");
    *foreign_p = start[EI_CLASS] != NATIVE_CLASS || start[EI_DATA] != NATIVE_ORDER;
    memset(head, 0, sizeof(*head));
    if (*foreign_p) {
        const bool little = start[EI_DATA] == ELFDATA2LSB;

        head->e_machine =
            (uint16_t)(start[EI_NIDENT + 2 + !little] | start[EI_NIDENT + 2 + little] << 8);
        return MP_OK;
    }
    return read_at(reader, 0, sizeof(*head), head);
}

/* Where the byte of this address lies in the file; false: in no loaded segment. */
static bool find_address(const segment *segments, uint32_t count, uint64_t address,
                         uint64_t *offset_p)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t into = address - segments[i].p_vaddr;

        if (segments[i].p_type == PT_LOAD && address >= segments[i].p_vaddr &&
            into < segments[i].p_filesz)
            return mp_add_u64(segments[i].p_offset, into, offset_p);
    }
    return false;
}

static const segment *find_segment(const segment *segments, uint32_t count, uint32_t type)
{
    for (uint32_t i = 0; i < count; i++) {
        if (segments[i].p_type == type)
            return &segments[i];
    }
    return NULL;
}

/* The dynamic section: entries until DT_NULL. */
struct dynamic {
    dynamic_entry *entries;
    uint64_t count;
    uint64_t strings_offset, strings_bytes;
    uint32_t needed;
};

static enum mp_status read_dynamic(const struct reader *reader, const segment *segments,
                                   uint32_t count, const segment *from, struct dynamic *dynamic)
{
    uint64_t strings = 0;
    enum mp_status status;
    void *entries;

    status = read_table(reader, from->p_offset, from->p_filesz / sizeof(*dynamic->entries),
                        sizeof(*dynamic->entries), 0, &entries);
    if (status != MP_OK)
        return status;
    dynamic->entries = entries;
    while (dynamic->count < from->p_filesz / sizeof(*dynamic->entries) &&
           dynamic->entries[dynamic->count].d_tag != DT_NULL) {
        const dynamic_entry *entry = &dynamic->entries[dynamic->count++];

        if (entry->d_tag == DT_STRTAB)
            strings = entry->d_un.d_ptr;
        else if (entry->d_tag == DT_STRSZ)
            dynamic->strings_bytes = entry->d_un.d_val;
        else if (entry->d_tag == DT_NEEDED)
            dynamic->needed++;
    }
    if (dynamic->needed > MP_ELF_NEEDED_MAX)
        return damaged(reader, "it needs too many libraries");
    if (dynamic->strings_bytes > MP_ELF_STRINGS_BYTES_MAX)
        return damaged(reader, "its names are too long");
    if (dynamic->strings_bytes > 0 &&
        !find_address(segments, count, strings, &dynamic->strings_offset))
        return damaged(reader, "its names lie outside of what is loaded");
    return MP_OK;
}

/* One block: pointers to needed names, the strings, the interpreter. */
static enum mp_status take_names(const struct reader *reader, const struct dynamic *dynamic,
                                 const segment *interpreter, struct mp_elf *elf)
{
    const uint64_t pointers = dynamic->needed * sizeof(char *);
    const uint64_t path_bytes = interpreter != NULL ? interpreter->p_filesz : 0;
    enum mp_status status;
    char *block, *strings;

    if (path_bytes > 4096 || !is_inside(reader, dynamic->strings_offset, dynamic->strings_bytes))
        return damaged(reader, "it ends before its names");
    block = calloc(1, (size_t)(pointers + dynamic->strings_bytes + path_bytes + 2));
    if (block == NULL)
        return mp_fail_no_memory("names of a program", pointers + dynamic->strings_bytes);
    elf->block = block;
    elf->needed = (const char **)block;
    strings = block + pointers;
    status = read_at(reader, dynamic->strings_offset, dynamic->strings_bytes, strings);
    if (status == MP_OK && interpreter != NULL) {
        elf->interpreter = strings + dynamic->strings_bytes + 1;
        status = read_at(reader, interpreter->p_offset, path_bytes,
                         strings + dynamic->strings_bytes + 1);
    }
    for (uint64_t i = 0; status == MP_OK && i < dynamic->count; i++) {
        const uint64_t at = dynamic->entries[i].d_un.d_val;
        const int64_t tag = dynamic->entries[i].d_tag;

        if (tag != DT_NEEDED && tag != DT_RUNPATH && tag != DT_RPATH)
            continue;
        if (at >= dynamic->strings_bytes)
            return damaged(reader, "a name lies outside of its names");
        if (tag == DT_NEEDED)
            elf->needed[elf->needed_count++] = strings + at;
        else
            *(tag == DT_RUNPATH ? &elf->run_path : &elf->old_path) = strings + at;
    }
    return status;
}

static enum mp_status read_segments(const struct reader *reader, const header *head,
                                    struct mp_elf *elf)
{
    struct dynamic dynamic = { 0 };
    const segment *segments, *from;
    enum mp_status status;
    void *table;

    if (head->e_phnum > 0 && head->e_phentsize != sizeof(segment))
        return damaged(reader, "its segments have another size");
    status = read_table(reader, head->e_phoff, head->e_phnum, sizeof(segment), 0, &table);
    if (status != MP_OK)
        return status;
    segments = table;
    from = find_segment(segments, head->e_phnum, PT_DYNAMIC);
    elf->dynamic = from != NULL;
    if (from != NULL)
        status = read_dynamic(reader, segments, head->e_phnum, from, &dynamic);
    if (status == MP_OK)
        status =
            take_names(reader, &dynamic, find_segment(segments, head->e_phnum, PT_INTERP), elf);
    free(dynamic.entries);
    free(table);
    return status;
}

enum mp_status mp_elf_read(const struct mp_elf_source *source, const char *name, struct mp_elf *elf)
{
    const struct reader reader = { source, name };
    enum mp_status status;
    header head;

    memset(elf, 0, sizeof(*elf));
    status = read_header(&reader, &head, &elf->foreign);
    elf->machine = status == MP_OK ? head.e_machine : 0;
    if (status == MP_OK && !elf->foreign)
        status = read_segments(&reader, &head, elf);
    if (status != MP_OK)
        mp_elf_fini(elf);
    return status;
}

void mp_elf_fini(struct mp_elf *elf)
{
    free(elf->block);
    memset(elf, 0, sizeof(*elf));
}

static bool is_export(const symbol *entry)
{
    const unsigned char binding = entry->st_info >> 4, kind = entry->st_info & 15;

    return entry->st_shndx != SHN_UNDEF && (binding == STB_GLOBAL || binding == STB_WEAK) &&
           (kind == STT_FUNC || kind == STT_GNU_IFUNC);
}

/* The table of symbols, whose names are in the section that it links to. */
static enum mp_status look_through(const struct reader *reader, const section *symbols,
                                   const section *strings, const char *const *names, size_t count,
                                   bool *found)
{
    const uint64_t entries = symbols->sh_size / sizeof(symbol);
    void *table = NULL, *text = NULL;
    enum mp_status status;

    if (entries > MP_ELF_SYMBOLS_MAX || strings->sh_size > MP_ELF_STRINGS_BYTES_MAX)
        return damaged(reader, "it has too many symbols");
    status = read_table(reader, symbols->sh_offset, entries, sizeof(symbol), 0, &table);
    if (status == MP_OK)
        status = read_table(reader, strings->sh_offset, strings->sh_size, 1, 1, &text);
    for (uint64_t i = 0; status == MP_OK && i < entries; i++) {
        const symbol *entry = (const symbol *)table + i;

        if (!is_export(entry) || entry->st_name >= strings->sh_size)
            continue;
        for (size_t n = 0; n < count; n++)
            found[n] = found[n] || strcmp((const char *)text + entry->st_name, names[n]) == 0;
    }
    free(text);
    free(table);
    return status;
}

enum mp_status mp_elf_find_exports(const struct mp_elf_source *source, const char *name,
                                   const char *const *names, size_t count, bool *found)
{
    const struct reader reader = { source, name };
    bool foreign = false;
    enum mp_status status;
    void *table = NULL;
    header head;

    memset(found, 0, count * sizeof(*found));
    status = read_header(&reader, &head, &foreign);
    if (status != MP_OK || foreign)
        return status;
    if (head.e_shnum > 0 && head.e_shentsize != sizeof(section))
        return damaged(&reader, "its sections have another size");
    status = read_table(&reader, head.e_shoff, head.e_shnum, sizeof(section), 0, &table);
    for (uint32_t i = 0; status == MP_OK && i < head.e_shnum; i++) {
        const section *sections = table;

        if (sections[i].sh_type == SHT_DYNSYM && sections[i].sh_link < head.e_shnum)
            status = look_through(&reader, &sections[i], &sections[sections[i].sh_link], names,
                                  count, found);
    }
    free(table);
    return status;
}
