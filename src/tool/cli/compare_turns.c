/* `epa2a compare --run A.yaml B.yaml`: runs both experiments in rounds of A B or B A until one is
 * known to be slower, faster or the same, or the budget is spent. Each round starts new ranks, so the
 * figures include the variation between launches. On hosts the ranks of both sides exist at the same
 * time and their iterations alternate, so that drift of the machine affects both sides equally. */
#include "cli/compare_turns.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/output.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/compare_results.h"
#include "cli/compared.h"
#include "cli/documents.h"
#include "cli/live.h"
#include "cli/progress_line.h"
#include "cli/run_messages.h"
#include "cli/runs.h"
#include "cli/side_result.h"
#include "run/stop_signals.h"
#include "cli/turns.h"
#include "config/experiment.h"
#include "launch/program_registry.h"
#include "report/lines.h"
#include "run/run.h"
#include "session/session.h"
#include "session/alternation.h"
#include "session/stop.h"

enum {
    ROUNDS_WANTED = 24,     /* turns are shortened until the budget allows this many rounds, */
    PAIR_ROUNDS_LEAST = 13, /* or this many, if the start of ranks takes long */
    PAIR_ITERATIONS_LEAST = 20,
    FIRST_BLOCK = 16, /* iterations of a block of alternating iterations, in the first pair */
    BLOCK_LEAST = 32, /* bounds of a block in later pairs */
    BLOCK_MOST = 256,
    BLOCKS = 6, /* least number of blocks of a side, if it has enough iterations */
    STOPPED_CHECK_NS = 500000000, /* interval between two checks for stopped ranks */
    BLOCK_NS = 2500000, /* duration of a block: less than the Linux time slice after a sleep */
    SETUP_POLL_MS = 5,  /* poll interval until a side is set up */
    CHECK_MS = 100,     /* interval between two checks of the limits of a side */
    SET_UP_S = 60,      /* time for set-up of a pair, in addition to --budget and timeout */
    LAST_S = 5,         /* time for the end of the last pair, in addition to --budget and timeout */
    PAUSE_S = 4,        /* a longer gap between two checks is a pause of this process */
    STOP_S = 15,        /* time for a side to end after a signal; ranks on GPUs take 10 s */
    TAKEN = 256         /* size of the sentence about the turns */
};

static double stage_percentile(const struct results *results, const char *name, uint32_t permille,
                               uint64_t *samples)
{
    const struct run_stage *stage = results_stage(&results->run[0], name);
    double *scratch, out;

    if (stage == NULL)
        return NAN;
    *samples = stage->n;
    scratch = memory_alloc(stage->n, sizeof(*scratch));
    memcpy(scratch, stage->sample, stage->n * sizeof(*scratch));
    out = stats_quantile(scratch, stage->n, permille);
    free(scratch);
    return out;
}

struct sides {
    const struct cli *cli;
    struct turns turns;
    struct results first[2]; /* first turn of each side, which fixes stages and lengths only */
    const char *stage[TURNS_STAGES];
    struct alternation *alternation; /* alternates iterations; NULL: a turn is a whole bench */
    uint32_t block;                  /* iterations of a block, if they alternate */
    uint64_t limit_ns;               /* limit of a round, if iterations alternate; 0: none */
    uint32_t iterations;       /* iterations of a turn without alternation; 0: as in the files */
    uint32_t permille;         /* quantile of a block's samples that represents the block */
    uint64_t samples;          /* samples of a turn */
    struct registry *registry; /* shared by all turns, like `machine` */
    struct machine_facts machine;
    int signals; /* signalfd of the stop signals and SIGCHLD */
    uint64_t budget_ns;
    uint64_t timeout_ns;    /* longer timeout of both experiments */
    uint64_t budget_end_ns; /* end of the budget of all pairs */
    uint64_t end_ns;        /* time at which the current pair is killed */
    bool is_set_up;         /* both sides of the pair have finished set-up */
    uint64_t checked_ns;    /* time of the last check for stopped ranks */
    uint64_t stop_ns;       /* time at which both sides were asked to end; 0: not yet */
    int code;               /* exit code of the first failed side; EXIT_OK: none */
};

