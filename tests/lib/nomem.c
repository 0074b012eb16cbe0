/* Failed allocations: each allocation of the creation of a comm, of the creation of its objects and of
 * their calls fails once, on one rank. With the emulator of CUDA, only allocations of the library and
 * its plugins fail. A further test denies device memory. */
#include <epa2a.h>

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "../unit/test.h"
#include "group.h"
#include "room.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* Allocations of one thread while `counts` is set. */
static _Thread_local struct {
    bool counts;
    uint32_t calls, fail_at;
    int64_t live;
} heap;

/* With the emulator in the process, only libepa2a and its plugins may fail. */
static bool may_fail(const void *caller)
{
    const char *name;
    Dl_info info;

    if (!room_is_device())
        return true;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
        return false;
    name = strrchr(info.dli_fname, '/');
    return strstr(name != NULL ? name : info.dli_fname, "epa2a") != NULL;
}

static bool fails(const void *caller)
{
    if (!heap.counts || !may_fail(caller) || heap.calls++ != heap.fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory)
{
    heap.live += heap.counts && memory != NULL;
    return memory;
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t n, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : counted(__libc_calloc(n, bytes));
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : counted(__libc_memalign(align, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    if (fails(__builtin_return_address(0)))
        return NULL;
    heap.live -= heap.counts && memory != NULL;
    return counted(__libc_realloc(memory, bytes));
}

void free(void *memory)
{
    heap.live -= heap.counts && memory != NULL;
    __libc_free(memory);
}

static bool denies_device; /* the tests deny device memory instead of memory of the heap */

static int64_t resources_before; /* of the rank, which is a process */

static void fail_from_here(uint32_t fail_at)
{
    heap.calls = 0;
    heap.live = 0;
    heap.fail_at = denies_device ? UINT32_MAX : fail_at;
    heap.counts = true;
    resources_before = room_resources();
    if (denies_device)
        room_deny(fail_at);
}

static void fail_no_more(void)
{
    heap.fail_at = UINT32_MAX;
    room_allow();
}

/* Returns the number of allocations that could have failed. */
static uint32_t count_allocations(void)
{
    return denies_device ? (uint32_t)room_allocations() : heap.calls;
}

/* Ends the count. Returns the number of blocks that remain. The emulator keeps blocks of its own. */
static int64_t count_lost(void)
{
    heap.counts = false;
    return room_is_device() ? room_resources() - resources_before : heap.live;
}

static int create_comm(struct group_rank *me, struct epa2a_comm **out)
{
    EPA2A_STRUCT(epa2a_comm_params, p);

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = room_device(me->rank);
    p.timeout_ns = 60000000000;
    p.options = room_is_device() ? "transport=nvlink, backend.share=true"
                                 : "transport=shm, transport.huge_pages=off";
    return epa2a_comm_create(&p, out);
}

/* Tells all ranks whether rank 1 has more allocations than it has made fail. */
static bool is_reached(struct group_rank *me, bool reached)
{
    uint32_t *word = group_word(me, 0);
    bool out;

    if (me->rank == 1)
        *word = reached;
    if (!group_meet(me))
        me->result->code = 1;
    out = *word != 0;
    if (!group_meet(me))
        me->result->code = 1;
    return out;
}

/* All ranks must create, or all must fail. Returns false if the ranks have different statuses. */
static bool is_same_on_all(struct group_rank *me, int code)
{
    bool same = true;

    *group_word(me, 1 + me->rank) = (uint32_t)code;
    if (!group_meet(me))
        return false;
    for (uint32_t r = 0; r < me->ranks; r++)
        same = same && (int)*group_word(me, 1 + r) == code;
    return group_meet(me) && same;
}

/* ---- a comm ---- */

static void fail_allocations_of_comm(struct group_rank *me)
{
    int device = room_current_device();
    bool reached = true;

    me->result->code = 0;
    for (uint32_t i = 0; reached && me->result->code == 0; i++) {
        struct epa2a_comm *comm = NULL;
        uint32_t n;
        int64_t live;
        int code;

        fail_from_here(me->rank == 1 && i > 1 ? i / 2 - 1 : UINT32_MAX);
        code = create_comm(me, &comm);
        fail_no_more();
        n = count_allocations();
        if (code == EPA2A_OK)
            epa2a_comm_destroy(comm);
        live = count_lost();
        if ((code != EPA2A_OK && code != EPA2A_ERR_NOMEM) || !is_same_on_all(me, code))
            me->result->code = code != EPA2A_OK ? code : 1001;
        /* Two calls for each allocation: the loader keeps memory of the first. */
        if (i % 2 == 1 && live > 0)
            me->result->code = 1000;
        if (room_current_device() != device)
            me->result->code = 1002;
        if (me->result->code != 0)
            snprintf(me->result->text, sizeof(me->result->text),
                     "allocation %d: code %d, %lld blocks lost: %s", (int)i / 2 - 1, code,
                     (long long)live, epa2a_last_error());
        reached = is_reached(me, n >= i / 2);
    }
}

/* ---- objects of a comm ---- */

enum { TOKENS = 3, HIDDEN = 256, EXPERTS = 4, TOPK = 2, FFN = 128, ROWS = 5, COLUMNS = 48 };

/* Data of a rank. The weights of experts and matrices are 0. */
struct data {
    uint16_t x[TOKENS][HIDDEN + 8], out[TOKENS][HIDDEN];
    int64_t expert[TOKENS][TOPK];
    float weight[TOKENS][TOPK];
    struct epa2a_received got;
    /* The alignment of memory of cudaMalloc() */
    _Alignas(256) uint16_t matrix[EXPERTS * 2 * FFN * HIDDEN], c[2 * ROWS * COLUMNS];
};

struct subject {
    int (*create)(struct epa2a_comm *, const struct subject *, const struct data *, void **out);
    int (*call[2])(void *, struct data *); /* in order; NULL: none */
    void (*destroy)(void *);
    const char *options;
    int32_t layout, recv_dtype;
};

static void fill_shape(const struct subject *s, struct epa2a_moe_shape *shape)
{
    shape->max_tokens = TOKENS;
    shape->hidden = HIDDEN;
    shape->experts = EXPERTS;
    shape->topk = TOPK;
    shape->layout = s->layout;
    shape->recv_dtype = s->recv_dtype;
    shape->options = s->options;
}

/* Rows with gaps and indices of 8 bytes need copies. Layers on a device take dense rows only. */
static void fill_tokens(const struct data *d, bool dense, struct epa2a_tokens *in)
{
    in->tokens = TOKENS;
    in->x = d->x;
    in->x_stride = dense ? 0 : sizeof(d->x[0]);
    in->topk_idx = d->expert;
    in->topk_idx_bytes = 8;
    in->topk_weight = d->weight[0];
}

static int create_moe(struct epa2a_comm *comm, const struct subject *s, const struct data *d,
                      void **out)
{
    struct epa2a_moe *moe = NULL;
    int code;
    EPA2A_STRUCT(epa2a_moe_shape, shape);

    (void)d;
    fill_shape(s, &shape);
    code = epa2a_moe_create(comm, &shape, &moe);
    *out = moe;
    return code;
}

static int dispatch(void *moe, struct data *d)
{
    EPA2A_STRUCT(epa2a_tokens, in);
    EPA2A_STRUCT(epa2a_received, got);

    fill_tokens(d, false, &in);
    d->got = got;
    return epa2a_dispatch(moe, &in, &d->got, NULL);
}

static int combine(void *moe, struct data *d)
{
    EPA2A_STRUCT(epa2a_outputs, back);

    back.out = d->out;
    return epa2a_combine(moe, &d->got, &back, NULL);
}

static void destroy_moe(void *moe)
{
    epa2a_moe_destroy(moe);
}

static int create_layer(struct epa2a_comm *comm, const struct subject *s, const struct data *d,
                        void **out)
{
    struct epa2a_layer *layer = NULL;
    int code;
    EPA2A_STRUCT(epa2a_moe_shape, shape);
    EPA2A_STRUCT(epa2a_experts, e);

    fill_shape(s, &shape);
    e.ffn = FFN;
    e.activation = 1;
    e.up = e.down = d->matrix;
    code = epa2a_layer_create(comm, &shape, &e, &layer);
    *out = layer;
    return code;
}

static int run_layer(void *layer, struct data *d)
{
    EPA2A_STRUCT(epa2a_tokens, in);

    fill_tokens(d, room_is_device(), &in);
    return epa2a_layer_run(layer, &in, d->out, NULL);
}

static void destroy_layer(void *layer)
{
    epa2a_layer_destroy(layer);
}

static int create_ag_gemm(struct epa2a_comm *comm, const struct subject *s, const struct data *d,
                          void **out)
{
    struct epa2a_ag_gemm *gemm = NULL;
    int code;
    EPA2A_STRUCT(epa2a_ag_gemm_params, p);

    p.max_rows = ROWS;
    p.n = COLUMNS;
    p.k = HIDDEN;
    p.b = d->matrix;
    p.options = s->options;
    code = epa2a_ag_gemm_create(comm, &p, &gemm);
    *out = gemm;
    return code;
}

static int run_ag_gemm(void *gemm, struct data *d)
{
    static const uint32_t rows[] = {ROWS, ROWS - 1};

    return epa2a_ag_gemm_run(gemm, rows, d->matrix, NULL, d->c, NULL);
}

static void destroy_ag_gemm(void *gemm)
{
    epa2a_ag_gemm_destroy(gemm);
}

static const struct subject subjects[] = {
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=ll_v1", EPA2A_EXPERT_PACKED, 0},
    {create_moe,
     {dispatch, combine},
     destroy_moe,
     "algorithm=ll_v1",
     EPA2A_EXPERT_PADDED,
     EPA2A_FP8_E4M3},
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=ll_v2", EPA2A_RANK_PACKED, 0},
    {create_moe,
     {dispatch, combine},
     destroy_moe,
     "algorithm=ll_v2",
     EPA2A_RANK_PADDED,
     EPA2A_FP8_E4M3},
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=token_flag", EPA2A_EXPERT_PACKED, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=ll_v1", 0, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=ll_v2, layout=rank", 0, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=token_flag", 0, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=fused", 0, 0},
    {create_ag_gemm, {run_ag_gemm, NULL}, destroy_ag_gemm, "algorithm=ag_gemm_2d", 0, 0},
    {create_ag_gemm,
     {run_ag_gemm, NULL},
     destroy_ag_gemm,
     "algorithm=ag_then_gemm, library=kernels",
     0,
     0}, /* oneDNN ends the process without memory */
};

/* The emulator reads memory of the process like memory of a device. */
static const struct subject device_subjects[] = {
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=ll_v1", EPA2A_EXPERT_PACKED, 0},
    {create_moe,
     {dispatch, combine},
     destroy_moe,
     "algorithm=ll_v2",
     EPA2A_EXPERT_PADDED,
     EPA2A_FP8_E4M3},
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=ll_v2", EPA2A_RANK_PACKED, 0},
    {create_moe, {dispatch, combine}, destroy_moe, "algorithm=token_flag", EPA2A_EXPERT_PACKED, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=ll_v1", 0, 0},
    {create_layer, {run_layer, run_layer}, destroy_layer, "algorithm=ll_v2, layout=rank", 0, 0},
    {create_ag_gemm, {run_ag_gemm, NULL}, destroy_ag_gemm, "algorithm=ag_gemm_2d", 0, 0},
};

/* Creates, calls and destroys an object. A call that fails for lack of memory sends no data, so the
 * rank repeats the call while the other ranks wait. Returns the status of the creation, or of the
 * failed repetition. */
static int use_object(struct epa2a_comm *comm, const struct subject *s, struct data *d)
{
    void *object = NULL;
    int code = s->create(comm, s, d, &object);

    for (int i = 0; i < 2 && code == EPA2A_OK && s->call[i] != NULL; i++) {
        code = s->call[i](object, d);
        if (code == EPA2A_ERR_NOMEM)
            code = s->call[i](object, d);
    }
    fail_no_more();
    s->destroy(object);
    return code;
}

static void fail_allocations_of_object(struct group_rank *me)
{
    const struct subject *s = me->arg;
    struct data *d = aligned_alloc(_Alignof(struct data), sizeof(*d));
    struct epa2a_comm *comm = NULL;
    bool reached = true;

    memset(d, 0, sizeof(*d));
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++)
            d->expert[t][k] = (t + k) % EXPERTS;
    me->result->code = create_comm(me, &comm);
    /* The loader keeps memory of the first object. */
    if (me->result->code == EPA2A_OK)
        me->result->code = use_object(comm, s, d);
    if (me->result->code != EPA2A_OK)
        snprintf(me->result->text, sizeof(me->result->text), "%s: %s", s->options,
                 epa2a_last_error());
    for (uint32_t i = 0; reached && me->result->code == EPA2A_OK; i++) {
        uint32_t n;
        int64_t live;
        int code;

        fail_from_here(me->rank == 1 ? i : UINT32_MAX);
        code = use_object(comm, s, d);
        n = count_allocations();
        live = count_lost();
        if ((code != EPA2A_OK && code != EPA2A_ERR_NOMEM) || !is_same_on_all(me, code))
            me->result->code = code != EPA2A_OK ? code : 1001;
        if (live > 0)
            me->result->code = 1000;
        if (me->result->code != EPA2A_OK)
            snprintf(me->result->text, sizeof(me->result->text),
                     "%s, layout %d: allocation %u: code %d, %lld blocks lost: %s", s->options,
                     s->layout, i, code, (long long)live, epa2a_last_error());
        reached = is_reached(me, n > i);
    }
    epa2a_comm_destroy(comm);
    free(d);
}

static void run_ranks(void (*rank_main)(struct group_rank *), const void *arg)
{
    struct group *group = group_run(2, GROUP_PROCESSES, rank_main, arg);

    for (uint32_t r = 0; r < 2; r++) {
        assert_string_equal(group_result(group, r)->text, "");
        assert_int_equal(group_result(group, r)->code, 0);
    }
    group_free(group);
}

/* Data calls of an object on a device allocate no device memory. */
static void run_subjects(void)
{
    const struct subject *list = room_is_device() ? device_subjects : subjects;
    size_t n = room_is_device() ? LENGTH(device_subjects) : LENGTH(subjects);

    for (size_t i = 0; i < n; i++)
        run_ranks(fail_allocations_of_object, &list[i]);
}

TEST(a_failed_allocation_of_one_rank_fails_creation_on_all)
{
    run_ranks(fail_allocations_of_comm, NULL);
}

TEST(a_failed_allocation_of_one_rank_fails_the_creation_of_an_object_on_all)
{
    run_subjects();
}

TEST(a_rank_without_device_memory_fails_creation_on_all)
{
    if (!room_is_device())
        skip();
    denies_device = true;
    run_ranks(fail_allocations_of_comm, NULL);
    run_subjects();
    denies_device = false;
}
