/* Implements algo_cuda.h: host code that algorithms on GPUs share. */
#include "algo_cuda.h"

#include "device_sets.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 4096 }; /* bytes of the arguments of a kernel */

/* ---- failures ---- */

enum epa_status device_fail(struct device *d, enum epa_status status, const char *stage,
                            const char *fmt, ...)
{
    char text[sizeof(d->last.text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    d->last.status = EPA_OK;
    return stage[0] == '\0' ? epa_fail(&d->last, status, "%s", text)
                            : epa_fail_stage(&d->last, status, "", stage, "", "%s", text);
}

enum epa_status device_call_failed(struct device *d, const char *what, int code)
{
    return device_fail(d, EPA_ERR_SYSTEM, "", "%s on GPU %d: %s", what, d->backend->device,
                       cudaGetErrorString((cudaError_t)code));
}

/* Explains a fault of the device's kernels, or else the last failed call. The fault takes
 * precedence: after it, later calls fail as well. */
static void explain_device(struct epa_algorithm *a, struct epa_error *err)
{
    const struct device *d = (const struct device *)a;

    if (d->backend->fault.status != EPA_OK)
        d->kind->explain(&d->backend->fault, d->t->rank, err);
    else if (d->last.status != EPA_OK)
        (void)epa_fail_copy(err, d->last.status, &d->last);
}

void device_explain_ring(const struct epa_fault *f, const char *stage, const char *phase,
                         struct epa_error *err)
{
    (void)epa_fail_stage(epa_awaits(err, f->peer), (enum epa_status)f->status, "", stage, phase,
                         "waited %.3f s for room in the ring of puts between nodes, for rank %u: "
                         "the proxy has taken %llu puts, wants %llu",
                         (double)f->waited_ns * 1e-9, f->peer, (unsigned long long)f->seen,
                         (unsigned long long)f->wanted);
}

/* ---- measurements of bench ---- */

/* Returns the number of words of a kind of calls: a count and times of each block. */
static size_t words_of_calls(const struct device *d)
{
    return (size_t)(1 + EPA_ENDS) * d->args.most_blocks;
}

/* `args`: the argument struct of the kernel. */
static enum epa_status launch_stage(struct device *d, const void *kernel, void *args,
                                    uint32_t stage, bool early)
{
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                     .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {.gridDim = {d->blocks[stage], 1, 1},
                                 .blockDim = {d->threads[stage], 1, 1},
                                 .dynamicSmemBytes = d->shared_bytes[stage],
                                 .stream = d->backend->stream,
                                 .attrs = &attribute,
                                 .numAttrs = early ? 1 : 0};
    cudaError_t code = cudaSetDevice(d->backend->device);

    if (code == cudaSuccess)
        code = cudaLaunchKernelExC(&config, kernel, (void *[]){args});
    return code == cudaSuccess ? EPA_OK : device_call_failed(d, "launching a kernel", code);
}

/* epa_algorithm.empty. The kernel does not read its arguments. */
static enum epa_status queue_empty(struct epa_algorithm *a, struct epa_problem *problem)
{
    static _Alignas(16) char args[MOST_ARGUMENTS];
    struct device *d = (struct device *)a;
    enum epa_status status = EPA_OK;

    (void)problem;
    d->last.status = EPA_OK;
    for (uint32_t i = 0; i < d->kind->stages && status == EPA_OK; i++)
        if (d->blocks[i] != 0)
            status = launch_stage(d, d->kind->empty(), args, i, d->early);
    return status;
}

/* epa_algorithm.ended. A call ends with its last block. A block without a part in the call has an
 * older time. */
static enum epa_status read_ends(struct epa_algorithm *a, enum epa_stage_kind kind, uint32_t n,
                                 uint64_t *ns)
{
    struct device *d = (struct device *)a;
    uint32_t last = d->kind->stages / d->kind->halves - 1;
    uint32_t counted = kind == EPA_STAGE_DISPATCH ? 0 : last, blocks = d->args.most_blocks;
    size_t words = words_of_calls(d);
    uint64_t *word = calloc(words, sizeof(*word));
    enum epa_status status;

    if (word == NULL)
        return device_fail(d, EPA_ERR_NOMEM, "", "%s: no memory for times", d->kind->name);
    status =
        d->backend->ops->read(d->backend, word, d->calls + counted * words, words * sizeof(*word));
    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        const uint64_t *end = word + (1 + (word[0] - (n - 1 - i)) % EPA_ENDS) * blocks;

        ns[i] = 0;
        for (uint32_t b = 0; b < blocks; b++)
            ns[i] = end[b] > ns[i] ? end[b] : ns[i];
    }
    free(word);
    return status == EPA_OK ? EPA_OK : device_fail(d, status, "", "reading the times of calls");
}

static const struct epa_stage empty_stage = {"empty", EPA_STAGE_WHOLE, queue_empty};

/* ---- the trace ---- */

enum { PHASES = DEVICE_STAGES * DEVICE_PHASES };

/* Adds the events of tokens, of the last call of each stage, if the algorithm records them. */
static enum epa_status note_tokens(const struct device *d)
{
    uint32_t n = d->args.notes, last[DEVICE_STAGES] = {0};
    const struct device_records records = {.at = d->args.note,
                                           .n = n,
                                           .bytes = sizeof(*d->args.note),
                                           .end_at = offsetof(struct device_note, end),
                                           .call_at = offsetof(struct device_note, call)};
    struct device_reading reading;
    enum epa_status status = device_read_records(d->backend, &records, &reading);
    const struct device_note *note = reading.record;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        if (note[i].end != 0 && note[i].call > last[note[i].stage])
            last[note[i].stage] = note[i].call;
    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        uint32_t phase = note[i].stage * DEVICE_PHASES + DEVICE_TOKENS, warp = note[i].warp;

        if (note[i].end == 0 || note[i].call != last[note[i].stage])
            continue;
        epa_trace_add_beside(
            &d->trace->beside[EPA_TRACE_KERNELS],
            &(struct epa_trace_event){
                .begin_ns = note[i].end - note[i].took_ns - reading.ahead,
                .end_ns = note[i].end - reading.ahead,
                .bytes = reading.error_ns,
                .value = (uint64_t)(warp / d->args.warps) << 32 | warp % d->args.warps,
                .tokens = note[i].token + 1,
                .peer = note[i].peer,
                .signal = warp * PHASES + phase,
                .name = epa_trace_name(d->trace, d->kind->phase[phase]),
                .kind = EPA_TRACE_SLICE,
            });
    }
    free(reading.record);
    return status;
}

