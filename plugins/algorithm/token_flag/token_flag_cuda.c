/* token_flag on GPUs: the protocol, and the kernel launches of each stage.
 *
 * Each stage is a kernel. Kernels count the earlier calls in device memory, so that a graph can be
 * launched repeatedly. The host alternates between the buffer sets; a graph keeps the sets of its
 * recording.
 *
 * Dispatches have the epochs 1, 2, 3..., and combines have their own epochs 1, 2, 3... The counts
 * (epoch << TF_ROW_BITS | count + 1, a word per source and expert), the flags of sources
 * (flag_granularity: rank), and the lines of rows and expert outputs (epa2a/packets.cuh) carry the
 * epoch. Waits compare with >=, and no kernel clears these words. A rank stores into its peers'
 * memory as soon as a kernel starts, without a handshake. Let p be a peer. The stores are safe:
 *   - Counts of dispatch m go to one of two places at p, for odd and even epochs, independent of
 *     the set. p has read the counts of m - 2: dispatch m - 1 has ended here after it waited for
 *     p's counts of m - 1, which p sent after its dispatch_recv m - 2.
 *   - Rows of m go to this rank's own part of p's buffer in a set. With two sets, which
 *     dispatches use alternately, the part contains rows of m - 2. p has copied them, as above,
 *     so a dispatch may also be discarded. With one set, the part contains rows of m - 1, which
 *     has been combined here: p returned an output for each row, after p copied all rows.
 *   - Rows by expert and y belong to p, which reads them for the last time before its next
 *     dispatch into the set begins.
 *   - A rank writes slots at p after its dispatch_recv m, so it has seen p's counts of m. p sent
 *     these after the end of its combine that read the slots of the set.
 *   - A line of an earlier call has a smaller number than the awaited line: places belong to a
 *     set, whose dispatches and combines have ascending epochs.
 * For this reason each dispatch_recv waits for the counts of all ranks, including ranks without a
 * row for it; with flag_granularity: rank it first waits for their flags.
 *
 * One set suffices for D1 C1 D2 C2, two sets for D1 D2 C1 D3 C2.
 *
 * A layer (parts) makes the calls D1 D2 C1 D3 C2 in the stream of the backend. The experts of a part
 * run in a second stream after its dispatch, and its combine waits for them, so they run beside the
 * next dispatch and the previous combine. Experts wait for no rank. A kernel that waits for a peer
 * may keep experts of this rank from starting; the peer sends the awaited data before it waits for
 * experts of a later part, so no cycle of waits arises.
 *
 * Ranks of other nodes (token_flag_far.cu): each stage has a second kernel. A sending stage stores
 * data for such a rank p in a mirror of p's heap, and its second kernel puts the data to p: counts
 * and rows in a block, followed by the flag of the source; expert outputs in a block, followed by a
 * signal with the epoch. With chunks, dispatch_send has both kernels for each chunk, which is a
 * block of rows. After the last but one chunk, a signal states the number of rows put so far. The
 * kernel of the last chunk waits for this signal of all such ranks and takes in their rows. Kernels
 * of earlier chunks do not wait for other ranks, so no cycle of waits arises. A receiving stage
 * first waits for all data of all such ranks. So counts, rows and outputs of p guarantee the same
 * as above and more: all data that p sent in the call is in place. Slots of outputs are then
 * ordered by source and row, so that the slots of a source are a block. A mirror may be rewritten
 * under the same condition as the memory that it mirrors: p has then sent data after the stage that
 * received the contents of the mirror, so the puts from the mirror are complete. */
#include <cuda_runtime_api.h>

#include <epa2a/packets.h>

#include "token_flag_cuda.h"

#include "token_flag_combine_kernels.h"
#include "token_flag_device.h"
#include "token_flag_dispatch.h"
#include "token_flag_far.h"

/* The last of the four stages that an open dispatch has completed. */
enum tf_cuda_state { TF_CUDA_FREE, TF_CUDA_SENT, TF_CUDA_RECEIVED, TF_CUDA_RETURNED };

struct tf_cuda_set {
    enum tf_cuda_state state;
    uint32_t *received, *entry, *place;
};

