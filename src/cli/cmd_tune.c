/* `epa2a tune FILE`: finds the fastest values of the options with candidates (epa2a/plugin.h,
 * `tune`). This file takes the turns and runs the command; tune_search.c has the search, tune.c the
 * journal, the candidates and the report. */
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
#include "base/file.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "report/result.h"
#include "report/findings.h"
#include "config/option_text.h"
#include "config/experiment_show.h"

enum { LEAST_BUDGET_NS = 1000 }; /* budget of a task after other tasks have spent all */

/* Takes a turn in a session of its own and returns its result. The session measures only the total
 * of an iteration. */
static json_t *measure_setting(struct tune_search *s, uint32_t base, const char **set, uint32_t n,
                               bool verify)
{
    char why[CLI_FAILURE] = "";
    const struct runs *runs = tune_read_runs(s, s->base[base].text, set, n, why);
    struct tune_kept *kept = s->kept;
    struct epa_error err = {EPA_OK, ""};
    struct session *session = NULL;
    struct arena *arena = arena_create();
    double median = NAN, fastest = NAN, *sample;
    enum epa_status status = EPA_ERR_CONFIG;
    uint64_t samples = 0;
    int signal = 0;

    if (runs != NULL)
        status = session_create_on(NULL, runs->run[0].x, verify ? VERB_VERIFY : VERB_BENCH,
                                   &session, &err);
    if (status == EPA_OK) {
        session->scope = BENCH_TOTAL;
        status = session_run(session, s->process.signals, &err);
    }
    if (status == EPA_OK && !verify) {
        samples = result_samples(session, arena, &sample);
        median = stats_quantile(sample, samples, 500);
        fastest = stats_quantile(sample, samples, TURNS_FASTEST);
    }
    if (err.status != EPA_OK)
        snprintf(why, sizeof(why), "%.*s", CLI_FAILURE - 1, err.text);
    if (status == EPA_ERR_INTERRUPTED)
        signal = live_read_stop(s->process.signals);
    if (!session_in_use(session)) {
        session_destroy(session);
        runs_finish(&kept->runs);
        s->kept = kept->next;
    }
    arena_destroy(arena);
    return json_object_of("code", json_integer(exit_code(status, signal != 0 ? signal : SIGINT)),
                          "error", json_text(why), "median_ns", json_whole(median), "fastest_ns",
                          json_whole(fastest), "samples", json_count(samples), NULL);
}

/* ---- turns of one process ---- */

/* On GPUs the start of CUDA takes most of the time of a turn. Ranks are therefore threads of one
 * process that serves all turns; the time of a graph does not depend on the process that launches
 * it. The process ends after a failed turn, since a kernel may hold its resources until then. */

/* Stores in set[2] the settings that replace the launcher of a base by thread. */
static void set_thread_launcher(const struct experiment *x, struct arena *arena, const char **set)
{
    const struct epa_options *table = &x->launcher.plugin->options;
    text_auto pin = {0};

    option_text(option_find(table, "pin"), x->launcher.config, &pin);
    set[0] = "launcher=thread";
    set[1] = arena_printf(arena, "launcher.pin=%s", pin.data);
}

