/* The memory that files of /proc and /sys leave. What else is read there is in doctor.case and doctor.py. */
#include "test.h"

#include <sys/resource.h>

#include "fake_root.h"

#include "base/file.h"

/* Files, and what they leave; the folder is a new one for each. */
TEST(the_least_of_mem_available_and_the_groups_above_counts)
{
    static const struct {
        const char *file[8]; /* path, text */
        uint64_t available;
        bool by_group;
    } c[] = {
        {{0}, UINT64_MAX, false}, /* nothing can be read */
        {{"/proc/meminfo", "MemTotal: 16384 kB\nMemFree: 1 kB\nMemAvailable: 8192 kB\n"},
         8 << 20,
         false},
        {{"/proc/meminfo", "MemAvailable: 1048576 kB\n", "/proc/self/cgroup", "0::/jobs/one\n",
          "/sys/fs/cgroup/jobs/one/memory.max", "1000000\n",
          "/sys/fs/cgroup/jobs/one/memory.current", "400000\n"},
         600000,
         true},
        /* Cached files that nobody uses are room. */
        {{"/proc/self/cgroup", "0::/\n", "/sys/fs/cgroup/memory.max", "1000000\n",
          "/sys/fs/cgroup/memory.current", "400000\n", "/sys/fs/cgroup/memory.stat",
          "anon 1\ninactive_file 300000\nfile 9\n"},
         900000,
         true},
        {{"/proc/self/cgroup", "0::/jobs/one\n", "/sys/fs/cgroup/jobs/one/memory.max", "max\n",
          "/sys/fs/cgroup/jobs/memory.max", "5000\n", "/sys/fs/cgroup/jobs/memory.current",
          "6000\n"},
         0,
         true},
        /* A container that hides its path is found at the top, here of version 1. */
        {{"/proc/self/cgroup", "12:cpu:/x\n4:memory:/docker/abcdef\n",
          "/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n",
          "/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n",
          "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\n"},
         1600000,
         true},
        {{"/proc/self/cgroup", "4:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
          "9223372036854771712\n"},
         UINT64_MAX,
         false}, /* no limit */
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        char root[512], which[64];

        root_create(root, sizeof(root));
        for (uint32_t k = 0; k < 8 && c[i].file[k] != NULL; k += 2)
            root_put(root, c[i].file[k], c[i].file[k + 1]);
        assert_true(memory_available(root, which, sizeof(which)) == c[i].available);
        assert_string_equal(which, c[i].by_group ? "room in the cgroup" : "MemAvailable");
        root_destroy(root);
    }
}

TEST_IN(root_set_up, root_tear_down, the_address_space_left_is_the_limit_less_what_is_mapped)
{
    struct rlimit old, limit;
    uint64_t room;

    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    if (old.rlim_max != RLIM_INFINITY)
        skip();
    root_put(*state, "/proc/self/statm", "1000 200 100 10 0 50 0\n");
    assert_true(memory_address_space(*state) == UINT64_MAX);
    limit = (struct rlimit){1ull << 46, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    room = memory_address_space(*state);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_true(room < 1ull << 46);
    assert_true(room >= (1ull << 46) - 1000 * 65536); /* pages of 64 KiB at most */
}