/* The bench of a side. It is a process, so that both sides can exist at the same time. */
struct side_process {
    pid_t pid;
    int fd; /* memory file of the results */
    int code;
    bool ended;
    uint64_t stopped_ns;       /* time at which a signal stopped the process; 0: it runs */
    uint64_t ranks_stopped_ns; /* the same for all its ranks */
};

/* Returns the files and settings of a side. */
static struct runs_wish wish_of_side(const struct cli *cli, uint32_t side)
{
    struct runs_wish wish = runs_wish(cli);

    wish.file = &cli->arg[side];
    wish.n_files = 1;
    return wish;
}

/* Checks that a file has one run after --only. Clears *alternates if its iterations cannot wait for
 * the other side; raises *timeout_ns to its timeout. */
static enum epa_status check_side_file(const struct sides *s, uint32_t side, bool *alternates,
                                       uint64_t *timeout_ns, struct epa_error *err)
{
    const struct runs_wish wish = wish_of_side(s->cli, side);
    struct runs runs = {0};
    enum epa_status status = runs_read_files(&wish, s->registry, "compare --run", &runs, err);

    if (status == EPA_OK && runs.run[0].x != NULL) {
        const struct experiment *x = runs.run[0].x;

        *alternates = *alternates && launcher_of(x)->process_id == NULL && is_on_hosts(x) &&
                      x->bench.arrivals == ARRIVALS_CLOSED && !stop_is_on(&x->bench);
        *timeout_ns = x->timeout_ns > *timeout_ns ? x->timeout_ns : *timeout_ns;
    }
    runs_finish(&runs);
    return status;
}

static enum epa_status check_sides(struct sides *s, struct epa_error *err)
{
    bool alternates = true;
    enum epa_status status = turns_check_alone("compare --run", err);

    if (status == EPA_OK)
        status = program_registry_create(s->cli->plugin_path, &s->registry, err);
    for (uint32_t i = 0; i < 2 && status == EPA_OK; i++)
        status = check_side_file(s, i, &alternates, &s->timeout_ns, err);
    if (status == EPA_OK && alternates)
        s->alternation = alternation_create();
    return status;
}

/* Reads the file of a side again, with the length of this turn. */
static enum epa_status read_side_file(const struct sides *s, uint32_t side, struct runs *out,
                                      struct epa_error *err)
{
    struct runs_wish wish = wish_of_side(s->cli, side);
    const char **set = memory_alloc(wish.n_sets + 1, sizeof(*set));
    char text[64];
    enum epa_status status;

    memcpy(set, wish.set, wish.n_sets * sizeof(*set));
    snprintf(text, sizeof(text), "bench.iterations=%u", s->iterations);
    set[wish.n_sets] = text;
    wish.set = set;
    wish.n_sets += s->iterations > 0;
    status = runs_read_files(&wish, s->registry, NULL, out, err);
    free(set);
    return status;
}

/* Passes the result of a side to the parent, and returns the exit code. */
static int pass_side_result(const struct run *run, const struct result *result, int fd)
{
    int code = run_is_skipped(run, result->status) ? EXIT_SKIPPED : result->figures->exit_code;

    if (result->trace_error.status != EPA_OK)
        run_print_error(&run->process_id, run->who, result->trace_error.text);
    /* After a stop signal the parent prints the message: this side has not failed. */
    if (result->status != EPA_ERR_INTERRUPTED)
        run_print_result(run, &run->process_id, result);
    if (code == EXIT_OK && result->trace_error.status != EPA_OK)
        code = EXIT_RESOURCE;
    return code == EXIT_OK && !side_result_write(fd, result) ? EXIT_RESOURCE : code;
}

