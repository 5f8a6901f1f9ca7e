/*
 * A self-test of the layout of ggml's tensors, through functions that every version exports.
 */
#include "interpose/pager/ggml.h"

#include <string.h>

#define TYPE_I32 26

struct init_params {
    size_t bytes;
    void *memory;
    bool no_alloc;
};

struct calls {
    void *(*init)(struct init_params params);
    void (*free)(void *context);
    struct mp_ggml_tensor *(*new_2d)(void *context, int type, int64_t ne0, int64_t ne1);
    struct mp_ggml_tensor *(*new_3d)(void *context, int type, int64_t ne0, int64_t ne1,
                                     int64_t ne2);
    struct mp_ggml_tensor *(*mul_mat_id)(void *context, struct mp_ggml_tensor *as,
                                         struct mp_ggml_tensor *b, struct mp_ggml_tensor *ids);
    struct mp_ggml_tensor *(*set_name)(struct mp_ggml_tensor *tensor, const char *name);
    const char *(*get_name)(const struct mp_ggml_tensor *tensor);
    void *(*get_data)(const struct mp_ggml_tensor *tensor);
};

static bool find_calls(mp_find_fn find, const void *site, struct calls *calls)
{
    const struct {
        const char *name;
        void **to;
    } names[] = {
        { "ggml_init", (void **)&calls->init },
        { "ggml_free", (void **)&calls->free },
        { "ggml_new_tensor_2d", (void **)&calls->new_2d },
        { "ggml_new_tensor_3d", (void **)&calls->new_3d },
        { "ggml_mul_mat_id", (void **)&calls->mul_mat_id },
        { "ggml_set_name", (void **)&calls->set_name },
        { "ggml_get_name", (void **)&calls->get_name },
        { "ggml_get_data", (void **)&calls->get_data },
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].to = find(site, names[i].name);
        if (*names[i].to == NULL)
            return false;
    }
    return true;
}

static bool has_shape(const struct mp_ggml_tensor *tensor, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const size_t row = 4 * (size_t)ne0;

    return tensor->ne[0] == ne0 && tensor->ne[1] == ne1 && tensor->ne[2] == ne2 &&
           tensor->ne[3] == 1 && tensor->nb[0] == 4 && tensor->nb[1] == row &&
           tensor->nb[2] == row * (size_t)ne1 && tensor->nb[3] == row * (size_t)ne1 * (size_t)ne2;
}

static bool check_tensors(const struct calls *calls, void *context)
{
    struct mp_ggml_tensor *experts = calls->new_3d(context, MP_GGML_F32, 5, 3, 7);
    struct mp_ggml_tensor *rows = calls->new_3d(context, MP_GGML_F32, 5, 2, 4);
    struct mp_ggml_tensor *ids = calls->new_2d(context, TYPE_I32, 2, 4);
    struct mp_ggml_tensor *result;

    if (experts == NULL || rows == NULL || ids == NULL)
        return false;
    if (!has_shape(experts, 5, 3, 7) || !has_shape(ids, 2, 4, 1) ||
        experts->data != calls->get_data(experts) || ids->data != calls->get_data(ids))
        return false;
    calls->set_name(experts, "moepager");
    if (calls->get_name(experts) != experts->name || strcmp(experts->name, "moepager") != 0)
        return false;
    result = calls->mul_mat_id(context, experts, rows, ids);
    return result != NULL && result->src[0] == experts && result->src[1] == rows &&
           result->src[2] == ids && result->src[3] == NULL && has_shape(result, 3, 2, 4);
}

bool mp_ggml_check(mp_find_fn find, const void *site)
{
    struct calls calls;
    void *context;
    bool right;

    if (!find_calls(find, site, &calls))
        return false;
    context = calls.init((struct init_params){ .bytes = 64 << 10 });
    if (context == NULL)
        return false;
    right = check_tensors(&calls, context);
    calls.free(context);
    return right;
}
