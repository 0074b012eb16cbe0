/* Sequences of dispatches and combines through epa2a.h, in all layouts and forms.
 *
 * lib-moe processes|threads TRANSPORT [SEQUENCE]
 * lib-moe-cuda processes|threads nvlink [SEQUENCE]: the same sequences in memory of CUDA devices */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "room.h"
#include "moe_check.h"

static const char *transport;

/* ---- sequences ---- */

/* The rows of token_flag have the order of a packed layout, so the library does not copy them. The
 * messages of the algorithm are longer than its rows. */
static void claim_view(struct rank *r, const struct subject *t, const struct slot *p)
{
    const struct epa2a_moe_shape *s = &t->s->shape;

    if (!room_is_device() && !p->own && s->layout == EPA2A_EXPERT_PACKED &&
        strcmp(t->need.algorithm, "token_flag") == 0)
        (void)claim(r, p->got.x_stride > (model_is_fp8(t->s) ? 1 : 2) * (size_t)s->hidden,
                    "the library copied rows: stride %zu", p->got.x_stride);
}

/* Returns true if the options select the algorithm. */
static bool selects_algorithm(const struct setting *s, const char *name)
{
    return s->shape.options != NULL && strstr(s->shape.options, name) != NULL;
}

/* A dispatch on a device can be discarded if another buffer set follows, or by ll_v1. */
static bool can_discard(const struct setting *s)
{
    return !room_is_device() || s->shape.in_flight == 2 || selects_algorithm(s, "ll_v1");
}

static bool can_repeat(const struct setting *s)
{
    return !room_is_device() || !selects_algorithm(s, "token_flag");
}

/* On a device the EXPERT layouts have no memory of the moe for rows or scales in another form than the
 * form between the ranks. */
static bool needs_own(const struct setting *s)
{
    bool converts = model_is_fp8(s) != (s->shape.recv_dtype == EPA2A_FP8_E4M3);

    return room_is_device() && !is_rank_layout(s) &&
           (converts || (s->flags & (EPA2A_SCALE_UE8M0 | EPA2A_SCALE_BY_GROUP)) != 0);
}

/* One dispatch and combine after the other, in all ways that the setting allows. */
static void run_plain(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    bool ranks = is_rank_layout(s), sent_fp8 = s->shape.recv_dtype == EPA2A_FP8_E4M3;
    const struct epa2a_outputs no_outputs = {.size = sizeof(no_outputs)};
    struct epa2a_outputs in_place = {.size = sizeof(in_place), .flags = EPA2A_COMBINE_LOGFMT};
    struct subject t;
    struct slot views, own;
    struct way w = {.own = true};

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &own, &w);
    w.own = false;
    slot_begin(&t, &views, &w);
    for (uint64_t i = 0; i < 12 && !r->failed; i++) {
        struct slot *p = i % 2 != 0 || needs_own(s) ? &own : &views;

        w = (struct way){.halves = i % 3 == 1,
                         .wide = i % 4 >= 2,
                         .strided = i % 5 == 3,
                         .codes = sent_fp8 && i % 5 >= 3,
                         .late = !ranks && !s->by_rank && i % 3 == 2,
                         .weights = ranks && i % 4 == 2,
                         .bias = i % 4 == 1};
        dispatch(&t, p, &w, i);
        claim_view(r, &t, p);
        in_place.out = t.out;
        if (s->logfmt)
            fails(r, epa2a_combine(t.moe, &p->got, &in_place, r->stream), EPA2A_ERR_CONFIG,
                  "memory of the application");
        combine(&t, p, &w, i % 6 >= 4);
        if (i % 4 == 3 && can_repeat(s)) /* immediately again */
            combine(&t, p, &w, i % 6 >= 4);
        if (w.weights)
            fails(r, epa2a_combine(t.moe, &p->got, &no_outputs, r->stream), EPA2A_ERR_CONFIG,
                  "not open");
        if (i % 4 == 0 && can_discard(s) && !r->failed) {
            dispatch(&t, p, &w, i + 100);
            (void)works(r, epa2a_discard(t.moe, &p->got));
        }
    }
    slot_end(&views);
    slot_end(&own);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* A rank that makes no further call does not delay its peers. */