/* Takes the turn of a side in its process, and returns the exit code of the process. */
static int run_side(const struct sides *s, uint32_t side, int fd)
{
    struct live *live = live_create(false);
    struct live_run shown = {.file = s->cli->arg[side], .label = "", .number = 1, .of = 1};
    struct run_how how = {.alternation = s->alternation,
                          .side = side,
                          .force = s->cli->force,
                          .machine = &s->machine,
                          .stop_fd = -1};
    struct epa_error err = {EPA_OK, ""};
    struct run_observer observer;
    struct runs runs = {0};
    struct result result;
    sigset_t stops;
    enum epa_status status;
    int code, stop;

    stop_signals_catch(&stops);
    status = read_side_file(s, side, &runs, &err);
    if (status == EPA_OK)
        status = stop_signals_open(&stops, &how.stop_fd, &err);
    if (err.status != EPA_OK)
        cli_report_error(&err);
    if (status != EPA_OK)
        return exit_code(status, SIGINT);
    if (runs.run[0].x == NULL)
        return run_is_skipped(&runs.run[0], runs.run[0].refused.status)
                   ? EXIT_SKIPPED
                   : exit_code(runs.run[0].refused.status, SIGINT);
    shown.stop_fd = how.stop_fd;
    how.skips = runs.run[0].skips;
    observer = live_observe(live, &shown);
    result = run_experiment(runs.run[0].x, VERB_BENCH, &how, &observer);
    if (result.figures == NULL) {
        run_print_refusal(&runs.run[0], &runs.run[0].process_id, &result.error);
        return run_is_skipped(&runs.run[0], result.status) ? EXIT_SKIPPED
                                                           : exit_code(result.status, SIGINT);
    }
    code = pass_side_result(&runs.run[0], &result, fd);
    stop = stop_signals_read(how.stop_fd);
    if (stop != 0)
        output_stop();
    return stop != 0 && code == EXIT_OK ? exit_code(EPA_ERR_INTERRUPTED, stop) : code;
}

static enum epa_status start_side(const struct sides *s, uint32_t side, const sigset_t *mask,
                                  struct side_process *out, struct epa_error *err)
{
    pid_t parent = getpid();

