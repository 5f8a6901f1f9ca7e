#ifndef MP_TESTS_TWINS_H
#define MP_TESTS_TWINS_H

/* Small models as directories and as GGUF files. */
#include "tests/model/gguf/to_gguf.h"
#include "tests/support/tmpdir.h"

#define DATA "tests/data/models/"
#define QWEN3 DATA "qwen3moe-tiny"
#define TINY "models/tiny-moe"
#define PROMPT 6
#define STEPS 5
#define PATH_BYTES (sizeof(test_tmpdir_path) + 64)

static inline const char *in_tmpdir(const char *name)
{
    static char paths[8][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, PATH_BYTES, "%s/%s", test_tmpdir(), name);
    return path;
}

static inline struct to_gguf plain(const char *model, const char *arch, const char *path)
{
    return (struct to_gguf){
        .model = model, .arch = arch, .path = path, .align_bytes = 32, .parts = 1
    };
}

static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt "
    "%}{{ '<|im_start|>assistant\\n' }}{% endif %}";

#endif
