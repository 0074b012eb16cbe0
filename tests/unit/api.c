/* Tests of src/lib/api: sizes of public structs, and the error message of each thread. */
#include "test.h"

#include <epa2a.h>
#include <pthread.h>

#include "api/error.h"
#include "api/struct_size.h"

/* The struct of the library; `old` and `next` are the same struct of other versions. */
struct known {
    size_t size;
    uint32_t a, b;
};

struct old {
    size_t size;
    uint32_t a;
};

struct next {
    size_t size;
    uint32_t a, b;
    uint64_t c;
};

TEST(size_zero_and_null_are_refused)
{
    struct known in = {0, 1, 2}, out = {7, 7, 7};

    assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_ERR_CONFIG,
                  "known .. size 0 .. EPA2A_STRUCT");
    assert_status(struct_read(&out, sizeof(out), NULL, "known", test_error()), EPA_ERR_CONFIG,
                  "known .. NULL");
    for (size_t size = 1; size < sizeof(size_t); size++) {
        in.size = size;
        assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_ERR_CONFIG,
                      "known .. size");
    }
    in.size = 0x5555555555555555;
    assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_ERR_CONFIG,
                  "known .. 6148914691236517205");
    assert_int_equal(out.a, 7); /* a failure writes nothing */
}

TEST(a_shorter_struct_gets_zeros)
{
    struct old in = {sizeof(in), 5};
    struct known out = {9, 9, 9};

    in.size = offsetof(struct old, a) + sizeof(in.a);
    assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_OK, "");
    assert_int_equal(out.size, sizeof(out));
    assert_int_equal(out.a, 5);
    assert_int_equal(out.b, 0);
}

TEST(a_longer_struct_must_end_in_zeros)
{
    struct next in = {sizeof(in), 5, 6, 0};
    struct known out = {0};

    assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_OK, "");
    assert_int_equal(out.size, sizeof(out));
    assert_int_equal(out.b, 6);
    for (uint32_t byte = 0; byte < sizeof(in.c); byte++) {
        in.c = UINT64_C(1) << 8 * byte;
        assert_status(struct_read(&out, sizeof(out), &in, "known", test_error()), EPA_ERR_CONFIG,
                      "known .. 16 bytes");
    }
}

TEST(results_stay_inside_the_struct_of_the_caller)
{
    struct known from = {sizeof(from), 1, 2};
    struct known to = {offsetof(struct known, b), 7, 7};
    struct next longer = {sizeof(longer), 7, 7, 7};

    struct_write(&to, &from, sizeof(from));
    assert_int_equal(to.size, offsetof(struct known, b));
    assert_int_equal(to.a, 1);
    assert_int_equal(to.b, 7);
    struct_write(&longer, &from, sizeof(from));
    assert_int_equal(longer.size, sizeof(longer));
    assert_int_equal(longer.b, 2);
    assert_int_equal(longer.c, 7);
}

static void *fail_in_thread(void *arg)
{
    struct epa_error err = {EPA_OK, ""};

    assert_string_equal(epa2a_last_error(), "");
    epa_fail(&err, EPA_ERR_TIMEOUT, "rank 3 is late");
    assert_int_equal(api_fail(&err), EPA2A_ERR_TIMEOUT);
    assert_string_equal(epa2a_last_error(), "rank 3 is late");
    return arg;
}

TEST(each_thread_has_its_last_error)
{
    struct epa_error err = {EPA_OK, ""};
    pthread_t thread;

    assert_string_equal(epa2a_last_error(), "");
    epa_fail(&err, EPA_ERR_MISMATCH, "first");
    assert_int_equal(api_fail(&err), EPA2A_ERR_SYSTEM); /* no status of the program leaves */
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(epa2a_last_error(), "first");
}

TEST(a_failed_wait_names_its_ranks)
{
    struct epa_error err = {EPA_OK, ""}, outer = {EPA_OK, ""};

    (void)epa_awaits(epa_awaits(&err, UINT32_MAX), 5); /* UINT32_MAX: unknown */
    epa_fail(epa_awaits(epa_awaits(&err, 0), 7), EPA_ERR_TIMEOUT, "rows of rank 5 from rank 0");
    assert_int_equal(err.n_awaited, 2); /* rank 7 has no room */
    assert_int_equal(err.awaited[0], 5);
    assert_int_equal(err.awaited[1], 0);
    epa_fail_stage(epa_awaits_as(&outer, &err), err.status, "", "dispatch", "", "%s", err.text);
    epa_fail(epa_awaits(&err, 9), EPA_ERR_TIMEOUT, "second"); /* the first failure stays */
    assert_int_equal(outer.n_awaited, 2);
    assert_memory_equal(outer.awaited, err.awaited, sizeof(err.awaited));
    assert_int_equal(api_fail(&outer), EPA2A_ERR_TIMEOUT);
    assert_int_equal(api_last_failure()->awaited[0], 5);
    assert_null(epa_awaits(NULL, 1));
}

TEST(each_status_has_its_name)
{
    assert_string_equal(epa2a_status_name(EPA2A_OK), "EPA2A_OK");
    assert_string_equal(epa2a_status_name(EPA2A_ERR_DIED), "EPA2A_ERR_DIED");
    assert_string_equal(epa2a_status_name(-7), "unknown status");
    assert_int_equal(epa2a_version(), EPA2A_VERSION);
}
