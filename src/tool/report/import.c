/* Imports the output of other benchmarks as results. Each program is a row of `programs` with
 * patterns of its lines: text, with {fields} for values. A line that begins like one of the
 * patterns should match it to the end. If not, it is left out and counted. Other lines of a log are
 * ignored. Tables of nccl-tests are read by column. skip_prefix() removes the prefixes of
 * launchers.
 *
 * Values are used in their printed form: a mean becomes the only sample of a stage, and if each
 * rank prints its own value, the slowest counts. Missing values are left out, not guessed; the user
 * adds them with --set. */
#include "report/import.h"

#include "report/results.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "report/form.h"
#include "result/verdicts.h"

enum { RANKS = 65536 /* maximum */, COLUMNS = 48, WORD = 64 };
enum { DISPATCH, COMBINE, TOTAL, STAGES };
static const char *const stage_names[STAGES] = {"dispatch", "combine", "total"};

/* A line of a program, for form_match(). {STAGE} is a time in us, {STAGE+} a part of one; .min,
 * .max and .rate are figures printed with it; {rank} is the printing rank; {rows%s}, {outputs%s},
 * {layout%s} describe the output; any other field is a key of the experiment. */
struct form {
    const char *text;
    const char *variant; /* of its runs, "rows" for the word there; NULL: all open runs */
    const char *layout;  /* output layout of these runs */
};

struct program {
    const char *id, *name, *banner; /* banner: first line of its output; or NULL */
    const char *layout, *outputs;   /* default of the output, if not printed */
    const char *statistic, *rates;  /* meaning of a time, and quantity of a rate */
    const struct form *form;        /* {0} ends the list; NULL: the program prints tables */
};

#define BEST "[tuning] Best "
#define OF_V2(mark, what, stage, then) \
    " " mark " EP: {rank}/{ranks} | " what ": {} GB/s (SO), {" stage ".rate} GB/s (SU), {" stage \
    "+} us, {} bytes | " then ": {} GB/s, {" stage "+} us"
static const struct form low_latency_forms[] = {
    {"[rank {rank}] Dispatch + combine bandwidth: {total.rate} GB/s, avg_t={total} us, "
     "min_t={total.min} us, max_t={total.max} us"},
    {"[rank {rank}] Dispatch bandwidth: {dispatch.rate} GB/s, avg_t={dispatch} us | Combine "
     "bandwidth: {combine.rate} GB/s, avg_t={combine} us"},
    {"[rank {rank}] Dispatch send/recv time: *"},
    {0}};

static const struct form normal_forms[] = {
    {"[config] num_tokens={moe.max_tokens}, hidden={moe.hidden}, num_topk={moe.topk}", ""},
    {"[config] num_tokens={moe.max_tokens}, hidden={moe.hidden}, num_topk_groups={moe.groups}, "
     "num_topk={moe.topk}",
     ""},
    {BEST "dispatch ({rows%s}): SMs {}, NVL chunk {}, {dispatch.rate} GB/s (NVL), t: {dispatch} us",
     "rows"},
    {BEST "dispatch ({rows%s}): SMs {}, NVL chunk {}, RDMA chunk {}: {dispatch+} + {dispatch+} us, "
          "{dispatch.rate} GB/s (RDMA), {} GB/s (NVL)",
     "rows, nodes"},
    {BEST "dispatch ({rows%s}): SMs {}, NVL chunk {}, RDMA chunk {}, transmit: {dispatch+} us, "
          "notify: {dispatch+} us, BW: {dispatch.rate} GB/s (RDMA), {} GB/s (NVL)",
     "rows, nodes"},
    {BEST "combine: SMs {}, NVL chunk {}: {combine.rate} GB/s (NVL), t: {combine} us"},
    {BEST "combine: SMs {}, NVL chunk {}, RDMA chunk {}, {combine+} + {combine+} us, "
          "{combine.rate} GB/s (RDMA), {} GB/s (NVL)"},
    {BEST "combine: SMs {}, NVL chunk {}, RDMA chunk {}, transmit: {combine+} us, notify: "
          "{combine+} us, BW: {combine.rate} GB/s (RDMA), {} GB/s (NVL)"},
    {0}};