static void run_pauses(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.pauses = true};
    struct subject t;
    struct slot p;

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    for (uint64_t i = 0; i < 8 && !r->failed; i++) {
        w.halves = i % 2 != 0;
        dispatch(&t, &p, &w, i);
        combine(&t, &p, &w, false);
    }
    slot_end(&p);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* Two dispatches in flight. */
static void run_pipelined(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.own = false};
    struct subject t;
    struct slot p[2];

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p[0], &w);
    slot_begin(&t, &p[1], &w);
    for (uint64_t i = 0; i < 9 && !r->failed; i++) {
        w.halves = i % 3 == 2;
        dispatch(&t, &p[i % 2], &w, i);
        if (i > 0)
            combine(&t, &p[(i + 1) % 2], &w, i % 4 == 1);
    }
    combine(&t, &p[0], &w, false);
    slot_end(&p[0]);
    slot_end(&p[1]);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* Combines later, earlier and repeatedly, and dispatches along routes. */
static void run_routes(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.own = true, .routing = true}, views = {.routing = true};
    struct subject t;
    struct slot p[4];

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    for (uint32_t i = 0; i < 4; i++)
        slot_begin(&t, &p[i], i < 3 ? &w : &views);
    for (uint64_t i = 0; i < 8 && !r->failed; i += 4) {
        struct way with = w;

        for (uint32_t j = 0; j < 3; j++)
            dispatch(&t, &p[j], &w, i + j);
        combine(&t, &p[2], &w, false);
        combine(&t, &p[0], &w, true);
        with.weights = is_rank_layout(s);
        combine(&t, &p[1], &with, false);
        combine(&t, &p[0], &w, false);
        combine(&t, &p[0], &with, false);
        dispatch_again(&t, &p[0], &w, i + 50);
        dispatch(&t, &p[3], &views, i + 3);
        if (room_is_device()) /* the repeated dispatch of another combine would use the memory */
            combine(&t, &p[3], &views, false);
        combine(&t, &p[0], &w, false);
        if (!room_is_device())
            combine(&t, &p[3], &views, false);
        dispatch_again(&t, &p[1], &w, i + 51);
        dispatch_again(&t, &p[1], &w, i + 52);
        combine(&t, &p[1], &w, false);
        combine(&t, &p[2], &w, false);
    }
    for (uint32_t i = 0; i < 4; i++)
        slot_end(&p[i]);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* Two moes of one comm, and a moe of another comm, with open dispatches at the same time. */
static void run_several(struct rank *r)
{
    const struct setting *s = r->arg;
    struct setting other = *s;
    struct epa2a_comm *comm[2] = {create_comm(r), create_comm(r)};
    struct way w = {.own = false};
    struct subject t[3];
    struct slot p[3];

    other.seed++;
    other.shape.layout = s->shape.layout ^ 1;
    subject_begin(&t[0], r, s, comm[0]);
    subject_begin(&t[1], r, &other, comm[0]);
    subject_begin(&t[2], r, s, comm[1]);
    if (r->failed)
        return;
    for (uint32_t i = 0; i < 3; i++)
        slot_begin(&t[i], &p[i], &w);
    for (uint64_t i = 0; i < 6 && !r->failed; i++) {
        for (uint32_t j = 0; j < 3; j++)
            dispatch(&t[j], &p[j], &w, i + j);
        for (uint32_t j = 3; j > 0; j--)
            combine(&t[j - 1], &p[j - 1], &w, false);
    }
    for (uint32_t i = 0; i < 3; i++) {
        slot_end(&p[i]);
        subject_end(&t[i]);
    }
    epa2a_comm_destroy(comm[0]);
    epa2a_comm_destroy(comm[1]);
}

