/* Creation and destruction of a comm, its calls, and the rules that each call checks. */
#include "api/comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/quant.h>
#include "api/error.h"
#include "api/struct_size.h"
#include "boot/boot.h"

enum { HEAP_ALIGN = 65536 };

static const uint64_t default_timeout_ns = 30000000000;

/* ---- rules of each call ---- */

static enum epa_status fail_broken(const struct epa2a_comm *comm, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_ABORTED, "%s", comm->reason);
}

/* Records the first failure that breaks the comm. One thread at a time. */
static void break_comm(struct epa2a_comm *comm, enum epa_status status, const char *text)
{
    if (__atomic_load_n(&comm->broken, __ATOMIC_RELAXED) != EPA_OK)
        return;
    snprintf(comm->reason, sizeof(comm->reason), "%s", text);
    /* Release: pairs with the acquire in epa2a_comm_check(). */
    __atomic_store_n(&comm->broken, status, __ATOMIC_RELEASE);
}

static enum epa_status check_process(const struct epa2a_comm *comm, const char *call,
                                     struct epa_error *err)
{
    if (comm == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the comm is NULL", call);
    if (fork_mark_is_child(&comm->mark))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: the comm belongs to the parent process; after fork() a child must "
                        "create comms of its own",
                        call);
    return EPA_OK;
}

/* Describes a kernel that stopped waiting. */
static enum epa_status fail_kernel(const struct epa2a_comm *comm, const struct epa_fault *f,
                                   struct epa_error *err)
{
    if (f->stage == EPA_FAULT_TRANSPORT)
        return epa_fail(err, (enum epa_status)f->status,
                        "transport '%s' failed and ended the kernels of rank %u",
                        comm->choice.transport.plugin->name, comm->boot->world.rank);
    return epa_fail(err, (enum epa_status)f->status,
                    "a kernel of rank %u waited %.3f s for rank %u (stage %u, wait %u, index %u: "
                    "value %llu, expected %llu)",
                    comm->boot->world.rank, (double)f->waited_ns * 1e-9, f->peer, f->stage, f->what,
                    f->index, (unsigned long long)f->seen, (unsigned long long)f->wanted);
}

/* Describes the fault of the backend in the words of the algorithm, if the comm has only one. In calls
 * that hold the comm, so that no other thread frees the algorithm. */
static enum epa_status explain_kernel(const struct epa2a_comm *comm, struct epa_error *err)
{
    const struct epa_fault *f = &comm->ep.backend->fault;
    struct epa_algorithm *a = comm->ep.algorithms == 1 ? comm->ep.algorithm : NULL;

    if (a != NULL && f->stage != EPA_FAULT_TRANSPORT)
        a->explain(a, err);
    return fail_kernel(comm, f, err);
}

/* Returns the failure of a kernel of this rank. Does not wait. Any thread may call the function. */
static enum epa_status check_kernels(const struct epa2a_comm *comm, struct epa_error *err)
{
    struct epa_backend *b = comm->ep.backend;
    struct epa_fault fault;

    if (b->ops->check == NULL || b->ops->check(b, &fault) == EPA_OK)
        return EPA_OK;
    return fail_kernel(comm, &fault, err);
}

static void find_failures(struct epa2a_comm *comm, struct epa_error *err)
{
    struct epa_backend *b = comm->ep.backend;
    struct epa_error failure = {EPA_OK, ""};

    if (comm->broken != EPA_OK)
        return;
    /* The first call after the failure of a kernel of this rank reports the failure. */
    if (!epa_aborted(comm->boot) && b->ops->check != NULL &&
        b->ops->check(b, &b->fault) != EPA_OK) {
        (void)explain_kernel(comm, err);
        boot_fail(comm->boot, err->status, err->text);
    }
    if (!epa_aborted(comm->boot) || boot_check(comm->boot, &failure) == EPA_OK)
        return;
    break_comm(comm, failure.status, failure.text);
    /* The call that discovers the death of a rank reports it, like a call that waits. */
    if (failure.status == EPA_ERR_DIED)
        (void)epa_fail(err, EPA_ERR_DIED, "%s", failure.text);
}