    *out = (struct side_process){.fd = memfd_create("results", MFD_CLOEXEC)};
    if (out->fd < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "memfd_create: %s", strerror(errno));
    fflush(stdout);
    out->pid = fork();
    if (out->pid < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "fork: %s", strerror(errno));
    if (out->pid > 0)
        return EPA_OK;
    /* The parent forwards signals of the terminal, so a side receives each signal once. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || setpgid(0, 0) != 0)
        _exit(EXIT_INTERNAL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    _exit(run_side(s, side, out->fd));
}

/* Prints "compare --run: A (a.yaml) " and the message; the pair has failed. */
EPA_PRINTF(4, 5)
static void fail_side(struct sides *s, uint32_t side, int code, const char *fmt, ...)
{
    va_list args;

    if (s->code == EXIT_OK)
        s->code = code;
    fprintf(stderr, "epa2a: compare --run: %s (", side == 0 ? "A" : "B");
    text_print_clean(stderr, s->cli->arg[side]);
    fputs(") ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

/* Sends a signal to both sides. SIGCONT lets a stopped side receive it. */
static void stop_sides(struct sides *s, const struct side_process process[2], int number)
{
    for (uint32_t side = 0; side < 2; side++)
        if (process[side].pid > 0 && !process[side].ended) {
            kill(process[side].pid, number);
            kill(process[side].pid, SIGCONT);
        }
    if (s->stop_ns == 0)
        s->stop_ns = epa_now_ns();
}

/* Reports the signal that ended a side. */
static void report_death(struct sides *s, const struct side_process *p, uint32_t side,
                         const char *how, int number)
{
    fail_side(s, side, p->code, "(pid %d) %s by signal %d (%s); %s", (int)p->pid, how, number,
              strsignal(number),
              number == SIGKILL ? "the kernel may have run out of memory: `dmesg` shows it"
              : number == SIGINT || number == SIGTERM || number == SIGHUP
                  ? "repeat the comparison without this signal"
                  : "`epa2a bench` with this file alone shows the failure");
}

/* Reads the state of a side from the kernel, and reports its death. */
static void reap_side(struct sides *s, struct side_process *p, uint32_t side)
{
    int status = 0;
    pid_t got;

    while ((got = waitpid(p->pid, &status, WNOHANG | WUNTRACED | WCONTINUED)) == p->pid &&
           (WIFSTOPPED(status) || WIFCONTINUED(status)))
        p->stopped_ns = WIFSTOPPED(status) ? epa_now_ns() : 0;
    p->ended = got == p->pid || (got < 0 && errno == ECHILD);
    if (!p->ended)
        return;
    p->code = got == p->pid && WIFEXITED(status) ? WEXITSTATUS(status) : exit_code(EPA_ERR_DIED, 0);
    if (s->alternation != NULL)
        alternation_leave(s->alternation, side);
    if (s->code != EXIT_OK || s->stop_ns != 0)
        return;
    if (got == p->pid && WIFSIGNALED(status))
        report_death(s, p, side, "was killed", WTERMSIG(status));
    else if (p->code == exit_code(EPA_ERR_INTERRUPTED, SIGINT))
        report_death(s, p, side, "was ended", SIGINT);
    else if (p->code == exit_code(EPA_ERR_INTERRUPTED, SIGTERM))
        report_death(s, p, side, "was ended", SIGTERM);
    else
        s->code = p->code; /* the side has reported its failure */
}

/* Returns true if the side has ranks, and a signal has stopped every rank. */
static bool are_ranks_stopped(pid_t side)
{
    char path[64], line[512], *name_end;
    bool stopped = true;
    uint32_t n = 0;
    FILE *children, *stat;
    int pid;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)side, (int)side);
    children = fopen(path, "re");
    while (children != NULL && stopped && fscanf(children, "%d", &pid) == 1) {
        snprintf(path, sizeof(path), "/proc/%d/stat", pid);
        stat = fopen(path, "re");
        name_end =
            stat != NULL && fgets(line, sizeof(line), stat) != NULL ? strrchr(line, ')') : NULL;
        stopped = name_end != NULL && strncmp(name_end, ") T", 3) == 0;
        n++;
        if (stat != NULL)
            fclose(stat);
    }
    if (children != NULL)
        fclose(children);
    return stopped && n > 0;
}

/* Ranks report a stopped peer, unless every rank is stopped. After set-up the end of the budget limits
 * this case, so that no check disturbs a measurement. */
static void check_stopped_ranks(struct sides *s, struct side_process process[2])
{
    uint64_t now = epa_now_ns();

    if (now - s->checked_ns < STOPPED_CHECK_NS)
        return;
    s->checked_ns = now;
    for (uint32_t side = 0; side < 2; side++) {
        struct side_process *p = &process[side];
        bool stopped = !s->is_set_up && p->pid > 0 && !p->ended && are_ranks_stopped(p->pid);

        p->ranks_stopped_ns = !stopped ? 0 : p->ranks_stopped_ns != 0 ? p->ranks_stopped_ns : now;
    }
}

/* Kills a side that has reached a limit. */
static void kill_overdue_side(struct sides *s, struct side_process *p, uint32_t side)
{
    uint64_t now = epa_now_ns(), stop_end_ns = s->stop_ns + STOP_S * UINT64_C(1000000000);
    uint64_t stopped_ns = p->stopped_ns != 0 ? p->stopped_ns : p->ranks_stopped_ns;
    int code = exit_code(EPA_ERR_TIMEOUT, 0);

    if (s->stop_ns == 0 && s->code != EXIT_OK) /* the other side has failed and ends this one */
        return;
    if (s->stop_ns != 0 ? now < stop_end_ns
                        : now < s->end_ns && (stopped_ns == 0 || now - stopped_ns < s->timeout_ns))
        return;
    if (s->stop_ns == 0 && stopped_ns != 0)
        fail_side(
            s, side, code,
            "(pid %d) %s stopped by a signal for %.3g s (timeout); resume with SIGCONT, or use a "
            "larger timeout",
            (int)p->pid, p->stopped_ns != 0 ? "was" : "has ranks that were all",
            (double)s->timeout_ns * 1e-9);
    else if (s->stop_ns == 0)
        fail_side(
            s, side, code,
            "(pid %d) did not end within --budget, timeout and %d s; use a larger --budget or "
            "fewer bench.iterations",
            (int)p->pid, s->is_set_up ? LAST_S : SET_UP_S);
    kill(p->pid, SIGKILL); /* the ranks die with this process */
    p->stopped_ns = p->ranks_stopped_ns = 0;
}

/* After set-up of both sides, replaces the limit of set-up by the end of the budget. */
static void limit_pair(struct sides *s)
{
    uint64_t now = epa_now_ns(), end = now > s->budget_end_ns ? now : s->budget_end_ns;

    if (s->is_set_up || s->alternation == NULL || !alternation_is_here(s->alternation, 0) ||
        !alternation_is_here(s->alternation, 1))
        return;
    s->is_set_up = true;
    end += s->timeout_ns + LAST_S * UINT64_C(1000000000);
    s->end_ns = end < s->end_ns ? end : s->end_ns;
}

/* Reports the signal that ends the command, since both sides may be killed without a message. */
static void report_signal(struct sides *s, int number)
{
    if (s->stop_ns == 0)
        fprintf(stderr, "epa2a: compare --run: interrupted by signal %d (%s)\n", number,
                strsignal(number));
}

/* Waits until both sides have ended, or until side `here` is set up if here >= 0. The failure of one
 * side ends the other. Each wait has a time limit. */
static void watch_sides(struct sides *s, struct side_process process[2], int here)
{
    struct pollfd fd = {.fd = s->signals, .events = POLLIN};
    uint64_t polled_ns = 0, pause_ns;
    bool runs = true;

    while (runs) {
        struct signalfd_siginfo info = {0};

        pause_ns = epa_pause_ns(&polled_ns, epa_now_ns(), PAUSE_S * UINT64_C(1000000000));
        s->end_ns += pause_ns;
        s->budget_end_ns += pause_ns;
        limit_pair(s);
        check_stopped_ranks(s, process);
        s->stop_ns += s->stop_ns != 0 ? pause_ns : 0;

        while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            if (info.ssi_signo != SIGCHLD) {
                output_stop();
                report_signal(s, (int)info.ssi_signo);
                if (s->code == EXIT_OK)
                    s->code = exit_code(EPA_ERR_INTERRUPTED,
                                        info.ssi_signo == SIGHUP ? SIGTERM : (int)info.ssi_signo);
                stop_sides(s, process, (int)info.ssi_signo);
            }
        runs = false;
        for (uint32_t side = 0; side < 2; side++) {
            struct side_process *p = &process[side];

            if (p->pid > 0 && !p->ended)
                reap_side(s, p, side);
            if (p->pid > 0 && !p->ended)
                kill_overdue_side(s, p, side);
            runs = runs || (p->pid > 0 && !p->ended);
        }
        if (s->code != EXIT_OK && s->stop_ns == 0)
            stop_sides(s, process, SIGTERM);
        if (here >= 0 && s->alternation != NULL &&
            alternation_is_here(s->alternation, (uint32_t)here))
            return;
        if (runs)
            (void)poll(&fd, 1, here < 0 ? CHECK_MS : SETUP_POLL_MS);
    }
}

/* Reads the result of a side from its file. */
static int read_side(struct sides *s, uint32_t side, int fd, struct results *out)
{
    if (side_result_read(fd, s->cli->arg[side], out))
        return EXIT_OK;
    fail_side(s, side, EXIT_INTERNAL, "has ended without a result");
    return EXIT_INTERNAL;
}

/* Takes a turn of both sides. Side `first` starts first. If other programs use the cores, both sides
 * start at the same time, since their start takes long. */
static int run_pair(struct sides *s, uint32_t first, struct results out[2])
{
    struct side_process process[2] = {{.fd = -1}, {.fd = -1}};
    struct epa_error err = {EPA_OK, ""};
    uint64_t start = epa_now_ns();
    enum epa_status status = EPA_OK;
    sigset_t signals, mask;
    int code;

    out[0] = out[1] = (struct results){0};
    s->code = EXIT_OK;
    s->stop_ns = 0;
    s->is_set_up = false;
    s->end_ns = start + s->budget_ns + s->timeout_ns + SET_UP_S * UINT64_C(1000000000);
    stop_signals_find(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &mask);
    output_guard();
    s->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->alternation != NULL)
        alternation_begin(s->alternation, s->block, first, s->limit_ns);
    for (uint32_t i = 0; i < 2 && status == EPA_OK && s->code == EXIT_OK; i++) {
        uint32_t side = (i + first) % 2;

        status = start_side(s, side, &mask, &process[side], &err);
        if (status == EPA_OK && i == 0 && (s->permille == 500 || s->alternation == NULL))
            watch_sides(s, process, (int)side);
    }
    if (status != EPA_OK)
        s->code = cli_fail(&err);
    watch_sides(s, process, -1);
    close(s->signals);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    code = s->code;
    for (uint32_t side = 0; side < 2; side++) {
        if (code == EXIT_OK)
            code = read_side(s, side, process[side].fd, &out[side]);
        if (process[side].fd >= 0)
            close(process[side].fd);
    }
    s->turns.spent_ns += epa_now_ns() - start;
    return code;
}

