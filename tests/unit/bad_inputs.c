/* Runs the cases of tests/cli/bad-inputs.txt: an experiment, perhaps with --set, and all
 * that is said about it. A case is
 *     == its name
 *     --set key=value          any number of these
 *     (YAML; <<ff>> is the byte 0xff)
 *     -- says
 *     (what diag_print() prints)
 * With --print behind the file's name it prints the file as it would have to be. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/batch.h"
#include "config/diag.h"
#include "fake_registry.h"
#include "base/text.h"

enum { CASES = 256, SETS = 8 };

struct bad {
    char *name;
    const char *says;
    char *set[SETS];
    uint32_t n_sets;
    struct text yaml;
};

/* Cuts the next line off `*at`; NULL at the end. */
static char *cut_line(char **at)
{
    char *line = *at, *end;

    if (line == NULL || *line == 0)
        return NULL;
    end = strchr(line, '\n');
    *at = end == NULL ? NULL : end + 1;
    if (end != NULL)
        *end = 0;
    return line;
}

static void add_yaml(struct text *yaml, const char *line)
{
    for (; *line != 0; line++) {
        unsigned byte;
        int used = 0;

        if (sscanf(line, "<<%2x>>%n", &byte, &used) == 1 && used == 6) {
            text_add_bytes(yaml, &(char){(char)byte}, 1);
            line += used - 1;
        } else {
            text_add_bytes(yaml, line, 1);
        }
    }
    text_add_bytes(yaml, "\n", 1);
}

/* Reads one case; `*at` stays before the next. */
static bool read_case(char **at, struct bad *bad)
{
    char *line = cut_line(at), *next;

    *bad = (struct bad){0};
    if (line == NULL || strncmp(line, "== ", 3) != 0)
        return false;
    bad->name = line + 3;
    text_add_bytes(&bad->yaml, "", 0);
    while ((line = cut_line(at)) != NULL && strcmp(line, "-- says") != 0) {
        if (strncmp(line, "--set ", 6) == 0 && bad->n_sets < SETS)
            bad->set[bad->n_sets++] = line + 6;
        else
            add_yaml(&bad->yaml, line);
    }
    bad->says = *at == NULL ? "" : *at;
    next = *at == NULL ? NULL : strstr(*at, "\n== ");
    *at = next == NULL ? NULL : next + 1;
    if (next != NULL)
        next[0] = 0;
    return true;
}

/* What is printed for the case; the caller frees. */
static char *output(struct bad *bad)
{
    FILE *file = fopen("bad.yaml", "w");
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    char *out = NULL;
    size_t bytes = 0;

    assert_non_null(file);
    fwrite(bad->yaml.data, 1, bad->yaml.bytes, file);
    fclose(file);
    if (batch_read("bad.yaml", (const char *const *)bad->set, bad->n_sets, BATCH_RUNS_MOST,
                   NULL, diag, &batch) == EPA_OK)
        batch_destroy(batch);
    file = open_memstream(&out, &bytes);
    assert_non_null(file);
    diag_print(diag, file);
    fclose(file);
    diag_destroy(diag);
    unlink("bad.yaml");
    return out;
}

static void says_what_is_wrong(void **state)
{
    struct bad *bad = *state;
    char *got = output(bad);
    size_t bytes = strlen(got);

    if (bytes > 0 && got[bytes - 1] == '\n')
        got[bytes - 1] = 0;
    assert_string_not_equal(got, "");
    assert_string_equal(got, bad->says);
    free(got);
}

/* `source`: the whole file, not cut into lines; the case stands `from` bytes behind. */
static void print_case(struct bad *bad, const char *source, size_t from)
{
    const char *mark = "\n-- says", *says = strstr(source + from, mark);
    char *got = output(bad);

    printf("%.*s%s\n%s", (int)(says - source - from), source + from, mark, got);
    free(got);
}

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "r");
    struct text text = {0};
    char piece[4096];
    size_t n;

    if (file == NULL) {
        perror(path);
        exit(2);
    }
    while ((n = fread(piece, 1, sizeof(piece), file)) != 0)
        text_add_bytes(&text, piece, n);
    fclose(file);
    while (text.bytes > 0 && text.data[text.bytes - 1] == '\n')
        text.data[--text.bytes] = 0;
    return text.data;
}

int main(int argc, char **argv)
{
    static struct bad bad[CASES];
    static struct CMUnitTest tests[CASES];
    char folder[] = "/tmp/epa2a-bad-XXXXXX";
    char *text, *copy, *at;
    uint32_t n = 0;
    int failed = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s bad-inputs.txt [--print]\n", argv[0]);
        return 2;
    }
    text = at = read_all(argv[1]);
    copy = strdup(text);
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return 77;
    while (n < CASES && read_case(&at, &bad[n])) {
        tests[n] =
            (struct CMUnitTest){bad[n].name, says_what_is_wrong, NULL, NULL, &bad[n]};
        n++;
    }
    for (uint32_t i = 0; argc > 2 && i < n; i++)
        print_case(&bad[i], copy, (size_t)(bad[i].name - 3 - text));
    if (argc == 2)
        failed = n < 40 ? 1 : _cmocka_run_group_tests("bad inputs", tests, n, NULL, NULL);
    for (uint32_t i = 0; i < n; i++)
        text_free(&bad[i].yaml);
    free(copy);
    free(text);
    if (chdir("/") == 0)
        rmdir(folder);
    return failed;
}