/* The routes of one moe are not valid for another moe of the same shape. */
static void run_foreign_routes(struct rank *r, struct epa2a_comm *comm, struct subject *t)
{
    struct way w = {.own = true, .routing = true};
    struct epa2a_outputs o = {.size = sizeof(o)};
    struct subject other;
    struct slot p, own;

    subject_begin(&other, r, t->s, comm);
    if (r->failed)
        return;
    slot_begin(&other, &p, &w);
    slot_begin(t, &own, &w);
    dispatch(&other, &p, &w, 3);
    dispatch(t, &own, &w, 0);
    o.out = t->out;
    fails(r, epa2a_combine(t->moe, &p.got, &o, NULL), EPA2A_ERR_CONFIG, "of this moe");
    combine(t, &own, &w, false);
    combine(&other, &p, &w, false);
    slot_end(&p);
    slot_end(&own);
    subject_end(&other);
}

/* Calls that fail before any data are sent, and do not disturb the calls after them. */
static void run_errors(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.own = false};
    struct subject t;
    struct slot p, second;
    struct epa2a_tokens in;
    struct epa2a_outputs o = {.size = sizeof(o)};
    uint32_t topk = s->shape.topk;

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    slot_begin(&t, &second, &w);
    p.tokens = s->shape.max_tokens;
    fill_inputs(&t, &p, &w, &in);
    in.tokens++;
    fails(r, epa2a_dispatch(t.moe, &in, &p.got, NULL), EPA2A_ERR_CONFIG, "max_tokens");
    in.tokens--;
    t.expert[topk] = 1;
    t.expert[topk + 1] = 1;
    fails(r, epa2a_dispatch(t.moe, &in, &p.got, NULL), EPA2A_ERR_CONFIG, "token 1 .. expert 1");
    in.flags = EPA2A_RECV_NATIVE | EPA2A_RECV_FP8;
    fails(r, epa2a_dispatch(t.moe, &in, &p.got, NULL), EPA2A_ERR_CONFIG, "exclude");
    in.flags = 0;
    fails(r, epa2a_dispatch_recv(t.moe, &p.got, NULL), EPA2A_ERR_CONFIG, "epa2a_dispatch_send");
    fails(r, epa2a_test(t.moe), EPA2A_ERR_CONFIG, "no half call");
    fails(r, epa2a_dispatch_again(t.moe, &in, &p.got, NULL), EPA2A_ERR_CONFIG, "routing");
    fails(r, epa2a_combine(t.moe, &p.got, &o, NULL), EPA2A_ERR_CONFIG, "dispatch 0 is not open");
    dispatch(&t, &p, &w, 0);
    fill_inputs(&t, &p, &w, &in);
    fails(r, epa2a_dispatch(t.moe, &in, &second.got, NULL), EPA2A_ERR_CONFIG,
          "in_flight .. dispatch 1");
    o.flags = 1u << 31;
    o.out = t.out;
    fails(r, epa2a_combine(t.moe, &p.got, &o, NULL), EPA2A_ERR_CONFIG, "flags .. 0x80000000");
    o.flags = EPA2A_COMBINE_LOGFMT;
    fails(r, epa2a_combine(t.moe, &p.got, &o, NULL), EPA2A_ERR_CONFIG,
          is_rank_layout(s) ? "EPA2A_COMBINE_LOGFMT .. EXPERT"
                            : "EPA2A_COMBINE_LOGFMT .. 512 .. hidden 64");
    combine(&t, &p, &w, false);
    fails(r, epa2a_discard(t.moe, &p.got), EPA2A_ERR_CONFIG, "not open");
    run_foreign_routes(r, comm, &t);
    if (!r->failed && works(r, epa2a_dispatch_send(t.moe, &in, &p.got, NULL))) {
        fails(r, epa2a_dispatch(t.moe, &in, &second.got, NULL), EPA2A_ERR_CONFIG,
              "epa2a_dispatch_recv");
        (void)works(r, epa2a_dispatch_recv(t.moe, &p.got, NULL));
        combine(&t, &p, &w, false);
    }
    slot_end(&p);
    slot_end(&second);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* A combine that drops choices: possible with ll_v1 only. */
