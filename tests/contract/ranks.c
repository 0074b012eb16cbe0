/* Implements ranks.h. */
#include "ranks.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>

#include "base/memory.h"
#include "config/options.h"
#include "config/diag.h"
#include "config/yaml.h"
#include "launch/program_registry.h"

enum { PART = 65536 };

static const uint64_t ROUNDS_NS = 2000000000u;

struct call {
    const struct subject *subject;
    const struct ranks *ranks;
    struct shared *shared;
};

bool claim(struct rank *r, bool holds, const char *fmt, ...)
{
    char text[900];
    va_list args;

    if (holds)
        return true;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (__atomic_fetch_add(&r->shared->broken, 1, __ATOMIC_RELAXED) == 0) {
        snprintf(r->shared->text, sizeof(r->shared->text), "rank %u of %u: %s", r->me, r->size,
                 text);
        r->boot->abort(r->boot); /* ends the waits of the other ranks */
    }
    return false;
}

bool works(struct rank *r, enum epa_status status)
{
    struct epa_error err = {EPA_OK, ""};

    if (status == EPA_OK)
        return true;
    r->t->ops->explain(r->t, &err);
    return claim(r, false, "status %d: %s", status, err.text);
}

bool explains(struct rank *r, const char *words)
{
    struct epa_error err = {EPA_OK, ""};

    r->t->ops->explain(r->t, &err);
    return claim(r, err.status != EPA_OK && strstr(err.text, words) != NULL,
                 "\"%s\" is not in \"%s\"", words, err.text);
}

bool awaits(struct rank *r, uint32_t rank)
{
    struct epa_error err = {EPA_OK, ""};

    r->t->ops->explain(r->t, &err);
    return claim(r, err.n_awaited == 1 && err.awaited[0] == rank,
                 "%u awaited ranks, the first is %u, not %u: \"%s\"", err.n_awaited, err.awaited[0],
                 rank, err.text);
}

uint64_t draw(struct rank *r, uint64_t n)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (r->random >> 20) % n;
}

bool put(struct rank *r, uint64_t dst, const void *src, size_t bytes, uint32_t peer)
{
    enum epa_status status;

    while ((status = epa_put(r->t, dst, src, bytes, peer)) == EPA_AGAIN)
        works(r, r->t->ops->progress(r->t));
    return works(r, status);
}

bool put_signal(struct rank *r, uint64_t dst, const void *src, size_t bytes, uint32_t signal,
                uint64_t value, enum epa_signal_op op, uint32_t peer)
{
    enum epa_status status;

    while ((status = r->t->ops->put_signal(r->t, dst, src, bytes, signal, value, op, peer)) ==
           EPA_AGAIN)
        works(r, r->t->ops->progress(r->t));
    return works(r, status);
}

bool raise_signal(struct rank *r, uint32_t signal, uint64_t value, enum epa_signal_op op,
                  uint32_t peer)
{
    enum epa_status status;

    while ((status = r->t->ops->signal(r->t, signal, value, op, peer)) == EPA_AGAIN)
        works(r, r->t->ops->progress(r->t));
    return works(r, status);
}

bool await(struct rank *r, uint32_t signal, uint64_t value)
{
    return works(r, epa_wait(r->t, signal, value, DEFAULT_TIMEOUT_NS));
}

bool meet(struct rank *r)
{
    return works(r, r->t->ops->barrier(r->t, DEFAULT_TIMEOUT_NS));
}

static bool on_host(const struct rank *r)
{
    return r->backend->memory == EPA_MEMORY_HOST;
}

uint64_t rounds(const struct rank *r, uint64_t host)
{
    uint64_t percent = r->subject->percent;

    if (!on_host(r))
        percent = percent >= 20 ? percent / 20 : 1;
    return percent < 100 ? 1 + host * percent / 100 : host;
}

/* No rank is ahead of rank 0 by RANKS_MOST rounds, so that all ranks read the last round before
 * they reach it. */
