/* Loaded into ranks before UCX. Simulates a NIC that puts to GPU memory in the output of UCX.
 * FAKE_NIC=device: the device exists, and no peer uses it. FAKE_NIC=lanes: posix, the real link
 * here, has the name of the device. Simulated GPU memory (fake/fake_driver.c) is mapped as host
 * memory. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static const char nic[] = "rc_mlx5/mlx5_0:1", serves[] = "posix/memory";

static void *real(const char *name)
{
    return dlsym(dlopen("libucp.so.0", RTLD_LAZY), name);
}

static ucs_status_t query(ucp_context_h context, ucp_context_attr_t *attr)
{
    ucs_status_t (*next)(ucp_context_h, ucp_context_attr_t *);

    *(void **)&next = real("ucp_context_query");
    return next(context, attr);
}

static bool has_cuda(ucp_context_h context)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};

    return query(context, &attr) == UCS_OK &&
           (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    void (*next)(unsigned *, unsigned *, unsigned *);

    *(void **)&next = real("ucp_get_version");
    next(major, minor, release);
    *minor = *minor > 16 ? *minor : 16;
}

ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    ucs_status_t status = query(context, attr);

    if (status == UCS_OK && (attr->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) != 0)
        attr->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

void ucp_context_print_info(const ucp_context_h context, FILE *stream)
{
    void (*next)(ucp_context_h, FILE *);

    *(void **)&next = real("ucp_context_print_info");
    next(context, stream);
    fprintf(stream, "#     resource 63 :  md 9  dev 9  flags -- %s\n", nic);
}

void ucp_ep_print_info(ucp_ep_h ep, FILE *stream)
{
    void (*next)(ucp_ep_h, FILE *);
    const char *lie = getenv("FAKE_NIC");
    char *text = NULL, *from, *at;
    size_t bytes, n;
    FILE *copy = open_memstream(&text, &bytes);

    if (copy == NULL)
        abort();
    *(void **)&next = real("ucp_ep_print_info");
    next(ep, copy);
    fclose(copy);
    for (from = text;
         lie != NULL && strcmp(lie, "lanes") == 0 && (at = strstr(from, serves)) != NULL;
         from = at) {
        fprintf(stream, "%.*s%s", (int)(at - from), from, nic);
        at += strlen(serves);
        n = strcspn(at, "\n");
        if (strstr(at, " md[") != NULL && strstr(at, " md[") < at + n)
            fprintf(stream, "%.*s rma_bw#0", (int)n, at);
        else
            n = 0;
        at += n;
    }
    fputs(from, stream);
    free(text);
}

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *out)
{
    ucs_status_t (*next)(ucp_context_h, const ucp_mem_map_params_t *, ucp_mem_h *);
    ucp_mem_map_params_t said = *params;

    if ((said.field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE) != 0 &&
        said.memory_type == UCS_MEMORY_TYPE_CUDA && !has_cuda(context))
        said.memory_type = UCS_MEMORY_TYPE_HOST;
    *(void **)&next = real("ucp_mem_map");
    return next(context, &said, out);
}