static void run_masks(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.mask = true};
    struct subject t;
    struct slot p;

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    for (uint64_t i = 0; i < 5 && !r->failed; i++) {
        w.wide = i % 2 != 0;
        dispatch(&t, &p, &w, i);
        combine(&t, &p, &w, false);
    }
    slot_end(&p);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* Shapes that differ between ranks, or that no algorithm supports, fail on all ranks. */
static void run_shapes(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    struct epa2a_moe_shape shape = r->arg->shape;
    struct epa2a_need need = {.size = sizeof(need)}, alone = {.size = sizeof(alone)};
    struct epa2a_moe *moe = NULL;

    shape.size = sizeof(shape);
    if (r->failed)
        return;
    shape.hidden += r->rank == 1 ? 16 : 0;
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_CONFIG,
          "hidden is 64 on rank 0 and 80 on rank 1");
    shape.hidden = 64;
    shape.topk = r->rank == 1 ? 33 : shape.topk;
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_CONFIG, "topk is 33");
    shape.topk = r->arg->shape.topk;
    shape.options = "algorithm=ll_v1";
    shape.layout = EPA2A_RANK_PACKED;
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_UNSUPPORTED,
          "ll_v1 .. EPA2A_EXPERT .. ll_v2");
    shape.options = "algorithm=ll_v3";
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_CONFIG, "ll_v3");
    shape.options = "algorithm=token_flag";
    shape.layout = EPA2A_EXPERT_PACKED;
    (void)works(r, epa2a_moe_need(comm, 0, EPA2A_HOST, &shape, &need));
    (void)works(r, epa2a_moe_need(NULL, r->arg->ranks, EPA2A_HOST, &shape, &alone));
    (void)claim(r, need.rows == (uint64_t)r->arg->ranks * shape.max_tokens * shape.topk,
                "%llu rows", (unsigned long long)need.rows);
    (void)claim(r,
                (need.heap_bytes == alone.heap_bytes || strcmp(transport, "shm") != 0) &&
                    need.rows == alone.rows && need.routing_bytes == alone.routing_bytes &&
                    need.overlaps == 1 && strcmp(need.algorithm, "token_flag") == 0,
                "a need without comm differs, algorithm %s, overlaps %d", need.algorithm,
                need.overlaps);
    epa2a_comm_destroy(comm);
}

/* Rank 0 aborts instead of a dispatch: the other ranks end their wait, and all later calls fail. */
static void run_abort(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct epa2a_outputs o = {.size = sizeof(o)};
    struct epa2a_tokens in;
    struct way w = {.own = false};
    struct subject t;
    struct slot p;

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    dispatch(&t, &p, &w, 0);
    combine(&t, &p, &w, false);
    fill_inputs(&t, &p, &w, &in);
    (void)claim(r, group_meet(r->of), "ranks did not end the combine");
    if (r->rank == 0)
        epa2a_comm_abort(comm);
    fails(r, epa2a_dispatch(t.moe, &in, &p.got, NULL), EPA2A_ERR_ABORTED, "");
    fails(r, epa2a_combine(t.moe, &p.got, &o, NULL), EPA2A_ERR_ABORTED, "");
    fails(r, epa2a_test(t.moe), EPA2A_ERR_ABORTED, "");
    slot_end(&p);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* The heap of a comm has room for two moes, also after one of them was destroyed. */
static void run_heap(struct rank *r)
{
    enum { ALIGN = 65536 };
    const struct setting *s = r->arg;
    struct epa2a_need need = {.size = sizeof(need)};
    struct epa2a_moe_shape shape = s->shape;
    struct epa2a_moe *moe = NULL;
    struct way w = {.own = false};
    struct epa2a_comm *comm;
    struct subject t[2];
    struct slot p;

    shape.size = sizeof(shape);
    (void)works(r, epa2a_moe_need(NULL, s->ranks, EPA2A_HOST, &shape, &need));
    r->heap_bytes = 2 * ((need.heap_bytes + ALIGN - 1) / ALIGN * ALIGN);
    comm = create_comm(r);
    subject_begin(&t[0], r, s, comm);
    subject_begin(&t[1], r, s, comm);
    if (r->failed)
        return;
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_NOMEM, "heap");
    subject_end(&t[0]);
    subject_begin(&t[0], r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t[0], &p, &w);
    dispatch(&t[0], &p, &w, 0);
    combine(&t[0], &p, &w, false);
    slot_end(&p);
    subject_end(&t[0]);
    subject_end(&t[1]);
    epa2a_comm_destroy(comm);
}