enum epa_status comm_enter_stream(struct epa2a_comm *comm, const char *call, void *stream,
                                  struct epa_error *err)
{
    enum epa_status status = check_process(comm, call, err);
    const char *other = NULL;

    if (status != EPA_OK)
        return status;
    /* Acquire: pairs with the release in unlock_comm(), so that threads may take turns. */
    if (!__atomic_compare_exchange_n(&comm->call, &other, call, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: another thread or a callback is in %s of this comm; one thread at a "
                        "time may use a comm and its objects",
                        call, other);
    find_failures(comm, err);
    if (comm->broken != EPA_OK)
        status = fail_broken(comm, err);
    else
        status = ep_comm_begin(&comm->ep, stream, err);
    if (status != EPA_OK) {
        __atomic_store_n(&comm->call, NULL, __ATOMIC_RELEASE);
        return status;
    }
    boot_begin(comm->boot);
    return EPA_OK;
}

enum epa_status comm_enter(struct epa2a_comm *comm, const char *call, struct epa_error *err)
{
    return comm_enter_stream(comm, call, NULL, err);
}

void comm_stop(struct epa2a_comm *comm)
{
    struct epa_error ignored = {EPA_OK, ""}; /* the caller knows the first failure */

    (void)ep_comm_begin(&comm->ep, NULL, &ignored);
    if (!epa_aborted(comm->boot))
        comm->boot->abort(comm->boot); /* ends waits of kernels */
    ep_comm_stop(&comm->ep);
    (void)ep_comm_finish(&comm->ep, &ignored);
}

enum epa_status comm_check_capture(struct epa2a_comm *comm, struct epa_error *err)
{
    struct epa_backend *b = comm->ep.backend;
    void *memory = NULL;
    enum epa_status status;

