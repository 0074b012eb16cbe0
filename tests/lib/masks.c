/* Masks of ll_v2 on CUDA devices: the ranks that are left have correct rows and sums after the loss of a
 * rank, and the masks name the rank.
 *
 * lib-masks processes|threads nvlink */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "room.h"
#include "moe_check.h"

enum {
    RANKS = 3,
    LOST = RANKS - 1,
    LOCAL = 2,
    EXPERTS = RANKS * LOCAL,
    TOPK = 3,
    TOKENS = 35, /* more than a window of tokens */
    HIDDEN = 1024 + 64,
    ROWS = RANKS * TOKENS,
    ITERATIONS = 3
};

enum loss {
    IN_DISPATCH, /* the rank makes no call */
    IN_COMBINE,  /* the rank dispatches, but does not combine */
    ONE_SIDED,   /* the same, but it sends no rows to rank 1 */
    BY_CALLER,   /* the caller masks the rank */
    KILLED       /* the process ends during its call */
};

struct loss_of {
    struct setting s;
    enum loss loss;
    bool split, graph;
    uint32_t after_us; /* KILLED: time from the call to the end */
};

static enum group_kind kind;
static const char *transport;
static uint32_t failures;

static bool runs(struct rank *r, cudaError_t code)
{
    return claim(r, code == cudaSuccess, "CUDA: %s", cudaGetErrorString(code));
}

/* ---- inputs, and arrays on the device ---- */

static uint16_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* A few bits, so that sums are exact in BF16. */
static float value_of(uint32_t rank, uint32_t token, uint32_t channel)
{
    return (float)(int32_t)((rank * 5 + token * 3 + channel) % 15) - 7;
}

/* Distinct experts of a token; one token has no choice at all. */
static int32_t expert_of(uint32_t rank, uint32_t token, uint32_t k)
{
    return token == 4 ? -1 : (int32_t)((rank + token * 5 + k * 2 + token / 7) % EXPERTS);
}

static bool selects(uint32_t rank, uint32_t token, uint32_t expert)
{
    for (uint32_t k = 0; k < TOPK; k++)
        if (expert_of(rank, token, k) == (int32_t)expert)
            return true;
    return false;
}

struct there {
    uint16_t *x, *rows, *out;
    int32_t *expert, *masks, *seen, *token;
    float *weight;
    uint32_t *count;
    int64_t *range;
};

static void fill(struct rank *r, const struct there *t)
{
    uint16_t x[HIDDEN];
    int32_t expert[TOPK];
    float weight[TOPK] = {0.25f, 0.5f, 1};
    int32_t zero[RANKS] = {0};

    for (uint32_t i = 0; i < TOKENS; i++) {
        for (uint32_t c = 0; c < HIDDEN; c++)
            x[c] = bits_of(value_of(r->rank, i, c));
        for (uint32_t k = 0; k < TOPK; k++)
            expert[k] = expert_of(r->rank, i, k);
        room_copy(t->x + (size_t)i * HIDDEN, x, sizeof(x), r->stream);
        room_copy(t->expert + (size_t)i * TOPK, expert, sizeof(expert), r->stream);
        room_copy(t->weight + (size_t)i * TOPK, weight, sizeof(weight), r->stream);
    }
    room_copy(t->masks, zero, sizeof(zero), r->stream);
    room_copy(t->seen, zero, LOCAL * sizeof(*t->seen), r->stream);
}

static struct there allocate(void)
{
    return (struct there){.x = room_alloc(sizeof(uint16_t) * TOKENS * HIDDEN),
                          .rows = room_alloc(sizeof(uint16_t) * LOCAL * ROWS * HIDDEN),
                          .out = room_alloc(sizeof(uint16_t) * TOKENS * HIDDEN),
                          .expert = room_alloc(sizeof(int32_t) * TOKENS * TOPK),
                          .masks = room_alloc(sizeof(int32_t) * RANKS),
                          .seen = room_alloc(sizeof(int32_t) * LOCAL),
                          .token = room_alloc(sizeof(int32_t) * LOCAL * ROWS),
                          .weight = room_alloc(sizeof(float) * TOKENS * TOPK),
                          .count = room_alloc(sizeof(uint32_t) * LOCAL),
                          .range = room_alloc(sizeof(int64_t) * LOCAL * RANKS)};
}

