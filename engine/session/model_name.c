/*
 * The two caches, as their programs lay them out:
 *
 *     HUB/models--ORG--NAME/refs/main                  the name of a snapshot
 *     HUB/models--ORG--NAME/snapshots/SNAPSHOT/...     config.json or GGUF files
 *     LLAMA/ORG_NAME_FILE.gguf
 */
#include "engine/session/model_name.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "vmm/base/error.h"

#define PATH_BYTES MP_MODEL_PATH_BYTES
#define NAME_BYTES 512
#define SNAPSHOT_BYTES 128
#define PREFIX "models--"
#define ENDING ".gguf"

struct places {
    char hub[PATH_BYTES], llama[PATH_BYTES];
};

static const char *variable(const struct mp_environment *environment, const char *name)
{
    const char *value = mp_environment_get(environment, name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Empty where nothing says so. */
static void find_places(const struct mp_environment *environment, struct places *places)
{
    const char *hub = variable(environment, "HF_HUB_CACHE");
    const char *hf = variable(environment, "HF_HOME");
    const char *llama = variable(environment, "LLAMA_CACHE");
    const char *cache = variable(environment, "XDG_CACHE_HOME");
    const char *home = variable(environment, "HOME");
    char base[PATH_BYTES / 2] = "";

    if (cache != NULL || home != NULL)
        snprintf(base, sizeof(base), "%s%s", cache != NULL ? cache : home,
                 cache != NULL ? "" : "/.cache");
    places->hub[0] = places->llama[0] = '\0';
    if (hub != NULL)
        snprintf(places->hub, PATH_BYTES, "%s", hub);
    else if (hf != NULL)
        snprintf(places->hub, PATH_BYTES, "%s/hub", hf);
    else if (base[0] != '\0')
        snprintf(places->hub, PATH_BYTES, "%s/huggingface/hub", base);
    if (llama != NULL)
        snprintf(places->llama, PATH_BYTES, "%s", llama);
    else if (base[0] != '\0')
        snprintf(places->llama, PATH_BYTES, "%s/llama.cpp", base);
}

static bool exists(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int length = snprintf(path, sizeof(path), "%s/%s", folder, name);

    return length < (int)sizeof(path) && access(path, F_OK) == 0;
}

/* Does the text have the part, in any case? */
static bool has_part(const char *text, const char *part)
{
    const size_t length = strlen(part);

    for (; *text != '\0'; text++) {
        if (strncasecmp(text, part, length) == 0)
            return true;
    }
    return length == 0;
}

/* A GGUF file that a model begins with: neither a later part nor what goes before an image model.
 */
static bool is_first_gguf(const char *file)
{
    const size_t length = strlen(file), end = strlen(ENDING);
    const char *of = strstr(file, "-of-");

    if (length <= end || strcmp(file + length - end, ENDING) != 0 || has_part(file, "mmproj"))
        return false;
    return of == NULL || of - file < 6 || strncmp(of - 6, "-00001", 6) == 0;
}

/* ---- the hub's cache */

/* The revision that refs/main names; "" if there is no such file. */
static enum mp_status read_main(const char *model, char name[SNAPSHOT_BYTES])
{
    char path[PATH_BYTES];
    FILE *file;

    name[0] = '\0';
    if (snprintf(path, sizeof(path), "%s/refs/main", model) >= (int)sizeof(path))
        return MP_OK;
    file = fopen(path, "r");
    if (file == NULL && (errno == ENOENT || errno == ENOTDIR))
        return MP_OK;
    if (file == NULL)
        return mp_fail(MP_ERR_IO, "E_OPEN",
                       "cannot open '%.300s': %s; name the model by its directory", path,
                       strerror(errno));
    if (fgets(name, SNAPSHOT_BYTES, file) == NULL)
        name[0] = '\0';
    name[strcspn(name, "\r\n")] = '\0';
    fclose(file);
    return MP_OK;
}

/* Snapshot of a model's folder: the one that refs/main names, or else the first; "" if there is
 * none. A reference that cannot be read is an error: another revision has other weights. */
static enum mp_status find_snapshot(const char *model, char out[PATH_BYTES])
{
    char path[PATH_BYTES], name[SNAPSHOT_BYTES];
    struct dirent **list;
    enum mp_status status;
    int count;

    out[0] = '\0';
    status = read_main(model, name);
    if (status != MP_OK)
        return status;
    if (snprintf(path, sizeof(path), "%s/snapshots", model) >= (int)sizeof(path))
        return MP_OK;
    if (name[0] == '\0' || strchr(name, '/') != NULL || !exists(path, name)) {
        count = scandir(path, &list, NULL, alphasort);
        name[0] = '\0';
        for (int i = 0; i < count; i++) {
            if (name[0] == '\0' && list[i]->d_name[0] != '.')
                snprintf(name, sizeof(name), "%.127s", list[i]->d_name);
            free(list[i]);
        }
        if (count >= 0)
            free(list);
    }
    if (name[0] != '\0' && snprintf(out, PATH_BYTES, "%s/%s", path, name) >= PATH_BYTES)
        out[0] = '\0';
    return MP_OK;
}

/* A directory with weights? A configuration alone is there, too, where somebody has looked at a
 * model. */
static bool is_model(const char *snapshot)
{
    return exists(snapshot, "config.json") && (exists(snapshot, "model.safetensors") ||
                                               exists(snapshot, "model.safetensors.index.json"));
}

struct search {
    const char *prefix, *tag; /* of files; "" where there is none */
    char *path;               /* of the first one; "": none yet */
    void (*fn)(void *ctx, const char *name, const char *path);
    void *ctx;
    const char *name; /* of the model, for fn */
};

/* The GGUF files of a folder: the first that fits, or with fn all of them. */
static void search_folder(const char *folder, const struct search *search)
{
    const size_t prefix = strlen(search->prefix);
    struct dirent **list;
    const int count = scandir(folder, &list, NULL, alphasort);

    for (int i = 0; i < count; i++) {
        const char *file = list[i]->d_name;
        char path[PATH_BYTES], name[NAME_BYTES];

        if (is_first_gguf(file) && strncmp(file, search->prefix, prefix) == 0 &&
            has_part(file + prefix, search->tag) &&
            snprintf(path, sizeof(path), "%s/%s", folder, file) < (int)sizeof(path)) {
            if (search->fn != NULL) {
                snprintf(name, sizeof(name), "%s%s%.*s", search->name,
                         search->name[0] != '\0' ? ":" : "", (int)(strlen(file) - strlen(ENDING)),
                         file);
                search->fn(search->ctx, name, path);
            } else if (search->path[0] == '\0') {
                memcpy(search->path, path, sizeof(path));
            }
        }
        free(list[i]);
    }
    if (count >= 0)
        free(list);
}

/* ---- names */

/* "ORG/NAME" or "ORG/NAME:TAG" in its parts. */
static bool parse(const char *given, char org[NAME_BYTES], char name[NAME_BYTES],
                  char tag[NAME_BYTES])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-._";
    const size_t first = strspn(given, letters);
    const char *second = given + first + 1, *rest;
    size_t length;

    tag[0] = '\0';
    if (first == 0 || given[0] == '.' || given[first] != '/')
        return false;
    length = strspn(second, letters);
    rest = second + length;
    if (length == 0 || second[0] == '.' || first >= NAME_BYTES || length >= NAME_BYTES)
        return false;
    if (rest[0] == ':' && rest[1] != '\0' && strspn(rest + 1, letters) == strlen(rest + 1) &&
        strlen(rest) < NAME_BYTES)
        snprintf(tag, NAME_BYTES, "%s", rest + 1);
    else if (rest[0] != '\0')
        return false;
    snprintf(org, NAME_BYTES, "%.*s", (int)first, given);
    snprintf(name, NAME_BYTES, "%.*s", (int)length, second);
    return true;
}

static enum mp_status find_in_hub(const char *hub, const char *org, const char *name,
                                  const char *tag, char path[PATH_BYTES])
{
    const struct search search = { .prefix = "", .tag = tag, .path = path };
    char model[PATH_BYTES], snapshot[PATH_BYTES];
    enum mp_status status;

    if (hub[0] == '\0' ||
        snprintf(model, sizeof(model), "%s/" PREFIX "%s--%s", hub, org, name) >= (int)sizeof(model))
        return MP_OK;
    status = find_snapshot(model, snapshot);
    if (status != MP_OK || snapshot[0] == '\0')
        return status;
    if (tag[0] == '\0' && is_model(snapshot))
        memcpy(path, snapshot, PATH_BYTES);
    else
        search_folder(snapshot, &search);
    return MP_OK;
}

enum mp_status mp_model_find(const struct mp_environment *environment, const char *given,
                             char path[MP_MODEL_PATH_BYTES])
{
    char org[NAME_BYTES], name[NAME_BYTES], tag[NAME_BYTES], prefix[2 * NAME_BYTES];
    const struct search search = { .prefix = prefix, .tag = tag, .path = path };
    struct places places;
    enum mp_status status;

    if (access(given, F_OK) == 0 || strlen(given) >= PATH_BYTES || !parse(given, org, name, tag) ||
        access(org, F_OK) == 0) {
        snprintf(path, PATH_BYTES, "%s", given);
        return MP_OK;
    }
    find_places(environment, &places);
    path[0] = '\0';
    snprintf(prefix, sizeof(prefix), "%s_%s_", org, name);
    status = find_in_hub(places.hub, org, name, tag, path);
    if (status != MP_OK)
        return status;
    if (path[0] == '\0' && places.llama[0] != '\0')
        search_folder(places.llama, &search);
    if (path[0] != '\0')
        return MP_OK;
    return mp_fail(MP_ERR_CONFIG, "E_MODEL_NAME",
                   "no directory, no file and in no cache: '%s'; looked in '%.300s' and '%.300s'",
                   given, places.hub, places.llama);
}

/* ---- the list */

/* "models--ORG--NAME" -> "ORG/NAME" */
static bool name_of_folder(const char *folder, char out[NAME_BYTES])
{
    const char *org = folder + strlen(PREFIX), *dashes;

    if (strncmp(folder, PREFIX, strlen(PREFIX)) != 0)
        return false;
    dashes = strstr(org, "--");
    if (dashes == NULL)
        return false;
    return snprintf(out, NAME_BYTES, "%.*s/%s", (int)(dashes - org), org, dashes + 2) < NAME_BYTES;
}

static void list_hub(const char *hub, const struct search *all)
{
    struct dirent **list;
    const int count = hub[0] != '\0' ? scandir(hub, &list, NULL, alphasort) : -1;

    for (int i = 0; i < count; i++) {
        char model[PATH_BYTES], snapshot[PATH_BYTES], name[NAME_BYTES];
        struct search search = *all;

        search.name = name;
        if (name_of_folder(list[i]->d_name, name) &&
            snprintf(model, sizeof(model), "%s/%s", hub, list[i]->d_name) < (int)sizeof(model) &&
            find_snapshot(model, snapshot) == MP_OK && snapshot[0] != '\0') {
            if (is_model(snapshot))
                all->fn(all->ctx, name, snapshot);
            search_folder(snapshot, &search);
        }
        free(list[i]);
    }
    if (count >= 0)
        free(list);
}

void mp_model_each(const struct mp_environment *environment,
                   void (*fn)(void *ctx, const char *name, const char *path), void *ctx)
{
    const struct search all = { .prefix = "", .tag = "", .name = "", .fn = fn, .ctx = ctx };
    struct places places;

    find_places(environment, &places);
    list_hub(places.hub, &all);
    if (places.llama[0] != '\0')
        search_folder(places.llama, &all);
}
