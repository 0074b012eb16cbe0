/* A result in a file in memory: a header, then texts that end in 0, and samples. Both processes are
 * forks of one program, so numbers keep their layout. */
#include "cli/side_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/experiment.h"
#include "report/result_keys.h"

struct header {
    uint64_t bytes; /* of the file */
    double iterations;
    uint32_t n_keys, n_facts, n_stages;
    bool fault;
};

/* ---- writing ---- */

/* Adds a text with its end. */
static void add_text(struct text *out, const char *text)
{
    text_add_bytes(out, text, strlen(text) + 1);
}

static void add_keys(struct text *out, const struct results_key *key, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        add_text(out, key[i].path);
        add_text(out, key[i].value);
        add_text(out, key[i].shown);
    }
}

bool side_result_write(int fd, const struct result *result)
{
    const struct run_figures *f = result->figures;
    const struct experiment *x = f->facts.experiment;
    struct header header = {
        .iterations = f->facts.iterations, .n_stages = f->n_stages, .fault = f->fault.text != NULL};
    struct key_list device = {.arena = arena_create()}; /* other facts of the machine are equal */
    struct results_key *key;
    text_auto body = {0};
    bool written;

    add_text(&body, x->name);
    add_text(&body, x->label != NULL && x->label[0] != '\0' ? x->label : x->name);
    header.n_keys = experiment_keys(x, device.arena, &key);
    add_keys(&body, key, header.n_keys);
    device_keys_add(&device, f->facts.rank[0].device);
    header.n_facts = device.n;
    add_keys(&body, device.key, device.n);
    for (uint32_t i = 0; i < f->n_stages; i++) {
        const struct run_stage *stage = &f->stage[i];

        add_text(&body, stage->name);
        text_add_bytes(&body, (const char *)&stage->n, sizeof(stage->n));
        text_add_bytes(&body, (const char *)stage->sample, stage->n * sizeof(*stage->sample));
    }
    header.bytes = sizeof(header) + body.bytes;
    written = write_whole(fd, (const char *)&header, sizeof(header)) &&
              write_whole(fd, body.data, body.bytes);
    arena_destroy(device.arena);
    return written;
}

/* ---- reading ---- */

static const char *take_text(const char **at)
{
    const char *text = *at;

    *at += strlen(text) + 1;
    return text;
}

static const struct results_key *take_keys(struct arena *arena, const char **at, uint32_t n)
{
    struct results_key *key = arena_alloc(arena, n * sizeof(*key));

    for (uint32_t i = 0; i < n; i++) {
        key[i].path = take_text(at);
        key[i].value = take_text(at);
        key[i].shown = take_text(at);
    }
    return key;
}

/* Copies the samples: their bytes in the file are not aligned. */
static struct run_stage *take_stages(struct arena *arena, const char **at, uint32_t n)
{
    struct run_stage *stage = arena_alloc(arena, n * sizeof(*stage));

    for (uint32_t i = 0; i < n; i++) {
        size_t bytes;

        stage[i].name = take_text(at);
        memcpy(&stage[i].n, *at, sizeof(stage[i].n));
        *at += sizeof(stage[i].n);
        bytes = stage[i].n * sizeof(*stage[i].sample);
        stage[i].sample = arena_alloc(arena, bytes);
        memcpy(stage[i].sample, *at, bytes);
        *at += bytes;
    }
    return stage;
}

/* Reads a whole file into the arena; returns NULL if the file does not contain a whole result. */
static const char *read_whole(struct arena *arena, int fd, struct header *header)
{
    struct stat file;
    size_t have = 0, bytes;
    ssize_t n = 1;
    char *data;

    if (fstat(fd, &file) != 0 || file.st_size < (off_t)sizeof(*header))
        return NULL;
    bytes = (size_t)file.st_size;
    data = arena_alloc(arena, bytes);
    for (; have < bytes && n > 0; have += n > 0 ? (size_t)n : 0)
        n = pread(fd, data + have, bytes - have, (off_t)have);
    memcpy(header, data, sizeof(*header));
    return have == bytes && header->bytes == bytes ? data : NULL;
}

bool side_result_read(int fd, const char *path, struct results *out)
{
    struct header header;
    struct results_run *run;
    const char *at;

    results_begin(out, path);
    at = read_whole(out->arena, fd, &header);
    if (at == NULL)
        return false;
    at += sizeof(header);
    run = results_append(out);
    run->id = run->named = "";
    run->context = "none";
    run->verb = "bench";
    run->status = "ok";
    run->ok = true;
    run->fault = header.fault;
    run->iterations = header.iterations;
    run->name = take_text(&at);
    run->label = take_text(&at);
    run->n_keys = header.n_keys;
    run->key = take_keys(out->arena, &at, run->n_keys);
    run->n_facts = header.n_facts;
    run->fact = take_keys(out->arena, &at, run->n_facts);
    run->n_stages = header.n_stages;
    run->stage = take_stages(out->arena, &at, run->n_stages);
    return true;
}
