/* Everything here reads what ranks have written anyway, at most some times a second. */
#include "cli/live.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/progress.h"
#include "session/status.h"

enum {
    SAMPLES = 128,  /* of those so far, for the median: enough for a line */
    UNTOUCHED = 16, /* the last ones: ranks may be writing beside them */
};

struct live {
    struct status_page *status_page; /* NULL: there is none */
    struct progress progress;
    int asked_fd;            /* a signalfd of SIGUSR1; -1: none */
    struct session *session; /* that runs; NULL: none does */
    struct live_run run;
    int stop_fd, stop_signal;
    uint64_t run_ns;     /* when it began */
    uint64_t first_ns;   /* when its iterations began, as far as was seen; 0: not yet */
    uint64_t first_done; /* and how many there were */
    double finished_s;   /* all runs before, together */
    uint32_t finished;   /* how many these are */
};

/* ---- SIGUSR1 ---- */

static void just_signal(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGUSR1);
}

/* Blocked and not ignored: it waits until somebody reads it. Who is started from here has it
 * blocked as well, and ignores it before that can matter: see process_start(). */
void live_catch(void)
{
    sigset_t set;

    just_signal(&set);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
}

static void tell_where(struct live *live)
{
    struct epa_error err = {EPA_OK, ""};
    struct text text = {0};
    struct status status;

    progress_clear(&live->progress);
    if (live->status_page == NULL) {
        fputs("epa2a: there is no memfd on this system, so nobody knows where ranks are\n", stderr);
        return;
    }
    if (status_read(status_page_file(live->status_page), &status, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: this command %s\n", err.text);
        return;
    }
    status_print(&status, "# ", &text);
    fputs(text.data, stderr);
    text_free(&text);
    status_finish(&status);
}

static bool was_asked(const struct live *live)
{
    struct signalfd_siginfo info;

    return live->asked_fd >= 0 &&
           read(live->asked_fd, &info, sizeof(info)) == (ssize_t)sizeof(info);
}

/* ---- how far it is ---- */

/* 0: ranks are still being set up. Acquire: pairs with the release in describe_stages(). */
static uint32_t stages_of(const struct session *s)
{
    uint32_t n = __atomic_load_n(&s->notes->n_stages, __ATOMIC_ACQUIRE);

    return n <= SESSION_STAGES ? n : 0;
}

/* Of the slowest rank, as the report has it. */
static double total_of(const struct session *s, uint64_t sample)
{
    bool wall = s->notes->clock == CLOCK_END_TO_END;
    uint32_t stages = stages_of(s), ranks = wall ? 1 : s->experiment->ranks;
    uint32_t total = session_total_row(s->notes->clock, s->notes->stage_kind[stages - 1]);
    uint32_t first = total != UINT32_MAX ? total : 0;
    uint32_t last = total != UINT32_MAX ? total : stages - 1;
    double slowest = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        double sum = 0;

        for (uint32_t row = first; row <= last; row++)
            sum += session_times(s, r, row)[sample];
        slowest = sum > slowest ? sum : slowest;
    }
    return slowest;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* All that every rank has; acquire: their times are there. */
static uint64_t samples_of(const struct session *s)
{
    uint64_t n = UINT64_MAX;

    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
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
    qsort(sample, got, sizeof(sample[0]), by_size);
    return sample[got / 2];
}

/* Where ranks of other processes cannot be seen, this one's. */
static uint64_t iterations_done(const struct session *s)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        uint64_t at = __atomic_load_n(&rank->iteration, __ATOMIC_RELAXED);

        if ((s->process_id.size <= 1 || r == s->process_id.rank) && at < least)
            least = at;
    }
    return least == UINT64_MAX ? 0 : least;
}

/* Of this run by its rate, of those to come by those that are done, or by this one. */
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

static void draw(struct live *live, uint64_t now)
{
    static const char *const verb[] = {
        [VERB_RUN] = "run", [VERB_BENCH] = "bench", [VERB_VERIFY] = "verify"};
    const struct session *s = live->session;
    const char *slash = strrchr(live->run.file, '/');
    const char *file = slash != NULL ? slash + 1 : live->run.file;
    uint64_t all = (uint64_t)s->warmup + s->iterations, done = iterations_done(s);
    struct progress_facts facts = {.verb = verb[s->verb],
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

    progress_draw(&live->progress, &facts, now);
}

/* ---- while a session runs ---- */

/* The launcher has seen the first signal before it says so; the second ends the wait for
 * ranks that are told to leave. */
static bool wants_it_now(struct live *live)
{
    struct signalfd_siginfo info;
    bool now = false;

    while (live->stop_fd >= 0 &&
           read(live->stop_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        now = live->stop_signal != 0;
        live->stop_signal = info.ssi_signo == SIGHUP ? SIGTERM : (int)info.ssi_signo;
    }
    return now;
}

static bool poll_launch(void *arg, enum epa_poll_reason why)
{
    struct live *live = arg;
    uint64_t now;

    if (why == EPA_POLL_PRINTING) {
        progress_clear(&live->progress);
        return false;
    }
    if (was_asked(live))
        tell_where(live);
    if (why == EPA_POLL_STOPPING) {
        progress_clear(&live->progress);
        return wants_it_now(live);
    }
    now = clock_ns();
    if (live->run.reports && progress_due(&live->progress, now))
        draw(live, now);
    return false;
}

void live_begin(struct live *live, struct session *s, const struct live_run *run, int stop_fd)
{
    struct status_page_run shown = {.number = run->number, .of = run->of};
    struct status_page *status_page = session_status_page(s, &shown);

    live->session = s;
    live->run = *run;
    live->stop_fd = stop_fd;
    live->stop_signal = 0;
    live->run_ns = clock_ns();
    live->first_ns = live->first_done = 0;
    live->progress.drawn_ns = live->run_ns;
    s->poll_launch = poll_launch;
    s->poll_arg = live;
    if (status_page == NULL)
        return;
    shown.began_ns = live->run_ns;
    snprintf(shown.file, sizeof(shown.file), "%s", run->file);
    snprintf(shown.label, sizeof(shown.label), "%s", run->label);
    status_page_show(status_page, &shown);
}

void live_end(struct live *live, struct session *s)
{
    progress_clear(&live->progress);
    s->poll_launch = NULL;
    if (live->status_page != NULL)
        status_page_show(live->status_page, NULL);
    live->session = NULL;
    live->finished_s += (double)(clock_ns() - live->run_ns) / 1e9;
    live->finished++;
}

int live_stop_signal(const struct live *live)
{
    return live->stop_signal;
}

struct status_page *live_status_page(const struct live *live)
{
    return live->status_page;
}

void live_destroy(struct live *live)
{
    if (live == NULL)
        return;
    progress_clear(&live->progress);
    if (live->asked_fd >= 0)
        close(live->asked_fd);
    status_page_destroy(live->status_page);
    free(live);
}

enum epa_status live_create(const struct cli *cli, struct live **out, struct epa_error *err)
{
    enum progress_mode mode = cli->progress;
    struct live *live = calloc(1, sizeof(*live));
    struct epa_error ignored = {EPA_OK, ""};
    sigset_t set;

    if (live == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to show how far it is");
    just_signal(&set);
    live->asked_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    live->stop_fd = -1;
    if (cli->quiet && mode == PROGRESS_AUTO)
        mode = PROGRESS_NEVER;
    progress_init(&live->progress, mode, STDERR_FILENO);
    /* Without a status page all works but being looked at. */
    if (status_page_create(&live->status_page, &ignored) != EPA_OK)
        live->status_page = NULL;
    *out = live;
    return EPA_OK;
}