static bool can_be_threads(struct tune_search *s)
{
    const char *set[2];
    char why[CLI_FAILURE];

    for (uint32_t i = 0; i < s->n_bases; i++) {
        const struct experiment *x = s->base[i].x;

        if (is_on_hosts(x) || strcmp(x->launcher.plugin->name, "fork") != 0 ||
            (x->ranks_per_node != 0 && x->ranks_per_node < x->ranks) ||
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

static void end_turn_process(struct tune_process *p)
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
        now = live_read_stop(p->signals);
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
        end_turn_process(p);
    return out;
}

/* ---- a turn ---- */

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

/* Implements tune_search.take: reads the turn from the journal or takes it. */
static int replay_or_measure_turn(struct tune_search *s, const struct tune_setting *x,
                                  enum tune_verb verb, struct tune_turn *out)
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

/* ---- the command ---- */

static enum epa_status prepare_search(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    json_auto_t *ids = json_array(), *keys = json_array();
    json_auto_t *head =
        json_object_of("version", json_text(EPA2A_VERSION), "experiments", json_incref(ids), "keys",
                       json_incref(keys), "budget_ns", json_count(s->t.budget_ns), NULL);
    enum epa_status status = turns_check_alone("tune", &s->err);

    if (status == EPA_OK && s->registry == NULL)
        status = registry_create(cli->plugin_path, &s->registry, &s->err);
    if (status == EPA_OK)
        status = tune_read_bases(s);
    if (status == EPA_OK) {
        char why[CLI_FAILURE];

        s->delivers = tune_delivered(s, s->base[0].x);
        if (tune_add_setting(s, 0, NULL, 0, NULL, 0) == NULL)
            status = epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", cli->arg[0],
                              tune_read_runs(s, s->base[0].text, NULL, 0, why) == NULL ? why : "");
        s->t.threads = can_be_threads(s);
    }
    for (uint32_t i = 0; i < s->n_bases; i++)
        json_array_append_new(ids, json_text(s->base[i].x->id));
    for (uint32_t i = 0; i < cli->n_keys; i++)
        json_array_append_new(keys, json_text(cli->keys[i]));
    for (uint32_t i = 0; i < cli->n_across; i++)
        json_array_append_new(keys, json_text(cli->across[i]));
    if (s->task == 0 && json_array_size(s->tasks) > 1) /* each task has a journal of its own */
        return status == EPA_OK
                   ? tune_journals_check(cli, (uint32_t)json_array_size(s->tasks), &s->err)
                   : status;
    return status == EPA_OK ? tune_journal_open(&s->journal, cli, s->task, head, &s->err) : status;
}

/* Adds the fastest experiment, as `config show` prints it. */
static enum epa_status add_best_experiment(struct tune_search *s, struct text *yaml)
{
    const struct tune_setting *x = s->t.is_better ? s->t.best : s->t.setting[0];
    char why[CLI_FAILURE] = "";
    const struct runs *runs = tune_read_runs(s, s->base[x->base].whole, x->set, x->n, why);

    if (runs == NULL)
        return epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", x->name, why);
    experiment_show(runs->run[0].x, false, yaml);
    return EPA_OK;
}

/* Writes the file of --out. */
static enum epa_status write_out(const struct cli *cli, const struct text *text,
                                 struct epa_error *err)
{
    enum epa_status status = file_write("--out", cli->out, cli->force, text, err);

    if (status == EPA_OK && strcmp(cli->out, "-") != 0)
        fprintf(cli_has_stdout(cli) ? stderr : stdout, "# written: %s\n", cli->out);
    return status;
}

/* Returns standard output for the table, or standard error if a document uses standard output. */
static FILE *table_file(const struct cli *cli)
{
    bool taken = cli_has_stdout(cli) || (cli->out != NULL && strcmp(cli->out, "-") == 0);

    return taken ? stderr : stdout;
}

static void search_init(struct tune_search *s, const struct cli *cli)
{
    *s = (struct tune_search){
        .t = {.cli = cli,
              .arena = arena_create(),
              .not_tried = json_array(),
              .budget_ns = cli->budget_ns != 0 ? cli->budget_ns : CLI_BUDGET_NS},
        .take = replay_or_measure_turn,
        .process = {.signals = -1},
        .journal = {.fd = -1, .lock_fd = -1}};
    s->t.setting = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(struct tune_setting *));
}

static void search_finish(struct tune_search *s)
{
    end_turn_process(&s->process);
    tune_journal_close(&s->journal);
    json_decref(s->t.not_tried);
    json_decref(s->shape);
    json_decref(s->tasks);
    json_decref(s->delivers);
    for (struct tune_kept *k = s->kept; k != NULL; k = k->next)
        runs_finish(&k->runs);
    arena_destroy(s->t.arena);
}