static const struct form v2_forms[] = {
    {" > Ranks: {ranks} x {ranks}", ""},
    {" > Experts: {moe.topk}/{moe.experts}", ""},
    {" > Tokens: {} (max: {moe.max_tokens}), hidden: {moe.hidden}", ""},
    {" > Testing with do_handle_copy={}, expert_alignment={}, use_fp8_dispatch={rows%s}, *", ""},
    {OF_V2("*", "dispatch", "dispatch", "copy"), "rank-major", "rank"},
    {OF_V2("-", "expanded dispatch", "dispatch", "copy"), "expanded", "expert"},
    {OF_V2("@", "combine", "combine", "reduce"), "rank-major", "rank"},
    {OF_V2("+", "reduced combine", "combine", "reduce"), "expanded", "expert"},
    {0}};

static const struct form ep_bench_forms[] = {
    {" Layout: {layout%s}", ""},
    {" Output layout: {layout%s} *", ""},
    {" Ranks: {ranks}", ""},
    {" Tokens: {moe.max_tokens}", ""},
    {" Sub-test: {tokens.kind%s} *", ""},
    {" Hidden: {moe.hidden}", ""},
    {" Top-k: {moe.topk}", ""},
    {" Experts: {moe.experts} *", ""},
    {" Dispatch dtype: {rows%s}", ""},
    {"--- Host-observed performance ---", "host"},
    {"--- Kernel-only performance ---", "kernels"},
    {"--- BW based on total time ---", "host"},
    {"--- BW based on kernel time ---", "kernels"},
    {"Dispatch ({rows%s}): avg={dispatch} us, min={dispatch.min} us, max={dispatch.max} us"},
    {"Combine ({outputs%s}): avg={combine} us, min={combine.min} us, max={combine.max} us"},
    {"Dispatch: avg={dispatch} us, min={dispatch.min} us, max={dispatch.max} us"},
    {"Combine: avg={combine} us, min={combine.min} us, max={combine.max} us"},
    {"Total (D+C): avg={total} us, min={total.min} us, max={total.max} us"},
    {"Dispatch: total={dispatch} us (min={dispatch.min}, max={dispatch.max})"},
    {"Combine: total={combine} us (min={combine.min}, max={combine.max})"},
    {"Dispatch: kernel={dispatch} us"},
    {"Combine: kernel={combine} us"},
    {"Total (D+C): kernel={total} us"},
    {0}};

enum { LOW_LATENCY, NORMAL, V2, EP_BENCH, NCCL_TESTS, PROGRAMS }; /* in this order */
static const struct program programs[PROGRAMS] = {
    {"deepep_low_latency", "DeepEP, or UCCL-EP, test_low_latency.py", NULL, "expert", "unknown",
     "mean of iterations of the slowest rank: dispatch and combine are kernels, total is by events",
     "selections of a rank, its own included, with scales", low_latency_forms},
    {"deepep_normal", "DeepEP, or UCCL-EP, test_intranode.py and test_internode.py", NULL, "rank",
     "bf16", "mean of iterations of rank 0 with the best chunk sizes; between nodes with notify",
     "bytes over NVLink; between nodes over RDMA", normal_forms},
    {"deepep_v2", "DeepEP V2 test_ep.py", "Config:", "unknown", "bf16",
     "mean of iterations of the slowest rank: the kernel and its copy or reduction",
     "bytes of a rank over the links that scale up", v2_forms},
    {"nccl_ep", "NCCL EP ep_bench", "=== NCCL EP Performance Benchmark ===", "unknown", "unknown",
     "mean of iterations and of ranks", "selections of a rank, its own included", ep_bench_forms},
    {"nccl_tests", "nccl-tests", NULL, NULL, NULL,
     "mean of iterations; -a selects the ranks, by default their mean", "algbw: bytes by time",
     NULL},
};

/* ---- parsed values ---- */

/* Keys with dots, like in forms: "moe.hidden", "rows". */
struct found {
    const struct program *program;
    char variant[WORD];
    const char *section;
    json_t *keys;         /* printed keys of the experiment and of the output */
    json_t *said;         /* [STAGES] objects: fields of a line by rank */
    uint64_t line, wrong; /* wrong: elements, as counted by nccl-tests */
};