struct tf_cuda {
    struct device d; /* first member */
    struct tf_layout l;
    struct tf_args args; /* arguments that all calls share, apart from the arguments in d */
    bool f16;
    struct tf_cuda_set set[2];
    /* A layer. Part n is part[n % TF_DEVICE_SETS] until its combine is queued. */
    struct epa_experts *experts; /* NULL: combine_send computes the experts, or there is no layer */
    struct epa_problem part[TF_DEVICE_SETS];
    cudaStream_t computes;                /* of the experts */
    cudaEvent_t received;                 /* end of the last dispatch */
    cudaEvent_t computed[TF_DEVICE_SETS]; /* end of the experts of a part */
};

static const char *const call_name[] = {"dispatch_send", "dispatch_recv", "combine_send",
                                        "combine_recv"};

/* ---- launches ---- */

static const void *kernel_of(const struct tf_cuda *c, enum tf_stage stage, int x_dtype)
{
    const struct tf_layout *l = &c->l;
    bool profile = c->d.stamps;

    switch (stage) {
    case TF_DISPATCH_SEND:
        return tf_dispatch_send_kernel(
            device_input_of(l->fp8, c->f16 ? EPA_F16 : EPA_BF16, x_dtype), profile);
    case TF_DISPATCH_RECV:
        return tf_dispatch_recv_kernel(profile);
    case TF_COMBINE_SEND:
        return tf_combine_send_kernel(!l->fused ? TF_OUTPUT_GIVEN
                                      : l->fp8  ? TF_OUTPUT_FP8
                                                : TF_OUTPUT_DTYPE,
                                      c->f16, profile);
    default:
        return tf_combine_recv_kernel(c->f16, profile);
    }
}

static struct tf_args args_of(const struct tf_cuda *c, const struct epa_moe *m, enum tf_stage stage,
                              uint32_t set)
{
    const struct tf_layout *l = &c->l;
    struct tf_args a = c->args;

    a.c = device_args_of(&c->d, m, stage, set);
    a.counts = device_region(&c->d, l->counts_at, l->counts_bytes, 0);
    a.comm = device_region(&c->d, l->comm_at, l->comm_bytes, set);
    a.grouped = device_region(&c->d, l->grouped_at, l->grouped_bytes, set);
    a.outputs = device_region(&c->d, l->outputs_at, l->outputs_bytes, set);
    a.received = c->set[set].received;
    a.entry = c->set[set].entry;
    a.place = c->set[set].place;
    return a;
}

/* Returns the number of blocks for received rows, at most `room`: a block per four parts of the
 * maximum of rows. The number of rows is known on the device only. */
static uint32_t blocks_for_rows(const struct tf_cuda *c, uint32_t room, uint32_t packets)
{
    return device_blocks_for(room, (c->l.rows * tf_units_of(packets) + 3) / 4);
}

/* Sets the numbers of sending and counting blocks, and returns the number of all blocks. With
 * chunks, the other half of the blocks only receives. */
static uint32_t divide_send(const struct tf_cuda *c, struct tf_args *a)
{
    uint32_t room = c->d.resident[TF_DISPATCH_SEND];
    bool apart = c->l.chunks > 1 && a->last && room > 1;
    uint32_t most = apart ? room / 2 : room;

    a->publishers = !c->l.by_token || a->chunk != 0 ? 0 : c->l.size < most ? c->l.size : most;
    a->senders = device_blocks_for(most, (uint64_t)a->end - a->begin + a->publishers);
    return a->senders + (apart ? blocks_for_rows(c, room - most, c->l.packets) : 0);
}

/* Returns the number of blocks of any stage except dispatch_send. */
static uint32_t blocks_of(const struct tf_cuda *c, const struct tf_args *a)
{
    uint32_t room = c->d.resident[a->c.stage];

    if (a->c.stage == TF_DISPATCH_RECV)
        return blocks_for_rows(c, room, c->l.packets);
    if (a->c.stage == TF_COMBINE_SEND)
        return blocks_for_rows(c, room, c->l.output_packets);
    return device_blocks_for(room, (uint64_t)a->c.tokens * tf_units_of(c->l.output_packets));
}

