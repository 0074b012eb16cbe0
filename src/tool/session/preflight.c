/* Memory that an experiment needs, computed before ranks start. A heap is a memfd and inputs are
 * written at once, so all requested memory is used: if it does not fit, the kernel kills processes, and
 * no error could be reported. All sums saturate, so a shape that overflows does not fit. For a device
 * the memory of the algorithm's plan is compared with the free memory; the backend checks inputs and
 * its flush buffer when it allocates them. */
#include "session/preflight.h"

#include <string.h>

#include "base/memory.h"
#include "base/sysfile.h"
#include "base/text.h"
#include "host/pin.h"
#include "experiment/operation.h"
#include "session/record.h"

/* Bytes of host memory of one rank, and of all ranks. */
struct sum {
    bool on_host;                     /* the heap is host memory; device memory is not counted */
    uint64_t heap, inputs, reference; /* per rank */
    uint64_t weights;                 /* per rank: weights that the operation holds */
    uint64_t flush;                   /* per rank: flush buffers of the workers for cold caches */
    bool buffers;                     /* `heap` includes private memory of the algorithm */
    uint64_t samples;                 /* of all ranks */
    uint64_t trace;                   /* of all ranks */
    uint64_t total;
};

static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Returns the number of ranks on this host. */
static uint32_t ranks_here(const struct session *s)
{
    return s->process_id.local_size != 0 ? s->process_id.local_size : s->experiment->problem.ranks;
}

/* Bytes of the flush buffers, which the host backend allocates at its first flush. */
static uint64_t flush_bytes(const struct session *s)
{
    const struct experiment *x = s->experiment;

    if (s->verb != VERB_BENCH || x->bench.cache != CACHE_COLD || !is_on_hosts(x))
        return 0;
    return times(threads_of(x), cache_flush_bytes());
}

static struct op_weights weights_of(const struct session *s)
{
    const struct experiment *x = s->experiment;
    const struct operation *op = session_operation(s);
    enum epa_memory memory = backend_of(x)->memory;

    return op->weights_bytes != NULL
               ? op->weights_bytes(&x->problem, &s->footprint, memory, threads_of(x))
               : (struct op_weights){0, 0};
}

static struct sum sum_up(const struct session *s)
{
    const struct experiment *x = s->experiment;
    enum epa_memory memory = backend_of(x)->memory;
    uint32_t slots = session_slots(s);
    struct sum sum = {.on_host = memory == EPA_MEMORY_HOST};
    uint64_t all, rank;

    if (sum.on_host)
        sum.heap = add(s->footprint.heap_bytes, s->footprint.private_bytes);
    sum.buffers = s->footprint.private_bytes != 0;
    sum.inputs = op_bytes(session_operation(s), &x->problem, &s->footprint, memory, slots, false);
    all = op_bytes(session_operation(s), &x->problem, &s->footprint, memory, slots,
                   session_checks(s));
    sum.reference = all > sum.inputs ? all - sum.inputs : 0;
    if (s->verb != VERB_VERIFY) /* the number of stages is unknown before ranks start */
        sum.samples =
            times(times(SESSION_STAGES, x->problem.ranks), times(s->iterations, sizeof(double)));
    if (s->trace.lanes != 0)
        sum.trace = times(record_bytes(&s->trace), x->problem.ranks);
    sum.flush = flush_bytes(s);
    sum.weights = weights_of(s).host;
    rank = add(add(add(sum.heap, sum.flush), sum.weights), add(sum.inputs, sum.reference));
    sum.total = add(times(ranks_here(s), rank), add(sum.samples, sum.trace));
    return sum;
}

static void add_bytes(struct text *out, const char *before, uint64_t bytes)
{
    char size[32];

    if (bytes > 0)
        text_add(out, "%s %s", before, text_size(size, sizeof(size), bytes));
}

/* "8 ranks x (heap 1.1 GiB + inputs 14.0 MiB + reference 58.7 MiB) = 9.3 GiB", without the heap of a
 * device. */
static void add_sum(struct text *out, const struct session *s, const struct sum *sum)
{
    const uint64_t large = 1u << 20;

    text_add(out, "%u rank%s x (", ranks_here(s), ranks_here(s) == 1 ? "" : "s");
    if (sum->on_host)
        add_bytes(out, sum->buffers ? "heap and buffers" : "heap", sum->heap);
    add_bytes(out, sum->on_host && sum->heap > 0 ? " + inputs" : "inputs", sum->inputs);
    add_bytes(out, " + weights", sum->weights);
    add_bytes(out, " + reference", sum->reference);
    add_bytes(out, " + cold caches", sum->flush);
    text_add(out, ")");
    add_bytes(out, " + samples", sum->samples >= large ? sum->samples : 0);
    add_bytes(out, " + trace", sum->trace >= large ? sum->trace : 0);
    if (sum->total == UINT64_MAX)
        text_add(out, " = 16 EiB or more");
    else
        add_bytes(out, " =", sum->total);
}