struct reading {
    const char *path;
    struct epa_error *err;
    const struct program *program; /* program of the last banner */
    const char *section;           /* of its output; "": none */
    json_t *keys;                  /* keys printed so far */
    struct found *run;
    uint32_t n, open;  /* runs from `open` on accept more lines */
    const char *begin; /* begin of the line */
    uint64_t line;
    /* of a table of nccl-tests */
    char collective[WORD];
    /* Number of words from the first time on; number of times; 0: no table. */
    uint32_t tail, quads;
    uint32_t stamp; /* words of a time of day after these */
    bool in_place_first, cpu_time;
    uint64_t unread;        /* lines left out */
    struct epa_error first; /* reason for the first of them */
};

enum { PREFIXES = 3 }; /* of a line, maximum */
enum { STAMP = 2 };    /* words: "2025-11-06 12:34:56" */

/* Leaves a line out that cannot be parsed from `at` on. */
static void skip_line(struct reading *r, const char *at, const char *what, const char *more)
{
    if (r->unread++ == 0)
        epa_fail(&r->first, EPA_ERR_CONFIG, "%s:%llu:%zu: error: %s%s", r->path,
                 (unsigned long long)r->line, (size_t)(at - r->begin) + 1, what, more);
}

static struct found *add_run(struct reading *r, const struct program *program, const char *variant)
{
    r->run = memory_grow(r->run, (r->n + 1) * sizeof(*r->run));
    r->run[r->n] = (struct found){.program = program,
                                  .keys = json_copy(r->keys),
                                  .said = json_pack("[{}, {}, {}]"),
                                  .section = r->section,
                                  .line = r->line};
    snprintf(r->run[r->n].variant, WORD, "%s", variant);
    return &r->run[r->n++];
}

/* Returns a figure of a stage: "min", "max" or "rate", or "" for the time; NaN: not printed. */
static double figure_of(const json_t *fields, uint32_t stage, const char *what)
{
    char key[WORD];
    const json_t *value;

    snprintf(key, sizeof(key), "%s%s%s", stage_names[stage], *what != '\0' ? "." : "", what);
    value = json_object_get(fields, key);
    return value != NULL ? json_number_value(value) : NAN;
}

static bool is_time(double us)
{
    return us >= 1e-3 && us < 1e12;
}

/* Returns the values of a line; words are strings. */
static json_t *fields_of(const struct form_values *values)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < values->n; i++) {
        const struct form_value *value = &values->value[i];

        json_object_set_new(out, value->name,
                            isnan(value->number) ? json_text(value->word)
                                                 : json_real(value->number));
    }
    return out;
}

/* Translates words of programs into words of results. */
static void translate_words(json_t *fields)
{
    static const char *const words[][2] = {
        {"FP8", "fp8"},         {"BF16", "bf16"},           {"True", "fp8"},
        {"1", "fp8"},           {"False", "bf16"},          {"0", "bf16"},
        {"rank-major", "rank"}, {"expert-major", "expert"}, {"flat", "flat"}};

    for (struct json_walk it = {fields}; json_next(&it);) {
        const char *ours = "unknown", *word = json_string_value(it.value);

        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && word != NULL; i++)
            ours = strcmp(words[i][0], word) == 0 ? words[i][1] : ours;
        if (word != NULL)
            json_object_set_new(fields, it.key, json_text(ours));
    }
}

/* ---- values of a line ---- */