/* Returns the bytes of the counters that counter_reset clears. */
static size_t counter_bytes(const struct tf_layout *l)
{
    return offsetof(struct tf_counters, chosen) + l->experts * sizeof(uint32_t);
}

static enum epa_status clear_counters(struct tf_cuda *c)
{
    cudaError_t code = cudaSetDevice(c->d.backend->device);

    if (code == cudaSuccess)
        code = cudaMemsetAsync(c->args.counters, 0, counter_bytes(&c->l), c->d.backend->stream);
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, "clearing counters", code);
}

/* Launches the kernel that puts data to other nodes or waits for their data, if there are other
 * nodes. */
static enum epa_status launch_far(struct tf_cuda *c, const struct tf_args *a)
{
    struct tf_far_args far;

    if (c->d.mirrors == NULL)
        return EPA_OK;
    far = (struct tf_far_args){.a = *a, .v = *c->d.t->view, .ring = *c->d.t->ring};
    return device_launch_far(&c->d, &far);
}

/* Launches dispatch_send, with a launch per chunk if there are other nodes: the network transfers a
 * chunk while the next one is sent. */
static enum epa_status launch_dispatch_send(struct tf_cuda *c, const struct epa_moe *m,
                                            uint32_t set)
{
    struct tf_args a = args_of(c, m, TF_DISPATCH_SEND, set);
    uint64_t n = c->d.mirrors != NULL ? c->l.chunks : 1;
    bool clears = !c->l.folded;
    enum epa_status status = clears ? clear_counters(c) : EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        a.chunk = i;
        a.begin = (uint32_t)(m->tokens * i / n);
        a.end = (uint32_t)(m->tokens * (i + 1) / n);
        a.last = i + 1 == n;
        uint32_t blocks = divide_send(c, &a);

        status = device_launch(&c->d, kernel_of(c, TF_DISPATCH_SEND, m->x_dtype), &a.c, blocks,
                               clears && i == 0);
        if (status == EPA_OK)
            status = launch_far(c, &a);
    }
    return status;
}

static enum epa_status launch(struct tf_cuda *c, const struct epa_moe *m, uint32_t set,
                              enum tf_stage stage)
{
    struct tf_args a = args_of(c, m, stage, set);
    bool sends = stage == TF_COMBINE_SEND;
    bool waits = sends && c->experts != NULL; /* for an event */
    enum epa_status status = EPA_OK;

    if (stage == TF_DISPATCH_SEND)
        return launch_dispatch_send(c, m, set);
    if (!sends)
        status = launch_far(c, &a);
    if (status == EPA_OK)
        status =
            device_launch(&c->d, kernel_of(c, stage, m->x_dtype), &a.c, blocks_of(c, &a), waits);
    return status == EPA_OK && sends ? launch_far(c, &a) : status;
}

/* ---- stages ---- */

static void publish_views(const struct tf_cuda *c, uint32_t set, struct epa_moe *m)
{
    const struct tf_layout *l = &c->l;
    const char *recv =
        device_own(&c->d, device_region(&c->d, l->grouped_at, l->grouped_bytes, set));

    m->recv_rows = m->recv_entries = l->rows; /* upper limits */
    epa_publish_messages(m, recv, 0, l->fp8, l->scales_at, l->meta_at, l->message_bytes);
    m->y_space =
        l->fused ? NULL : device_own(&c->d, device_region(&c->d, l->y_at, l->y_bytes, set));
}

/* Rejects a stage between the two halves of another call: a second half continues from the counters
 * of its first half. */
static enum epa_status check_halves(struct tf_cuda *c, enum tf_stage stage,
                                    const struct tf_cuda_set *of)
{
    for (uint32_t i = 0; i < c->l.buffers; i++) {
        const struct tf_cuda_set *s = &c->set[i];

        if (s != of && (s->state == TF_CUDA_SENT || s->state == TF_CUDA_RETURNED))
            return device_fail(
                &c->d, EPA_ERR_CONFIG, call_name[stage], "dispatch %llu has been %s: call %s first",
                (unsigned long long)c->d.set[i].epoch,
                s->state == TF_CUDA_SENT ? "sent and not received" : "returned and not combined",
                call_name[s->state]);
    }
    return EPA_OK;
}

