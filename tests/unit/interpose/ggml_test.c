/* The self-test of ggml's tensors: each field that is not where it should be ends it. */
#include "interpose/pager/ggml.h"

#include "tests/support/test.h"
#include "vmm/base/compiler.h"

/* What is wrong of which tensor, counted as they are made: experts, rows, ids, result. */
enum wrong {
    RIGHT,
    NE0,
    NE1,
    NE2,
    NE3,
    NB0,
    NB1,
    NB2,
    NB3,
    DATA,
    NAME,
    NO_NAME,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    NONE,
    NO_CONTEXT,
    WRONGS
};

static enum wrong wrong;
static unsigned wrong_tensor, made;
static const char *missing;
static int frees;
static struct mp_ggml_tensor tensors[4];
static char datum[4];

struct init_params {
    size_t bytes;
    void *memory;
    bool no_alloc;
};

static void *init(struct init_params params)
{
    CHECK(params.bytes >= 16384 && !params.no_alloc);
    made = 0;
    return wrong == NO_CONTEXT ? NULL : datum;
}

static void free_context(void *context)
{
    CHECK(context == datum);
    frees++;
}

static struct mp_ggml_tensor *make(int64_t ne0, int64_t ne1, int64_t ne2)
{
    const bool is_wrong = made == wrong_tensor;
    struct mp_ggml_tensor *tensor = &tensors[made];

    *tensor = (struct mp_ggml_tensor){ .ne = { ne0, ne1, ne2, 1 }, .data = &datum[made] };
    tensor->nb[0] = 4;
    for (int d = 1; d < 4; d++)
        tensor->nb[d] = tensor->nb[d - 1] * (size_t)tensor->ne[d - 1];
    made++;
    if (!is_wrong)
        return tensor;
    if (wrong >= NE0 && wrong <= NE3)
        tensor->ne[wrong - NE0]++;
    if (wrong >= NB0 && wrong <= NB3)
        tensor->nb[wrong - NB0]++;
    return wrong == NONE ? NULL : tensor;
}

static struct mp_ggml_tensor *new_3d(void *context, int type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    CHECK(context == datum && type == 0);
    return make(ne0, ne1, ne2);
}

static struct mp_ggml_tensor *new_2d(void *context, int type, int64_t ne0, int64_t ne1)
{
    CHECK(context == datum && type == 26);
    return make(ne0, ne1, 1);
}

static struct mp_ggml_tensor *mul_mat_id(void *context, struct mp_ggml_tensor *as,
                                         struct mp_ggml_tensor *b, struct mp_ggml_tensor *ids)
{
    struct mp_ggml_tensor *result = make(as->ne[1], ids->ne[0], b->ne[2]);

    CHECK(context == datum);
    if (result == NULL)
        return NULL;
    result->src[0] = wrong == SRC0 ? b : as;
    result->src[1] = wrong == SRC1 ? as : b;
    result->src[2] = wrong == SRC2 ? as : ids;
    result->src[3] = wrong == SRC3 ? ids : NULL;
    return result;
}

static struct mp_ggml_tensor *set_name(struct mp_ggml_tensor *tensor, const char *name)
{
    if (wrong != NO_NAME)
        snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    return tensor;
}

static const char *get_name(const struct mp_ggml_tensor *tensor)
{
    return tensor->name + (wrong == NAME);
}

static const void *get_data(const struct mp_ggml_tensor *tensor)
{
    return (const char *)tensor->data + (wrong == DATA && tensor == &tensors[wrong_tensor]);
}

static const struct {
    const char *name;
    void *function;
} functions[] = {
    { "ggml_init", (void *)init },
    { "ggml_free", (void *)free_context },
    { "ggml_new_tensor_2d", (void *)new_2d },
    { "ggml_new_tensor_3d", (void *)new_3d },
    { "ggml_mul_mat_id", (void *)mul_mat_id },
    { "ggml_set_name", (void *)set_name },
    { "ggml_get_name", (void *)get_name },
    { "ggml_get_data", (void *)get_data },
};

static void *find(const void *site, const char *name)
{
    CHECK(site == datum);
    for (size_t i = 0; i < MP_ARRAY_LEN(functions); i++) {
        if (strcmp(functions[i].name, name) == 0)
            return missing != NULL && strcmp(missing, name) == 0 ? NULL : functions[i].function;
    }
    return NULL;
}

static void every_function_has_to_be_there(void)
{
    CHECK(mp_ggml_check(find, datum));
    CHECK_EQ(frees, 1);
    for (size_t i = 0; i < MP_ARRAY_LEN(functions); i++) {
        missing = functions[i].name;
        CHECK(!mp_ggml_check(find, datum));
    }
    missing = NULL;
}

/* Shapes of the first, of the ids and of the result are looked at; of rows nobody reads them. */
static void every_field_has_to_be_in_its_place(void)
{
    enum { EXPERTS, ROWS, IDS, RESULT };
    static const unsigned shapes[] = { EXPERTS, IDS, RESULT };

    for (wrong = NE0; wrong <= NB3; wrong++) {
        for (size_t i = 0; i < MP_ARRAY_LEN(shapes); i++) {
            wrong_tensor = shapes[i];
            CHECK(!mp_ggml_check(find, datum));
        }
    }
    for (wrong_tensor = EXPERTS; wrong_tensor <= RESULT; wrong_tensor++) {
        wrong = NONE;
        CHECK(!mp_ggml_check(find, datum));
    }
    wrong = DATA;
    wrong_tensor = EXPERTS;
    CHECK(!mp_ggml_check(find, datum));
    wrong_tensor = IDS;
    CHECK(!mp_ggml_check(find, datum));
    for (wrong = NAME; wrong <= SRC3; wrong++)
        CHECK(!mp_ggml_check(find, datum));
    frees = 0;
    wrong = NO_CONTEXT;
    CHECK(!mp_ggml_check(find, datum));
    CHECK_EQ(frees, 0);
    wrong = RIGHT;
    CHECK(mp_ggml_check(find, datum));
}

int main(void)
{
    RUN(every_function_has_to_be_there);
    RUN(every_field_has_to_be_in_its_place);
    return 0;
}