/* Adds the time to all open runs that lack this time of this rank; for a variant, to the first. */
static void add_stage_time(struct reading *r, const struct program *program,
                           const struct form *form, const char *variant, json_t *fields,
                           uint32_t stage)
{
    uint32_t taken = 0;
    const json_t *of = json_object_get(fields, "rank");
    char rank[WORD]; /* or the line, if it does not name the rank */

    snprintf(rank, sizeof(rank), of != NULL ? "%.0f" : "line %.0f",
             of != NULL ? json_number_value(of) : (double)r->line);
    for (uint32_t i = r->open; i < r->n || taken == 0; i++) {
        struct found *run =
            i < r->n ? &r->run[i] : add_run(r, program, variant != NULL ? variant : "");
        json_t *said = json_array_get(run->said, stage);

        if (run->program != program || json_object_get(said, rank) != NULL ||
            (variant != NULL && (taken > 0 || strcmp(run->variant, variant) != 0)))
            continue;
        json_object_set(said, rank, fields);
        for (struct json_walk it = {fields}; json_next(&it);)
            if (json_is_string(it.value))
                json_object_set(run->keys, it.key, it.value);
        if (form->layout != NULL)
            json_object_set_new(run->keys, "layout", json_text(form->layout));
        taken++;
    }
}

static void use_line(struct reading *r, const struct program *program, const struct form *form,
                     json_t *fields)
{
    double rank = json_number_value(json_object_get(fields, "rank"));
    const char *variant = form->variant;
    char named[WORD];
    bool timed = false;

    if (!(rank < RANKS && floor(rank) == rank)) {
        skip_line(r, r->begin, "no such rank can be", "");
        return;
    }
    for (uint32_t s = 0; s < STAGES; s++) {
        double us = figure_of(fields, s, "");

        timed = timed || !isnan(us);
        if (!isnan(us) && !is_time(us)) {
            skip_line(r, r->begin, "not a time above 0: ", stage_names[s]);
            return;
        }
    }
    if (!timed && variant != NULL) {
        r->section = variant;
        r->open = *variant == '\0' ? r->n : r->open;
    }
    json_object_set_new(fields, "line", json_count(r->line));
    for (struct json_walk it = {fields}; json_next(&it);) {
        double number = json_number_value(it.value);

        if (json_is_string(it.value)) {
            json_object_set(r->keys, it.key, it.value);
        } else if (strcmp(it.key, "ranks") == 0 || strncmp(it.key, "moe.", 4) == 0) {
            if (!(number >= 1 && number <= UINT32_MAX && floor(number) == number)) {
                json_object_del(r->keys, it.key);
                skip_line(r, r->begin, "no such number can be: ", it.key);
                return;
            }
            json_object_set_new(r->keys, it.key, json_whole(number));
        }
    }
    if (variant == NULL && r->section[0] != '\0')
        variant = r->section;
    if (variant != NULL && strncmp(variant, "rows", 4) == 0) {
        snprintf(named, sizeof(named), "%s%s", json_text_at(fields, "rows"), variant + 4);
        variant = named;
    }
    for (uint32_t s = 0; s < STAGES; s++)
        if (!isnan(figure_of(fields, s, "")))
            add_stage_time(r, program, form, variant, fields, s);
}

/* Returns true for a line of that program, which is then used or left out. Keys of an unread line
 * without a time, such as a shape, become unknown for the lines that follow. */
static bool try_program(struct reading *r, const struct program *program, const char *line)
{
    const char *furthest = NULL, *wanted = NULL;
    const struct form *form = NULL;
    char next[WORD];

    for (const struct form *f = program->form; f != NULL && f->text != NULL; f++) {
        struct form_values values = {.n = 0};
        const char *why, *end = form_match(f->text, line, &values, &why);

        if (end == NULL) {
            json_auto_t *fields = fields_of(&values);

            translate_words(fields);
            use_line(r, program, f, fields);
            return true;
        }
        if (why != NULL && (furthest == NULL || end > furthest)) {
            furthest = end;
            wanted = why;
            form = f;
        }
    }
    if (furthest == NULL)
        return false;
    if (form->variant != NULL && form->variant[0] == '\0') {
        json_object_clear(r->keys);
        r->open = r->n;
    }
    snprintf(next, sizeof(next), *wanted == '{' ? "'%.*s}' (a value)" : "'%.*s'",
             (int)strcspn(wanted + 1, "%{}") + 1, wanted);
    skip_line(r, furthest, "the line should continue with ", next);
    return true;
}

/* ---- tables of nccl-tests ---- */

