/*
 * Modules and launches. Of an image the entries' names and parameters are read; what an entry does
 * is given by a function of the host with its name.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/stream.h"

#define ENTRIES_MAX 128
#define REGISTERED_MAX 32
#define INVALID_IMAGE 200

struct fake_module {
    unsigned count;
    struct fake_function entries[ENTRIES_MAX];
    uint64_t handles[ENTRIES_MAX];   /* 0: not asked for */
    uint64_t last[FAKE_STREAMS_MAX]; /* launch of it */
};

static const struct mp_simt_kernel *registered[REGISTERED_MAX];
static unsigned registered_count;

FAKE_EXPORT void fakecuda_kernel(const struct mp_simt_kernel *kernel)
{
    pthread_mutex_lock(&fake.lock);
    if (registered_count == REGISTERED_MAX)
        abort();
    registered[registered_count++] = kernel;
    pthread_mutex_unlock(&fake.lock);
}

static const struct mp_simt_kernel *find_kernel(const char *name)
{
    for (unsigned i = 0; i < registered_count; i++) {
        if (strcmp(registered[i]->name, name) == 0)
            return registered[i];
    }
    return mp_simt_find(name);
}

/* ---- the text of an image */

static const char *skip_space(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

/* The word at *at, which moves behind it. */
static void take_word(const char **at, char *word, size_t max)
{
    size_t n = 0;

    for (*at = skip_space(*at); **at != '\0' && strchr("(),[];{} \t\r\n", **at) == NULL; ++*at) {
        if (n + 1 < max)
            word[n++] = **at;
    }
    word[n] = '\0';
}

/* Bytes of a type such as .u64 or .b8; 0: none. */
static size_t type_bytes(const char *word)
{
    const char *digits = word;

    while (*digits != '\0' && !isdigit((unsigned char)*digits))
        digits++;
    return (size_t)strtoul(digits, NULL, 10) / 8;
}

/* ".param .align 8 .b8 name[56]" or ".param .u64 name". */
static bool take_parameter(const char **at, struct fake_function *function)
{
    const unsigned n = function->param_count;
    size_t bytes = 0, align = 0;
    char word[128];

    take_word(at, word, sizeof(word));
    if (strcmp(word, ".param") != 0 || n == sizeof(function->param_sizes) / sizeof(size_t))
        return false;
    for (take_word(at, word, sizeof(word)); word[0] == '.'; take_word(at, word, sizeof(word))) {
        if (strcmp(word, ".align") == 0) {
            take_word(at, word, sizeof(word));
            align = strtoul(word, NULL, 10);
        } else if (type_bytes(word) > 0) {
            bytes = type_bytes(word);
        }
    }
    align = align > 0 ? align : bytes;
    if (bytes == 0 || word[0] == '\0')
        return false;
    if (**at == '[') {
        bytes *= strtoul(*at + 1, NULL, 10);
        *at += strcspn(*at, "]");
        *at += **at == ']';
    }
    function->param_offsets[n] = (function->param_bytes + align - 1) / align * align;
    function->param_sizes[n] = bytes;
    function->param_bytes = function->param_offsets[n] + bytes;
    function->param_count++;
    return true;
}

static bool take_entry(const char *at, struct fake_function *function)
{
    take_word(&at, function->name, sizeof(function->name));
    at = skip_space(at);
    if (function->name[0] == '\0' || *at != '(')
        return function->name[0] != '\0';
    for (at = skip_space(at + 1); *at != ')'; at = skip_space(at)) {
        if (!take_parameter(&at, function))
            return false;
        at = skip_space(at);
        at += *at == ',';
    }
    return true;
}

/* Does the line begin with one of these? */
static bool begins_with(const char *line, const char *const *words)
{
    while (*words != NULL && strncmp(line, *words, strlen(*words)) != 0)
        words++;
    return *words != NULL;
}

/* The instruction of a line, behind a guard. */
static const char *instruction_of(const char *line)
{
    line = skip_space(line);
    if (*line == '@')
        line = skip_space(line + strcspn(line, " \t\n"));
    return line;
}

/* The next entry. Sanitizers make strstr() read to the end of the text, however near what it finds
 * is. */
static const char *next_entry(const char *at)
{
    for (at = strchr(at, '.'); at != NULL; at = strchr(at + 1, '.')) {
        if (at[1] == 'e' && strncmp(at, ".entry", 6) == 0)
            break;
    }
    return at;
}

/* From behind the name of the entry to the next one. */
static void read_code(const char *at, struct fake_function *function)
{
    static const char *const touches[] = { "ld.", "st.", "atom.", "red.", "cp.", NULL };
    static const char *const own[] = { "ld.param", "ld.shared", "st.shared", "ld.local",
                                       "st.local", "ld.const",  NULL };
    const char *end = next_entry(at);

    for (; at != NULL && (end == NULL || at < end) && !function->waits; at = strchr(at + 1, '\n')) {
        const char *instruction = instruction_of(at);

        function->waits = strncmp(instruction, "griddepcontrol.wait", 19) == 0;
        function->touches_early |=
            begins_with(instruction, touches) && !begins_with(instruction, own);
    }
    function->touches_early &= function->waits;
}

static unsigned number_behind(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    return at != NULL ? (unsigned)strtoul(at + strlen(word), NULL, 10) : 0;
}

static bool read_image(const char *text, struct fake_module *module)
{
    const unsigned target = number_behind(text, ".target sm_");
    bool waits = false;

    if (strstr(text, ".version") == NULL || strstr(text, ".target") == NULL ||
        target > fake.capability)
        return false;
    for (const char *at = next_entry(text); at != NULL; at = next_entry(at)) {
        struct fake_function *function = &module->entries[module->count];

        at += strlen(".entry");
        if (module->count == ENTRIES_MAX || !take_entry(at, function))
            return false;
        function->module = module;
        module->count++;
        read_code(at, function);
        waits |= function->waits;
    }
    return !waits || (target >= 90 && (number_behind(text, ".version ") > 7 ||
                                       number_behind(text, ".version 7.") >= 8));
}

/* ---- calls */

FAKE_EXPORT mp_cu_result cuModuleLoadDataEx(mp_cu_module *module, const void *image,
                                            unsigned options, int *keys, void **values)
{
    struct fake_module *m;
    uint64_t handle;

    (void)keys;
    (void)values;
    (void)options;
    FAKE_BEGIN(cuModuleLoadDataEx);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    if (module == NULL || image == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    handle = read_image(image, m) ? fake_object_add(FAKE_MODULE, m) : 0;
    if (handle == 0) {
        free(m);
        return fake_leave(INVALID_IMAGE);
    }
    *module = (mp_cu_module)(uintptr_t)handle;
    return fake_leave(MP_CU_SUCCESS);
}

/* Launches that are still queued point into it, so its memory stays. */
static void release(struct fake_module *module)
{
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_streams[s].done < module->last[s])
            return;
    }
    free(module);
}