static int report_task(struct tune_search *s, int code)
{
    const struct cli *cli = s->t.cli;
    text_auto yaml = {0}, out = {0};
    enum epa_status status;

    tune_print(table_file(cli), &s->t);
    status = cli_write_json(cli, tune_json(&s->t), &s->err);
    if (cli->out != NULL && status == EPA_OK && s->t.stopped == 0) {
        status = add_best_experiment(s, &yaml);
        if (status == EPA_OK) {
            tune_yaml(&s->t, &yaml, &out);
            status = write_out(cli, &out, &s->err);
        }
    }
    return code == EXIT_OK ? exit_code(status, SIGINT) : code;
}

/* Searches task i of first->tasks with an equal share of the remaining budget, and adds it to `all`.
 * Sets *stops if the search was interrupted. */
static int search_task(struct tune_search *first, uint32_t i, struct tune_tasks *all, bool *stops)
{
    const json_t *task = json_array_get(first->tasks, i);
    uint64_t left = all->budget_ns > all->spent_ns ? all->budget_ns - all->spent_ns : 0;
    uint32_t remaining = (uint32_t)json_array_size(first->tasks) - i;
    struct tune_search s;
    text_auto yaml = {0};
    int code;

    search_init(&s, first->t.cli);
    s.registry = first->registry;
    s.process.signals = first->process.signals;
    s.task = i + 1;
    s.shape = json_incref(json_object_get(task, "shape"));
    s.t.budget_ns = left / remaining + LEAST_BUDGET_NS;
    code = prepare_search(&s) == EPA_OK ? tune_search(&s) : exit_code(s.err.status, SIGINT);
    *stops = s.t.stopped != 0 || tune_is_interrupted(code);
    if (s.err.status == EPA_OK && code == EXIT_OK && !*stops)
        (void)add_best_experiment(&s, &yaml);
    if (s.err.status != EPA_OK || code == EXIT_OK || s.t.stopped != 0)
        tune_tasks_add(all, &s.t, json_text_at(task, "name"), &yaml,
                       s.err.status != EPA_OK ? s.err.text : NULL);
    if (s.err.status != EPA_OK)
        (void)cli_fail(&s.err);
    search_finish(&s);
    return code;
}

static int search_tasks(struct tune_search *first)
{
    const struct cli *cli = first->t.cli;
    struct tune_tasks all = {
        .rows = json_array(), .documents = json_array(), .budget_ns = first->t.budget_ns};
    struct epa_error err = {EPA_OK, ""};
    text_auto out = {0};
    bool stops = false;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < json_array_size(first->tasks) && !stops; i++) {
        int one = search_task(first, i, &all, &stops);

        code = code == EXIT_OK ? one : code;
    }
    tune_tasks_print(table_file(cli), &all, cli->arg[0]);
    if (cli_write_json(cli, tune_tasks_json(&all, cli->arg[0], stops), &err) == EPA_OK &&
        cli->out != NULL && all.runs.bytes > 0 && !stops) {
        tune_tasks_yaml(&all, cli->arg[0], &out);
        (void)write_out(cli, &out, &err);
    }
    json_decref(all.rows);
    json_decref(all.documents);
    text_free(&all.runs);
    return err.status != EPA_OK ? cli_fail(&err) : code;
}

int cmd_tune(const struct cli *cli)
{
    struct tune_search s;
    enum epa_status status;
    sigset_t stops;
    int code;

    live_catch(&stops);
    search_init(&s, cli);
    status = prepare_search(&s);
    if (status == EPA_OK)
        status = live_catch_stops(&stops, &s.process.signals, &s.err);
    code = exit_code(status, SIGINT);
    if (status == EPA_OK && json_array_size(s.tasks) > 1) {
        code = search_tasks(&s);
    } else if (status == EPA_OK) {
        code = tune_search(&s);
        if (s.err.status == EPA_OK && (code == EXIT_OK || s.t.stopped != 0))
            code = report_task(&s, code);
    }
    if (s.err.status != EPA_OK)
        (void)cli_fail(&s.err);
    search_finish(&s);
    registry_destroy(s.registry);
    return code;
}