static uint32_t split_words(char *line, char *word[COLUMNS])
{
    uint32_t n = 0;

    for (char *at = strtok(line, FORM_BLANKS); at != NULL && n < COLUMNS;
         at = strtok(NULL, FORM_BLANKS))
        word[n++] = at;
    return n;
}

/* Reads the heading "# size count type ... time algbw busbw #wrong time algbw busbw #wrong", in any
 * version. With -C 1 the times are called cputime, and with -S 1 a timestamp follows them. */
static void parse_heading(struct reading *r, char *line)
{
    char *word[COLUMNS];
    uint32_t n = split_words(line, word);

    r->quads = r->tail = 0;
    r->stamp = n > 0 && strcmp(word[n - 1], "timestamp") == 0 ? STAMP : 0;
    n -= r->stamp > 0;
    r->cpu_time = false;
    for (uint32_t i = 0; i < n; i++) {
        bool cpu = strcmp(word[i], "cputime") == 0;

        r->cpu_time = r->cpu_time || cpu;
        r->quads += cpu || strcmp(word[i], "time") == 0;
        r->tail += r->quads > 0;
    }
    if (r->quads > 2 || (r->quads > 0 && (r->tail % r->quads != 0 || r->tail / r->quads < 4)))
        r->quads = 0;
}

/* Reads a number that fills the whole word. */
static bool read_figure(const char *word, double *out)
{
    char *end;

    *out = strtod(word, &end);
    return end != word && *end == '\0' && isfinite(*out);
}

static void parse_row(struct reading *r, char *line)
{
    char *word[COLUMNS], *end;
    uint32_t n = split_words(line, word), step = r->tail / r->quads;
    json_int_t bytes = strtoll(word[0], &end, 10);
    double us[2], rate[2], wrong[2];

    if (n < r->tail + r->stamp + 3) {
        skip_line(r, r->begin, "a row of nccl-tests has fewer words than its heading", "");
        return;
    }
    if (bytes == 0) /* fewer elements than ranks */
        return;
    n -= r->stamp;
    for (uint32_t q = 0; q < r->quads; q++) {
        char *const *at = &word[n - r->tail + q * step];

        if (bytes < 0 || !read_figure(at[0], &us[q]) || !is_time(us[q]) ||
            !read_figure(at[1], &rate[q]) ||
            (!read_figure(at[3], &wrong[q]) && strcmp(at[3], "N/A") != 0)) {
            skip_line(r, r->begin, "no bytes, or no time above 0, in a row of nccl-tests", "");
            return;
        }
    }
    for (uint32_t q = 0; q < r->quads; q++) {
        bool in_place = r->in_place_first == (q == 0);
        const char *variant = in_place ? "in place" : "out of place";
        char cpu[WORD];
        struct found *run;

        snprintf(cpu, sizeof(cpu), "%s, CPU time", variant);
        run = add_run(r, &programs[NCCL_TESTS], r->cpu_time ? cpu : variant);
        if (r->collective[0] != '\0')
            json_object_set_new(run->keys, "collective.name", json_text(r->collective));
        json_object_set_new(run->keys, "collective.bytes", json_integer(bytes));
        json_object_set_new(run->keys, "collective.type", json_text(word[2]));
        json_object_set_new(json_array_get(run->said, TOTAL), "0",
                            json_pack("{s:f, s:f, s:I}", "total", us[q], "total.rate", rate[q],
                                      "line", (json_int_t)r->line));
        run->wrong = wrong[q] > 0 && wrong[q] < 1e15 ? (uint64_t)wrong[q] : 0; /* N/A: 0 */
    }
}

/* Returns true for a row: it begins with a whole number of bytes, and its second word is the number
 * of elements. */
static bool is_row(const char *line)
{
    size_t first = strspn(line, "0123456789"), blanks = strspn(line + first, FORM_BLANKS);
    const char *second = line + first + blanks;
    size_t digits = strspn(second, "0123456789");

    return first > 0 && blanks > 0 && digits > 0 &&
           (second[digits] == '\0' || strchr(FORM_BLANKS, second[digits]) != NULL);
}