FAKE_EXPORT mp_cu_result cuModuleUnload(mp_cu_module module)
{
    struct fake_module *m;

    FAKE_BEGIN(cuModuleUnload);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    m = fake_object(FAKE_MODULE, (uintptr_t)module);
    if (m == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_host.seen[s] < m->last[s])
            fake_violation("a module is unloaded under a launch whose end the host has not seen");
    }
    for (unsigned i = 0; i < m->count; i++)
        fake_object_remove(m->handles[i]);
    fake_object_remove((uintptr_t)module);
    release(m);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuModuleGetFunction(mp_cu_function *function, mp_cu_module module,
                                             const char *name)
{
    struct fake_module *m;
    unsigned i = 0;

    FAKE_BEGIN(cuModuleGetFunction);
    FAKE_NEED_CONTEXT();
    m = fake_object(FAKE_MODULE, (uintptr_t)module);
    if (m == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (function == NULL || name == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    while (i < m->count && strcmp(m->entries[i].name, name) != 0)
        i++;
    if (i == m->count)
        return fake_leave(MP_CU_ERROR_NOT_FOUND);
    m->entries[i].kernel = find_kernel(name);
    if (m->entries[i].kernel == NULL) {
        fake_violation("nobody has defined what the entry %s of an image does", name);
        return fake_leave(MP_CU_ERROR_NOT_FOUND);
    }
    if (m->entries[i].kernel->params_bytes != m->entries[i].param_bytes) {
        fake_violation("%s takes %zu bytes of parameters in the image and %zu on the host", name,
                       m->entries[i].param_bytes, (size_t)m->entries[i].kernel->params_bytes);
        return fake_leave(MP_CU_ERROR_NOT_FOUND);
    }
    if (m->handles[i] == 0)
        m->handles[i] = fake_object_add(FAKE_FUNCTION, &m->entries[i]);
    *function = (mp_cu_function)(uintptr_t)m->handles[i];
    return fake_leave(MP_CU_SUCCESS);
}

/* What a block may have by NVIDIA's programming guide (technical specifications per compute
 * capability). */
static int shared_bytes_max(void)
{
    switch (fake.capability) {
    case 75: return 64 << 10;
    case 80: return 163 << 10;
    case 86:
    case 89:
    case 120: return 99 << 10;
    default: return 227 << 10; /* 90, 100 */
    }
}

FAKE_EXPORT mp_cu_result cuFuncSetAttribute(mp_cu_function function, int attribute, int value)
{
    struct fake_function *f;

    FAKE_BEGIN(cuFuncSetAttribute);
    FAKE_NEED_CONTEXT();
    f = fake_object(FAKE_FUNCTION, (uintptr_t)function);
    if (f == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (attribute != MP_CU_FUNCTION_SHARED_BYTES_MAX || value < 0 || value > shared_bytes_max())
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    f->shared_bytes_max = (unsigned)value;
    return fake_leave(MP_CU_SUCCESS);
}

/* The limits that all compute capabilities have, and of shared memory. */
static bool is_grid(const struct mp_simt_dim *g, const struct mp_simt_dim *b, unsigned shared_bytes,
                    const struct fake_function *function)
{
    const unsigned limit =
        function->shared_bytes_max > 48 * 1024 ? function->shared_bytes_max : 48 * 1024;

    return g->x > 0 && g->y > 0 && g->z > 0 && g->x <= 0x7fffffff && g->y <= 65535 &&
           g->z <= 65535 && b->x > 0 && b->y > 0 && b->z > 0 && b->x <= 1024 && b->y <= 1024 &&
           b->z <= 64 && (uint64_t)b->x * b->y * b->z <= 1024 && shared_bytes <= limit;
}

/* The order is left to the kernel's wait: is there one, and one to wait for? */
static void check_early(const struct fake_function *f, const struct fake_stream *s)
{
    if (!f->waits)
        fake_violation("%s may begin early, and has no griddepcontrol.wait", f->name);
    else if (f->touches_early)
        fake_violation("%s touches memory before its griddepcontrol.wait", f->name);
    else if (!s->behind_waiting)
        fake_violation("%s may begin early behind what is no kernel that waits", f->name);
}

/* With the lock held; leaves. */
static mp_cu_result launch(const struct mp_cu_launch_config *c, mp_cu_function function,
                           void **parameters, void **extra, bool early)
{
    const struct mp_simt_dim grid = { c->grid_x, c->grid_y, c->grid_z };
    const struct mp_simt_dim block = { c->block_x, c->block_y, c->block_z };
    struct fake_function *f;
    struct fake_stream *s;
    struct fake_op *op;
    int result;

    f = fake_object(FAKE_FUNCTION, (uintptr_t)function);
    s = f != NULL ? fake_stream_of(c->stream) : NULL;
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (extra != NULL || (parameters == NULL && f->param_count > 0) ||
        !is_grid(&grid, &block, c->shared_bytes, f))
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    if (early && (fake.capability < 90 || (s->capture != NULL && fake.version < 12030)))
        return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
    if (early)
        check_early(f, s);
    op = fake_op_new(FAKE_KERNEL, f->kernel->name);
    if (op != NULL)
        op->params = calloc(1, f->param_bytes + 1);
    if (op == NULL || op->params == NULL) {
        free(op);
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    }
    if (s->capture != NULL && !f->loaded)
        fake_violation("%s is launched for the first time while a stream is captured", op->name);
    f->loaded = true;
    op->function = f;
    op->grid = grid;
    op->block = block;
    op->shared_bytes = c->shared_bytes;
    op->early = early;
    for (unsigned i = 0; i < f->param_count; i++)
        memcpy((char *)op->params + f->param_offsets[i], parameters[i], f->param_sizes[i]);
    result = fake_queue(s, op);
    return fake_leave(result);
}

FAKE_EXPORT mp_cu_result cuLaunchKernel(mp_cu_function function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes,
                                        mp_cu_stream stream, void **parameters, void **extra)
{
    const struct mp_cu_launch_config config = { grid_x,  grid_y,       grid_z, block_x, block_y,
                                                block_z, shared_bytes, stream, NULL,    0 };

    FAKE_BEGIN(cuLaunchKernel);
    FAKE_NEED_CONTEXT();
    return launch(&config, function, parameters, extra, false);
}

/* Of attributes it knows one. */
FAKE_EXPORT mp_cu_result cuLaunchKernelEx(const struct mp_cu_launch_config *config,
                                          mp_cu_function function, void **parameters, void **extra)
{
    bool early = false;

    FAKE_BEGIN(cuLaunchKernelEx);
    FAKE_NEED_CONTEXT();
    if (config == NULL || (config->attributes == NULL && config->attribute_count > 0))
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < config->attribute_count; i++) {
        if (config->attributes[i].id != MP_CU_LAUNCH_PROGRAMMATIC)
            return fake_leave(MP_CU_ERROR_INVALID_VALUE);
        early = config->attributes[i].value.programmatic != 0;
    }
    return launch(config, function, parameters, extra, early);
}

void fake_module_launched(const struct fake_op *op)
{
    op->function->module->last[op->stream] = op->number;
}
