/* Takes the turns of a search: each is a bench or a verify of one setting.
 *
 * On GPUs the start of CUDA takes most of the time of a turn. Ranks are therefore threads of one
 * process that serves all turns; the time of a graph does not depend on the process that launches
 * it. The process ends after a failed turn, since a kernel may hold its resources until then. */
#include "cli/tune_turn.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "run/stop_signals.h"
#include "cli/tune.h"
#include "cli/tune_candidates.h"
#include "cli/tune_journal.h"
#include "cli/tune_search.h"
#include "config/option_text.h"
#include "options/option.h"
#include "report/result.h"
#include "run/run.h"

/* Takes a turn and returns its result. The turn measures only the total of an iteration. */
static json_t *measure_setting(struct tune_search *s, uint32_t base, const char **set, uint32_t n,
                               bool verify)
{
    const struct run_how how = {.scope = BENCH_TOTAL, .stop_fd = s->process.signals};
    char why[RUNS_FAILURE] = "";
    const struct runs *runs = tune_read_runs(s, s->base[base].text, set, n, why);
    struct tune_kept *kept = s->kept;
    struct result result = {.status = EPA_ERR_CONFIG};
    struct arena *arena = arena_create();
    double median = NAN, fastest = NAN, *sample;
    uint64_t samples = 0;

    if (runs != NULL)
        result = run_experiment(runs->run[0].x, verify ? VERB_VERIFY : VERB_BENCH, &how, NULL);
    if (result.status == EPA_OK && !verify) {
        samples = result_samples(result.session, arena, &sample);
        median = stats_quantile(sample, samples, 500);
        fastest = stats_quantile(sample, samples, TURNS_FASTEST);
    }
    if (result.error.status != EPA_OK)
        snprintf(why, sizeof(why), "%.*s", RUNS_FAILURE - 1, result.error.text);
    if (result_finish(&result)) {
        runs_finish(&kept->runs);
        s->kept = kept->next;
    }
    arena_destroy(arena);
    return json_object_of(
        "code", json_integer(exit_code(result.status, result.signal != 0 ? result.signal : SIGINT)),
        "error", json_text(why), "median_ns", json_whole(median), "fastest_ns", json_whole(fastest),
        "samples", json_count(samples), NULL);
}

/* Stores in set[2] the settings that replace the launcher of a base by thread. */
static void set_thread_launcher(const struct experiment *x, struct arena *arena, const char **set)
{
    const struct epa_options *table = &x->launcher.plugin->options;
    text_auto pin = {0};

    option_text(option_find(table, "pin"), x->launcher.config, &pin);
    set[0] = "launcher=thread";
    set[1] = arena_printf(arena, "launcher.pin=%s", pin.data);
}

bool tune_can_be_threads(struct tune_search *s)
{
    const char *set[2];
    char why[RUNS_FAILURE];

    for (uint32_t i = 0; i < s->n_bases; i++) {
        const struct experiment *x = s->base[i].x;

        if (is_on_hosts(x) || strcmp(x->launcher.plugin->name, "fork") != 0 ||
            (x->problem.ranks_per_node != 0 && x->problem.ranks_per_node < x->problem.ranks) ||
            (x->bench.clock != CLOCK_AUTO && x->bench.clock != CLOCK_GRAPH))
            return false;
        set_thread_launcher(x, s->t.arena, set);
        if (tune_read_runs(s, s->base[i].text, set, 2, why) == NULL)
            return false;
    }
    return true;
}

/* Serves requests {"base", "set", "verify"} from the search process until it closes the socket. */
static int serve_requests(struct tune_search *s, int fd)
{
    static char order[1 << 16];
    ssize_t bytes;

    /* With lazy loading the first launch of a kernel may wait for kernels of other threads, which
     * wait for this kernel. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    while ((bytes = recv(fd, order, sizeof(order), 0)) > 0) {
        json_auto_t *asked = json_loadb(order, (size_t)bytes, 0, NULL), *out = NULL;
        const json_t *list = json_object_get(asked, "set");
        uint32_t n = (uint32_t)json_array_size(list),
                 base = (uint32_t)json_integer_value(json_object_get(asked, "base"));
        const char **set = memory_alloc(n + 2, sizeof(*set));
        text_auto reply = {0};

        set_thread_launcher(s->base[base].x, s->t.arena, set);
        for (uint32_t i = 0; i < n; i++)
            set[2 + i] = json_string_value(json_array_get(list, i));
        out = measure_setting(s, base, set, n + 2, json_is_true(json_object_get(asked, "verify")));
        free(set);
        json_write(&reply, out, JSON_COMPACT | JSON_DIGITS);
        if (send(fd, reply.data, reply.bytes, MSG_NOSIGNAL) < 0)
            break;
    }
    return EXIT_OK;
}

void tune_end_process(struct tune_process *p)
{
    if (p->pid == 0)
        return;
    close(p->fd);
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
}

static enum epa_status start_turn_process(struct tune_search *s)
{
    struct tune_process *p = &s->process;
    pid_t parent = getpid();
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) != 0)
        return epa_fail(&s->err, EPA_ERR_SYSTEM, "a socket for turns: %s", strerror(errno));
    fflush(stdout);
    p->pid = fork();
    if (p->pid == 0) {
        close(fd[0]);
        /* The parent forwards signals of the terminal. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || setpgid(0, 0) != 0)
            _exit(EXIT_INTERNAL);
        _exit(serve_requests(s, fd[1]));
    }
    close(fd[1]);
    p->fd = fd[0];
    if (p->pid > 0)
        return EPA_OK;
    p->pid = 0;
    close(p->fd);
    return epa_fail(&s->err, EPA_ERR_SYSTEM, "fork: %s", strerror(errno));
}

/* Calls measure_setting() in the process of all turns. NULL: that process could not be started. */
static json_t *request_measurement(struct tune_search *s, uint32_t base, const char **set,
                                   uint32_t n, bool verify)
{
    struct tune_process *p = &s->process;
    json_t *list = json_array(), *out;
    json_auto_t *order =
        json_object_of("base", json_count(base), "set", list, "verify", json_boolean(verify), NULL);
    static char reply[1 << 16];
    text_auto text = {0};
    ssize_t bytes;
    int signal = 0, now;

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_text(set[i]));
    json_write(&text, order, JSON_COMPACT);
    if (p->pid == 0 && start_turn_process(s) != EPA_OK)
        return NULL;
    bytes = send(p->fd, text.data, text.bytes, MSG_NOSIGNAL);
    while (bytes > 0) {
        struct pollfd fd[2] = {{.fd = p->fd, .events = POLLIN},
                               {.fd = p->signals, .events = POLLIN}};

        (void)poll(fd, 2, -1);
        now = stop_signals_read(p->signals);
        if (now != 0)
            kill(p->pid, signal = now);
        if (fd[0].revents == 0)
            continue;
        bytes = recv(p->fd, reply, sizeof(reply), 0);
        break;
    }
    out = bytes > 0 ? json_loadb(reply, (size_t)bytes, 0, NULL) : NULL;
    if (out == NULL) {
        enum epa_status how = signal != 0 ? EPA_ERR_INTERRUPTED : EPA_ERR_DIED;

        out = json_object_of("code", json_integer(exit_code(how, signal)), "error",
                             json_text("the process of the ranks died"), NULL);
    }
    if (json_integer_value(json_object_get(out, "code")) != EXIT_OK)
        tune_end_process(p);
    return out;
}

