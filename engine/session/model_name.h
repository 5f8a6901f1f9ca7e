#ifndef MP_MODEL_NAME_H
#define MP_MODEL_NAME_H

#include "vmm/options/environment.h"

/*
 * Models by the names that they have on Hugging Face, "ORG/NAME" or "ORG/NAME:TAG", found where
 * other programs have left them on this machine. Nothing is asked of a network.
 *
 * Looked for in the hub's cache (HF_HUB_CACHE; HF_HOME/hub; XDG_CACHE_HOME or .cache in HOME, there
 * huggingface/hub), and in that of llama.cpp (LLAMA_CACHE; there llama.cpp). A tag is a part of the
 * file's name: of several GGUF files the first by name that has it is taken, and of one in parts
 * the first part.
 */
#define MP_MODEL_PATH_BYTES 4096

/*
 * path := the directory or file of the model. What is there under this name, or does not look like
 * a name on Hugging Face, stays as it is, whether it exists or not. MP_ERR_CONFIG E_MODEL_NAME: no
 * cache has it.
 */
enum mp_status mp_model_find(const struct mp_environment *environment, const char *name,
                             char path[MP_MODEL_PATH_BYTES]) MP_MUST_CHECK;

/* fn for each model of the caches, sorted by cache and name; a GGUF file has its own as a tag. */
void mp_model_each(const struct mp_environment *environment,
                   void (*fn)(void *ctx, const char *name, const char *path), void *ctx);

#endif
