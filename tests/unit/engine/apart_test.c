/* Which files of a command line are the same, where the system refuses;
 * tests/system/regress/same_file.c has the rest. */
#include "engine/cli/args/apart.h"

#include <limits.h>
#include <string.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static struct mp_settings settings;

static enum mp_status check(const char *trace, enum fault_call call)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = UINT64_C(1) << call };
    struct mp_args args = { .model = "models/tiny-moe", .trace = trace };
    enum mp_status status;

    fault_begin(&plan);
    status = mp_files_apart(MP_COMMAND_RUN, &args, &settings);
    CHECK(fault_end() > 0);
    CHECK_STR(args.trace, trace);
    return status;
}

static void standard_output_that_cannot_be_had_is_an_error(void)
{
    CHECK_EQ(check("-", FAULT_fcntl), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "cannot give standard output to --trace: ") != NULL);
}

/* Whoever reads the model says so. */
static void a_model_that_cannot_be_listed_is_no_error_here(void)
{
    CHECK_EQ(check("/tmp/trace", FAULT_opendir), MP_OK);
    CHECK_EQ(check("models/tiny-moe/trace", FAULT_opendir), MP_OK);
}

static void write_file(const char *name, char path[PATH_MAX])
{
    FILE *file;

    snprintf(path, PATH_MAX, "%s/%s", test_tmpdir(), name);
    file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK_EQ(fclose(file), 0);
}

/* Weights have a name before their suffix. */
static void a_suffix_alone_is_not_read(void)
{
    char weights[PATH_MAX], suffix[PATH_MAX];
    struct mp_args args = { .model = test_tmpdir() };

    write_file("w.safetensors", weights);
    write_file(".safetensors", suffix);
    args.trace = weights;
    CHECK_EQ(mp_files_apart(MP_COMMAND_RUN, &args, &settings), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_SAME_FILE");
    args.trace = suffix;
    CHECK_EQ(mp_files_apart(MP_COMMAND_RUN, &args, &settings), MP_OK);
}

int main(void)
{
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    RUN(standard_output_that_cannot_be_had_is_an_error);
    RUN(a_model_that_cannot_be_listed_is_no_error_here);
    RUN(a_suffix_alone_is_not_read);
    return 0;
}