/* Finds the set of a stage. Combines follow the order of their dispatches. */
static enum epa_status find_set(struct tf_cuda *c, uint64_t epoch, enum tf_stage stage,
                                uint32_t *out)
{
    static const char *const done[] = {"", "sent", "received", "returned"};
    uint32_t set = (uint32_t)((epoch - 1) % c->l.buffers), other = c->l.buffers - 1 - set;

    if (epoch == 0 || c->d.set[set].epoch != epoch ||
        c->set[set].state != (enum tf_cuda_state)stage)
        return device_fail(&c->d, EPA_ERR_CONFIG, call_name[stage],
                           "called for dispatch %llu, which is not %s; call the stages of a "
                           "dispatch in order",
                           (unsigned long long)epoch, done[stage]);
    if (stage == TF_COMBINE_SEND && c->set[other].state == TF_CUDA_RECEIVED &&
        c->d.set[other].epoch < epoch)
        return device_fail(&c->d, EPA_ERR_CONFIG, "combine_send",
                           "called for dispatch %llu, but %llu is the oldest that is received; "
                           "combine dispatches in order",
                           (unsigned long long)epoch, (unsigned long long)c->d.set[other].epoch);
    *out = set;
    return check_halves(c, stage, &c->set[set]);
}

static enum epa_status run_dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK; /* drop the error of an earlier rejected call */
    status = check_halves(c, TF_DISPATCH_SEND, NULL);
    if (status == EPA_OK)
        status = device_open_set(&c->d, "dispatch_send", m, &set);
    if (status != EPA_OK)
        return status;
    c->set[set].state = TF_CUDA_SENT;
    publish_views(c, set, m);
    return launch(c, m, set, TF_DISPATCH_SEND);
}

/* Runs a stage after dispatch_send. */
static enum epa_status run_later_stage(struct epa_algorithm *a, struct epa_problem *problem,
                                       enum tf_stage stage)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = find_set(c, problem->u.moe.epoch, stage, &set);
    if (status != EPA_OK)
        return status;
    c->set[set].state = (enum tf_cuda_state)((stage + 1) % TF_STAGES);
    if (stage == TF_COMBINE_RECV)
        device_close_set(&c->d, set);
    return launch(c, &problem->u.moe, set, stage);
}

static enum epa_status run_dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_later_stage(a, problem, TF_DISPATCH_RECV);
}

static enum epa_status run_combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_later_stage(a, problem, TF_COMBINE_SEND);
}

static enum epa_status run_combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_later_stage(a, problem, TF_COMBINE_RECV);
}

static enum epa_status discard_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    enum epa_status status = check_halves(c, TF_DISPATCH_SEND, NULL);

    if (status == EPA_OK)
        status = device_discard(a, problem);
    if (status == EPA_OK)
        c->set[(c->d.epoch - 1) % c->l.buffers].state = TF_CUDA_FREE;
    return status;
}

static const struct epa_stage cuda_stages[TF_STAGES] = {
    {.name = "dispatch_send", .kind = EPA_STAGE_SEND, .run = run_dispatch_send},
    {.name = "dispatch_recv", .kind = EPA_STAGE_DISPATCH, .run = run_dispatch_recv},
    {.name = "combine_send", .kind = EPA_STAGE_SEND, .run = run_combine_send},
    {.name = "combine_recv", .kind = EPA_STAGE_COMBINE, .run = run_combine_recv},
};

/* ---- a layer in parts ---- */

static enum epa_status check_call(struct tf_cuda *c, cudaError_t code, const char *what)
{
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, what, code);
}

static enum epa_status dispatch_part(struct tf_cuda *c, const struct epa_problem *whole, uint32_t n)
{
    struct epa_problem *part = &c->part[n % TF_DEVICE_SETS];
    enum epa_status status;