/* A process dies between two dispatches: the calls of the other ranks name its rank. */
static void run_death(struct rank *r)
{
    const struct setting *s = r->arg;
    struct epa2a_comm *comm = create_comm(r);
    struct way w = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    struct slot p;

    subject_begin(&t, r, s, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    dispatch(&t, &p, &w, 0);
    combine(&t, &p, &w, false);
    fill_inputs(&t, &p, &w, &in);
    (void)claim(r, group_meet(r->of), "ranks did not end the combine");
    if (r->rank == 1) {
        r->of->result->code = r->failed;
        (void)raise(SIGKILL);
    }
    fails(r, epa2a_dispatch(t.moe, &in, &p.got, NULL), EPA2A_ERR_DIED, "rank 1");
    slot_end(&p);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* ---- settings ---- */

static const char *const layouts[] = {"expert padded", "expert packed", "rank packed",
                                      "rank padded"};

static struct setting setting_of(uint32_t ranks, int layout, int dtype, const char *options)
{
    return (struct setting){.ranks = ranks,
                            .seed = (uint64_t)ranks * 10 + (uint64_t)layout,
                            .shape = {.max_tokens = 7,
                                      .hidden = 64,
                                      .experts = 4 * ranks,
                                      .topk = 3,
                                      .dtype = dtype,
                                      .recv_dtype = dtype,
                                      .layout = layout,
                                      .fp8_group = 16,
                                      .in_flight = 1,
                                      .options = options}};
}

static enum group_kind kind;
static const char *only; /* the sequence to run; NULL: all */
static uint32_t failures;

/* A test of a setting. */
struct run {
    const char *what;
    struct setting s;
    void (*body)(struct rank *);
};

enum { RUNS_MAX = 8 };

/* Tests of one number of ranks that wait for run_batch(). On a GPU the start of a process costs more than
 * a test, so the same processes run all tests of the batch. */
static struct batch {
    struct run run[RUNS_MAX];
    uint32_t runs;
} batch;

/* Runs the tests up to the first failure. The code is 0, or the number of the failed test from 1. */
static void run_rank(struct group_rank *me)
{
    const struct batch *all = me->arg;
    struct rank r = {.stream = NULL};

    for (uint32_t i = 0; i < all->runs && !r.failed; i++) {
        r = (struct rank){.of = me,
                          .rank = me->rank,
                          .arg = &all->run[i].s,
                          .transport = transport,
                          .stream = r.stream};
        me->result->code = (int)i + 1; /* of a rank that ends early */
        all->run[i].body(&r);
    }
    if (!r.failed)
        me->result->code = 0;
}

static void describe_failure(const struct run *run)
{
    const struct setting *s = &run->s;

    fprintf(stderr,
            "failed: %s, %u ranks, %s, %s, recv_dtype %d, flags 0x%x, in_flight %u, options %s\n",
            run->what, s->ranks, layouts[s->shape.layout],
            s->shape.dtype == EPA2A_F16 ? "f16" : "bf16", s->shape.recv_dtype, s->flags,
            s->shape.in_flight, s->shape.options != NULL ? s->shape.options : "none");
}

static void run_batch(void)
{
    uint32_t ranks = batch.run[0].s.ranks, first = RUNS_MAX;
    struct group *group = group_run(ranks, kind, run_rank, &batch);

    for (uint32_t i = 0; i < ranks; i++) {
        const struct group_result *result = group_result(group, i);
        uint32_t failed = result->code > 0 ? (uint32_t)result->code - 1 : RUNS_MAX;

        if (result->code == 0)
            continue;
        failures++;
        fprintf(stderr, "rank %u: %d: %s\n", i, result->code, result->text);
        first = failed < first ? failed : first;
    }
    group_free(group);
    if (first < RUNS_MAX)
        describe_failure(&batch.run[first]);
    batch.runs = 0;
}

/* A rank that dies would end the tests after its own, so hosts have one test in a batch. */
static void run(const char *what, void (*body)(struct rank *), const struct setting *s)
{
    if (only != NULL && strcmp(what, only) != 0)
        return;
    batch.run[batch.runs++] = (struct run){what, *s, body};
    if (!room_is_device() || batch.runs == RUNS_MAX)
        run_batch();
}

static void run_layouts(uint32_t ranks, const char *expert_options)
{
    for (int layout = EPA2A_EXPERT_PADDED; layout <= EPA2A_RANK_PADDED; layout++) {
        bool by_rank = layout >= EPA2A_RANK_PACKED;
        struct setting s = setting_of(ranks, layout, layout % 2 != 0 ? EPA2A_F16 : EPA2A_BF16,
                                      by_rank ? NULL : expert_options);

        if (by_rank && expert_options != NULL)
            break;
        s.by_rank = expert_options != NULL && strstr(expert_options, "dedup=true") != NULL;
        run("plain", run_plain, &s);
        run("routes", run_routes, &s);
        run("pauses", run_pauses, &s);
        if (ranks <= 3)
            run("errors", run_errors, &s);
        s.shape.in_flight = 2;
        run("pipelined", run_pipelined, &s);
        run("routes", run_routes, &s);
        s.shape.recv_dtype = EPA2A_FP8_E4M3;
        run("plain", run_plain, &s);
    }
}

/* Forms of FP8 rows, from rows in dtype and in FP8. With options only in the padded layout of experts. */
static void run_forms(const char *options)
{
    for (uint32_t i = 0; i < 16; i++) {
        int layout = options != NULL ? EPA2A_EXPERT_PADDED : (int)(i / 2 + i / 8) % 4;
        struct setting s = setting_of(2, layout, i % 3 != 0 ? EPA2A_F16 : EPA2A_BF16, options);

        s.flags = (i / 2 % 8) << 2;
        if (i % 2 != 0)
            s.shape.recv_dtype = EPA2A_FP8_E4M3;
        else
            s.flags |= EPA2A_RECV_FP8;
        s.shape.hidden = 96;
        run("forms", run_plain, &s);
    }
}

/* Rows that several warps of a device copy, with a short last part: few tokens in parts of 512
 * channels, and more tokens in longer parts. With options only in the layouts of experts. */
static void run_wide_rows(const char *options)
{
    int last = options != NULL ? EPA2A_EXPERT_PACKED : EPA2A_RANK_PADDED;

    for (int i = 0; i < 2; i++)
        for (int layout = EPA2A_EXPERT_PADDED; layout <= last; layout++) {
            struct setting s = setting_of(2, layout, EPA2A_BF16, options);

            if (i == 1)
                s.shape.max_tokens = 17;
            s.shape.hidden = i == 0 ? 1552 : 2064;
            run("wide", run_plain, &s);
            s.shape.recv_dtype = EPA2A_FP8_E4M3;
            run("wide", run_plain, &s);
        }
}

/* Expert outputs as values of LogFMT-10, in parts of 1024 and of 512 channels. */
static void run_logfmt(const char *options)
{
    for (int layout = EPA2A_EXPERT_PADDED; layout <= EPA2A_EXPERT_PACKED; layout++) {
        struct setting s = setting_of(2, layout, EPA2A_BF16, options);

        s.logfmt = true;
        s.shape.hidden = layout == EPA2A_EXPERT_PADDED ? 2048 : 1536;
        run("logfmt", run_plain, &s);
        run("logfmt", run_routes, &s);
    }
}

static void end_batch(void)
{
    if (batch.runs > 0)
        run_batch();
}

/* The layouts, types and algorithms of CUDA devices. */
static int run_on_devices(void)
{
    static const struct {
        const char *options;
        bool by_rank, packs, ranks; /* packs: without EPA2A_EXPERT_PADDED; ranks: RANK layouts */
    } list[] = {
        {NULL, false, false, true},
        {"algorithm=ll_v2, dedup=true", true, false, false},
        {"algorithm=ll_v2, dedup=true, combine_dedup=false", false, false, false},
        {"algorithm=ll_v2, dedup=true, combine_dedup=false, split_phase=true", false, false, false},
        {"algorithm=ll_v2, split_phase=true", false, false, true},
        {"algorithm=ll_v2, combine_mode=push, split_phase=true", false, false, false},
        {"algorithm=ll_v1", false, true, false},
        {"algorithm=token_flag", false, true, false},
    };

    for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        for (int layout = list[i].packs;
             layout <= (list[i].ranks ? EPA2A_RANK_PADDED : EPA2A_EXPERT_PACKED); layout++) {
            uint32_t ranks = 1 + (i + 1) % 3;
            struct setting s = setting_of(ranks, layout, layout % 2 != 0 ? EPA2A_F16 : EPA2A_BF16,
                                          list[i].options);

            s.by_rank = list[i].by_rank;
            run("plain", run_plain, &s);
            run("routes", run_routes, &s);
            s.shape.in_flight = 2;
            run("pipelined", run_pipelined, &s);
            run("routes", run_routes, &s);
            s.shape.recv_dtype = EPA2A_FP8_E4M3;
            run("plain", run_plain, &s);
            s.shape.recv_dtype = s.shape.dtype;
            if (!list[i].packs)
                run("several", run_several, &s);
            end_batch();
        }
    run_forms(NULL);
    run_forms("algorithm=ll_v2, dedup=true, combine_dedup=false");
    run_wide_rows(NULL);
    run_wide_rows("algorithm=ll_v2, dedup=true, combine_dedup=false");
    run_logfmt(NULL);
    run_logfmt("algorithm=ll_v2, dedup=true, combine_dedup=false");
    end_batch();
    return failures != 0;
}

int main(int argc, char **argv)
{
    static const uint32_t ranks[] = {1, 2, 3, 4, 8};
    struct setting s;

    if (argc != 3 && argc != 4)
        return 2;
    only = argv[3]; /* NULL without the argument */
    kind = strcmp(argv[1], "threads") == 0 ? GROUP_THREADS : GROUP_PROCESSES;
    transport = argv[2];
    if (room_is_device())
        return room_missing() ? 77 : run_on_devices();
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
        run_layouts(ranks[i], NULL);
    run_layouts(2, "algorithm=ll_v1");
    run_layouts(4, "algorithm=ll_v1");
    run_layouts(3, "algorithm=token_flag");
    run_layouts(2, "algorithm=ll_v2, dedup=true");
    run_forms(NULL);
    run_wide_rows(NULL);
    run_logfmt(NULL);
    run_logfmt("algorithm=ll_v1");
    s = setting_of(3, EPA2A_EXPERT_PADDED, EPA2A_BF16, "algorithm=ll_v1");
    run("masks", run_masks, &s);
    s = setting_of(3, EPA2A_EXPERT_PADDED, EPA2A_BF16, NULL);
    run("shapes", run_shapes, &s);
    run("abort", run_abort, &s);
    if (kind == GROUP_PROCESSES)
        run("death", run_death, &s);
    if (strcmp(transport, "shm") ==
        0) /* the default transport, which a need without comm assumes */
        run("heap", run_heap, &s);
    s = setting_of(2, EPA2A_EXPERT_PADDED, EPA2A_BF16, NULL);
    run("several", run_several, &s);
    s = setting_of(4, EPA2A_RANK_PACKED, EPA2A_F16, NULL);
    run("several", run_several, &s);
    return failures != 0;
}
