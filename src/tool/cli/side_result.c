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
#include "config/experiment_show.h"

struct header {
    uint64_t bytes; /* of the file */
    double iterations;
    uint32_t n_keys, n_facts, n_stages;
    bool fault;
};

/* ---- values in the notation of result files ---- */

/* Adds a string in double quotes; bytes beyond ASCII become ? if the string is not UTF-8. */
static void add_quoted(struct text *out, const char *text)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    uint32_t point;
    bool valid = true;

    for (size_t n, i = 0; text[i] != '\0' && valid; i += n) {
        n = text_decode(text + i, &point);
        valid = n > 0;
    }
    text_add(out, "\"");
    for (const char *c = text; *c != '\0'; c++) {
        const char *at = strchr(escaped, *c);

        if (at != NULL)
            text_add(out, "\\%c", letter[at - escaped]);
        else if ((unsigned char)*c < 0x20)
            text_add(out, "\\u%04X", (unsigned)*c);
        else
            text_add(out, "%c", (unsigned char)*c >= 0x80 && !valid ? '?' : *c);
    }
    text_add(out, "\"");
}

/* Adds a real number with 9 digits, as result files have it: 1.0, 2.5e-7. */
static void add_real(struct text *out, double x)
{
    char digits[32];
    const char *e;

    snprintf(digits, sizeof(digits), "%.9g", x);
    e = strchr(digits, 'e');
    if (e != NULL)
        text_add(out, "%.*se%ld", (int)(e - digits), digits, strtol(e + 1, NULL, 10));
    else
        text_add(out, "%s%s", digits, strchr(digits, '.') == NULL ? ".0" : "");
}

static void add_shown(struct text *out, const struct experiment_value *v)
{
    if (v->quoted)
        add_quoted(out, v->value);
    else if (v->value[0] != '[' && strpbrk(v->value, ".0123456789") == v->value &&
             strpbrk(v->value, ".e") != NULL)
        add_real(out, strtod(v->value, NULL));
    else /* a whole number, true or false, or a list of whole numbers */
        for (const char *c = v->value; *c != '\0'; c++)
            text_add_bytes(out, c, *c != ' ');
}

/* ---- writing ---- */

struct writing {
    struct text *out;
    uint32_t n_keys;
};

/* Adds a text with its end. */
static void add_text(struct text *out, const char *text)
{
    text_add_bytes(out, text, strlen(text) + 1);
}

static void add_key(void *arg, const struct experiment_value *v)
{
    struct writing *w = arg;
    text_auto shown = {0};

    add_shown(&shown, v);
    add_text(w->out, v->path);
    add_text(w->out, v->value);
    add_text(w->out, shown.data);
    w->n_keys++;
}

/* Adds the facts of the device. Both sides run on one machine, so all other facts are equal. */
static uint32_t add_device(struct text *out, const struct session_facts *device)
{
    for (uint32_t i = 0; i < device->n; i++) {
        text_auto path = {0}, shown = {0};

        text_add(&path, "device.%s", device->fact[i].key);
        add_quoted(&shown, device->fact[i].value);
        add_text(out, path.data);
        add_text(out, device->fact[i].value);
        add_text(out, shown.data);
    }
    if (device->n > 0)
        return device->n;
    add_text(out, "device");
    add_text(out, "null");
    add_text(out, "null");
    return 1;
}

bool side_result_write(int fd, const struct result *result)
{
    const struct run_figures *f = result->figures;
    const struct experiment *x = f->facts.experiment;
    struct header header = {
        .iterations = f->facts.iterations, .n_stages = f->n_stages, .fault = f->fault.text != NULL};
    text_auto body = {0};
    struct writing w = {&body, 0};

    add_text(&body, x->name);
    add_text(&body, x->label != NULL && x->label[0] != '\0' ? x->label : x->name);
    experiment_visit(x, add_key, &w);
    header.n_keys = w.n_keys;
    header.n_facts = add_device(&body, f->facts.rank[0].device);
    for (uint32_t i = 0; i < f->n_stages; i++) {
        const struct run_stage *stage = &f->stage[i];

        add_text(&body, stage->name);
        text_add_bytes(&body, (const char *)&stage->n, sizeof(stage->n));
        text_add_bytes(&body, (const char *)stage->sample, stage->n * sizeof(*stage->sample));
    }
    header.bytes = sizeof(header) + body.bytes;
    return write_whole(fd, (const char *)&header, sizeof(header)) &&
           write_whole(fd, body.data, body.bytes);
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

    out->arena = arena_create();
    at = read_whole(out->arena, fd, &header);
    if (at == NULL)
        return false;
    at += sizeof(header);
    run = out->run = memory_alloc(1, sizeof(*run));
    *run = (struct results_run){.path = path, .id = "", .named = "", .verb = "bench"};
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
    out->path = out->reading = path;
    out->n = 1;
    return true;
}