static int take_pair(void *arg, uint32_t first, double median[][2], double *figure)
{
    struct sides *s = arg;
    struct results results[2];
    uint32_t block = s->alternation != NULL && s->permille == 500 ? s->block : 0;
    int code = run_pair(s, first, results);

    for (uint32_t i = 0; i < s->turns.n_stages && code == EXIT_OK; i++) {
        const struct run_stage *a = results_stage(&results[0].run[0], s->stage[i]);
        const struct run_stage *b = results_stage(&results[1].run[0], s->stage[i]);

        if (a == NULL || b == NULL) {
            fail_side(s, a == NULL ? 0 : 1, EXIT_RESOURCE, "has no stage '%s' in this turn",
                      s->stage[i]);
            code = EXIT_RESOURCE;
            break;
        }
        for (uint32_t side = 0; side < 2; side++)
            median[i][side] =
                stage_percentile(&results[side], s->stage[i], s->permille, &s->samples);
        figure[i] = turns_figure(&(struct compare_run){a->sample, a->n},
                                 &(struct compare_run){b->sample, b->n}, block, s->permille);
    }
    for (uint32_t side = 0; side < 2; side++)
        results_free(&results[side]);
    return code;
}

/* Selects the stages that both sides have. */
static enum epa_status choose_stages(struct sides *s, struct arena *arena, struct epa_error *err)
{
    const struct results_run *a = &s->first[0].run[0], *b = &s->first[1].run[0];
    const struct run_stage *total = results_total(a);
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n_stages && n < TURNS_STAGES; i++) {
        if (a->stage[i].n == 0 || results_stage(b, a->stage[i].name) == NULL)
            continue;
        if (&a->stage[i] == total)
            s->turns.total = n;
        s->stage[n++] = a->stage[i].name;
    }
    turns_init(&s->turns, arena, n);
    if (total == NULL || n == 0 || strcmp(s->stage[s->turns.total], total->name) != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s and %s have no total that both measure",
                        s->cli->arg[0], s->cli->arg[1]);
    return EPA_OK;
}