bool goes_on(struct rank *r, uint64_t round, uint64_t on_host)
{
    uint64_t last = __atomic_load_n(&r->shared->last, __ATOMIC_RELAXED);

    if (r->me == 0 && last == 0 && epa_now_ns() - r->begun_ns > ROUNDS_NS)
        __atomic_store_n(&r->shared->last, last = round + RANKS_MOST, __ATOMIC_RELAXED);
    return round <= rounds(r, on_host) && (last == 0 || round <= last);
}

static void backend_works(struct rank *r, enum epa_status status, const char *what)
{
    struct epa_error err = {EPA_OK, ""};

    if (status == EPA_OK)
        return;
    r->backend->ops->explain(r->backend, &err);
    claim(r, false, "%s of the heap: status %d: %s", what, status, err.text);
}

void store_at(struct rank *r, void *to, const void *from, size_t bytes)
{
    if (on_host(r))
        memcpy(to, from, bytes);
    else
        backend_works(r, r->backend->ops->write(r->backend, to, from, bytes), "a write");
}

void store(struct rank *r, uint64_t at, const void *from, size_t bytes)
{
    store_at(r, r->t->heap + at, from, bytes);
}

void store_byte(struct rank *r, uint64_t at, int byte, size_t bytes)
{
    if (on_host(r))
        memset(r->t->heap + at, byte, bytes);
    else
        backend_works(r, r->backend->ops->fill(r->backend, r->t->heap + at, byte, bytes), "a fill");
}

void load(struct rank *r, uint64_t at, void *out, size_t bytes)
{
    if (on_host(r))
        memcpy(out, r->t->heap + at, bytes);
    else
        backend_works(r, r->backend->ops->read(r->backend, out, r->t->heap + at, bytes), "a read");
}

char load_byte(struct rank *r, uint64_t at)
{
    char byte = 0;

    load(r, at, &byte, 1);
    return byte;
}

void fill(struct rank *r, uint64_t at, size_t bytes, uint64_t round)
{
    char part[PART];

    for (size_t i = 0; i < bytes; i += PART) {
        size_t n = bytes - i < PART ? bytes - i : PART;

        for (size_t j = 0; j < n; j++)
            part[j] = (char)(round * 31 + r->me * 7 + i + j);
        store(r, at + i, part, n);
    }
}

bool is_filled(struct rank *r, uint64_t at, size_t bytes, uint64_t round, uint32_t from)
{
    char part[PART];
    size_t good = 0;

    for (size_t i = 0; i < bytes && good == i; i += PART) {
        size_t n = bytes - i < PART ? bytes - i : PART, j = 0;

        load(r, at + i, part, n);
        while (j < n && part[j] == (char)(round * 31 + from * 7 + i + j))
            j++;
        good = i + j;
    }
    return claim(r, good == bytes, "round %llu: byte %zu of %zu from rank %u is wrong",
                 (unsigned long long)round, good, bytes, from);
}

void gather_ranks(struct rank *r, uint32_t word, uint64_t n)
{
    __atomic_fetch_add(&r->shared->word[word], 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&r->shared->word[word], __ATOMIC_ACQUIRE) < n)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

uint32_t next_of(const struct rank *r)
{
    return (r->me + 1) % r->size;
}

uint32_t previous_of(const struct rank *r)
{
    return (r->me + r->size - 1) % r->size;
}

enum epa_status open_transport(struct rank *r, struct epa_bootstrap *boot, uint64_t heap_bytes,
                               uint32_t signals, struct epa_transport **out, struct epa_error *err)
{
    const struct epa_transport_params params = {.boot = boot,
                                                .backend = r->backend,
                                                .config = r->subject->config,
                                                .heap_bytes = heap_bytes,
                                                .signals = signals,
                                                .between = r->subject->between};

    return r->subject->plugin->open(&params, out, err);
}

