/* See libraries.h. */
#include "kernels/libraries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef EPA2A_ONEDNN
#include <oneapi/dnnl/dnnl_version.h>
#define TEXT(a) #a
#define TEXT_OF(a) TEXT(a)
#define ONEDNN_FILE "libdnnl.so." TEXT_OF(DNNL_VERSION_MAJOR)
#else
#define ONEDNN_FILE NULL
#endif

enum { FILES = 4 };

/* 130002, or 120900. */
static void read_cublaslt_version(void *function, char *out, size_t room)
{
    size_t (*version)(void), n;

    memcpy(&version, &function, sizeof(version));
    n = version();
    snprintf(out, room, "%zu.%zu.%zu", n / 10000, n / 100 % 100, n % 100);
}

/* A struct that begins with three of them. */
static void read_onednn_version(void *function, char *out, size_t room)
{
    const int *(*version)(void), *n;

    memcpy(&version, &function, sizeof(version));
    n = version();
    snprintf(out, room, "%d.%d.%d", n[0], n[1], n[2]);
}

static const struct library {
    const char *name, *use, *file[FILES], *version;
    void (*read_version)(void *function, char *out, size_t room);
} libraries[LIBRARY_IDS] = {
    [LIBRARY_ID_CUBLASLT] =
        {
            .name = "cuBLASLt",
            .use = "for algorithm.library of ag_then_gemm",
            .file = {"libcublasLt.so.13", "libcublasLt.so.12",
                     "/usr/local/cuda/lib64/libcublasLt.so.13",
                     "/usr/local/cuda/lib64/libcublasLt.so.12"},
            .version = "cublasLtGetVersion",
            .read_version = read_cublaslt_version,
        },
    [LIBRARY_ID_ONEDNN] =
        {
            .name = "oneDNN",
            .use = "for expert.library, and algorithm.library of ag_then_gemm",
            .file = {ONEDNN_FILE},
            .version = "dnnl_version",
            .read_version = read_onednn_version,
        },
};

/* Where it is found first. `why`, of the first file: what dlopen() says. */
static void *open_first(const struct library *l, const char **file, char *why, size_t room)
{
    void *open = NULL;

    for (int i = 0; i < FILES && l->file[i] != NULL && open == NULL; i++) {
        *file = l->file[i];
        open = dlopen(l->file[i], RTLD_NOW | RTLD_LOCAL);
        if (open == NULL && i == 0)
            snprintf(why, room, "%s", dlerror());
    }
    return open;
}

void *library_load(enum library_id id, const struct library_function *function, size_t n, void *out,
                   struct epa_error *err)
{
    const struct library *l = &libraries[id];
    const char *file = NULL;
    char why[256] = "this program was built without";
    void *open = open_first(l, &file, why, sizeof(why)), *at;

    if (open == NULL)
        (void)epa_fail(err, EPA_ERR_UNSUPPORTED,
                       "there is no %s: %s (set LD_LIBRARY_PATH to its folder)", l->name, why);
    for (size_t i = 0; i < n && open != NULL; i++) {
        at = dlsym(open, function[i].name);
        memcpy((char *)out + function[i].offset, &at, sizeof(at));
        if (at == NULL) {
            (void)epa_fail(err, EPA_ERR_UNSUPPORTED, "%s has no %s", file, function[i].name);
            return NULL;
        }
    }
    return open;
}

bool library_find(enum library_id id, struct library_found *out)
{
    const struct library *l = &libraries[id];
    char why[2];
    void *open = open_first(l, &out->file, why, sizeof(why));
    void *version = open != NULL ? dlsym(open, l->version) : NULL;

    if (version == NULL)
        return false;
    out->name = l->name;
    out->use = l->use;
    l->read_version(version, out->version, sizeof(out->version));
    return true;
}
