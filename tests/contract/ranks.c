/* See ranks.h. */
#include "ranks.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "plugin/builtin.h"

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
    if (__atomic_fetch_add(&r->shared->broken, 1, __ATOMIC_RELAXED) == 0)
        snprintf(r->shared->text, sizeof(r->shared->text), "rank %u of %u: %s", r->me,
                 r->size, text);
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

bool put_signal(struct rank *r, uint64_t dst, const void *src, size_t bytes,
                uint32_t signal, uint64_t value, enum epa_signal_op op, uint32_t peer)
{
    enum epa_status status;

    while ((status = r->t->ops->put_signal(r->t, dst, src, bytes, signal, value, op,
                                           peer)) == EPA_AGAIN)
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
    return works(r, epa_wait(r->t, signal, value, PATIENCE_NS));
}

bool meet(struct rank *r)
{
    return works(r, r->t->ops->barrier(r->t, PATIENCE_NS));
}

void fill(struct rank *r, uint64_t at, size_t bytes, uint64_t round)
{
    for (size_t i = 0; i < bytes; i++)
        r->t->heap[at + i] = (char)(round * 31 + r->me * 7 + i);
}

bool is_filled(struct rank *r, uint64_t at, size_t bytes, uint64_t round, uint32_t from)
{
    size_t i = 0;

    while (i < bytes && r->t->heap[at + i] == (char)(round * 31 + from * 7 + i))
        i++;
    return claim(r, i == bytes, "round %llu: byte %zu of %zu from rank %u is wrong",
                 (unsigned long long)round, i, bytes, from);
}

uint32_t next_of(const struct rank *r)
{
    return (r->me + 1) % r->size;
}

uint32_t previous_of(const struct rank *r)
{
    return (r->me + r->size - 1) % r->size;
}

static enum epa_status open_transport(const struct call *call, struct rank *r,
                                      struct epa_backend *backend)
{
    const struct epa_transport_plugin *plugin = call->subject->plugin;
    const struct epa_transport_params params = {
        .boot = r->boot,
        .backend = backend,
        .config = call->subject->config != NULL ? call->subject->config
                                                : plugin->plugin.options.defaults,
        .heap_bytes = call->ranks->heap_bytes,
        .signals = call->ranks->signals,
    };
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = plugin->open(&params, &r->t, &err);

    claim(r, status == EPA_OK, "open: status %d: %s", status, err.text);
    return status;
}

static enum epa_status rank_main(struct epa_bootstrap *boot, void *arg)
{
    const struct call *call = arg;
    struct rank r = {.subject = call->subject,
                     .boot = boot,
                     .shared = call->shared,
                     .me = boot->world.rank,
                     .size = boot->world.size,
                     .random = boot->world.rank + 1};
    struct epa_backend *backend = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = backend_host_plugin.open(
        backend_host_plugin.plugin.options.defaults, &boot->world, &backend, &err);

    if (!claim(&r, status == EPA_OK, "backend: %s", err.text))
        return status;
    status = open_transport(call, &r, backend);
    if (status == EPA_OK) {
        call->ranks->body(&r);
        if (!call->ranks->fails)
            meet(&r); /* nothing is held back any more */
        if (__atomic_load_n(&call->shared->broken, __ATOMIC_RELAXED) != 0)
            status = EPA_ERR_MISMATCH;
        r.t->ops->close(r.t);
    }
    backend->ops->close(backend);
    return status;
}

void ranks_run(const struct subject *subject, const struct ranks *ranks)
{
    struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct call call = {.subject = subject, .ranks = ranks, .shared = shared};
    struct epa_launch launch = {.ranks = ranks->ranks,
                                .threads = 1,
                                .stop_fd = -1,
                                .grace_ns = 10000000000u,
                                .timeout_ns = PATIENCE_NS,
                                .rank_main = rank_main,
                                .arg = &call};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    assert_true(shared != MAP_FAILED);
    status = subject->launcher->launch(subject->launcher->plugin.options.defaults, &launch,
                                       &err);
    if (shared->broken != 0)
        fail_msg("%s", shared->text);
    if (status != EPA_OK && !ranks->fails)
        fail_msg("launch: status %d: %s", status, err.text);
    munmap(shared, sizeof(*shared));
}

struct subject ranks_subject(int argc, char **argv)
{
    struct subject subject = {NULL, NULL, NULL};
    void *file = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (argc != 3) {
        fprintf(stderr, "usage: %s PLUGIN.so fork|thread\n", argv[0]);
        exit(2);
    }
    if (file == NULL) {
        fprintf(stderr, "skipped: %s\n", dlerror());
        exit(77);
    }
    subject.plugin = dlsym(file, EPA_PLUGIN_SYMBOL);
    if (strcmp(argv[2], "thread") == 0)
        subject.launcher = &launch_thread_plugin;
    else if (strcmp(argv[2], "fork") == 0)
        subject.launcher = &launch_fork_plugin;
    if (subject.plugin == NULL || subject.launcher == NULL) {
        fprintf(stderr, "%s exports no plugin, or %s is no launcher\n", argv[1], argv[2]);
        exit(2);
    }
    return subject;
}