void refuses_to_open(struct rank *r, struct epa_bootstrap *boot, uint64_t heap_bytes,
                     const char *words)
{
    struct epa_transport *t = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = open_transport(r, boot, heap_bytes, 1, &t, &err);

    claim(r, status != EPA_OK && t == NULL, "open() succeeded");
    claim(r, err.status == status && strstr(err.text, words) != NULL, "status %d: %s", status,
          err.text);
}

/* A rank may fail in the body as soon as it has opened the transport, and open() of the other ranks
 * would report this. */
static void wait_until_all_have_opened(struct rank *r)
{
    __atomic_fetch_add(&r->shared->opened, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&r->shared->opened, __ATOMIC_ACQUIRE) < r->size &&
           __atomic_load_n(&r->shared->broken, __ATOMIC_RELAXED) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static enum epa_status rank_main(struct epa_bootstrap *boot, void *arg)
{
    const struct call *call = arg;
    struct rank r = {.subject = call->subject,
                     .boot = boot,
                     .shared = call->shared,
                     .promise = call->ranks->promise,
                     .me = boot->world.rank,
                     .size = boot->world.size,
                     .random = boot->world.rank + 1,
                     .begun_ns = epa_now_ns()};
    const struct epa_backend_plugin *backend = call->subject->backend;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = backend->open(call->subject->backend_config, boot, &r.backend, &err);

    if (!claim(&r, status == EPA_OK, "backend: %s", err.text))
        return status;
    status = open_transport(&r, boot, call->ranks->heap_bytes, call->ranks->signals, &r.t, &err);
    if (claim(&r, status == EPA_OK, "open: status %d: %s", status, err.text)) {
        if (call->ranks->fails)
            wait_until_all_have_opened(&r);
        call->ranks->body(&r);
        if (!call->ranks->fails)
            meet(&r); /* completes all operations of all ranks */
        if (__atomic_load_n(&call->shared->broken, __ATOMIC_RELAXED) != 0)
            status = EPA_ERR_MISMATCH;
        r.t->ops->close(r.t);
    }
    r.backend->ops->close(r.backend);
    return status;
}

void ranks_run(const struct subject *subject, const struct ranks *ranks)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct call call = {.subject = subject, .ranks = ranks, .shared = shared};
    uint32_t n = ranks->ranks < subject->most ? ranks->ranks : subject->most;
    struct epa_launch launch = {.ranks = n,
                                .ranks_per_node = subject->per_node < n ? subject->per_node : 0,
                                .threads = 1,
                                .stop_fd = -1,
                                .grace_ns = 10000000000u,
                                .timeout_ns = DEFAULT_TIMEOUT_NS,
                                .rank_main = rank_main,
                                .arg = &call};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    assert_true(shared != MAP_FAILED);
    status = subject->launcher->launch(subject->launcher->plugin.options.defaults, &launch, &err);
    if (shared->broken != 0)
        fail_msg("%s", shared->text);
    if (status != EPA_OK && !ranks->fails)
        fail_msg("launch: status %d: %s", status, err.text);
    munmap(shared, sizeof(*shared));
}

const void *load_symbol(const char *path, const char *name)
{
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const void *found = file != NULL ? dlsym(file, name) : NULL;

    if (found == NULL) {
        fprintf(stderr, "%s%s\n", file == NULL ? "skipped: " : "", dlerror());
        exit(file == NULL ? 77 : 2);
    }
    return found;
}

