/* Memory of the host by arithmetic. A heap is a memfd and inputs are touched at once, so
 * what is asked for is what is used: a sum that does not fit ends in the kernel killing
 * processes, not in an error that could be told. All sums saturate: a shape that overflows
 * does not fit. Of a device what the algorithm's plan takes is held against what is free
 * there; inputs and what is written over its cache are for its backend to count, when it
 * allocates. */
#include "session/preflight.h"

#include <string.h>

#include "launch/pin.h"
#include "session/memory.h"
#include "base/text.h"

/* Bytes of one rank, and of all. */
struct sum {
    bool on_host;                     /* the heap; a device's own memory is not counted */
    uint64_t heap, inputs, reference; /* of a rank */
    uint64_t weights;                 /* same: what an operation keeps of them, as it needs them */
    uint64_t flush;                   /* same: what its workers write to have caches cold */
    bool buffers;                     /* `heap` has an algorithm's own memory in it */
    uint64_t samples;                 /* shared by all ranks */
    uint64_t trace;                   /* same */
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

/* Ranks that take their memory from this host. */
static uint32_t ranks_here(const struct session *s)
{
    return s->process_id.local_size != 0 ? s->process_id.local_size : s->experiment->ranks;
}

/* The backend of the host makes it at its first flush. */
static uint64_t flush_bytes(const struct session *s)
{
    const struct experiment *x = s->experiment;
    const struct epa_backend_plugin *backend = (const void *)x->backend.plugin;

    if (s->verb != VERB_BENCH || x->bench.cache != CACHE_COLD || backend->memory != EPA_MEMORY_HOST)
        return 0;
    return times(backend->threads(x->backend.config), cache_flush_bytes());
}

static struct op_weights weights_of(const struct session *s)
{
    const struct experiment *x = s->experiment;
    const struct operation *op = session_operation(s);
    enum epa_memory memory = ((const struct epa_backend_plugin *)x->backend.plugin)->memory;

    return op->weights_bytes != NULL ? op->weights_bytes(x, &s->footprint, memory)
                                     : (struct op_weights){0, 0};
}

static struct sum sum_up(const struct session *s)
{
    const struct experiment *x = s->experiment;
    enum epa_memory memory = ((const struct epa_backend_plugin *)x->backend.plugin)->memory;
    uint32_t slots = session_slots(s);
    struct sum sum = {.on_host = memory == EPA_MEMORY_HOST};
    uint64_t all, rank;

    if (sum.on_host)
        sum.heap = add(s->footprint.heap_bytes, s->footprint.private_bytes);
    sum.buffers = s->footprint.private_bytes != 0;
    sum.inputs = session_operation(s)->bytes(x, &s->footprint, memory, slots, false);
    all = session_operation(s)->bytes(x, &s->footprint, memory, slots, session_checks(s));
    sum.reference = all > sum.inputs ? all - sum.inputs : 0;
    if (s->verb != VERB_VERIFY) /* the number of stages is known only once ranks are there */
        sum.samples = times(times(SESSION_STAGES, x->ranks), times(s->iterations, sizeof(double)));
    if (s->trace.lanes != 0)
        sum.trace = times(record_bytes(&s->trace), x->ranks);
    sum.flush = flush_bytes(s);
    sum.weights = weights_of(s).host;
    rank = add(add(add(sum.heap, sum.flush), sum.weights), add(sum.inputs, sum.reference));
    sum.total = add(times(ranks_here(s), rank), add(sum.samples, sum.trace));
    return sum;
}

/* "8 ranks x (heap 1.1 GiB + inputs 14.0 MiB + reference 58.7 MiB) = 9.3 GiB"; the heap of
 * a device is left out. */
static void sum_in_words(const struct session *s, const struct sum *sum, char *out, size_t room)
{
    char heap[48] = "", inputs[32], reference[48] = "", samples[48] = "", trace[48] = "",
         flush[48] = "", weights[48] = "", total[32], size[32];

    if (sum->on_host)
        snprintf(heap, sizeof(heap), "heap%s %s + ", sum->buffers ? " and buffers" : "",
                 text_size(size, sizeof(size), sum->heap));
    if (sum->reference > 0)
        snprintf(reference, sizeof(reference), " + reference %s",
                 text_size(size, sizeof(size), sum->reference));
    if (sum->weights > 0)
        snprintf(weights, sizeof(weights), " + weights %s",
                 text_size(size, sizeof(size), sum->weights));
    if (sum->flush > 0)
        snprintf(flush, sizeof(flush), " + cold caches %s",
                 text_size(size, sizeof(size), sum->flush));
    if (sum->samples >= 1u << 20)
        snprintf(samples, sizeof(samples), " + samples %s",
                 text_size(size, sizeof(size), sum->samples));
    if (sum->trace >= 1u << 20)
        snprintf(trace, sizeof(trace), " + trace %s", text_size(size, sizeof(size), sum->trace));
    snprintf(out, room, "%u rank%s x (%sinputs %s%s%s%s)%s%s = %s", ranks_here(s),
             ranks_here(s) == 1 ? "" : "s", heap, text_size(inputs, sizeof(inputs), sum->inputs),
             weights, reference, flush, samples, trace,
             sum->total == UINT64_MAX ? "more than 64 bits count"
                                      : text_size(total, sizeof(total), sum->total));
}

/* The keys that make the sum smaller. */
static void advice(const struct session *s, const struct sum *sum, char *out, size_t room)
{
    const struct epa_options *options = &s->experiment->algorithm.plugin->options;
    const char *buffers = "", *capacity = "", *inputs = "", *iterations = "", *trace = "",
               *weights = "";

    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++) {
        if (strcmp(o->name, "buffers") == 0 && sum->on_host)
            buffers = ", algorithm.buffers";
        if (strcmp(o->name, "capacity") == 0)
            capacity = ", or set algorithm.capacity";
    }
    if (session_slots(s) > 2)
        inputs = ", bench.input_sets";
    if (sum->samples > sum->total / 4)
        iterations = s->verb == VERB_RUN ? ", run.iterations" : ", bench.iterations";
    if (sum->trace > sum->total / 4)
        trace = ", profile.iterations";
    if (sum->weights > sum->total / 4 / s->experiment->ranks)
        weights = ", moe.experts, expert.ffn";
    snprintf(out, room, "lower %s, ranks%s%s%s%s%s%s", session_operation(s)->size_key, weights,
             buffers, inputs, iterations, trace, capacity);
}