/* Takes a turn and returns its line for the journal. NULL: the turn was interrupted or could not
 * start; *code is the exit code. */
static json_t *measure_turn(struct tune_search *s, const struct tune_setting *x,
                            enum tune_verb verb, const json_t *what, int *code)
{
    const struct experiment *file = s->base[0].x;
    bool verify = verb == TUNE_VERIFY;
    bool may_stop = file->bench.arrivals == ARRIVALS_CLOSED && file->bench.min_time_ns == 0;
    const char **set = arena_alloc(s->t.arena, (x->n + 5) * sizeof(*set));
    uint32_t n = x->n;
    uint64_t start = epa_now_ns();
    json_t *turn;

    memcpy(set, x->set, n * sizeof(*set));
    if (verify) {
        set[n++] = arena_printf(s->t.arena, "verify.iterations=%d", TUNE_VERIFIED);
    } else {
        set[n++] = verb == TUNE_CHECKED ? "bench.check=true" : "bench.check=false";
        if (may_stop)
            set[n++] = arena_printf(s->t.arena, "bench.max_time=%" PRIu64 "ns", s->longest_ns);
        set[n++] = arena_printf(s->t.arena, "bench.iterations=%u", s->iterations);
        set[n++] = arena_printf(s->t.arena, "bench.warmup=%u", s->warmup);
    }
    turn = (s->t.threads ? request_measurement : measure_setting)(s, x->base, set, n, verify);
    *code = turn != NULL ? (int)json_integer_value(json_object_get(turn, "code")) : EXIT_RESOURCE;
    if (turn == NULL || tune_is_interrupted(*code)) {
        json_decref(turn);
        return NULL;
    }
    json_object_set_new(turn, "what", json_deep_copy(what));
    json_object_set_new(turn, "took_ns", json_count(epa_now_ns() - start));
    return turn;
}

int tune_take_turn(struct tune_search *s, const struct tune_setting *x, enum tune_verb verb,
                   struct tune_turn *out)
{
    static const char *const name[] = {"bench", "check", "verify"};
    bool verify = verb == TUNE_VERIFY;
    json_t *set = json_array(), *what, *made = NULL;
    const json_t *turn = NULL;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < x->n; i++)
        json_array_append_new(set, json_text(x->set[i]));
    what = json_object_of("verb", json_text(name[verb]), "base", json_text(s->base[x->base].name),
                          "set", set, "iterations",
                          json_count(verify ? TUNE_VERIFIED : s->iterations), NULL);
    if (tune_journal_next(&s->journal, what, &turn, &s->err) == EPA_OK && turn == NULL) {
        turn = made = measure_turn(s, x, verb, what, &code);
        if (turn != NULL)
            (void)tune_journal_add(&s->journal, turn, &s->err);
    }
    if (turn != NULL) {
        const char *error = json_text_at(turn, "error");

        code = (int)json_integer_value(json_object_get(turn, "code"));
        *out = (struct tune_turn){
            .median_ns = json_number_at(turn, "median_ns"),
            .fastest_ns = json_number_at(turn, "fastest_ns"),
            .took_ns = (uint64_t)json_integer_value(json_object_get(turn, "took_ns")),
            .samples = (uint64_t)json_integer_value(json_object_get(turn, "samples")),
            .why = arena_printf(s->t.arena, "%s: %s", verify ? "verify" : "bench",
                                *error != '\0' ? error : "it failed")};
        if (!verify && code == EXIT_OK && !(out->median_ns > 0))
            code = EXIT_INTERNAL;
    }
    json_decref(what);
    json_decref(made);
    return s->err.status != EPA_OK ? exit_code(s->err.status, SIGINT) : code;
}