/* Parses each "name=value" as from a file, over the defaults. Prints errors and exits. */
const void *read_config(const struct epa_options *options, int n, const char *const *text)
{
    static struct arena *arena; /* lives as long as the program */
    struct diag *diag;
    char *yaml, *config;
    struct node *map = NULL;

    if (n == 0)
        return options->defaults;
    diag = diag_create();
    if (arena == NULL)
        arena = arena_create();
    yaml = arena_printf(arena, "%s", "");
    for (int i = 0; i < n; i++) {
        size_t name = strcspn(text[i], "=");

        yaml = arena_printf(arena, "%s%.*s: %s\n", yaml, (int)name, text[i],
                            text[i][name] == '=' ? text[i] + name + 1 : "");
    }
    config = arena_alloc(arena, options->size);
    yaml_parse(arena, "options", yaml, strlen(yaml), 0, false, diag, &map);
    options_read(options, "plugin", NULL, map, arena, diag, config);
    diag_print(diag, stderr);
    if (diag_errors(diag) > 0)
        exit(2);
    diag_destroy(diag);
    return config;
}

static enum epa_status try_backend(struct epa_bootstrap *boot, void *arg)
{
    const struct subject *subject = arg;
    struct epa_backend *backend = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = subject->backend->open(subject->backend_config, boot, &backend, &err);

    if (status == EPA_OK)
        backend->ops->close(backend);
    else
        fprintf(stderr, "skipped: %s\n", err.text);
    return status;
}

/* Tries the backend in a child: a process that has used a GPU cannot fork ranks. */
static void need_backend(struct subject *subject)
{
    struct epa_launch launch = {.ranks = 1,
                                .threads = 1,
                                .stop_fd = -1,
                                .grace_ns = 10000000000u,
                                .rank_main = try_backend,
                                .arg = subject};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        launch_fork_plugin.launch(launch_fork_plugin.plugin.options.defaults, &launch, &err);

    if (status != EPA_OK)
        exit(status == EPA_ERR_UNSUPPORTED ? 77 : 1);
}

static void take_backend(struct subject *subject, const char *path)
{
    const char *share = "share=true"; /* for machines with too few GPUs */
    const struct epa_options *options;

    subject->backend = load_symbol(path, EPA_PLUGIN_SYMBOL);
    subject->most = 4;
    options = &subject->backend->plugin.options;
    subject->backend_config =
        read_config(options, option_find(options, "share") != NULL ? 1 : 0, &share);
    need_backend(subject);
}

/* Exits with 77 if this machine lacks what the transport needs. */
static void need_transport(const struct subject *subject)
{
    const struct epa_transport_plugin *plugin = subject->plugin;
    struct epa_error err = {EPA_OK, ""};

    if (plugin->check == NULL || plugin->check(subject->config, &err) == EPA_OK)
        return;
    fprintf(stderr, "skipped: %s\n", err.text);
    exit(err.status == EPA_ERR_UNSUPPORTED ? 77 : 1);
}

/* A bootstrap whose allgather changes the cards of peers. `boot` is the first member, which the
 * transport gets. */
struct liar {
    struct epa_bootstrap boot;
    struct rank *rank;
    size_t card_bytes;
    void (*lie)(struct rank *, void *card);
};

static enum epa_status gather_lies(struct epa_bootstrap *boot, const void *mine, size_t bytes,
                                   void *all)
{
    struct liar *liar = (struct liar *)boot;
    struct epa_bootstrap *honest = liar->rank->boot;
    enum epa_status status = honest->allgather(honest, mine, bytes, all);

    for (uint32_t r = 0; r < boot->world.size && bytes == liar->card_bytes; r++)
        if (r != boot->world.rank)
            liar->lie(liar->rank, (char *)all + r * bytes);
    if (bytes == liar->card_bytes)
        liar->card_bytes = 0;
    return status;
}

static enum epa_status barrier_of_liars(struct epa_bootstrap *boot)
{
    struct epa_bootstrap *honest = ((struct liar *)boot)->rank->boot;

    return honest->barrier(honest);
}

static void explain_nothing(struct epa_bootstrap *boot, struct epa_error *err)
{
}