    tf_set_part(&c->l, whole, n, part);
    status = run_dispatch_send(&c->d.base, part);
    if (status == EPA_OK)
        status = run_dispatch_recv(&c->d.base, part);
    part->u.moe.y = part->u.moe.y_space;
    return status;
}

static enum epa_status combine_part(struct tf_cuda *c, uint32_t n)
{
    struct epa_problem *part = &c->part[n % TF_DEVICE_SETS];
    enum epa_status status = run_combine_send(&c->d.base, part);

    return status == EPA_OK ? run_combine_recv(&c->d.base, part) : status;
}

/* Queues the experts of part n in the stream of the backend. */
static enum epa_status queue_experts(struct tf_cuda *c, uint32_t n)
{
    struct epa_backend *b = c->d.backend;
    const struct epa_moe *m = &c->part[n % TF_DEVICE_SETS].u.moe;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = b->ops->experts_run(c->experts, m, m->y_space);

    if (status == EPA_OK)
        return EPA_OK;
    b->ops->explain(b, &err);
    return device_fail(&c->d, status, "", "experts: %s", err.text);
}

/* Queues the experts of part n in their own stream, after its dispatch. */
static enum epa_status fork_experts(struct tf_cuda *c, uint32_t n)
{
    struct epa_backend *b = c->d.backend;
    void *stream = b->stream;
    enum epa_status status =
        check_call(c, cudaEventRecord(c->received, stream), "queueing an event");

    if (status == EPA_OK)
        status =
            check_call(c, cudaStreamWaitEvent(c->computes, c->received, 0), "queueing an event");
    if (status != EPA_OK)
        return status;
    b->stream = c->computes;
    status = queue_experts(c, n);
    b->stream = stream;
    if (status == EPA_OK)
        status = check_call(c, cudaEventRecord(c->computed[n % TF_DEVICE_SETS], c->computes),
                            "queueing an event");
    return status;
}

static enum epa_status join_experts(struct tf_cuda *c, uint32_t n)
{
    return check_call(c,
                      cudaStreamWaitEvent(c->d.backend->stream, c->computed[n % TF_DEVICE_SETS], 0),
                      "queueing an event");
}

static enum epa_status queue_layer(struct tf_cuda *c, struct epa_problem *whole, bool experts)
{
    uint32_t parts = c->l.parts;
    enum epa_status status = EPA_OK;

    for (uint32_t n = 0; n <= parts && status == EPA_OK; n++) {
        if (n < parts)
            status = dispatch_part(c, whole, n);
        if (status == EPA_OK && n < parts && experts)
            status = fork_experts(c, n);
        if (status == EPA_OK && n != 0 && experts)
            status = join_experts(c, n - 1);
        if (status == EPA_OK && n != 0)
            status = combine_part(c, n - 1);
    }
    whole->u.moe.epoch = c->d.epoch;
    return status;
}

static enum epa_status run_layer(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;

    return queue_layer(c, problem, c->experts != NULL);
}

static enum epa_status run_communication(struct epa_algorithm *a, struct epa_problem *problem)
{
    return queue_layer((struct tf_cuda *)a, problem, false);
}

/* Only the last parts still have their rows; earlier parts use the rows of the last parts. */
static enum epa_status run_all_experts(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    enum epa_status status = EPA_OK;

    (void)problem;
    c->d.last.status = EPA_OK;
    for (uint32_t n = 0; n < c->l.parts && status == EPA_OK; n++)
        status = queue_experts(c, n);
    return status;
}

static const struct epa_stage layer_stage[] = {
    {.name = "layer", .kind = EPA_STAGE_WHOLE, .run = run_layer},
};

static const struct epa_stage layer_halves[EPA_PARTS] = {
    {.name = "dispatch and combine", .kind = EPA_STAGE_WHOLE, .run = run_communication},
    {.name = "experts", .kind = EPA_STAGE_WHOLE, .run = run_all_experts},
};

static struct epa_experts_params experts_params(const struct epa_moe *m, const struct tf_layout *l)
{
    return (struct epa_experts_params){
        .moe = m,
        .experts = l->local,
        .recv_rows = l->rows,
        .recv_entries = l->rows,
        .layout = EPA_LAYOUT_EXPERT,
        .recv_dtype = l->fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
    };
}