/* Sets the length of turns from the duration of the first pair, so that the budget allows several
 * rounds. Start and end of the ranks are a part of each round. */
static void set_turn_length(struct sides *s, uint64_t pair_ns, uint64_t budget_ns)
{
    const char *total = s->stage[s->turns.total];
    double iterations = s->first[0].run[0].iterations, fastest;
    double part = (double)budget_ns / ROUNDS_WANTED / (double)pair_ns;
    uint64_t aside, rounds, round, n;

    if (s->alternation == NULL) {
        if (part < 1 && iterations > PAIR_ITERATIONS_LEAST)
            s->iterations = (uint32_t)fmax(PAIR_ITERATIONS_LEAST, iterations * part);
        return;
    }
    aside = pair_ns - s->alternation->spent_ns;
    rounds = budget_ns / (3 * aside);
    rounds = rounds < PAIR_ROUNDS_LEAST ? PAIR_ROUNDS_LEAST
             : rounds < ROUNDS_WANTED   ? rounds
                                        : ROUNDS_WANTED;
    round = budget_ns / rounds;
    fastest = fmin(stage_percentile(&s->first[0], total, TURNS_FASTEST, &n),
                   stage_percentile(&s->first[1], total, TURNS_FASTEST, &n));
    s->limit_ns = round > 2 * aside ? round - aside : round / 2;
    s->block = (uint32_t)fmin(BLOCK_MOST, BLOCK_NS / fastest);
    s->block = (uint32_t)fmax(BLOCK_LEAST, fmin(s->block, iterations / BLOCKS));
}

/* Returns true if other programs use the cores. Uses the first turns, which are not compared, so that
 * the choice of the quantile does not depend on the compared samples. */
static bool is_busy(const struct sides *s)
{
    const char *total = s->stage[s->turns.total];
    bool busy = true;

    for (uint32_t side = 0; side < 2; side++) {
        uint64_t n;

        busy = busy && turns_are_busy(stage_percentile(&s->first[side], total, 500, &n),
                                      stage_percentile(&s->first[side], total, TURNS_FASTEST, &n));
    }
    return busy;
}