/* Writes the stamps of the last calls, once. Reports a failure on stderr only, since the run itself
 * has succeeded. */
static void write_trace(struct epa_algorithm *a)
{
    struct device *d = (struct device *)a;
    const struct device_stamped stamped = {.stamp = d->args.stamps->phase,
                                           .warps = d->args.stamped,
                                           .block_warps = d->args.warps,
                                           .stages = DEVICE_STAGES,
                                           .phases = DEVICE_PHASES,
                                           .name = d->kind->phase};
    enum epa_status status = EPA_OK;

    a->trace_end = NULL;
    if (d->args.notes > 0) /* first: tokens take precedence if the trace has little room */
        status = note_tokens(d);
    /* Before the phases: the trace keeps the latest events if it has little room. */
    if (status == EPA_OK && d->kind->trace != NULL)
        status = d->kind->trace(d);
    if (status == EPA_OK)
        status = device_add_stamps(d->backend, d->trace, &stamped);
    device_report_stamps(d->kind->name, d->backend, status);
}

/* ---- set-up ---- */

void device_destroy(struct epa_algorithm *a)
{
    struct device *d = (struct device *)a;

    if (d == NULL)
        return;
    if (a->trace_end != NULL && d->memory != NULL && d->epoch > 0 &&
        d->backend->fault.status == EPA_OK)
        write_trace(a);
    if (d->memory != NULL)
        d->backend->ops->free(d->backend, d->memory);
    if (d->mirrors != NULL)
        d->backend->ops->free(d->backend, d->mirrors);
    free(d);
}