static void release(const struct there *t)
{
    void *const all[] = {t->x,    t->rows,  t->out,    t->expert, t->masks,
                         t->seen, t->token, t->weight, t->count,  t->range};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        room_free(all[i]);
}

/* ---- checks ---- */

/* Checks the rows of a source for an expert from row `row` on. Returns their number. */
static uint32_t check_rows(struct rank *r, const struct there *t, uint32_t expert, uint32_t source,
                           uint32_t row)
{
    static _Thread_local int32_t token[LOCAL * ROWS];
    uint16_t have[HIDDEN], want[HIDDEN];
    uint32_t n = 0, local = expert - r->rank * LOCAL;

    room_copy(token, t->token, sizeof(token), r->stream);
    for (uint32_t i = 0; i < TOKENS && !r->failed; i++) {
        size_t at = (size_t)local * ROWS + row + n;

        if (!selects(source, i, expert))
            continue;
        for (uint32_t c = 0; c < HIDDEN; c++)
            want[c] = bits_of(value_of(source, i, c));
        room_copy(have, t->rows + at * HIDDEN, sizeof(have), r->stream);
        (void)claim(r, token[at] == (int32_t)i && memcmp(have, want, sizeof(have)) == 0,
                    "expert %u: token %u of rank %u has another row", expert, i, source);
        n++;
    }
    return n;
}

/* Checks the rows of all sources. `may`: the lost rank may have rows, if they are complete. */
static void check_received(struct rank *r, const struct there *t, bool has_lost, bool may,
                           int32_t *seen)
{
    uint32_t count[LOCAL];
    int64_t range[LOCAL * RANKS];

    room_copy(count, t->count, sizeof(count), r->stream);
    room_copy(range, t->range, sizeof(range), r->stream);
    for (uint32_t e = 0; e < LOCAL && !r->failed; e++) {
        uint32_t row = 0;

        for (uint32_t source = 0; source < RANKS; source++) {
            uint32_t n = (uint32_t)range[e * RANKS + source];
            bool left_out = source == LOST && (may ? n == 0 : !has_lost);
            uint32_t want = left_out ? 0 : check_rows(r, t, r->rank * LOCAL + e, source, row);

            (void)claim(r, n == want && range[e * RANKS + source] >> 32 == row,
                        "expert %u has %u rows of rank %u instead of %u", r->rank * LOCAL + e, n,
                        source, want);
            row += n;
        }
        seen[e] += (int32_t)row;
        (void)claim(r, count[e] == row, "expert %u has %u rows instead of %u", r->rank * LOCAL + e,
                    count[e], row);
    }
}

/* Each expert returns its rows. */
static void check_sums(struct rank *r, const struct there *t, bool has_lost)
{
    const float weight[TOPK] = {0.25f, 0.5f, 1};
    uint16_t have[HIDDEN];

    for (uint32_t i = 0; i < TOKENS && !r->failed; i++) {
        float sum = 0;

        for (uint32_t k = 0; k < TOPK; k++) {
            int32_t expert = expert_of(r->rank, i, k);

            sum += expert >= 0 && (has_lost || expert / LOCAL != LOST) ? weight[k] : 0;
        }
        room_copy(have, t->out + (size_t)i * HIDDEN, sizeof(have), r->stream);
        for (uint32_t c = 0; c < HIDDEN && !r->failed; c++) {
            uint16_t want = bits_of(value_of(r->rank, i, c) * sum + 0.0f); /* no -0 */

            (void)claim(r, have[c] == want, "token %u: channel %u of the sum is %#x instead of %#x",
                        i, c, have[c], want);
        }
    }
}

static bool is_masked(struct rank *r, const struct there *t)
{
    int32_t masks[RANKS];

    room_copy(masks, t->masks, sizeof(masks), r->stream);
    for (uint32_t i = 0; i < LOST; i++)
        (void)claim(r, masks[i] == 0, "rank %u has a mask", i);
    return masks[LOST] != 0;
}

static void check_seen(struct rank *r, const struct there *t, const int32_t *seen)
{
    int32_t have[LOCAL];

    room_copy(have, t->seen, sizeof(have), r->stream);
    (void)claim(r, memcmp(have, seen, sizeof(have)) == 0, "other numbers of rows were added");
}