    if (!comm_is_cuda(comm))
        return EPA_OK;
    /* CUDA does not report the captures of other streams, but refuses to allocate. */
    status = b->ops->alloc(b, 1, &memory);
    if (status != EPA_OK)
        b->ops->explain(b, err);
    b->ops->free(b, memory);
    return status;
}

enum epa_status comm_agree(struct epa2a_comm *comm, enum epa_status status, struct epa_error *err)
{
    return boot_agree(comm->boot, status, err);
}

/* Returns true for failures after which the ranks no longer agree on the state of the comm. */
static bool breaks_comm(enum epa_status status)
{
    return status == EPA_ERR_TIMEOUT || status == EPA_ERR_ABORTED || status == EPA_ERR_DIED ||
           status == EPA_ERR_SYSTEM;
}

/* Replaces the message of an interrupted call, and of a call that failed since a process died. */
static void find_first_failure(struct epa2a_comm *comm, struct epa_error *err)
{
    struct epa_error first = {EPA_OK, ""};

    if (boot_check(comm->boot, &first) == EPA_OK)
        return;
    if (first.status == EPA_ERR_DIED || err->status == EPA_ERR_ABORTED || err->text[0] == 0) {
        if (first.status == EPA_ERR_DIED)
            err->status = first.status;
        memcpy(err->text, first.text, sizeof(err->text));
        err->stage[0] = err->key[0] = '\0'; /* the text is of the failed rank */
        err->n_awaited = 0;
    }
}

static void unlock_comm(struct epa2a_comm *comm)
{
    ep_comm_end(&comm->ep);
    __atomic_store_n(&comm->call, NULL, __ATOMIC_RELEASE);
}

int comm_leave(struct epa2a_comm *comm, enum epa_status status, struct epa_error *err)
{
    if (status == EPA_OK) {
        unlock_comm(comm);
        return EPA2A_OK;
    }
    err->status = status;
    if (breaks_comm(status)) {
        if (!epa_aborted(comm->boot))
            boot_fail(comm->boot, status, err->text);
        find_first_failure(comm, err);
        break_comm(comm, err->status, err->text);
    }
    unlock_comm(comm);
    return api_fail(err);
}

int comm_leave_together(struct epa2a_comm *comm, enum epa_status status, struct epa_error *err)
{
    return comm_leave(comm, comm_agree(comm, status, err), err);
}

/* ---- options and memory of objects ---- */

enum epa_status comm_choose(struct epa2a_comm *comm, enum epa_op op, bool layer, const char *text,
                            const char *preset, struct choice *out, struct epa_error *err)
{
    const struct choose_source source[] = {
        {.name = "options of the comm", .text = comm->options, .shared = true},
        {.name = "options", .text = text},
        {.name = "EPA2A_OPTIONS", .text = secure_getenv("EPA2A_OPTIONS"), .shared = true},
    };

    return choose(comm->registry,
                  &(struct choose_params){.world = &comm->boot->world,
                                          .cuda = comm_is_cuda(comm),
                                          .device = (uint32_t)comm->device,
                                          .op = op,
                                          .layer = layer,
                                          .source = source,
                                          .sources = sizeof(source) / sizeof(source[0]),
                                          .preset = preset},
                  out, err);
}

enum epa_status comm_take_heap(struct epa2a_comm *comm, uint64_t bytes, void **out,
                               struct epa_error *err)
{
    bytes = (bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
    *out = NULL;
    if (comm->heap_bytes == 0)
        return EPA_OK;
    if (bytes > comm->heap_bytes - comm->heap_used)
        return epa_fail_key(err, EPA_ERR_NOMEM, EPA_LIMIT_NAMED,
                            "an object needs %" PRIu64 " bytes of the heap; %" PRIu64 " of %" PRIu64
                            " bytes are free",
                            bytes, comm->heap_bytes - comm->heap_used, comm->heap_bytes);
    if (comm->heap != NULL)
        *out = comm->heap + comm->heap_used;
    comm->heap_used += bytes;
    return EPA_OK;
}

void comm_give_heap(struct epa2a_comm *comm, const void *heap, uint64_t bytes)
{
    bytes = (bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
    if (comm->heap_bytes == 0)
        return;
    if (heap == NULL || (const char *)heap + bytes == comm->heap + comm->heap_used)
        comm->heap_used -= bytes;
}

/* ---- creation ---- */

static enum epa_status check_params(const struct epa2a_comm_params *p, struct epa_error *err)
{
    if (p->version >> 8 != EPA2A_VERSION >> 8)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_comm_params.version is %u.%u, this library has version %u.%u; set "
                        "the field to EPA2A_VERSION and build the program with the header of this "
                        "library",
                        p->version >> 16, p->version >> 8 & 255, EPA2A_VERSION >> 16,
                        EPA2A_VERSION >> 8 & 255);
    if (p->device < EPA2A_HOST)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_comm_params.device is %d; set the field to EPA2A_HOST or to the "
                        "number of a CUDA device",
                        p->device);
    if (p->heap != NULL && (p->heap_bytes == 0 || (uintptr_t)p->heap % HEAP_ALIGN != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_comm_params.heap needs heap_bytes and an address that is a multiple "
                        "of %d",
                        HEAP_ALIGN);
    return EPA_OK;
}

/* Appends the options of a text as one line without spaces. */
static size_t append_options(char *out, const char *key, const char *text)
{
    char *at = stpcpy(stpcpy(out, key), ": ");

    for (; text != NULL && *text != 0; text++) {
        if (*text == '\n')
            *at++ = ',';
        else if (*text != ' ' && *text != '\t')
            *at++ = *text;
    }
    *at++ = '\n';
    return (size_t)(at - out);
}

/* Returns lines with the values that must be equal on all ranks; NULL: no memory. */
static char *describe_params(const struct epa2a_comm_params *p)
{
    const char *environment = secure_getenv("EPA2A_OPTIONS");
    size_t bytes = 256 + (p->options != NULL ? strlen(p->options) : 0) +
                   (environment != NULL ? strlen(environment) : 0);
    char *text = malloc(bytes);
    size_t n;

    if (text == NULL)
        return NULL;
    n = (size_t)snprintf(text, bytes,
                         "device: %s\ntimeout_ns: %" PRIu64 "\nheap_bytes: %" PRIu64 "\nheap: %s\n",
                         p->device == EPA2A_HOST ? "EPA2A_HOST" : "CUDA", p->timeout_ns,
                         p->heap_bytes, p->heap != NULL ? "of the caller" : "of the library");
    n += append_options(text + n, "options", p->options);
    n += append_options(text + n, "EPA2A_OPTIONS", environment);
    text[n] = 0;
    return text;
}

/* Divides a search path at ':'. *out: NULL-terminated folders in one allocation; NULL: none. */
static enum epa_status split_path(const char *path, const char ***out, struct epa_error *err)
{
    size_t n = 2, bytes = path != NULL ? strlen(path) + 1 : 0;
    const char **list;
    char *copy, *rest = NULL;

