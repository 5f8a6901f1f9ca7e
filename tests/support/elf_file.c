/* Programs and libraries without code; see elf_file.h. */
#include "tests/support/elf_file.h"

#include <elf.h>
#include <stddef.h>
#include <sys/stat.h>

#include "tests/support/test.h"
#include "vmm/base/compiler.h"

#define STRINGS_BYTES 2048

struct image {
    Elf64_Ehdr head;
    Elf64_Phdr segments[3]; /* everything, the dynamic entries, the interpreter's name */
    Elf64_Dyn entries[16];
    Elf64_Sym symbols[2];
    Elf64_Shdr sections[3]; /* none, symbols, strings */
    char strings[STRINGS_BYTES];
};

static unsigned add_string(struct image *image, size_t *used, const char *text)
{
    const size_t at = *used, bytes = strlen(text) + 1;

    CHECK(at + bytes <= STRINGS_BYTES);
    memcpy(image->strings + at, text, bytes);
    *used += bytes;
    return (unsigned)at;
}

static void add_entry(struct image *image, unsigned *count, Elf64_Sxword tag, Elf64_Xword value)
{
    CHECK(*count < 15);
    image->entries[*count].d_tag = tag;
    image->entries[(*count)++].d_un.d_val = value;
}

static void add_segment(struct image *image, unsigned type, size_t offset, size_t bytes)
{
    image->segments[image->head.e_phnum++] = (Elf64_Phdr){ .p_type = type,
                                                           .p_flags = PF_R,
                                                           .p_offset = offset,
                                                           .p_vaddr = offset,
                                                           .p_filesz = bytes,
                                                           .p_memsz = bytes };
}

/* The machine is this one's: what this program itself has in its head. */
static void make_head(struct image *image)
{
    FILE *self = fopen("/proc/self/exe", "rb");

    CHECK(self != NULL && fread(&image->head, sizeof(image->head), 1, self) == 1);
    fclose(self);
    CHECK_EQ(image->head.e_ident[EI_CLASS], ELFCLASS64);
    image->head.e_type = ET_DYN;
    image->head.e_entry = 0;
    image->head.e_phoff = offsetof(struct image, segments);
    image->head.e_phnum = 0;
    image->head.e_shoff = offsetof(struct image, sections);
    image->head.e_shnum = 3;
    image->head.e_shstrndx = SHN_UNDEF;
}

void elf_file_write(const char *path, const struct elf_file *file)
{
    static struct image image;
    unsigned count = 0;
    size_t used = 1;
    FILE *out;

    memset(&image, 0, sizeof(image));
    make_head(&image);
    for (size_t i = 0; i < MP_ARRAY_LEN(file->needed) && file->needed[i] != NULL; i++)
        add_entry(&image, &count, DT_NEEDED, add_string(&image, &used, file->needed[i]));
    if (file->run_path != NULL)
        add_entry(&image, &count, DT_RUNPATH, add_string(&image, &used, file->run_path));
    if (file->old_path != NULL)
        add_entry(&image, &count, DT_RPATH, add_string(&image, &used, file->old_path));
    add_entry(&image, &count, DT_STRTAB, offsetof(struct image, strings));
    add_entry(&image, &count, DT_STRSZ, STRINGS_BYTES);
    add_segment(&image, PT_LOAD, 0, sizeof(image));
    add_segment(&image, PT_DYNAMIC, offsetof(struct image, entries),
                (count + 1) * sizeof(image.entries[0]));
    if (file->interpreter != NULL) {
        const unsigned at = add_string(&image, &used, file->interpreter);

        add_segment(&image, PT_INTERP, offsetof(struct image, strings) + at,
                    strlen(file->interpreter) + 1);
    }
    if (file->exported != NULL)
        image.symbols[1] = (Elf64_Sym){ .st_name = add_string(&image, &used, file->exported),
                                        .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                        .st_shndx = 1 };
    image.sections[1] = (Elf64_Shdr){ .sh_type = SHT_DYNSYM,
                                      .sh_offset = offsetof(struct image, symbols),
                                      .sh_size = sizeof(image.symbols),
                                      .sh_link = 2,
                                      .sh_entsize = sizeof(image.symbols[0]) };
    image.sections[2] = (Elf64_Shdr){ .sh_type = SHT_STRTAB,
                                      .sh_offset = offsetof(struct image, strings),
                                      .sh_size = STRINGS_BYTES };
    out = fopen(path, "wb");
    CHECK(out != NULL && fwrite(&image, sizeof(image), 1, out) == 1);
    CHECK_EQ(fclose(out), 0);
    CHECK_EQ(chmod(path, 0755), 0);
}
