/* Facts read from a folder that stands in for /proc and /sys. */
#include "test.h"
#include <sched.h>

#include "fake_root.h"

#include "base/json.h"
#include "report/result.h"

#define CPU_DIR "/sys/devices/system/cpu"

/* For the core that is asked about: the first that this process may use. */
static void put_core(const char *root, const char *file, const char *text)
{
    char path[256];
    cpu_set_t set;
    int core = 0;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    while (!CPU_ISSET(core, &set))
        core++;
    snprintf(path, sizeof(path), CPU_DIR "/cpu%d/%s", core, file);
    root_put(root, path, text);
}

TEST(this_machine_is_read_without_failing)
{
    json_t *f;

    f = facts_collect("");
    assert_true(json_number_at(f, "cores") >= 1);
    assert_true(json_number_at(f, "memory_bytes") > 0);
    assert_true(json_number_at(f, "timer_ns") > 0);
    assert_true(*json_text_at(f, "kernel") != '\0');
    assert_true(*json_text_at(f, "cpu") != '\0');
    assert_true(*json_text_at(f, "build.isa") != '\0');
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, a_machine_that_tells_nothing_leaves_fields_empty)
{
    json_t *f;

    f = facts_collect(*state);
    assert_true(json_number_at(f, "cores") >= 1);
    assert_true(json_is_null(json_at(f, "sockets")));
    assert_true(json_is_null(json_at(f, "numa_nodes")));
    assert_true(json_is_null(json_at(f, "l3_bytes")));
    assert_true(json_is_null(json_at(f, "memory_bytes")));
    assert_true(json_is_null(json_at(f, "governor")));
    assert_string_equal(json_text_at(f, "cpu"), json_text_at(f, "arch"));
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, processor_and_memory_come_from_proc)
{
    json_t *f;

    root_put(*state, "/proc/cpuinfo",
             "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Fast CPU @ 3.00GHz\n"
             "model name\t: another\n");
    root_put(*state, "/proc/meminfo", "MemTotal:       16384 kB\nMemAvailable:   8192 kB\n");
    root_put(*state, "/proc/loadavg", "1.25 0.50 0.10 1/100 1234\n");
    f = facts_collect(*state);
    assert_string_equal(json_text_at(f, "cpu"), "Fast CPU @ 3.00GHz");
    assert_true(json_number_at(f, "memory_bytes") == (16 << 20));
    assert_true(json_number_at(f, "load_average") == 1.25);
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, topology_comes_from_sys)
{
    json_t *f;

    root_put(*state, CPU_DIR "/possible", "0-3\n");
    root_put(*state, CPU_DIR "/cpu0/topology/physical_package_id", "0\n");
    root_put(*state, CPU_DIR "/cpu1/topology/physical_package_id", "0\n");
    root_put(*state, CPU_DIR "/cpu3/topology/physical_package_id", "1\n");
    put_core(*state, "topology/thread_siblings_list", "0,64\n");
    put_core(*state, "cpufreq/scaling_governor", "powersave\n");
    root_put(*state, "/sys/devices/system/node/online", "0-1,3\n");
    f = facts_collect(*state);
    assert_true(json_number_at(f, "sockets") == (2));
    assert_true(json_number_at(f, "threads_per_core") == (2));
    assert_true(json_number_at(f, "numa_nodes") == (3));
    assert_string_equal(json_text_at(f, "governor"), "powersave");
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, caches_are_reported_apart_by_level_and_type)
{
    static const char *const type[] = {"Data\n", "Instruction\n", "Unified\n", "Unified\n"};
    static const char *const level[] = {"1\n", "1\n", "2\n", "3\n"};
    static const char *const size[] = {"48K\n", "64K\n", "2048K\n", "32M\n"};
    json_t *f;

    for (int i = 0; i < 4; i++) {
        char file[64];

        snprintf(file, sizeof(file), "cache/index%d/type", i);
        put_core(*state, file, type[i]);
        snprintf(file, sizeof(file), "cache/index%d/level", i);
        put_core(*state, file, level[i]);
        snprintf(file, sizeof(file), "cache/index%d/size", i);
        put_core(*state, file, size[i]);
    }
    f = facts_collect(*state);
    assert_true(json_number_at(f, "l1d_bytes") == (48 << 10));
    assert_true(json_number_at(f, "l2_bytes") == (2 << 20));
    assert_true(json_number_at(f, "l3_bytes") == (32 << 20));
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, huge_page_settings_are_the_bracketed_word)
{
    json_t *f;

    root_put(*state, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root_put(*state, "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [advise] never deny force\n");
    f = facts_collect(*state);
    assert_string_equal(json_text_at(f, "huge_pages"), "madvise");
    assert_string_equal(json_text_at(f, "shmem_huge_pages"), "advise");
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, environment_is_by_allow_list_only)
{
    json_t *f;

    setenv("EPA2A_UNIT", "yes", 1);
    setenv("UCX_UNIT", "1", 1);
    setenv("SLURM_JOB_ID", "42", 1);
    setenv("SLURM_JOB_IDS", "no", 1);
    setenv("MY_UNIT", "no", 1);
    f = facts_collect(*state);
    assert_string_equal(json_text_at(f, "environment.EPA2A_UNIT"), "yes");
    assert_string_equal(json_text_at(f, "environment.UCX_UNIT"), "1");
    assert_string_equal(json_text_at(f, "environment.SLURM_JOB_ID"), "42");
    assert_null(json_at(f, "environment.SLURM_JOB_IDS"));
    assert_null(json_at(f, "environment.MY_UNIT"));
    assert_null(json_at(f, "environment.HOME"));
    assert_null(json_at(f, "environment.PATH"));
    json_decref(f);
}

TEST_IN(root_set_up, root_tear_down, secrets_are_not_in_the_environment)
{
    json_t *f;
    char *dump;

    setenv("EPA2A_API_KEY", "hunter2", 1);
    setenv("NCCL_Token", "hunter2", 1);
    setenv("OMP_SECRET", "hunter2", 1);
    setenv("UCX_PASSWORD", "hunter2", 1);
    setenv("UCX_PROXY", "http://me:hunter2@host/", 1);
    f = facts_collect(*state);
    assert_string_equal(json_text_at(f, "environment.EPA2A_API_KEY"), "(redacted)");
    dump = json_dumps(f, 0);
    assert_non_null(dump);
    assert_null(strstr(dump, "hunter2"));
    free(dump);
    json_decref(f);
}