/* Returns true for a line of a table, or a comment. */
static bool try_table(struct reading *r, char *line)
{
    const char *out = strstr(line, "out-of-place"), *in = strstr(line, "in-place");
    char *rest = *line == '#' ? line + 1 + strspn(line + 1, FORM_BLANKS) : NULL;
    double rank;

    if (rest == NULL) {
        bool row = r->quads > 0 && is_row(line);

        if (row)
            parse_row(r, line);
        return row;
    }
    if (strncmp(rest, "nThread ", 8) == 0) { /* a test begins */
        json_object_clear(r->keys);
        r->quads = 0;
    }
    if (sscanf(rest, "Rank %lf Group", &rank) == 1 && rank >= 0 && rank < RANKS)
        json_object_set_new(r->keys, "ranks", json_integer((json_int_t)rank + 1));
    if (out != NULL && in != NULL)
        r->in_place_first = in < out;
    (void)sscanf(rest, "Collective test starting: %63s", r->collective);
    if (strncmp(rest, "size ", 5) == 0)
        parse_heading(r, rest);
    return true;
}

/* ---- all lines ---- */

/* Returns the rest of a line after the prefix of a launcher or a log collector, or NULL without a
 * prefix. "[1,0]<stdout>:" of Open MPI, "0: " of srun -l, "[default0]:" of torchrun, "[0] " of
 * Hydra, "(pid=7) " of Ray, "[pod/a/b] " of kubectl, "node1: " of pdsh, "web-1  | " of docker
 * compose, "2025-11-06T12:34:56Z " of many. */
static char *skip_prefix(char *line)
{
    static const char name[] =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_.-/@";
    char close = *line == '[' ? ']' : *line == '(' ? ')' : '\0', *end;
    size_t stamp = strspn(line, "0123456789-:.,+TZ"), bytes = strspn(line, name), blanks;

    if (close != '\0') {
        end = strchr(line, close);
        if (end == NULL)
            return NULL;
        end++;
        end += strncmp(end, "<stdout>", 8) == 0 || strncmp(end, "<stderr>", 8) == 0 ? 8 : 0;
        return end + (*end == ':');
    }
    blanks = strspn(line + bytes, FORM_BLANKS);
    if (bytes > 0 && line[bytes + blanks] == '|')
        return line + bytes + blanks + 1;
    if (bytes > 0 && line[bytes] == ':' && strchr(FORM_BLANKS, line[bytes + 1]) != NULL &&
        line[bytes + 1] != '\0')
        return line + bytes + 1;
    if (stamp >= 8 && strchr(FORM_BLANKS, line[stamp]) != NULL && line[stamp] != '\0')
        return line + stamp;
    return NULL;
}

/* Returns true if a program prints such a line. */
static bool try_line(struct reading *r, char *line)
{
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        const char *banner = programs[i].banner;

        if (banner == NULL || strncmp(line, banner, strlen(banner)) != 0)
            continue;
        r->program = &programs[i];
        r->open = r->n;
        r->section = "";
        json_object_clear(r->keys);
        return true;
    }
    if (try_table(r, line))
        return true;
    for (uint32_t i = 0; i < PROGRAMS; i++)
        if ((programs[i].banner == NULL || r->program == &programs[i]) &&
            try_program(r, &programs[i], line))
            return true;
    return false;
}

/* Tries the line with each number of prefixes removed. */
static void read_line(struct reading *r, char *line)
{
    for (uint32_t i = 0; i <= PREFIXES && line != NULL; i++) {
        line += strspn(line, FORM_BLANKS);
        if (try_line(r, line))
            return;
        line = skip_prefix(line);
    }
}

/* ---- results ---- */

/* Returns the line of the slowest rank. */
static const json_t *slowest_of(const struct found *run, uint32_t stage)
{
    const json_t *slowest = NULL;

    for (struct json_walk said = {json_array_get(run->said, stage)}; json_next(&said);)
        if (slowest == NULL || figure_of(said.value, stage, "") > figure_of(slowest, stage, ""))
            slowest = said.value;
    return slowest;
}

/* DeepEP's low-latency test prints rates instead of the dtype: the bytes of a row of FP8 with its
 * scales are 0.52 of the bytes of bf16. */
