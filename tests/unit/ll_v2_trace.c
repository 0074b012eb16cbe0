/* ll_v2's trace of GPUs: what is made of the stamps of warps. The stamps are made up, and read
 * by a backend whose device memory is the host's. */
#include "test.h"
#include <unistd.h>
#include <jansson.h>

#include "../../plugins/algorithm/ll_v2/ll_v2_trace.h"
#include "trace/read.h"

static enum epa_status read_here(struct epa_backend *b, void *to, const void *from,
                                 size_t n)
{
    (void)b;
    memcpy(to, from, n);
    return EPA_OK;
}

/* The trace tools take it: lanes are in order, and their phases are summed up. */
static void is_a_trace(const char *name, const char *summary)
{
    struct trace_file f;
    struct epa_error err;
    struct text out = {0};

    assert_int_equal(trace_read(name, &f, &err), EPA_OK);
    assert_int_equal(trace_check(&f, &err), EPA_OK);
    if (f.n_flaws > 0)
        fail_msg("%s", f.flaws.data);
    assert_int_equal(trace_summary(&f, &out, &err), EPA_OK);
    if (strstr(out.data, summary) == NULL)
        fail_msg("'%s' is not in:\n%s", summary, out.data);
    text_free(&out);
    trace_free(&f);
}

static json_t *trace_of(const struct ll_stamps *stamps, uint32_t warps, const char *summary)
{
    static const struct epa_backend_ops ops = {.read = read_here};
    struct epa_backend backend = {.ops = &ops, .memory = EPA_MEMORY_CUDA};
    char folder[] = "/tmp/ll_v2-trace-XXXXXX", file[64], name[80];
    json_error_t why;
    json_t *trace;

    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/t", folder);
    snprintf(name, sizeof(name), "%s.3.json", file);
    ll_trace_write(file, 3, &backend, stamps, warps);
    trace = json_load_file(name, 0, &why);
    if (trace == NULL)
        fail_msg("line %d: %s", why.line, why.text);
    is_a_trace(name, summary);
    unlink(name);
    rmdir(folder);
    return trace;
}

TEST(a_slice_is_a_warp_in_a_phase)
{
    struct ll_stamps stamps[LL_WARPS + 2] = {0};
    json_t *trace, *events, *one;

    stamps[0].at[LL_COUNT_PUT][0] = 5000;
    stamps[0].at[LL_COUNT_PUT][1] = 7500;
    stamps[0].at[LL_WAIT][0] = 7000; /* while counts are put */
    stamps[0].at[LL_WAIT][1] = 8000;
    stamps[LL_WARPS + 1].at[LL_TOPK_REDUCE][0] = 9000;
    stamps[LL_WARPS + 1].at[LL_TOPK_REDUCE][1] = 9250;
    stamps[1].at[LL_WAIT][0] = 6000; /* begun, not ended: no slice */
    trace = trace_of(
        stamps, LL_WARPS + 2,
        "  wait                               1      2.00      2.00      3.00      "
        "3.00      1.00\n");
    events = json_object_get(trace, "traceEvents");
    /* The rank's name; each slice follows on its lane's. */
    assert_int_equal(json_array_size(events), 7);
    one = json_array_get(events, 2);
    assert_string_equal(json_string_value(json_object_get(one, "name")), "count_put");
    assert_true(json_number_value(json_object_get(one, "ts")) == 0.0);
    assert_true(json_number_value(json_object_get(one, "dur")) == 2.5);
    assert_int_equal(json_integer_value(json_object_get(one, "pid")), 3);
    one = json_array_get(events, 5);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(one, "args"), "name")),
        "block 1, warp 1, topk_reduce");
    one = json_array_get(events, 6);
    assert_string_equal(json_string_value(json_object_get(one, "name")), "topk_reduce");
    assert_true(json_number_value(json_object_get(one, "ts")) == 4.0);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(one, "args"), "block")), 1);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(one, "args"), "warp")), 1);
    json_decref(trace);
}

TEST(without_stamps_it_is_empty_and_valid)
{
    struct ll_stamps stamps[4] = {0};
    json_t *trace = trace_of(stamps, 4, ": 0 slices");

    assert_int_equal(json_array_size(json_object_get(trace, "traceEvents")), 1);
    json_decref(trace);
}
