/* A trace of the last iteration: one slice for each warp and phase. */
#include "ll_v2_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const phase_name[LL_PHASES] = {
    [LL_QUANT_AND_PUT] = "quant_and_put",
    [LL_COUNT_PUT] = "count_put",
    [LL_WAIT] = "wait",
    [LL_POSTPROCESS] = "postprocess",
    [LL_COPY_AND_PUT] = "copy_and_put",
    [LL_RECV_WAIT] = "recv_wait",
    [LL_TOPK_REDUCE] = "topk_reduce",
};

static void write_slice(FILE *f, uint32_t rank, uint32_t warp, int phase,
                        const uint64_t *at, uint64_t zero, const char *before)
{
    fprintf(f,
            "%s\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, "
            "\"dur\": %.3f, \"args\": {\"block\": %u, \"warp\": %u}}",
            before, phase_name[phase], rank, warp, (double)(at[0] - zero) * 1e-3,
            (double)(at[1] - at[0]) * 1e-3, warp / LL_WARPS, warp % LL_WARPS);
}

static bool took_part(const uint64_t *at)
{
    return at[0] != 0 && at[1] >= at[0];
}

static uint64_t earliest(const struct ll_stamps *s, uint32_t warps)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t w = 0; w < warps; w++)
        for (int i = 0; i < LL_PHASES; i++)
            if (took_part(s[w].at[i]) && s[w].at[i][0] < least)
                least = s[w].at[i][0];
    return least;
}

static void write_all(FILE *f, uint32_t rank, const struct ll_stamps *s, uint32_t warps)
{
    uint64_t zero = earliest(s, warps);
    const char *before = "";

    /* Kernels of one rank follow each other on one clock; other ranks have others. */
    fprintf(f,
            "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"rank\": %u, "
            "\"globaltimer_ns\": \"%llu\"}, \"traceEvents\": [",
            rank, (unsigned long long)zero);
    for (uint32_t w = 0; w < warps; w++) {
        for (int i = 0; i < LL_PHASES; i++) {
            if (phase_name[i] == NULL || !took_part(s[w].at[i]))
                continue;
            write_slice(f, rank, w, i, s[w].at[i], zero, before);
            before = ",";
        }
    }
    fprintf(f, "\n]}\n");
}

void ll_trace_write(const char *file, uint32_t rank, struct epa_backend *backend,
                    const struct ll_stamps *stamps, uint32_t warps)
{
    size_t bytes = warps * sizeof(*stamps), room = strlen(file) + 32;
    struct ll_stamps *s = malloc(bytes);
    char *name = malloc(room);
    struct epa_error why = {EPA_OK, ""};
    FILE *f = NULL;

    if (s == NULL || name == NULL) {
        fprintf(stderr, "ll_v2: no memory for the trace %s\n", file);
    } else if (backend->ops->read(backend, s, stamps, bytes) != EPA_OK) {
        backend->ops->explain(backend, &why);
        fprintf(stderr, "ll_v2: no trace %s: %s\n", file, why.text);
    } else {
        snprintf(name, room, "%s.%u.json", file, rank);
        f = fopen(name, "w");
        if (f == NULL)
            fprintf(stderr, "ll_v2: no trace in %s: %s\n", name, strerror(errno));
    }
    if (f != NULL) {
        write_all(f, rank, s, warps);
        if (fclose(f) != 0)
            fprintf(stderr, "ll_v2: %s is not complete: %s\n", name, strerror(errno));
    }
    free(name);
    free(s);
}