    *out = NULL;
    if (path == NULL)
        return EPA_OK;
    for (const char *c = path; *c != 0; c++)
        n += *c == ':';
    list = malloc(n * sizeof(*list) + bytes);
    if (list == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for plugin_path");
    copy = memcpy(list + n, path, bytes);
    n = 0;
    for (char *folder = strtok_r(copy, ":", &rest); folder != NULL;
         folder = strtok_r(NULL, ":", &rest))
        list[n++] = folder;
    list[n] = NULL;
    *out = list;
    return EPA_OK;
}

static enum epa_status open_registry(struct epa2a_comm *comm, const char *path,
                                     struct epa_error *err)
{
    const char **folders = NULL;
    enum epa_status status = split_path(path, &folders, err);

    if (status == EPA_OK)
        status = registry_create(&(struct registry_params){.plugin_path = folders}, &comm->registry,
                                 err);
    free(folders);
    return status;
}

/* The part of creation before ranks are connected. */
static enum epa_status prepare_comm(const struct epa2a_comm_params *p, struct epa2a_comm **out,
                                    char **fingerprint, struct epa_error *err)
{
    enum epa_status status = check_params(p, err);
    struct epa2a_comm *comm;

    if (status != EPA_OK)
        return status;
    *out = comm = calloc(1, sizeof(*comm));
    *fingerprint = describe_params(p);
    if (comm == NULL || *fingerprint == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a comm");
    comm->device = p->device;
    comm->heap = p->heap;
    comm->heap_bytes = p->heap_bytes;
    if (p->options != NULL && (comm->options = strdup(p->options)) == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the options");
    status = fork_mark_init(&comm->mark, err);
    return status == EPA_OK ? open_registry(comm, p->plugin_path, err) : status;
}

static enum epa_status open_comm(struct epa2a_comm *comm, uint64_t timeout_ns,
                                 struct epa_error *err)
{
    enum epa_status status = comm_choose(comm, EPA_OP_MOE, false, NULL, NULL, &comm->choice, err);

    if (status == EPA_OK && comm->choice.ranks_per_node != 0) {
        status = boot_divide_nodes(comm->boot, comm->choice.ranks_per_node, err);
        choice_free(&comm->choice); /* defaults depend on the nodes */
        if (status == EPA_OK)
            status = comm_choose(comm, EPA_OP_MOE, false, NULL, NULL, &comm->choice, err);
    }
    if (status != EPA_OK)
        return status;
    if (comm->choice.timeout_ns != 0)
        timeout_ns = comm->choice.timeout_ns;
    comm->boot->set_up_ns = timeout_ns == UINT64_MAX ? 0 : timeout_ns;
    status = ep_comm_open(&comm->ep, comm->boot, &comm->choice.backend, timeout_ns, err);
    if (status == EPA_OK && comm_is_cuda(comm) && comm->ep.backend->ops->begin == NULL)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "options: backend '%s' cannot use streams of an application; such as "
                          "backend=cuda",
                          comm->choice.backend.plugin->name);
    if (status != EPA_OK)
        return status;
    comm->ep.backend->shares_stream = comm_is_cuda(comm);
    ep_comm_end(&comm->ep); /* the device of the thread becomes the previous one */
    return EPA_OK;
}

static void free_comm(struct epa2a_comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->boot != NULL && comm->broken != EPA_OK && comm->ep.backend != NULL)
        comm_stop(comm);
    ep_comm_close(&comm->ep);
    choice_free(&comm->choice);
    if (comm->registry != NULL)
        registry_destroy(comm->registry);
    boot_destroy(comm->boot);
    fork_mark_finish(&comm->mark);
    free(comm->options);
    free(comm);
}

int epa2a_comm_create(const struct epa2a_comm_params *params, struct epa2a_comm **out)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_comm *comm = NULL;
    struct epa2a_comm_params p;
    char *fingerprint = NULL;
    enum epa_status status = struct_read(&p, sizeof(p), params, "epa2a_comm_params", &err);
    struct boot_params boot;

