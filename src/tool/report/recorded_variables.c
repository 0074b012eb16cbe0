/* Selects variables by the prefixes of their names, and redacts credentials. */
#include "report/recorded_variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

extern char **environ;

/* Returns true if the name of a variable is allowed in a result. */
static bool is_allowed(const char *variable)
{
    static const char *const prefix[] = {
        "EPA2A_",   "UCX_", "OMPI_MCA_",     "NCCL_",
        "NVSHMEM_", "OMP_", "SLURM_JOB_ID=", "CUDA_VISIBLE_DEVICES="};

    if (strcmp(variable, "UCX_HANDLE_ERRORS=none") == 0) /* main() sets it by default */
        return false;
    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
        if (strncmp(variable, prefix[i], strlen(prefix[i])) == 0)
            return strchr(variable, '=') != NULL;
    return false;
}

/* Users publish results: values that may be credentials are redacted. */
static bool is_secret(const char *variable)
{
    static const char *const word[] = {"key", "token", "secret", "passw", "credential"};
    const char *value = strchr(variable, '=') + 1, *scheme = strstr(value, "://");
    char name[128];

    snprintf(name, sizeof(name), "%.*s", (int)(value - variable - 1), variable);
    for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
        if (strcasestr(name, word[i]) != NULL)
            return true;
    }
    return scheme != NULL && strchr(scheme, '@') != NULL; /* scheme://user:password@host */
}

void recorded_variables_each(void (*fn)(void *arg, const char *name, size_t bytes,
                                        const char *value),
                             void *arg)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const char *equals = strchr(*at, '=');

        if (is_allowed(*at))
            fn(arg, *at, (size_t)(equals - *at), is_secret(*at) ? "(redacted)" : equals + 1);
    }
}
