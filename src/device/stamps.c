/* A Chrome trace of kernels. Those of one rank follow each other on one clock; other ranks have
 * others. */
#include "device/stamps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t *slice_at(const struct stamps *s, const uint64_t *at, uint32_t warp,
                                uint32_t phase)
{
    return at + 2 * ((size_t)warp * s->phases + phase);
}

static bool took_part(const uint64_t *at)
{
    return at[0] != 0 && at[1] >= at[0];
}

static uint64_t earliest(const struct stamps *s, const uint64_t *at)
{
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < (size_t)s->warps * s->phases; i++)
        if (took_part(at + 2 * i) && at[2 * i] < least)
            least = at[2 * i];
    return least;
}

/* A lane for each phase of a warp: it comes back to them in turn, and slices from the first
 * beginning to the last end overlap. */
static void write_slice(FILE *f, const struct stamps *s, uint32_t rank, uint32_t warp,
                        uint32_t phase, const uint64_t *at, uint64_t zero)
{
    uint32_t lane = warp * s->phases + phase, block = warp / s->block_warps;
    const char *name = s->phase[phase];

    warp %= s->block_warps;
    fprintf(f,
            ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %u, \"tid\": %u, "
            "\"args\": {\"name\": \"block %u, warp %u, %s\"}},"
            "\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, "
            "\"dur\": %.3f, \"args\": {\"block\": %u, \"warp\": %u}}",
            rank, lane, block, warp, name, name, rank, lane, (double)(at[0] - zero) * 1e-3,
            (double)(at[1] - at[0]) * 1e-3, block, warp);
}

static void write_all(FILE *f, const struct stamps *s, uint32_t rank, const uint64_t *at)
{
    uint64_t zero = earliest(s, at);

    fprintf(f,
            "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"rank\": %u, "
            "\"globaltimer_ns\": \"%" PRIu64 "\"}, \"traceEvents\": ["
            "\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, \"tid\": 0, "
            "\"args\": {\"name\": \"rank %u, kernels of %s\"}}",
            rank, zero, rank, rank, s->who);
    for (uint32_t w = 0; w < s->warps; w++) {
        for (uint32_t i = 0; i < s->phases; i++) {
            const uint64_t *slice = slice_at(s, at, w, i);

            if (s->phase[i] != NULL && took_part(slice))
                write_slice(f, s, rank, w, i, slice, zero);
        }
    }
    fprintf(f, "\n]}\n");
}

static void write_file(const struct stamps *s, const char *name, uint32_t rank,
                       const uint64_t *at)
{
    FILE *f = fopen(name, "w");

    if (f == NULL) {
        fprintf(stderr, "%s: no trace in %s: %s\n", s->who, name, strerror(errno));
        return;
    }
    write_all(f, s, rank, at);
    if (fclose(f) != 0)
        fprintf(stderr, "%s: %s is not complete: %s\n", s->who, name, strerror(errno));
}

void stamps_write(const struct stamps *s, const char *file, uint32_t rank,
                  struct epa_backend *backend)
{
    size_t bytes = (size_t)s->warps * s->phases * 2 * sizeof(uint64_t);
    size_t room = strlen(file) + 32;
    uint64_t *at = malloc(bytes);
    char *name = malloc(room);
    struct epa_error why = {EPA_OK, ""};

    if (at == NULL || name == NULL) {
        fprintf(stderr, "%s: no memory for the trace %s\n", s->who, file);
    } else if (backend->ops->read(backend, at, s->at, bytes) != EPA_OK) {
        backend->ops->explain(backend, &why);
        fprintf(stderr, "%s: no trace %s: %s\n", s->who, file, why.text);
    } else {
        snprintf(name, room, "%s.%u.json", file, rank);
        write_file(s, name, rank, at);
    }
    free(name);
    free(at);
}