enum epa_status device_create(const struct device_kind *kind, size_t bytes,
                              const struct epa_algorithm_params *p, uint64_t heap_bytes,
                              uint32_t sets, bool early, void *out, struct epa_error *err)
{
    const struct epa_moe *m = &p->problem->u.moe;
    struct device *d = calloc(1, bytes);
    enum epa_status status;

    if (d == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", kind->name);
    d->base.explain = explain_device;
    d->base.destroy = device_destroy;
    d->base.empty = kind->empty != NULL ? &empty_stage : NULL;
    d->base.ended = read_ends;
    d->kind = kind;
    d->t = p->transport;
    d->backend = p->backend;
    d->heap = p->heap;
    d->sets = sets;
    d->trace = p->trace;
    d->stamps = p->trace != NULL && p->backend->ops->clock != NULL;
    d->base.trace_end = d->stamps ? write_trace : NULL;
    status = device_check(kind->name, p, heap_bytes, false, err);
    if (status != EPA_OK) {
        free(d);
        return status;
    }
    d->early = early && device_is_whole(p->backend);
    d->args = (struct device_args){
        .v = *d->t->view,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .max_tokens = m->max_tokens,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .experts = m->experts,
        .local = m->experts / d->t->size,
        .topk = m->topk,
    };
    memcpy(out, &d, sizeof(d)); /* stores a pointer in *out, whose type is the caller's struct */
    return EPA_OK;
}

static uint64_t place_private(struct device *d, char *memory)
{
    const struct device_kind *k = d->kind;
    uint64_t at = 0, words = (uint64_t)k->stages / k->halves * words_of_calls(d);

    d->calls = device_take(memory, &at, words * sizeof(*d->calls));
    d->taken = device_take(memory, &at, k->stages * sizeof(*d->taken));
    for (uint32_t i = 0; i < d->sets; i++) {
        struct device_set *s = &d->set[i];

        s->rows = device_take(memory, &at, sizeof(*s->rows));
        s->recv_count = device_take(memory, &at, d->args.local * sizeof(*s->recv_count));
        s->recv_start = device_take(memory, &at, d->args.local * sizeof(*s->recv_start));
    }
    k->place(d, memory, &at);
    /* Last, so that the other offsets do not depend on the trace. */
    d->args.stamped = d->stamps ? d->args.most_blocks * d->args.warps : 0;
    d->args.stamps = device_take(memory, &at, d->args.stamped * sizeof(*d->args.stamps));
    d->args.notes = d->stamps ? d->args.notes : 0;
    d->args.note = device_take(memory, &at, d->args.notes * sizeof(*d->args.note));
    return at;
}

uint64_t device_scratch_bytes(struct device *d)
{
    return place_private(d, NULL);
}

/* Loads the kernel without work for the stages with the most threads and shared memory. */
static enum epa_status load_empty(struct device *d, struct epa_error *err)
{
    struct device_code code = {.kernel = d->kind->empty(), .name = "empty"};
    uint32_t blocks;

    for (uint32_t i = 0; i < d->kind->stages; i++) {
        code.threads = d->threads[i] > code.threads ? d->threads[i] : code.threads;
        code.shared_bytes =
            d->shared_bytes[i] > code.shared_bytes ? d->shared_bytes[i] : code.shared_bytes;
    }
    return device_load_kernel(d->kind->name, d->backend, &code, &blocks, err);
}

enum epa_status device_set_up(struct device *d, const struct device_kernel *kernel, uint32_t most,
                              struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    uint64_t bytes;

    for (uint32_t i = 0; i < d->kind->stages && status == EPA_OK; i++) {
        uint32_t threads = kernel[i].threads != 0 ? kernel[i].threads : DEVICE_THREADS, blocks = 0;
        struct device_code code = {kernel[i].other, kernel[i].name, threads, d->shared_bytes[i]};

        if (code.kernel != NULL)
            status = device_load_kernel(d->kind->name, d->backend, &code, &blocks, err);
        code.kernel = kernel[i].kernel;
        if (status == EPA_OK)
            status = device_load_kernel(d->kind->name, d->backend, &code, &blocks, err);
        /* Two per multiprocessor keep the links busy; further blocks would only wait. */
        d->resident[i] = device_waiting_blocks(d->backend, blocks);
        if (most != 0 && most < d->resident[i])
            d->resident[i] = most;
        d->threads[i] = threads;
        if (d->args.warps < threads / 32)
            d->args.warps = threads / 32;
        if (d->args.most_blocks < d->resident[i])
            d->args.most_blocks = d->resident[i];
    }
    if (status == EPA_OK && d->kind->empty != NULL)
        status = load_empty(d, err);
    if (status != EPA_OK)
        return status;
    bytes = place_private(d, NULL);
    status = device_alloc_cleared(d->kind->name, d->backend, bytes, &d->memory, err);
    if (status == EPA_OK)
        (void)place_private(d, d->memory);
    return status;
}

enum epa_status device_make_mirrors(struct device *d, uint64_t heap_bytes, uint32_t signals,
                                    struct device_far between, struct epa_error *err)
{
    const struct device_code code = {between.kernel, "puts", EPA_DEVICE_RANKS, 0};
    const struct epa_device_view *v = d->t->view;
    uint64_t stride = (heap_bytes + 4095) / 4096 * 4096;
    uint32_t far = 0, at = 0, blocks;
    enum epa_status status;

    if (d->t->ring == NULL)
        return EPA_OK;
    d->queue_far = between.queue;
    status = device_load_kernel(d->kind->name, d->backend, &code, &blocks, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < v->size; r++)
        far += v->peer_heap[r] == NULL;
    status = device_alloc_cleared(d->kind->name, d->backend,
                                  far * stride + signals * sizeof(uint64_t), &d->mirrors, err);
    for (uint32_t r = 0; r < v->size && status == EPA_OK; r++) {
        if (v->peer_heap[r] != NULL)
            continue;
        d->args.v.peer_heap[r] = (char *)d->mirrors + at++ * stride - d->heap;
        d->args.v.peer_signal[r] =
            (uint64_t *)(void *)((char *)d->mirrors + far * stride) - d->args.signal;
    }
    d->early = false; /* the kernels of a call must not overlap */
    return status;
}

enum epa_status device_created(struct device *d, enum epa_status status, struct epa_algorithm **out)
{
    if (status == EPA_OK)
        *out = &d->base;
    else
        d->base.destroy(&d->base);
    return status;
}

enum epa_status device_clear(const struct device *d, void *to, uint64_t bytes,
                             struct epa_error *err)
{
    enum epa_status status = d->backend->ops->fill(d->backend, to, 0, bytes);

    if (status == EPA_OK)
        status = d->backend->ops->sync(d->backend);
    return device_explain_setup(d->kind->name, d->backend, status, err);
}

/* ---- calls ---- */

enum epa_status device_open_set(struct device *d, const char *stage, struct epa_moe *m,
                                uint32_t *out)
{
    *out = (uint32_t)(d->epoch % d->sets);
    return device_open_set_at(d, *out, stage, m);
}

/* Returns the set of the last dispatch with the epoch. */
static uint32_t set_of(const struct device *d, uint64_t epoch)
{
    return d->sets > 1 && d->set[1].epoch == epoch ? 1 : 0;
}

enum epa_status device_find_set(struct device *d, uint64_t epoch, uint32_t *out)
{
    uint32_t set = set_of(d, epoch);
    const struct device_set *s = &d->set[set], *other = &d->set[d->sets - 1 - set];
    bool again = epoch == d->combined && epoch == d->epoch;

    if (epoch == 0 || s->epoch != epoch || (!s->open && !again))
        return device_fail(d, EPA_ERR_CONFIG, "combine", "dispatch %llu is not open",
                           (unsigned long long)epoch);
    if (other->open && other->epoch < epoch)
        return device_fail(d, EPA_ERR_CONFIG, "combine",
                           "dispatch %llu must be combined before %llu, the newer dispatch",
                           (unsigned long long)other->epoch, (unsigned long long)epoch);
    *out = set;
    return EPA_OK;
}

void device_close_set(struct device *d, uint32_t set)
{
    d->combined = d->set[set].epoch;
    d->set[set].open = false;
}

enum epa_status device_discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct device *d = (struct device *)a;
    uint64_t epoch = problem->u.moe.epoch;
    struct device_set *s = &d->set[set_of(d, epoch)];

    d->last.status = EPA_OK;
    if (epoch != d->epoch || !s->open)
        return device_fail(d, EPA_ERR_CONFIG, "",
                           "dispatch %llu is not the last dispatch, or is not open",
                           (unsigned long long)epoch);
    s->open = false;
    return EPA_OK;
}