/* ---- calls ---- */

struct layer {
    struct epa2a_moe *moe;
    struct epa2a_tokens in;
    struct epa2a_received got;
    struct epa2a_outputs o;
};

static void queue_dispatch(struct rank *r, struct layer *l, const struct there *t)
{
    l->got = (struct epa2a_received){.size = sizeof(l->got),
                                     .x = t->rows,
                                     .count = t->count,
                                     .source_token = t->token,
                                     .source_range = t->range};
    (void)works(r, epa2a_dispatch(l->moe, &l->in, &l->got, r->stream));
}

static void queue_combine(struct rank *r, struct layer *l)
{
    (void)works(r, epa2a_combine(l->moe, &l->got, &l->o, r->stream));
}

static void wait(struct rank *r)
{
    (void)runs(r, cudaStreamSynchronize(r->stream));
}

static struct layer layer_of(struct rank *r, const struct loss_of *of, struct epa2a_comm *comm,
                             const struct there *t, char *options, size_t bytes)
{
    struct layer l = {.in = {.size = sizeof(l.in),
                             .tokens = TOKENS,
                             .x = t->x,
                             .topk_idx = t->expert,
                             .topk_idx_bytes = 4,
                             .topk_weight = t->weight,
                             .seen = t->seen},
                      .o = {.size = sizeof(l.o), .y = t->rows, .out = t->out}};
    struct epa2a_moe_shape shape = of->s.shape;

    snprintf(options, bytes,
             "algorithm=ll_v2, dedup=true, combine_dedup=false, split_phase=%s, masks=%llu",
             of->split ? "true" : "false", (unsigned long long)(uintptr_t)t->masks);
    shape.size = sizeof(shape);
    shape.options = options;
    (void)works(r, epa2a_moe_create(comm, &shape, &l.moe));
    return l;
}

/* The lost rank stops after its last call, and the others go on. */
static void lose(struct rank *r, const struct loss_of *of, struct layer *l, const struct there *t)
{
    const int32_t one = 1;

    if (of->loss == ONE_SIDED)
        room_copy(t->masks + 1, &one, sizeof(one), r->stream);
    if (of->loss == IN_COMBINE || of->loss == KILLED || of->loss == ONE_SIDED)
        queue_dispatch(r, l, t);
    if (of->loss == KILLED) {
        nanosleep(&(struct timespec){.tv_nsec = of->after_us * 1000}, NULL);
        r->of->result->code = r->failed;
        (void)raise(SIGKILL);
    }
}

/* Calls after the loss, with a graph or without. */
static void go_on(struct rank *r, const struct loss_of *of, struct layer *l, const struct there *t,
                  int32_t *seen)
{
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;

    if (of->graph) {
        (void)runs(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeGlobal));
        queue_dispatch(r, l, t);
        queue_combine(r, l);
        (void)runs(r, cudaStreamEndCapture(r->stream, &graph));
        if (!r->failed)
            (void)runs(r, cudaGraphInstantiate(&exec, graph, 0));
    }
    for (uint32_t i = 0; i < ITERATIONS && !r->failed; i++) {
        bool may = i == 0 && of->loss == KILLED,
             has_lost =
                 i == 0 && (of->loss == IN_COMBINE || (of->loss == ONE_SIDED && r->rank == 0));

        if (of->graph) {
            (void)runs(r, cudaGraphLaunch(exec, r->stream));
            wait(r);
        } else {
            queue_dispatch(r, l, t);
            wait(r);
            (void)claim(r, may || is_masked(r, t) == !has_lost, "the mask of rank %u is wrong",
                        LOST);
            queue_combine(r, l);
            wait(r);
        }
        check_received(r, t, has_lost, may, seen);
        check_seen(r, t, seen);
        check_sums(r, t, false);
        (void)claim(r, is_masked(r, t), "rank %u has no mask", LOST);
    }
    if (exec != NULL)
        (void)runs(r, cudaGraphExecDestroy(exec));
    if (graph != NULL)
        (void)runs(r, cudaGraphDestroy(graph));
}

