/* Which GPUs the nvlink transport takes, decided without one. */
#include "test.h"

#include "../../plugins/transport/nvlink/pairs.h"

enum { SIZE = 4 };

struct world {
    struct gpu gpu[SIZE];
    unsigned char reach[SIZE * SIZE];
};

static struct world all_reach_all(void)
{
    struct world w;

    memset(&w, 0, sizeof(w));
    for (int i = 0; i < SIZE; i++) {
        w.gpu[i].number = i;
        memset(w.gpu[i].uuid, 'a' + i, sizeof(w.gpu[i].uuid));
        snprintf(w.gpu[i].bus, sizeof(w.gpu[i].bus), "0000:%02x:00.0", 0x1b + i);
        for (int j = 0; j < SIZE; j++)
            w.reach[i * SIZE + j] = i == j ? REACH_SELF : REACH_DIRECT;
    }
    return w;
}

static void refuses(const struct world *w, const char *text)
{
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(pairs_check(w->gpu, w->reach, SIZE, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, text);
}

TEST(gpus_that_reach_each_other_are_taken)
{
    struct world w = all_reach_all();
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(pairs_check(w.gpu, w.reach, SIZE, &err), EPA_OK);
    w.reach[1] = w.reach[4] = REACH_SELF; /* two ranks share one */
    assert_int_equal(pairs_check(w.gpu, w.reach, SIZE, &err), EPA_OK);
    assert_int_equal(pairs_check(w.gpu, w.reach, 1, &err), EPA_OK);
    assert_string_equal(err.text, "");
}

TEST(the_first_pair_out_of_reach_is_named)
{
    struct world w = all_reach_all();

    w.reach[3 * SIZE + 1] = REACH_NONE;
    w.reach[1 * SIZE + 3] = REACH_NONE;
    w.reach[2 * SIZE + 3] = REACH_NONE;
    refuses(&w, "nvlink: GPU 1 (rank 1, 0000:1c:00.0) cannot access GPU 3 (rank 3, "
                "0000:1e:00.0) directly; take GPUs that NVLink joins (nvidia-smi topo -m "
                "shows them)");
}

TEST(a_link_without_atomics_is_named)
{
    struct world w = all_reach_all();

    w.reach[2] = REACH_NO_ATOMICS;
    refuses(&w, "nvlink: GPU 0 (rank 0, 0000:1b:00.0) accesses GPU 2 (rank 2, 0000:1d:00.0) "
                "without atomics, so not over NVLink; take GPUs that NVLink joins "
                "(nvidia-smi topo -m shows them)");
}

TEST(what_one_rank_does_not_see_the_other_may_have_asked)
{
    struct world w = all_reach_all();
    struct epa_error err = {EPA_OK, ""};

    w.reach[1] = REACH_UNSEEN;
    assert_int_equal(pairs_check(w.gpu, w.reach, SIZE, &err), EPA_OK);
    w.reach[SIZE] = REACH_NONE;
    assert_int_equal(pairs_check(w.gpu, w.reach, SIZE, &err), EPA_ERR_UNSUPPORTED);
    w.reach[SIZE] = REACH_UNSEEN;
    refuses(&w, "nvlink: GPU 0 (rank 0, 0000:1b:00.0) and GPU 1 (rank 1, 0000:1c:00.0) do "
                "not see each other; let each rank see all GPUs, with one "
                "CUDA_VISIBLE_DEVICES for all or none");
}

TEST(a_gpu_is_found_by_its_uuid_whatever_its_number)
{
    struct world w = all_reach_all();
    struct gpu other = w.gpu[2];

    other.number = 0;
    assert_int_equal(pairs_find(w.gpu, SIZE, &other), 2);
    assert_int_equal(pairs_find(w.gpu, 2, &other), -1);
    assert_int_equal(pairs_find(w.gpu, 0, &other), -1);
}