enum epa_status open_with_lies(struct rank *r, uint64_t heap_bytes, size_t card_bytes,
                               void (*lie)(struct rank *, void *card), struct epa_error *err)
{
    struct liar liar = {.boot = *r->boot, .rank = r, .card_bytes = card_bytes, .lie = lie};
    struct epa_transport *t = NULL;
    enum epa_status status;

    liar.boot.allgather = gather_lies;
    liar.boot.barrier = barrier_of_liars;
    liar.boot.explain = explain_nothing;
    status = open_transport(r, &liar.boot, heap_bytes, 1, &t, err);
    if (status == EPA_OK)
        t->ops->close(t);
    return status;
}

static bool is_plugin(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL && strcmp(dot, ".so") == 0;
}

struct subject ranks_subject(int argc, char **argv)
{
    struct subject subject = {.backend = &backend_host_plugin,
                              .backend_config = backend_host_plugin.plugin.options.defaults,
                              .most = RANKS_MOST,
                              .percent = 100};
    const char *percent = getenv("EPA2A_TEST_ROUNDS");
    const char *per_node = getenv("EPA2A_TEST_RANKS_PER_NODE");
    int first = argc > 3 && is_plugin(argv[3]) ? 4 : 3;

    if (argc > 2 && strcmp(argv[2], "thread") == 0)
        subject.launcher = &launch_thread_plugin;
    else if (argc > 2 && strcmp(argv[2], "fork") == 0)
        subject.launcher = &launch_fork_plugin;
    if (subject.launcher == NULL) {
        fprintf(stderr, "usage: %s PLUGIN.so fork|thread [BACKEND.so] [OPTION=VALUE]...\n",
                argv[0]);
        exit(2);
    }
    if (percent != NULL)
        subject.percent = strtoul(percent, NULL, 10);
    if (per_node != NULL)
        subject.per_node = (uint32_t)strtoul(per_node, NULL, 10);
    subject.plugin = load_symbol(argv[1], EPA_PLUGIN_SYMBOL);
    subject.config = read_config(&subject.plugin->plugin.options, argc - first,
                                 (const char *const *)(argv + first));
    if (subject.plugin->between_nodes != NULL &&
        subject.plugin->between_nodes(subject.config) != NULL)
        subject.between =
            load_symbol(subject.plugin->between_nodes(subject.config), EPA_PLUGIN_SYMBOL);
    need_transport(&subject);
    if (first == 4)
        take_backend(&subject, argv[3]);
    return subject;
}

/* Row of a table of promises, as *state of cmocka. */
struct row {
    const struct subject *subject;
    const struct promise *promise;
    struct ranks usual;
};

static void keep(void **state)
{
    const struct row *row = *state;
    const struct promise *p = row->promise;
    struct ranks ranks = row->usual;
    struct subject subject = *row->subject;

    ranks.body = p->body;
    ranks.fails = p->fails;
    ranks.promise = p;
    if (p->heap_bytes != 0 || p->bare)
        ranks.heap_bytes = p->heap_bytes;
    if (p->bare)
        ranks.signals = 0;
    if (p->option != NULL)
        subject.config = read_config(&subject.plugin->plugin.options, 1, &p->option);
    for (uint32_t i = 0; i < RANKS_MOST && p->ranks[i] != 0; i++) {
        ranks.ranks = p->ranks[i];
        if (i == 0 || p->ranks[i - 1] < subject.most)
            ranks_run(&subject, &ranks);
    }
}

int promises_main(int argc, char **argv, struct ranks usual, const struct promise *promise,
                  size_t n)
{
    struct subject subject = ranks_subject(argc, argv);
    struct CMUnitTest *tests = calloc(n, sizeof(*tests));
    struct row *row = calloc(n, sizeof(*row));
    int failed;

    for (size_t i = 0; i < n; i++) {
        row[i] = (struct row){&subject, &promise[i], usual};
        tests[i] = (struct CMUnitTest){promise[i].name, keep, NULL, NULL, &row[i]};
    }
    failed = _cmocka_run_group_tests(argv[2], tests, n, NULL, NULL);
    free(row);
    free(tests);
    return failed;
}