struct device_args device_args_of(const struct device *d, const struct epa_moe *m, uint32_t stage,
                                  uint32_t set)
{
    const struct device_set *s = &d->set[set];
    struct device_args a = d->args;

    a.stage = stage;
    a.tokens = m->tokens;
    a.x = m->x_dtype == EPA_FP8_E4M3 ? (const void *)m->x_fp8 : m->x;
    a.x_scale = m->x_scale;
    a.expert = m->expert;
    a.wide = m->wide ? 1 : 0;
    a.weight = m->weight;
    a.factor = m->expert_factor;
    a.y = m->y;
    a.out = m->out;
    a.recv_count = s->recv_count;
    a.recv_start = s->recv_start;
    a.rows = s->rows;
    a.calls = d->calls + stage / d->kind->halves * words_of_calls(d);
    a.keeps_ends = d->base.keeps_ends ? 1 : 0;
    a.taken = d->taken[stage];
    return a;
}

enum epa_status device_launch(struct device *d, const void *kernel, struct device_args *args,
                              uint32_t blocks, bool waits)
{
    d->blocks[args->stage] = blocks;
    return launch_stage(d, kernel, args, args->stage, d->early && !waits);
}

enum epa_status device_launch_far(struct device *d, const void *args)
{
    int code = cudaSetDevice(d->backend->device);

    if (code == cudaSuccess)
        code = d->queue_far(d->backend->stream, args);
    return code == cudaSuccess ? EPA_OK : device_call_failed(d, "launching a kernel", code);
}

enum epa_status device_copy_outputs(struct device *d, uint64_t at, const void *y, uint64_t bytes)
{
    char *to = device_own(d, at);
    cudaError_t code;

    if (y == to)
        return EPA_OK;
    code = cudaSetDevice(d->backend->device);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(to, y, bytes, cudaMemcpyDeviceToDevice, d->backend->stream);
    return code == cudaSuccess ? EPA_OK : device_call_failed(d, "copying expert outputs", code);
}