/* Creates the stream of the experts and the events between the streams. */
static cudaError_t create_stream(struct tf_cuda *c)
{
    cudaError_t code = cudaStreamCreateWithFlags(&c->computes, cudaStreamNonBlocking);

    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&c->received, cudaEventDisableTiming);
    for (uint32_t i = 0; i < TF_DEVICE_SETS && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&c->computed[i], cudaEventDisableTiming);
    return code;
}

static enum epa_status create_layer(struct tf_cuda *c, const struct epa_moe *m,
                                    struct epa_error *err)
{
    struct epa_backend *b = c->d.backend;
    const struct epa_experts_params params = experts_params(m, &c->l);
    enum epa_status status;

    c->d.base.stages = layer_stage;
    c->d.base.n_stages = 1;
    c->d.base.discard = NULL;
    if (m->mlp.ffn == 0)
        return EPA_OK;
    if (b->ops->experts_create == NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "algorithm.parts backend.name",
                            "token_flag: parts: %u needs a backend that computes experts",
                            c->l.parts);
    status = b->ops->experts_create(b, &params, &c->experts, err);
    if (status != EPA_OK)
        return status;
    c->d.base.parts = layer_halves;
    c->d.base.n_parts = EPA_PARTS;
    c->d.base.products_by = b->ops->experts_name(c->experts);
    status = check_call(c, create_stream(c), "creating the stream of the experts");
    return status == EPA_OK ? EPA_OK : epa_fail(err, status, "token_flag: %s", c->d.last.text);
}

static void destroy_token_flag(struct epa_algorithm *a)
{
    struct tf_cuda *c = (struct tf_cuda *)a;

    if (c == NULL)
        return;
    for (uint32_t i = 0; i < TF_DEVICE_SETS; i++)
        if (c->computed[i] != NULL)
            (void)cudaEventDestroy(c->computed[i]);
    if (c->received != NULL)
        (void)cudaEventDestroy(c->received);
    if (c->computes != NULL)
        (void)cudaStreamDestroy(c->computes);
    if (c->experts != NULL)
        c->d.backend->ops->experts_destroy(c->experts);
    device_destroy(a);
}

/* ---- failures ---- */

/* Explains the wait that a kernel gave up, with the messages of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    const char *stage = f->stage < TF_STAGES ? call_name[f->stage] : "unknown stage";
    const char *phase = f->stage >= TF_COMBINE_SEND                       ? "expert outputs"
                        : f->what == TF_WAIT_ROW || f->what == TF_BAD_ROW ? "rows"
                                                                          : "counts";
    double waited = (double)f->waited_ns * 1e-9;
    enum epa_status status = (enum epa_status)f->status;

    (void)rank;
    if (f->what == TF_BAD_ROW) {
        (void)epa_fail_stage(err, status, "", stage, phase,
                             "row %u of rank %u has token %llu and local expert %llu, which "
                             "contradicts the counts of the rank",
                             f->index, f->peer, (unsigned long long)f->seen,
                             (unsigned long long)f->wanted);
        return;
    }
    if (f->what == TF_WAIT_COUNTS || f->what == TF_WAIT_ROWS || f->what == TF_WAIT_CHUNKS) {
        bool flag = f->what != TF_WAIT_COUNTS;

        (void)epa_fail_stage(
            epa_awaits(err, f->peer), status, "", stage, phase,
            "epoch %llu, waited %.3f s for counts of rank %u%s: the last are of epoch %llu",
            (unsigned long long)(f->wanted >> (flag ? TF_ROW_BITS : 0)), waited, f->peer,
            f->what == TF_WAIT_ROWS     ? " and all its rows"
            : f->what == TF_WAIT_CHUNKS ? " and all its chunks but the last"
                                        : "",
            (unsigned long long)(f->seen >> TF_ROW_BITS));
        return;
    }
    if (f->what == TF_WAIT_RING) {
        device_explain_ring(f, stage, "", err);
        return;
    }
    if (f->what == TF_WAIT_OUTPUTS) {
        (void)epa_fail_stage(
            epa_awaits(err, f->peer), status, "", stage, phase,
            "waited %.3f s for the outputs of rank %u, of another node: its signal is %llu, wants "
            "%llu",
            waited, f->peer, (unsigned long long)f->seen, (unsigned long long)f->wanted);
        return;
    }
    (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, phase,
                         "epoch %llu, waited %.3f s for %s %u of rank %u: the data there is of "
                         "epoch %llu%s",
                         (unsigned long long)f->wanted, waited,
                         f->what == TF_WAIT_ROW ? "row" : "the expert output for token", f->index,
                         f->peer, (unsigned long long)f->seen, device_missing(f));
}

/* ---- set-up ---- */

