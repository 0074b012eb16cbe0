/* Updates of the progress line, the state of ranks at SIGUSR1, and the status page. They read
 * counters of the ranks a few times per second; the ranks write these counters in any case. */
#include "cli/live.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/text.h"
#include "cli/documents.h"
#include "cli/progress_line.h"
#include "cli/runs.h"
#include "run/stop_signals.h"
#include "session/session_create.h"
#include "session/status.h"
#include "session/status_page.h"
#include "session/status_text.h"
#include "session/rows.h"

static const uint64_t redraw_ns = 250000000;

enum {
    SAMPLES = 128,  /* number of samples for the median of the progress line */
    UNTOUCHED = 16, /* last samples to skip: ranks may still be writing next to them */
};

struct live {
    struct status_page *status_page; /* NULL: none */
    bool shows, shown;               /* the progress line is on; it is on the terminal now */
    uint64_t drawn_ns;
    int asked_fd;            /* signalfd of SIGUSR1; -1: none */
    struct session *session; /* running session; NULL: none */
    struct live_run run;
    int stop_signal;     /* last signal that was read while ranks were stopping; 0: none */
    uint64_t run_ns;     /* start of the run */
    uint64_t first_ns;   /* time of the first poll that saw finished iterations; 0: not yet */
    uint64_t first_done; /* number of finished iterations at first_ns */
    double finished_s;   /* total time of all finished runs */
    uint32_t finished;   /* number of finished runs */
};

static void clear_line(struct live *live)
{
    if (live->shown)
        progress_clear();
    live->shown = false;
}

static void print_ranks(struct live *live)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};
    struct status status;

    clear_line(live);
    if (live->status_page == NULL) {
        fputs("epa2a: the state of ranks is unknown: this system has no memfd\n", stderr);
        return;
    }
    if (status_read(status_page_file(live->status_page), &status, &err) != EPA_OK) {
        error_add_remedy(&err);
        fprintf(stderr, "epa2a: this command %s\n", err.text);
        return;
    }
    status_print(&status, "# ", &text);
    fputs(text.data, stderr);
    status_finish(&status);
}

/* ---- progress of the ranks ---- */

/* Returns the number of stages; 0 during set-up. Acquire: pairs with the release in
 * describe_stages(). */
static uint32_t stages_of(const struct session *s)
{
    uint32_t n = __atomic_load_n(&s->notes->n_stages, __ATOMIC_ACQUIRE);

    return n <= SESSION_STAGES ? n : 0;
}

/* Returns the total time of a sample on the slowest rank, as in the report. */
static double total_of(const struct session *s, uint64_t sample)
{
    uint32_t ranks = s->notes->clock == CLOCK_END_TO_END ? 1 : s->experiment->problem.ranks;
    struct session_row total = session_total(s);
    double slowest = 0;

    for (uint32_t r = 0; r < ranks; r++)
        slowest = fmax(slowest, session_row_ns(s, &total, r, sample));
    return slowest;
}

/* Returns the number of samples that every rank has finished. Acquire: pairs with the rank's
 * release store of `samples`, so the times of these samples are in place. */
static uint64_t samples_of(const struct session *s)
{
    uint64_t n = UINT64_MAX;

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        uint64_t has = __atomic_load_n(&session_rank(s, r)->samples, __ATOMIC_ACQUIRE);

        n = has < n ? has : n;
    }
    return n;
}

static double median_so_far(const struct session *s)
{
    uint64_t n = samples_of(s), step;
    double sample[SAMPLES];
    uint32_t got = 0;

    if (s->verb == VERB_VERIFY || stages_of(s) == 0 || n <= UNTOUCHED || n > s->iterations)
        return NAN;
    n -= UNTOUCHED;
    step = (n + SAMPLES - 1) / SAMPLES;
    for (uint64_t i = 0; i < n && got < SAMPLES; i += step)
        sample[got++] = total_of(s, i);
    stats_sort(sample, got);
    return sample[got / 2];
}

/* Returns the number of iterations that all ranks of this process have finished. */
static uint64_t iterations_done(const struct session *s)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        uint64_t at = __atomic_load_n(&rank->iteration, __ATOMIC_RELAXED);

        if ((s->process_id.size <= 1 || r == s->process_id.rank) && at < least)
            least = at;
    }
    return least == UINT64_MAX ? 0 : least;
}

/* Estimates the current run by its rate, and later runs by finished ones or by this one. */
static double seconds_left(struct live *live, uint64_t done, uint64_t all, uint64_t now)
{
    const struct session *s = live->session;
    double elapsed = (double)(now - live->run_ns) / 1e9, left, each;
    uint32_t to_come = live->run.of - live->run.number;

    if (live->first_ns == 0 && done > 0) {
        live->first_ns = now;
        live->first_done = done;
    }
    if (live->first_ns == 0 || done <= live->first_done)
        return NAN;
    left = (double)(now - live->first_ns) / 1e9 / (double)(done - live->first_done) *
           (double)(all > done ? all - done : 0);
    if (s->verb == VERB_BENCH && s->experiment->bench.max_time_ns != 0)
        left = fmin(left, fmax((double)s->experiment->bench.max_time_ns / 1e9 -
                                   (double)(now - live->first_ns) / 1e9,
                               0));
    each = live->finished > 0 ? live->finished_s / live->finished : elapsed + left;
    return left + each * to_come;
}