static void find_rows(struct found *run)
{
    const json_t *f = slowest_of(run, DISPATCH);
    double ratio = figure_of(f, DISPATCH, "") * figure_of(f, DISPATCH, "rate") /
                   (figure_of(f, COMBINE, "") * figure_of(f, COMBINE, "rate"));
    bool fp8 = ratio > 0.51 && ratio < 0.54;

    if (run->program == &programs[LOW_LATENCY] && (fp8 || (ratio > 0.99 && ratio < 1.01))) {
        json_object_set_new(run->keys, "rows", json_text(fp8 ? "fp8" : "bf16"));
        json_object_set_new(run->keys, "outputs", json_text("bf16"));
    }
}

/* Applies --set: values that are not printed. */
static enum epa_status add_sets(struct reading *r, struct found *run, const char *const *set,
                                uint32_t n)
{
    static const char *const keys[] = {
        "ranks",    "ranks_per_node",  "moe.max_tokens", "moe.hidden",       "moe.experts",
        "moe.topk", "delivers.layout", "delivers.rows",  "delivers.outputs", NULL};

    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = strcspn(set[i], "=");
        const char *value = set[i] + bytes + (set[i][bytes] == '='), *const *key = keys;
        bool word = strncmp(set[i], "delivers.", 9) == 0;
        char want[WORD];
        struct nearest nearest = {.want = want};
        char hint[NEAREST_ROOM], *end;
        json_auto_t *is = NULL;
        const json_t *printed;

        snprintf(want, sizeof(want), "%.*s", (int)bytes, set[i]);
        nearest_try_table(&nearest, keys, sizeof(*keys));
        while (*key != NULL && strcmp(*key, want) != 0)
            key++;
        if (*key == NULL)
            return epa_fail(r->err, EPA_ERR_CONFIG, "--set %s: no key of an import; %s", set[i],
                            nearest_hint(&nearest, hint,
                                         "they are ranks, moe.max_tokens, moe.hidden, "
                                         "moe.experts, moe.topk, delivers.layout, delivers.rows "
                                         "and delivers.outputs"));
        is = word ? json_text(value) : json_integer(strtoll(value, &end, 10));
        if (word ? strcspn(value, "abcdefghijklmnopqrstuvwxyz0123456789") != 0
                 : *end != '\0' || json_integer_value(is) < 1)
            return epa_fail(r->err, EPA_ERR_CONFIG, "--set %s: not a value of %s", set[i], *key);
        printed = json_object_get(run->keys, *key + (word ? 9 : 0));
        if (printed != NULL && !json_equal(printed, is))
            return epa_fail(r->err, EPA_ERR_CONFIG, "%s:%llu:1: error: --set %s, but it prints %s",
                            r->path, (unsigned long long)run->line, set[i],
                            json_is_string(printed) ? json_string_value(printed)
                                                    : "another number");
        json_object_set(run->keys, *key + (word ? 9 : 0), is);
    }
    return EPA_OK;
}

/* Returns the experiment, without the keys of the output. */
static json_t *experiment_of(const struct found *run)
{
    json_t *out = json_object();

    for (struct json_walk it = {run->keys}; json_next(&it);)
        if (strchr(it.key, '.') != NULL || !json_is_string(it.value))
            json_set_at(out, it.key, json_incref(it.value));
    json_set_at(out, "algorithm.name", json_text(run->program->id));
    return out;
}

static json_t *delivers_of(const struct found *run)
{
    json_t *out =
        json_object_of("layout", json_text(run->program->layout), "rows", json_text("unknown"),
                       "outputs", json_text(run->program->outputs), "fused", json_false(), NULL);

    json_object_update_existing(out, run->keys);
    return out;
}