/* Takes all turns, adds the rows of the comparison and writes a sentence about the turns to `taken`.
 * Returns the exit code of the turn that failed. */
static int run_turns(struct sides *s, struct compared *compared, char taken[TAKEN],
                     struct epa_error *err)
{
    struct turns *t = &s->turns;
    uint64_t start = epa_now_ns(), budget_ns = s->budget_ns;
    FILE *notes = cli_has_stdout(s->cli) ? stderr : stdout;
    enum compare_verdict verdict;
    int code = EXIT_OK;

    machine_facts_read("", &s->machine);
    s->budget_end_ns = start + budget_ns;
    s->permille = 500;
    s->block = FIRST_BLOCK;
    s->limit_ns = budget_ns / ROUNDS_WANTED;
    code = run_pair(s, 0, s->first);
    if (code != EXIT_OK)
        return code;
    fputs("# epa2a compare: A ", notes);
    text_print_clean(notes, s->cli->arg[0]);
    fputs(", B ", notes);
    text_print_clean(notes, s->cli->arg[1]);
    fputs(", in turns\n", notes);
    if (compare_check(s->cli->compare.different, notes, &s->first[0], &s->first[1], err) !=
            EPA_OK ||
        choose_stages(s, compared->arena, err) != EPA_OK)
        return exit_code(err->status, 0);
    t->spent_ns = epa_now_ns() - start;
    set_turn_length(s, t->spent_ns, budget_ns);
    s->permille = is_busy(s) ? TURNS_FASTEST : 500;
    code = turns_take(t, budget_ns, &verdict);
    if (t->rounds == 0 && code == EXIT_OK) {
        epa_fail_key(
            err, EPA_ERR_CONFIG, "bench.iterations",
            "--budget: a turn takes %.1f s, and a round has two turns: use a larger --budget "
            "or fewer bench.iterations",
            (double)t->spent_ns / 2e9);
        return EXIT_USAGE;
    }
    if (t->rounds == 0)
        return code;
    for (uint32_t i = 0; i < t->n_stages; i++) {
        struct comparison x = {0};

        verdict = turns_result(t, i, &x);
        compared_add(compared, &s->first[0].run[0], s->stage[i], &x, verdict, i == t->total);
    }
    snprintf(taken, TAKEN, "%" PRIu64 " samples a turn, %u turns in %.1f s%s", s->samples,
             2 * t->rounds, (double)(epa_now_ns() - start) / 1e9,
             s->permille == 500 ? ""
                                : "; other programs use the cores, so the fastest 1 % of a turn "
                                  "counts instead of its median");
    compared->turns =
        (struct compared_turns){t->rounds, s->permille / 10.0, s->alternation != NULL, taken};
    return code;
}

int compare_turns(const struct cli *cli)
{
    struct arena *arena = arena_create();
    struct sides s = {.cli = cli,
                      .budget_ns = cli->budget_ns != 0 ? cli->budget_ns : CLI_BUDGET_NS,
                      .turns = {.take = take_pair,
                                .arg = &s,
                                .threshold = cli->threshold,
                                .alpha = cli->alpha,
                                .progress = progress_is_on(cli)}};
    struct compared compared = {.a = cli->arg[0],
                                .b = cli->arg[1],
                                .threshold = cli->threshold,
                                .alpha = cli->alpha,
                                .figure = figure_default(),
                                .arena = arena};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = check_sides(&s, &err);
    char taken[TAKEN] = "";
    int code = status == EPA_OK ? run_turns(&s, &compared, taken, &err) : exit_code(status, 0);
    bool slower = compared_is_slower(&compared);

    if (*taken != '\0' && err.status == EPA_OK)
        (void)compare_print(cli, &compared, true, &err);
    if (err.status != EPA_OK)
        (void)cli_fail(&err);
    if (code == EXIT_OK && err.status != EPA_OK)
        code = exit_code(err.status, 0);
    if (code == EXIT_OK && slower)
        code = EXIT_SLOWER;
    for (uint32_t side = 0; side < 2; side++)
        results_free(&s.first[side]);
    alternation_destroy(s.alternation);
    registry_destroy(s.registry);
    arena_destroy(arena);
    return code;
}