static void place_sets(struct device *d, char *memory, uint64_t *at)
{
    struct tf_cuda *c = (struct tf_cuda *)d;
    const struct tf_layout *l = &c->l;

    c->args.counters = device_take(memory, at, counter_bytes(l));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct tf_cuda_set *s = &c->set[i];

        s->received = device_take(memory, at, l->size * sizeof(*s->received));
        s->entry = device_take(memory, at, (uint64_t)l->size * l->source_rows * sizeof(*s->entry));
        if (l->far)
            s->place =
                device_take(memory, at, (uint64_t)l->max_tokens * l->topk * sizeof(*s->place));
    }
}

static const struct device_kind token_flag_kind = {
    .name = "token_flag",
    .stages = TF_STAGES,
    .halves = 2,
    .phase =
        {
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_COUNTING] = "dispatch_send, counts",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_SENDING] = "dispatch_send, send",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_AWAITING] = "dispatch_send, wait",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_RECEIVING] = "dispatch_send, receive",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_COUNTING] = "dispatch_recv, counts",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_SENDING] = "dispatch_recv, send",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_AWAITING] = "dispatch_recv, wait",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_RECEIVING] = "dispatch_recv, receive",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_COUNTING] = "combine_send, counts",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_SENDING] = "combine_send, send",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_AWAITING] = "combine_send, wait",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_RECEIVING] = "combine_send, receive",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_COUNTING] = "combine_recv, counts",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_SENDING] = "combine_recv, send",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_AWAITING] = "combine_recv, wait",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_RECEIVING] = "combine_recv, receive",
            [TF_DISPATCH_SEND * DEVICE_PHASES + DEVICE_TOKENS] = "dispatch_send, token",
            [TF_DISPATCH_RECV * DEVICE_PHASES + DEVICE_TOKENS] = "dispatch_recv, token",
            [TF_COMBINE_RECV * DEVICE_PHASES + DEVICE_TOKENS] = "combine_recv, token",
        },
    .place = place_sets,
    .explain = explain_fault,
};

static uint32_t warps_of(const struct tf_config *config, enum tf_stage stage)
{
    return config->kernel_warps.n != 0 ? config->kernel_warps.item[stage] : DEVICE_WARPS;
}

/* Layout of shared memory: tables by expert, then a message, or a part of a message per warp. */
static void fill_args(struct tf_cuda *c, const struct tf_config *config)
{
    const struct tf_layout *l = &c->l;
    uint32_t scales = l->fp8 ? l->hidden / l->group * 4 : 0, send, receive[2];

    c->args = (struct tf_args){
        .source_rows = l->source_rows,
        .chunks = l->chunks,
        .packets = l->packets,
        .output_packets = l->output_packets,
        .wire_bytes = (uint32_t)l->wire_bytes,
        .slot_bytes = (uint32_t)l->slot_bytes,
        .content_bytes = (uint32_t)((l->scales_at + scales + 7) / 8 * 8),
        .scales_at = (uint32_t)l->scales_at,
        .message_bytes = (uint32_t)l->message_bytes,
        .meta_at = (uint32_t)l->meta_at,
        .output_bytes = (uint32_t)l->output_bytes,
        .by_token = l->by_token,
        .flat = l->flat,
        .folded = l->folded,
        .payload = device_up16((l->experts + 1) * 4),
        .counts_bytes = l->counts_bytes,
    };
    send = device_up16(c->args.content_bytes);
    for (int i = 0; i < 2; i++)
        receive[i] = warps_of(config, i == 0 ? TF_DISPATCH_SEND : TF_DISPATCH_RECV) * TF_UNIT_BYTES;
    c->d.shared_bytes[TF_DISPATCH_SEND] =
        c->args.payload + (l->chunks > 1 && receive[0] > send ? receive[0] : send);
    c->d.shared_bytes[TF_DISPATCH_RECV] = c->args.payload + receive[1];
}