    if (status == EPA_OK && out == NULL)
        status = epa_fail(&err, EPA_ERR_CONFIG, "epa2a_comm_create: the output pointer is NULL");
    if (status != EPA_OK)
        return api_fail(&err);
    if (p.timeout_ns == 0)
        p.timeout_ns = default_timeout_ns;
    status = prepare_comm(&p, &comm, &fingerprint, &err);
    boot = (struct boot_params){.rank = p.rank,
                                .ranks = p.ranks,
                                .version = EPA2A_VERSION,
                                .allgather = p.allgather,
                                .arg = p.arg,
                                .timeout_ns = p.timeout_ns,
                                .fingerprint = fingerprint,
                                .failure = status != EPA_OK ? &err : NULL,
                                .log = p.log,
                                .log_arg = p.log_arg};
    if (status != EPA_OK) {
        struct epa_error first = {EPA_OK, ""};

        (void)boot_create(&boot, NULL, &first);
        err = first;
    } else {
        status = boot_create(&boot, &comm->boot, &err);
    }
    if (status == EPA_OK) {
        status = open_comm(comm, p.timeout_ns, &err);
        status = boot_agree(comm->boot, status, &err);
    }
    free(fingerprint);
    if (status != EPA_OK) {
        free_comm(comm);
        return api_fail(&err);
    }
    *out = comm;
    return EPA2A_OK;
}

void epa2a_comm_destroy(struct epa2a_comm *comm)
{
    struct epa_error err = {EPA_OK, ""};

    if (comm == NULL)
        return;
    if (check_process(comm, "epa2a_comm_destroy", &err) != EPA_OK) {
        (void)api_fail(&err);
        return;
    }
    switch (comm_enter(comm, "epa2a_comm_destroy", &err)) {
    case EPA_OK: /* the objects of all ranks are destroyed then */
        (void)comm_leave_together(comm, EPA_OK, &err);
        break;
    case EPA_ERR_ABORTED:
        break;
    default: /* another thread uses the comm */
        (void)api_fail(&err);
        return;
    }
    free_comm(comm);
}

/* ---- calls ---- */

void epa2a_comm_abort(struct epa2a_comm *comm)
{
    struct epa_error err = {EPA_OK, ""};

    if (check_process(comm, "epa2a_comm_abort", &err) != EPA_OK)
        (void)api_fail(&err);
    else
        comm->boot->abort(comm->boot);
}

int epa2a_comm_check(struct epa2a_comm *comm)
{
    struct epa_error err = {EPA_OK, ""};
    int32_t broken;

    if (check_process(comm, "epa2a_comm_check", &err) != EPA_OK)
        return api_fail(&err);
    broken = __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE);
    if (broken != EPA_OK)
        (void)epa_fail(&err, (enum epa_status)broken, "%s", comm->reason);
    else
        (void)(boot_check(comm->boot, &err) == EPA_OK && check_kernels(comm, &err) == EPA_OK);
    return err.status == EPA_OK ? EPA2A_OK : api_fail(&err);
}

static enum epa_status sync_backend(struct epa2a_comm *comm, struct epa_error *err)
{
    struct epa_backend *b = comm->ep.backend;
    enum epa_status status = b->ops->sync(b);

