/* Calls of libpmix. The program loads the library at the first use, since most jobs have no PMIx server
 * and some hosts have no library. */
#include "boot/pmix_broadcast.h"

#ifdef EPA2A_PMIX
#include <dlfcn.h>
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    void *library;
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t);
    pmix_status_t (*finalize)(const pmix_info_t *, size_t);
    pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t);
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t,
                         pmix_value_t **);
    const char *(*text)(pmix_status_t);
    pmix_proc_t me;
    uint32_t broadcasts;
} pmix;

static enum epa_status check_code(pmix_status_t code, const char *what, struct epa_error *err)
{
    return code == PMIX_SUCCESS ? EPA_OK
                                : epa_fail(err, EPA_ERR_SYSTEM, "PMIx: %s: %s", what,
                                           pmix.text != NULL ? pmix.text(code) : "failed");
}

static bool load_library(void)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"PMIx_Init", &pmix.init},         {"PMIx_Finalize", &pmix.finalize},
        {"PMIx_Put", &pmix.put},           {"PMIx_Commit", &pmix.commit},
        {"PMIx_Fence", &pmix.fence},       {"PMIx_Get", &pmix.get},
        {"PMIx_Error_string", &pmix.text},
    };

    if (pmix.library == NULL)
        pmix.library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
    for (size_t i = 0; pmix.library != NULL && i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(pmix.library, functions[i].name);

        if (function == NULL)
            return false;
        memcpy(functions[i].function, &function, sizeof(function));
    }
    return pmix.library != NULL;
}

static void finalize_at_exit(void)
{
    (void)pmix.finalize(NULL, 0);
}

static enum epa_status init_library(uint32_t rank, struct epa_error *err)
{
    enum epa_status status = check_code(pmix.init(&pmix.me, NULL, 0), "PMIx_Init", err);

    if (status == EPA_OK && pmix.me.rank != rank)
        status = epa_fail(err, EPA_ERR_CONFIG, "PMIx names rank %u, the environment names rank %u",
                          pmix.me.rank, rank);
    if (status == EPA_OK)
        (void)atexit(finalize_at_exit);
    return status;
}

bool pmix_is_usable(void)
{
    return getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL && load_library();
}

static enum epa_status put_bytes(const char *key, void *bytes, size_t n, struct epa_error *err)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = bytes, .size = n}};
    enum epa_status status = check_code(pmix.put(PMIX_GLOBAL, key, &value), "PMIx_Put", err);

    return status == EPA_OK ? check_code(pmix.commit(), "PMIx_Commit", err) : status;
}

static enum epa_status get_bytes(const char *key, void *bytes, size_t n, struct epa_error *err)
{
    pmix_proc_t from = pmix.me;
    pmix_value_t *value = NULL;
    enum epa_status status;

    from.rank = 0;
    status = check_code(pmix.get(&from, key, NULL, 0, &value), "PMIx_Get", err);
    if (status != EPA_OK)
        return status;
    if (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != n)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "PMIx: rank 0 has sent %zu bytes, and this rank expects %zu; all ranks "
                          "must run the same program",
                          value->data.bo.size, n);
    else
        memcpy(bytes, value->data.bo.bytes, n);
    if (value->type == PMIX_BYTE_OBJECT)
        free(value->data.bo.bytes);
    free(value);
    return status;
}

enum epa_status pmix_broadcast(uint32_t rank, void *bytes, size_t n, struct epa_error *err)
{
    enum epa_status status = pmix.broadcasts == 0 ? init_library(rank, err) : EPA_OK;
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA, .value = {.type = PMIX_BOOL}};
    char key[48];

    if (status != EPA_OK)
        return status;
    snprintf(key, sizeof(key), "epa2a.contact.%u", pmix.broadcasts++);
    if (rank == 0)
        status = put_bytes(key, bytes, n, err);
    collect.value.data.flag = true;
    if (status == EPA_OK)
        status = check_code(pmix.fence(NULL, 0, &collect, 1), "PMIx_Fence", err);
    return status == EPA_OK && rank != 0 ? get_bytes(key, bytes, n, err) : status;
}

#else

bool pmix_is_usable(void)
{
    return false;
}

enum epa_status pmix_broadcast(uint32_t rank, void *bytes, size_t n, struct epa_error *err)
{
    (void)rank, (void)bytes, (void)n;
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "this build has no PMIx");
}
#endif