/* An address outside memory of the device is refused. */
static void refuse_address(struct rank *r, const struct loss_of *of, struct epa2a_comm *comm)
{
    struct epa2a_moe_shape shape = of->s.shape;
    struct epa2a_moe *moe = NULL;

    shape.size = sizeof(shape);
    shape.options = "algorithm=ll_v2, dedup=true, combine_dedup=false, masks=64";
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_CONFIG, "masks .. memory of GPU");
    shape.options = "algorithm=ll_v2, dedup=true, masks=64";
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_CONFIG, "combine_dedup: false");
}

static void run_loss(struct rank *r)
{
    const struct loss_of *of = (const struct loss_of *)r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct there t = allocate();
    int32_t one = 1, seen[LOCAL] = {0};
    char options[160];
    struct layer l;

    fill(r, &t);
    if (of->loss == BY_CALLER)
        refuse_address(r, of, comm);
    l = layer_of(r, of, comm, &t, options, sizeof(options));
    for (int i = 0; i < 2 && !r->failed; i++) {
        queue_dispatch(r, &l, &t);
        queue_combine(r, &l);
        wait(r);
        check_received(r, &t, true, false, seen);
        check_seen(r, &t, seen);
        check_sums(r, &t, true);
        (void)claim(r, !is_masked(r, &t), "rank %u has a mask", LOST);
    }
    (void)claim(r, group_meet(r->of), "a rank left");
    if (of->loss == BY_CALLER && r->rank != LOST)
        room_copy(t.masks + LOST, &one, sizeof(one), r->stream);
    if (r->rank == LOST)
        lose(r, of, &l, &t);
    else if (!r->failed)
        go_on(r, of, &l, &t, seen);
    if (r->rank != LOST) /* the lost rank waits for the end of the others */
        (void)__atomic_add_fetch(group_word(r->of, 1), 1, __ATOMIC_RELEASE);
    for (double begun = group_now();
         __atomic_load_n(group_word(r->of, 1), __ATOMIC_ACQUIRE) < LOST &&
         group_now() - begun < 60 && comm != NULL;)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    epa2a_comm_abort(comm);
    epa2a_moe_destroy(l.moe);
    epa2a_comm_destroy(comm);
    release(&t);
}

/* ---- settings ---- */

static void run_rank(struct group_rank *me)
{
    char text[128];
    struct rank r = {.of = me, .rank = me->rank, .arg = me->arg, .transport = text};

    snprintf(text, sizeof(text), "%s, timeout=4s", transport);
    me->result->code = 2; /* of a rank that ends early */
    run_loss(&r);
    me->result->code = r.failed;
    if (r.stream != NULL)
        room_stream_end(r.stream);
}

static void run(const char *what, struct loss_of of)
{
    struct group *group;

    of.s = (struct setting){.ranks = RANKS,
                            .shape = {.max_tokens = TOKENS,
                                      .hidden = HIDDEN,
                                      .experts = EXPERTS,
                                      .topk = TOPK,
                                      .dtype = EPA2A_BF16,
                                      .recv_dtype = EPA2A_BF16,
                                      .layout = EPA2A_EXPERT_PADDED,
                                      .in_flight = 1}};
    group = group_run(RANKS, kind, run_rank, &of.s);
    for (uint32_t i = 0; i < RANKS; i++) {
        const struct group_result *result = group_result(group, i);

        if (result->code == 0)
            continue;
        fprintf(stderr, "failed: %s, rank %u: %d: %s\n", what, i, result->code, result->text);
        failures++;
    }
    group_free(group);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    kind = strcmp(argv[1], "threads") == 0 ? GROUP_THREADS : GROUP_PROCESSES;
    transport = argv[2];
    if (room_missing())
        return 77;
    run("no dispatch", (struct loss_of){.loss = IN_DISPATCH});
    run("no combine", (struct loss_of){.loss = IN_COMBINE, .split = true});
    run("ranks that lose a rank in different calls", (struct loss_of){.loss = ONE_SIDED});
    run("a graph", (struct loss_of){.loss = IN_DISPATCH, .graph = true});
    run("a mask of the caller", (struct loss_of){.loss = BY_CALLER, .graph = true, .split = true});
    for (uint32_t i = 0; i < 4 && kind == GROUP_PROCESSES; i++)
        run("a process that ends in its call",
            (struct loss_of){.loss = KILLED, .split = i % 2 != 0, .after_us = 400 * i});
    return failures != 0;
}