/* A sixteenth, and 256 MiB where that is no large part of all, stays for everything else
 * that runs. */
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
    char words[336], fewer[160], which[32], usable[32], have[32], kept[32];
    uint64_t available = memory_available(root, which, sizeof(which));
    uint64_t spare = kept_free(available);

    if (available == UINT64_MAX ? sum->total != UINT64_MAX : sum->total <= available - spare)
        return EPA_OK;
    sum_in_words(s, sum, words, sizeof(words));
    advice(s, sum, fewer, sizeof(fewer));
    if (available == UINT64_MAX)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: %s", words, fewer);
    return epa_fail(err, EPA_ERR_NOMEM, "%s, but %s is available (%s %s less %s kept free): %s",
                    words, text_size(usable, sizeof(usable), available - spare), which,
                    text_size(have, sizeof(have), available), text_size(kept, sizeof(kept), spare),
                    fewer);
}

/* RLIMIT_AS counts what one process maps, and a rank maps the heaps of all. */
static enum epa_status check_address_space(const char *root, const struct session *s,
                                           const struct sum *sum, struct epa_error *err)
{
    bool one_process = strcmp(s->experiment->launcher.plugin->name, "thread") == 0;
    uint64_t room = memory_address_space(root), heaps = times(s->experiment->ranks, sum->heap);
    uint64_t need = one_process
                        ? sum->total
                        : add(add(heaps, add(sum->samples, sum->trace)),
                              add(add(sum->inputs, sum->reference), add(sum->weights, sum->flush)));
    char words[336], fewer[160], want[32], have[32];

    if (need <= room)
        return EPA_OK;
    sum_in_words(s, sum, words, sizeof(words));
    advice(s, sum, fewer, sizeof(fewer));
    return epa_fail(err, EPA_ERR_NOMEM,
                    "%s, of which a process maps %s, but the limit of its address space "
                    "(ulimit -v) leaves %s: %s, or raise the limit",
                    words, text_size(want, sizeof(want), need), text_size(have, sizeof(have), room),
                    fewer);
}

enum epa_status preflight_memory_from(const char *root, const struct session *s,
                                      struct epa_error *err)
{
    struct sum sum = sum_up(s);
    enum epa_status status = check_memory(root, s, &sum, err);

    return status == EPA_OK ? check_address_space(root, s, &sum, err) : status;
}

enum epa_status preflight_memory(const struct session *s, struct epa_error *err)
{
    return preflight_memory_from("", s, err);
}

enum epa_status preflight_device(const struct session *s, uint64_t free_bytes,
                                 struct epa_error *err)
{
    const struct epa_footprint *f = &s->footprint;
    uint64_t weights = weights_of(s).device;
    uint64_t need = add(add(f->heap_bytes, f->device_bytes), weights);
    struct sum sum = {.on_host = true, .heap = need, .weights = weights, .total = need};
    char fewer[160], heap[32], scratch[32], held[48] = "", size[32], want[32], have[32];

    if (free_bytes == 0 || need <= free_bytes)
        return EPA_OK;
    advice(s, &sum, fewer, sizeof(fewer));
    if (weights > 0)
        snprintf(held, sizeof(held), " + weights %s", text_size(size, sizeof(size), weights));
    return epa_fail(err, EPA_ERR_NOMEM,
                    "heap %s + scratch %s%s = %s, but %s of the device's memory is free: %s",
                    text_size(heap, sizeof(heap), f->heap_bytes),
                    text_size(scratch, sizeof(scratch), f->device_bytes), held,
                    text_size(want, sizeof(want), need), text_size(have, sizeof(have), free_bytes),
                    fewer);
}
