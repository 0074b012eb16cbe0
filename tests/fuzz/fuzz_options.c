/* A whole experiment, with --set: lines before the first "===" line are sets, what is
 * behind it is the file. What is accepted and shown must be accepted again, and show the
 * same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../unit/fake_registry.h"
#include "base/text.h"
#include "experiment/batch.h"
#include "config/diag.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SETS = 16 };

struct input {
    char *text; /* all of it; sets are cut out of its lines */
    const char *set[SETS];
    uint32_t n_sets;
    const char *yaml;
    size_t yaml_bytes;
};

static struct input cut(const uint8_t *data, size_t bytes)
{
    struct input in = {.text = malloc(bytes + 1)};
    char *line, *mark;

    memcpy(in.text, data, bytes);
    in.text[bytes] = 0;
    in.yaml = in.text;
    in.yaml_bytes = bytes;
    mark = strstr(in.text, "===\n");
    if (mark == NULL)
        return in;
    *mark = 0;
    in.yaml = mark + 4;
    in.yaml_bytes = bytes - (size_t)(in.yaml - in.text);
    for (line = strtok(in.text, "\n"); line != NULL && in.n_sets < SETS; line = strtok(NULL, "\n"))
        in.set[in.n_sets++] = line;
    return in;
}

/* By the descriptor's name, so that no two fuzzers meet on one path. */
static enum epa_status read_bytes(const char *text, size_t bytes, const char *const *sets,
                                  uint32_t n_sets, struct batch **out)
{
    FILE *file = fdopen(memfd_create("fuzz", MFD_CLOEXEC), "w");
    struct diag *diag = diag_create();
    enum epa_status status;
    char path[64], *said = NULL;
    size_t n = 0;

    if (file == NULL || fwrite(text, 1, bytes, file) != bytes || fflush(file) != 0)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fileno(file));
    status = batch_read(path, sets, n_sets, 0, NULL, diag, out);
    if ((status == EPA_OK) != (diag_errors(diag) == 0))
        abort();
    fclose(file);
    file = open_memstream(&said, &n);
    diag_print(diag, file);
    fclose(file);
    free(said);
    diag_destroy(diag);
    return status;
}

/* Runs of the file, if it has any: each has a name of its own kind and is one experiment. */
static void read_runs(const struct input *in)
{
    FILE *file = fdopen(memfd_create("fuzz", MFD_CLOEXEC), "w");
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    char path[64];

    if (file == NULL || fwrite(in->yaml, 1, in->yaml_bytes, file) != in->yaml_bytes ||
        fflush(file) != 0)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fileno(file));
    if (batch_read(path, in->set, in->n_sets, 64, NULL, diag, &batch) == EPA_OK) {
        if (batch->n == 0 || batch->n > 64 || (batch->n == 1 && diag_errors(diag) != 0))
            abort();
        for (uint32_t i = 0; i < batch->n; i++) {
            const struct batch_run *run = &batch->run[i];

            if (run->label == NULL || (run->x == NULL) == (run->absent.status == EPA_OK) ||
                (run->x != NULL && strlen(run->x->id) != 12))
                abort();
        }
        batch_destroy(batch);
    } else if (diag_errors(diag) == 0) {
        abort();
    }
    fclose(file);
    diag_destroy(diag);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input in = cut(data, bytes);
    struct text first = {0}, second = {0};
    struct batch *base = NULL;

    if (read_bytes(in.yaml, in.yaml_bytes, in.set, in.n_sets, &base) == EPA_OK) {
        experiment_show(base->run[0].x, false, &first);
        batch_destroy(base);
        if (read_bytes(first.data, first.bytes, NULL, 0, &base) != EPA_OK)
            abort();
        experiment_show(base->run[0].x, false, &second);
        batch_destroy(base);
        if (strcmp(first.data, second.data) != 0)
            abort();
    }
    read_runs(&in);
    text_free(&first);
    text_free(&second);
    free(in.text);
    return 0;
}