/* Adds the keys that reduce the sum. */
static void add_advice(struct text *out, const struct session *s, const struct sum *sum)
{
    const struct epa_options *options = &s->experiment->algorithm.plugin->options;
    bool buffers = false, capacity = false;

    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++) {
        buffers = buffers || (strcmp(o->name, "buffers") == 0 && sum->on_host);
        capacity = capacity || strcmp(o->name, "capacity") == 0;
    }
    text_add(out, ": lower %s, ranks", session_operation(s)->size_key);
    if (session_operation(s)->weights_keys != NULL &&
        sum->weights > sum->total / 4 / s->experiment->problem.ranks)
        text_add(out, "%s", session_operation(s)->weights_keys);
    if (buffers)
        text_add(out, ", algorithm.buffers");
    if (session_slots(s) > 2)
        text_add(out, ", bench.input_sets");
    if (sum->samples > sum->total / 4)
        text_add(out, ", %s.iterations", s->verb == VERB_RUN ? "run" : "bench");
    if (sum->trace > sum->total / 4)
        text_add(out, ", profile.iterations");
    if (capacity)
        text_add(out, ", or set algorithm.capacity");
}

static enum epa_status fail_with_sum(const struct session *s, struct text *why,
                                     struct epa_error *err)
{
    (void)epa_fail_key(err, EPA_ERR_NOMEM, session_operation(s)->size_key, "%s", why->data);
    text_free(why);
    return EPA_ERR_NOMEM;
}

/* Returns the memory to leave to other programs: a sixteenth, or more: 256 MiB, up to a quarter. */
static uint64_t kept_free(uint64_t available)
{
    uint64_t least = 256u << 20;

    if (least > available / 4)
        least = available / 4;
    return available / 16 > least ? available / 16 : least;
}

static enum epa_status check_memory(const char *root, const struct session *s,
                                    const struct sum *sum, struct epa_error *err)
{
    char which[32], usable[32], have[32], kept[32];
    uint64_t *passed = s->memory_passed, available, spare;
    struct text why = {0};

    if (passed != NULL && sum->total <= *passed)
        return EPA_OK;
    available = memory_available(root, which, sizeof(which));
    spare = kept_free(available);
    if (available == UINT64_MAX ? sum->total != UINT64_MAX : sum->total <= available - spare) {
        if (passed != NULL)
            *passed = sum->total;
        return EPA_OK;
    }
    add_sum(&why, s, sum);
    if (available != UINT64_MAX)
        text_add(&why, ", but %s is available (%s %s less %s kept free)",
                 text_size(usable, sizeof(usable), available - spare), which,
                 text_size(have, sizeof(have), available), text_size(kept, sizeof(kept), spare));
    add_advice(&why, s, sum);
    return fail_with_sum(s, &why, err);
}

/* RLIMIT_AS limits the mappings of one process, and a rank maps the heaps of all ranks. */
static enum epa_status check_address_space(const char *root, const struct session *s,
                                           const struct sum *sum, struct epa_error *err)
{
    bool one_process = strcmp(s->experiment->launcher.plugin->name, "thread") == 0;
    uint64_t room = memory_address_space(root),
             heaps = times(s->experiment->problem.ranks, sum->heap);
    uint64_t need = one_process
                        ? sum->total
                        : add(add(heaps, add(sum->samples, sum->trace)),
                              add(add(sum->inputs, sum->reference), add(sum->weights, sum->flush)));
    char want[32], have[32];
    struct text why = {0};

    if (need <= room)
        return EPA_OK;
    add_sum(&why, s, sum);
    text_add(
        &why,
        ", of which a process maps %s, but the limit of its address space (ulimit -v) leaves %s",
        text_size(want, sizeof(want), need), text_size(have, sizeof(have), room));
    add_advice(&why, s, sum);
    text_add(&why, ", or raise the limit");
    return fail_with_sum(s, &why, err);
}

enum epa_status preflight_memory(const char *root, const struct session *s, struct epa_error *err)
{
    struct sum sum = sum_up(s);
    enum epa_status status = check_memory(root, s, &sum, err);

    return status == EPA_OK ? check_address_space(root, s, &sum, err) : status;
}

/* Plans again with the number of ranks of this host, which the experiment does not contain. Only the
 * device memory depends on it: heap and signals must be identical on all hosts. */
void preflight_scratch(struct session *s)
{
    const struct experiment *x = s->experiment;
    const struct epa_world world = {
        .size = x->problem.ranks, .local_size = s->process_id.local_size, .local_cores = 1};
    struct epa_problem problem = operation_problem(x, 0);
    struct epa_footprint f = {0};
    struct epa_error ignored = {EPA_OK, ""};

    if (s->footprint.device_bytes != 0 && x->problem.ranks_per_node == 0 && world.local_size != 0 &&
        ep_plan(&x->algorithm, &problem, &world, experiment_transport_flags(x), &f, &ignored) ==
            EPA_OK)
        s->footprint.device_bytes = f.device_bytes;
}

enum epa_status preflight_device(const struct session *s, uint64_t free_bytes,
                                 struct epa_error *err)
{
    const struct epa_footprint *f = &s->footprint;
    uint64_t weights = weights_of(s).device;
    uint64_t need = add(add(f->heap_bytes, f->device_bytes), weights);
    struct sum sum = {.on_host = true, .heap = need, .weights = weights, .total = need};
    char size[32];
    struct text why = {0};

    if (free_bytes == 0 || need <= free_bytes)
        return EPA_OK;
    text_add(&why, "heap %s", text_size(size, sizeof(size), f->heap_bytes));
    text_add(&why, " + scratch %s", text_size(size, sizeof(size), f->device_bytes));
    add_bytes(&why, " + weights", weights);
    add_bytes(&why, " =", need);
    text_add(&why, ", but %s of the device's memory is free",
             text_size(size, sizeof(size), free_bytes));
    add_advice(&why, s, &sum);
    return fail_with_sum(s, &why, err);
}