static void draw_line(struct live *live, uint64_t now)
{
    const struct session *s = live->session;
    const char *slash = strrchr(live->run.file, '/');
    const char *file = slash != NULL ? slash + 1 : live->run.file;
    text_auto line = {0};
    uint64_t all = (uint64_t)s->warmup + s->iterations, done = iterations_done(s);
    struct progress_facts facts = {.verb = session_verb(s),
                                   .label = live->run.label[0] != '\0' ? live->run.label : file,
                                   .number = live->run.number,
                                   .of = live->run.of,
                                   .done = done,
                                   .warmup = s->warmup,
                                   .iterations = s->iterations,
                                   .median_ns = median_so_far(s),
                                   .left_s = seconds_left(live, done, all, now),
                                   .set_up = stages_of(s) == 0,
                                   .at_most =
                                       s->verb == VERB_BENCH && s->experiment->bench.ci95 > 0};

    live->drawn_ns = now;
    text_add(&line, "%s", "");
    progress_line(&facts, progress_columns() - 1, &line);
    live->shown = progress_show("%s", line.data) || live->shown;
}

/* ---- while a session runs ---- */

/* Returns true after the second signal, which ends the wait for ranks that were asked to stop. The
 * launcher polls stop_fd without reading it, so the first signal is still in it. */
static bool is_second_stop(struct live *live)
{
    bool now = false;

    for (int signal; (signal = stop_signals_read(live->run.stop_fd)) != 0;
         live->stop_signal = signal)
        now = live->stop_signal != 0;
    return now;
}

static bool poll_launch(void *arg, enum epa_poll_reason why)
{
    struct live *live = arg;
    uint64_t now;

    if (why == EPA_POLL_PRINTING) {
        clear_line(live);
        return false;
    }
    if (stop_signals_read(live->asked_fd) != 0)
        print_ranks(live);
    if (why == EPA_POLL_STOPPING) {
        clear_line(live);
        return is_second_stop(live);
    }
    if (live->run.documents != NULL && documents_are_due(live->run.documents)) {
        clear_line(live);
        (void)documents_write(live->run.documents, false);
    }
    now = epa_now_ns();
    if (live->run.reports && live->shows && now - live->drawn_ns >= redraw_ns)
        draw_line(live, now);
    return false;
}

static void begin_run(void *arg, struct session *s)
{
    struct live *live = arg;
    const struct live_run *run = &live->run;
    struct status_page_run shown = {.number = run->number, .of = run->of};
    struct status_page *status_page = session_status_page(s, &shown);

    live->session = s;
    live->stop_signal = 0;
    live->run_ns = epa_now_ns();
    live->first_ns = live->first_done = 0;
    live->drawn_ns = live->run_ns;
    s->poll_launch = poll_launch;
    s->poll_arg = live;
    if (status_page == NULL)
        return;
    shown.began_ns = live->run_ns;
    snprintf(shown.file, sizeof(shown.file), "%s", run->file);
    snprintf(shown.label, sizeof(shown.label), "%s", run->label);
    status_page_show(status_page, &shown);
}

static int end_run(void *arg, struct session *s)
{
    struct live *live = arg;

    clear_line(live);
    s->poll_launch = NULL;
    if (live->status_page != NULL)
        status_page_show(live->status_page, NULL);
    live->session = NULL;
    live->finished_s += (double)(epa_now_ns() - live->run_ns) / 1e9;
    live->finished++;
    return live->stop_signal;
}

struct run_observer live_observe(struct live *live, const struct live_run *run)
{
    live->run = *run;
    return (struct run_observer){live->status_page, begin_run, end_run, live};
}

struct status_page *live_status_page(const struct live *live)
{
    return live->status_page;
}

void live_destroy(struct live *live)
{
    if (live == NULL)
        return;
    clear_line(live);
    if (live->asked_fd >= 0)
        close(live->asked_fd);
    status_page_destroy(live->status_page);
    free(live);
}

struct live *live_create(bool shows_line)
{
    struct live *live = memory_alloc(1, sizeof(*live));
    struct epa_error ignored = {EPA_OK, ""};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    live->asked_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    live->run.stop_fd = -1;
    live->shows = shows_line;
    /* Without a status page everything works except `epa2a status`. */
    if (status_page_create(&live->status_page, &ignored) != EPA_OK)
        live->status_page = NULL;
    return live;
}