    if (status != EPA_OK && status != EPA_ERR_ABORTED && b->fault.status != EPA_OK)
        (void)explain_kernel(comm, err);
    else if (status != EPA_OK && status != EPA_ERR_ABORTED)
        b->ops->explain(b, err);
    return status;
}

int epa2a_comm_sync(struct epa2a_comm *comm, void *stream)
{
    struct epa_error err = {EPA_OK, ""};

    if (comm_enter_stream(comm, "epa2a_comm_sync", stream, &err) != EPA_OK)
        return api_fail(&err);
    return comm_leave(comm, sync_backend(comm, &err), &err);
}

int epa2a_comm_barrier(struct epa2a_comm *comm, void *stream)
{
    struct epa_error err = {EPA_OK, ""};

    if (comm_enter_stream(comm, "epa2a_comm_barrier", stream, &err) != EPA_OK)
        return api_fail(&err);
    return comm_leave_together(comm, sync_backend(comm, &err), &err);
}

int epa2a_comm_alloc(struct epa2a_comm *comm, size_t bytes, void **out)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa_backend *b;
    enum epa_status status;
    void *memory = NULL;

    if (comm_enter(comm, "epa2a_comm_alloc", &err) != EPA_OK)
        return api_fail(&err);
    b = comm->ep.backend;
    status = b->ops->alloc(b, bytes > 0 ? bytes : 1, &memory);
    if (status != EPA_OK)
        b->ops->explain(b, &err);
    if (out == NULL && status == EPA_OK)
        status = epa_fail(&err, EPA_ERR_CONFIG, "epa2a_comm_alloc: the output pointer is NULL");
    status = comm_agree(comm, status, &err);
    if (status != EPA_OK && memory != NULL)
        b->ops->free(b, memory);
    else if (status == EPA_OK)
        *out = memory;
    return comm_leave(comm, status, &err);
}

void epa2a_comm_free(struct epa2a_comm *comm, void *memory)
{
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    if (memory == NULL)
        return;
    status = comm_enter(comm, "epa2a_comm_free", &err);
    if (status != EPA_OK && status != EPA_ERR_ABORTED) {
        (void)api_fail(&err);
        return;
    }
    comm->ep.backend->ops->free(comm->ep.backend, memory);
    if (status == EPA_OK)
        unlock_comm(comm);
}

void epa2a_comm_describe(const struct epa2a_comm *comm,
                         void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    const struct epa_world *world;
    struct epa_error err = {EPA_OK, ""};
    char text[32];
    uint32_t nodes = 1;

    if (check_process(comm, "epa2a_comm_describe", &err) != EPA_OK) {
        (void)api_fail(&err);
        return;
    }
    world = &comm->boot->world;
    for (uint32_t r = 0; world->node != NULL && r < world->size; r++)
        nodes = world->node[r] >= nodes ? world->node[r] + 1 : nodes;
    snprintf(text, sizeof(text), "%u of %u", world->rank, world->size);
    say(arg, "rank", text);
    snprintf(text, sizeof(text), "%u", nodes);
    say(arg, "nodes", text);
    say(arg, "backend", comm->choice.backend.plugin->name);
    say(arg, "transport", comm->choice.transport.plugin->name);
    if (comm->choice.between.plugin != NULL)
        say(arg, "transport between nodes", comm->choice.between.plugin->name);
    say(arg, "isa", epa_kernels_get(EPA_BF16, NULL)->isa);
    snprintf(text, sizeof(text), "%u", comm->choice.threads);
    say(arg, "threads", text);
    snprintf(text, sizeof(text), "%.3g s", (double)comm->ep.timeout_ns * 1e-9);
    say(arg, "timeout", comm->ep.timeout_ns == UINT64_MAX ? "none" : text);
    if (comm->ep.backend->ops->describe != NULL)
        comm->ep.backend->ops->describe(comm->ep.backend, say, arg);
}