/* Returns the figures of a stage; "ranks" exists only if no rank's line is missing. */
static json_t *stage_json(struct found *run, uint32_t stage)
{
    const json_t *ranks = json_array_get(run->said, stage), *slowest = slowest_of(run, stage);
    size_t end = 0;                 /* one past the last rank that printed a time */
    double least = NAN, most = NAN; /* fmin() and fmax() ignore NaN */

    for (struct json_walk said = {ranks}; json_next(&said);) {
        end = strtoul(said.key, NULL, 10) >= end ? strtoul(said.key, NULL, 10) + 1 : end;
        least = fmin(least, 1e3 * figure_of(said.value, stage, "min"));
        most = fmax(most, 1e3 * figure_of(said.value, stage, "max"));
    }
    if (end > 1 && end == json_object_size(ranks) && json_object_get(run->keys, "ranks") == NULL)
        json_object_set_new(run->keys, "ranks", json_count(end));
    return json_object_of("name", json_text(stage_names[stage]), "samples_ns",
                          json_pack("[o]", json_whole(1e3 * figure_of(slowest, stage, ""))),
                          "min_ns", json_whole(least), "max_ns", json_whole(most), "rate",
                          json_number(figure_of(slowest, stage, "rate")), "line",
                          json_incref(json_object_get(slowest, "line")), NULL);
}

static json_t *run_json(struct reading *r, struct found *run)
{
    const struct program *program = run->program;
    json_t *stages = json_array(), *error = json_null();
    bool collective = program == &programs[NCCL_TESTS];
    char name[2 * WORD];

    snprintf(name, sizeof(name), "%s%s%s", program->id, run->variant[0] != '\0' ? " " : "",
             run->variant);
    for (uint32_t s = 0; s < STAGES; s++)
        if (json_object_size(json_array_get(run->said, s)) > 0)
            json_array_append_new(stages, stage_json(run, s));
    if (run->wrong > 0)
        error = json_object_of("status", json_text("mismatch"), "text",
                               json_sprintf("%s:%llu: %llu wrong", r->path,
                                            (unsigned long long)run->line,
                                            (unsigned long long)run->wrong),
                               NULL);
    return json_object_of(
        "name", json_text(program->name), "file", json_text(r->path), "label", json_text(name),
        "id", json_null(), "run", json_text(name), "verb", json_text("bench"), "operation",
        json_text(collective ? "collective" : "moe"), "status",
        json_text(run->wrong > 0 ? "mismatch" : "ok"), "exit_code", json_integer(run->wrong > 0),
        "error", error, "source",
        json_object_of("program", json_text(program->name), "clock",
                       json_text_or_null(run->section), "line", json_count(run->line), "statistic",
                       json_text(program->statistic), "rate", json_text(program->rates), NULL),
        "experiment", experiment_of(run), "context", json_object(), "machine", json_object(),
        "timing", json_null(), "stages", stages, "delivers",
        collective ? json_null() : delivers_of(run), "warnings", json_array(), NULL);
}

enum epa_status import_text(const char *path, char *text, const char *const *set, uint32_t n_sets,
                            json_t *results, struct text *unread, struct epa_error *err)
{
    struct reading r = {.path = path, .err = err, .section = "", .keys = json_object()};
    enum epa_status status = EPA_OK;
    json_auto_t *all = json_array();

    for (char *line = text, *end; line != NULL; line = end) {
        end = strchr(line, '\n');
        if (end != NULL)
            *end++ = '\0';
        r.line++;
        r.begin = line;
        read_line(&r, line);
    }
    for (uint32_t i = 0; i < r.n; i++) {
        find_rows(&r.run[i]);
        if (status == EPA_OK)
            status = add_sets(&r, &r.run[i], set, n_sets);
        if (status == EPA_OK)
            json_array_append_new(all, run_json(&r, &r.run[i]));
        json_decref(r.run[i].said);
        json_decref(r.run[i].keys);
    }
    if (r.n == 0 && r.unread > 0)
        status = epa_fail(err, EPA_ERR_CONFIG, "%s", r.first.text);
    else if (status == EPA_OK && r.n == 0)
        status =
            epa_fail(err, EPA_ERR_CONFIG,
                     "%s: holds no times that DeepEP's tests, ep_bench or nccl-tests print", path);
    if (status == EPA_OK && r.unread > 0)
        text_add(unread, "%s; %llu line%s left out", r.first.text, (unsigned long long)r.unread,
                 r.unread == 1 ? " was" : "s were");
    if (status == EPA_OK)
        json_array_extend(results, all);
    free(r.run);
    json_decref(r.keys);
    return status;
}
