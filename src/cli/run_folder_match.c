/* Which runs of today are those of an index. A run is known by its id and by which of that id
 * it is; one whose plugin was not here then or is not here now has no id, and is known by its
 * file and label. */
#include "cli/run_folder_match.h"

#include <stdlib.h>
#include <string.h>

#include "report/report.h"

enum { NAMED = 3 }; /* as many are named of those that are too many */

/* Runs by id, for bsearch(). */
struct key {
    const char *id;
    uint32_t nth, run;
};

struct matching {
    struct run_folder *f;
    struct key *key; /* [n], of runs that have an id */
    uint32_t n;
    bool *known; /* [runs] the index has it */
    struct text gone;
    uint32_t n_gone;
};

static int by_key(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    int order = strcmp(x->id, y->id);

    return order != 0 ? order : (x->nth > y->nth) - (x->nth < y->nth);
}

static enum epa_status begin(struct matching *m, struct epa_error *err)
{
    const struct runs *runs = m->f->runs;

    m->key = calloc(runs->n + 1, sizeof(*m->key));
    m->known = calloc(runs->n + 1, sizeof(*m->known));
    m->f->index.run = calloc(runs->n + 1, sizeof(*m->f->index.run));
    if (m->key == NULL || m->known == NULL || m->f->index.run == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", runs->n);
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        if (run->x != NULL)
            m->key[m->n++] = (struct key){run->x->id, run->nth, i};
    }
    qsort(m->key, m->n, sizeof(*m->key), by_key);
    return EPA_OK;
}

/* The run's index, or runs.n. */
static uint32_t find(const struct matching *m, const struct index_run *was)
{
    const struct runs *runs = m->f->runs;
    const struct key wanted = {was->row.id, was->nth, 0}, *key = NULL;

    if (was->row.id != NULL)
        key = bsearch(&wanted, m->key, m->n, sizeof(*m->key), by_key);
    if (key != NULL)
        return key->run;
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        if ((was->row.id == NULL || run->x == NULL) && !m->known[i] &&
            strcmp(run->label, was->row.label) == 0 && strcmp(run->batch->file, was->row.file) == 0)
            return i;
    }
    return runs->n;
}

/* What is done is kept if its result is there. */
static enum epa_status take(struct matching *m, const struct index_run *was, uint32_t i,
                            struct epa_error *err)
{
    struct run_folder *f = m->f;
    struct epa_error why = {EPA_OK, ""};
    char *path = NULL;
    enum epa_status status;

    if (asprintf(&path, "%s/%s", f->path, was->result) < 0)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    status = report_json_read(path, was->row.id, &f->result[i], &why);
    free(path);
    if (status == EPA_OK) {
        f->index.run[i] = *was;
        f->runs->run[i].done = true;
        return EPA_OK;
    }
    if (!f->cli->force)
        return epa_fail(err, status,
                        "%s; index.json says that run '%s' is done: bring its result back, or "
                        "--force runs it again",
                        why.text, was->row.label);
    if (!f->cli->quiet)
        fprintf(stderr, "epa2a: %swarning:%s %s; '%s' is run again\n",
                colour_on(stderr, COLOUR_WARNING), colour_off(stderr), why.text, was->row.label);
    return EPA_OK;
}

static void add_gone(struct matching *m, const struct index_run *was)
{
    if (m->n_gone++ < NAMED)
        text_add(&m->gone, "%s'%.60s' (%s)", m->n_gone > 1 ? ", " : "", was->row.label,
                 was->row.id != NULL ? was->row.id : "no id");
}

static enum epa_status refuse(const struct matching *m, struct epa_error *err)
{
    const struct runs *runs = m->f->runs;
    struct text added = {0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        if (!m->known[i] && n++ < NAMED)
            text_add(&added, "%s'%.60s' (%s)", n > 1 ? ", " : "", run->label,
                     run->x != NULL ? run->x->id : "no id");
    }
    (void)epa_fail(err, EPA_ERR_CONFIG,
                   "--resume: the batch in %s is another: not in it any more: %u, as "
                   "%s; new: %u%s%s. Give the files, --set and --only that it was begun with",
                   m->f->path, m->n_gone, m->gone.data, n, n > 0 ? ", as " : "",
                   n > 0 ? added.data : "");
    text_free(&added);
    return EPA_ERR_CONFIG;
}

static enum epa_status match_all(struct matching *m, struct epa_error *err)
{
    struct run_folder *f = m->f;
    enum epa_status status = EPA_OK;

    for (uint32_t k = 0; k < f->old.n; k++) {
        uint32_t i = find(m, &f->old.run[k]);

        if (i == f->runs->n || m->known[i])
            add_gone(m, &f->old.run[k]);
        else
            m->known[i] = true;
    }
    if (m->n_gone > 0)
        return refuse(m, err);
    for (uint32_t i = 0; i < f->runs->n; i++)
        m->known[i] = false;
    for (uint32_t k = 0; k < f->old.n && status == EPA_OK; k++) {
        const struct index_run *was = &f->old.run[k];
        uint32_t i = find(m, was);

        m->known[i] = true;
        if (was->status == INDEX_DONE)
            status = take(m, was, i, err);
    }
    return status;
}

enum epa_status run_folder_match(struct run_folder *f, struct epa_error *err)
{
    struct matching m = {.f = f};
    enum epa_status status;

    if (strcmp(f->old.verb, f->verb) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume: the batch in %s is of '%.20s', and this is '%s'", f->path,
                        f->old.verb, f->verb);
    status = begin(&m, err);
    if (status == EPA_OK)
        status = match_all(&m, err);
    free(m.key);
    free(m.known);
    text_free(&m.gone);
    return status;
}