/* Returns the bytes that the backend allocates for the experts of a layer, packed weights excluded:
 * the backend packs weights if there is room. */
static uint64_t experts_bytes(const struct epa_moe *m, const struct tf_layout *l)
{
    const struct epa_mlp *mlp = &m->mlp;
    bool fp8 = mlp->dtype == EPA_FP8_E4M3;
    uint64_t row = (uint64_t)mlp->ffn * (fp8 ? 1 : 2);

    if (l->parts == 0 || mlp->ffn == 0)
        return 0;
    if (fp8)
        row += mlp->ffn / mlp->fp8_group_size * sizeof(float);
    if (fp8 != l->fp8) /* converted rows */
        row += fp8 ? m->hidden + m->hidden / m->fp8_group_size * sizeof(float)
                   : 2 * (uint64_t)m->hidden;
    return l->rows * row;
}

uint64_t tf_cuda_bytes(const struct epa_moe *m, const struct tf_layout *l)
{
    struct tf_cuda c = {.d = {.kind = &token_flag_kind, .sets = l->buffers}, .l = *l};

    c.d.args.local = l->local;
    return device_scratch_bytes(&c.d) + experts_bytes(m, l);
}

enum epa_status tf_cuda_create(const struct epa_algorithm_params *p, const struct tf_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct tf_config *config = p->config;
    struct device_kernel kernel[TF_STAGES];
    struct tf_cuda *c;
    enum epa_status status =
        device_create(&token_flag_kind, sizeof(*c), p, l->heap_bytes, l->buffers, true, &c, err);

    if (status != EPA_OK)
        return status;
    c->d.base.stages = cuda_stages;
    c->d.base.n_stages = TF_STAGES;
    c->d.base.discard = l->buffers > 1 ? discard_dispatch : NULL;
    c->d.base.destroy = destroy_token_flag;
    c->l = *l;
    c->f16 = p->problem->u.moe.dtype == EPA_F16;
    fill_args(c, config);
    c->d.args.max_tokens = l->max_tokens; /* of a part */
    c->d.args.notes = l->max_tokens + l->size * (l->source_rows + 1) + l->max_tokens * l->topk;
    for (int i = 0; i < TF_STAGES; i++)
        kernel[i] = (struct device_kernel){kernel_of(c, (enum tf_stage)i, EPA_BF16), NULL,
                                           call_name[i], warps_of(config, (enum tf_stage)i) * 32};
    if (l->fp8)
        kernel[TF_DISPATCH_SEND].other = kernel_of(c, TF_DISPATCH_SEND, EPA_FP8_E4M3);
    status = device_set_up(&c->d, kernel, config->blocks, err);
    for (uint32_t i = 0; i < config->kernel_blocks.n; i++)
        if (c->d.resident[i] > config->kernel_blocks.item[i])
            c->d.resident[i] = config->kernel_blocks.item[i];
    /* Clear the heap: transports do not initialise it, and lines must not seem to belong to later
     * calls. No rank begins before all ranks have completed set-up, so no arrived data is lost. */
    if (status == EPA_OK && l->far)
        status = device_make_mirrors(&c->d, l->heap_bytes, l->signals, tf_far(), err);
    for (uint32_t r = 0; r < l->size; r++)
        c->args.far |= p->transport->view->peer_heap[r] == NULL ? (uint64_t)1 << r : 0;
    if (status == EPA_OK)
        status = device_clear(&c->d, device_own(&c->d, c->d.heap), c->l.heap_bytes, err);
    if (status == EPA_OK && l->parts != 0)
        status = create_layer(c, &p->problem->u.moe, err);
    return device_created(&c->d, status, out);
}
