/* index.json: what was written is read again, and what nobody would have written is refused. */
#include <math.h>
#include "test.h"
#include <unistd.h>

#include "report/batch_index.h"

static struct index_run runs[] = {
    {.row = {.file = "a.yaml",
             .label = "moe.topk=1 #1",
             .id = "0123456789ab",
             .dispatch_ns = 1250.25,
             .combine_ns = NAN,
             .total_ns = 10000,
             .checked = 3,
             .compared = 4096,
             .wrong = 1,
             .samples = 77,
             .stop = STOP_TIME,
             .ci95 = 0.125},
     .nth = 1,
     .at = 2,
     .status = INDEX_DONE,
     .exit_code = 0,
     .result = "0123456789ab.json"},
    {.row = {.file = "a.yaml",
             .label = "broken \xff",
             .id = "0123456789ac",
             .status = EPA_ERR_TIMEOUT,
             .error = "rank 1: \"late\"",
             .dispatch_ns = NAN,
             .combine_ns = NAN,
             .total_ns = NAN},
     .nth = 12,
     .at = 0,
     .status = INDEX_FAILED,
     .exit_code = 4,
     .result = "0123456789ac-12.json"},
    {.row =
         {.file = "b.yaml", .label = "far", .dispatch_ns = NAN, .combine_ns = NAN, .total_ns = NAN},
     .nth = 1,
     .at = 1,
     .status = INDEX_PLANNED,
     .exit_code = -1},
};
enum { RUNS = LENGTH(runs) };

static char path[] = "/tmp/epa2a-index-XXXXXX";

static enum epa_status read_text(const char *text, struct batch_index *out, struct epa_error *err)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return batch_index_read(path, out, err);
}

/* The index above as text. */
static char *text_of(void)
{
    char *line[] = {(char *)"epa2a", (char *)"bench", (char *)"a b.yaml", NULL};
    struct batch_index index = {.verb = "bench",
                                .order = "interleaved",
                                .seed = INT64_MAX,
                                .exit_code = -1,
                                .run = runs,
                                .n = RUNS};
    struct text text = {0};

    assert_int_equal(batch_index_command(&index, line, "2026-01-01T00:00:00Z", "here", NULL),
                     EPA_OK);
    assert_int_equal(batch_index_text(&index, &text, NULL), EPA_OK);
    index.run = NULL;
    batch_index_finish(&index);
    return text.data;
}

TEST(what_was_written_is_read)
{
    char *text = text_of();
    struct batch_index index;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(read_text(text, &index, &err), EPA_OK);
    assert_string_equal(index.verb, "bench");
    assert_string_equal(index.order, "interleaved");
    assert_int_equal(index.seed, INT64_MAX);
    assert_int_equal(index.exit_code, -1);
    assert_string_equal(batch_index_last(&index, "host"), "here");
    assert_true(batch_index_last(&index, "version")[0] != 0);
    assert_int_equal(index.n, RUNS);
    for (uint32_t i = 0; i < RUNS; i++) {
        assert_int_equal(index.run[i].nth, runs[i].nth);
        assert_int_equal(index.run[i].at, runs[i].at);
        assert_int_equal(index.run[i].status, runs[i].status);
        assert_int_equal(index.run[i].exit_code, runs[i].exit_code);
        assert_string_equal(index.run[i].result, runs[i].result);
        assert_string_equal(index.run[i].row.file, runs[i].row.file);
        assert_string_equal(index.run[i].row.error, runs[i].row.error);
        assert_int_equal(isnan(index.run[i].row.total_ns), isnan(runs[i].row.total_ns));
    }
    assert_string_equal(index.run[0].row.id, "0123456789ab");
    assert_null(index.run[2].row.id);
    assert_string_equal(index.run[1].row.label, "broken ?");
    assert_true(index.run[0].row.dispatch_ns == 1250.25);
    assert_true(index.run[0].row.total_ns == 10000);
    assert_int_equal(index.run[0].row.compared, 4096);
    assert_int_equal(index.run[0].row.checked, 3);
    assert_int_equal(index.run[0].row.wrong, 1);
    assert_int_equal(index.run[0].row.samples, 77);
    assert_int_equal(index.run[0].row.stop, STOP_TIME);
    assert_true(index.run[0].row.ci95 == 0.125);
    assert_int_equal(index.run[1].row.stop, STOP_NOT);
    batch_index_finish(&index);
    free(text);
}

/* Whatever is cut off, an index that is not whole is not taken for one. */
TEST(a_part_of_an_index_is_none)
{
    char *text = text_of();
    size_t bytes = strlen(text);
    struct batch_index index;

    for (size_t n = bytes - 2; n > 0; n = n * 9 / 10) { /* the last byte ends its line */
        struct epa_error err = {EPA_OK, ""};

        text[n] = '\0';
        assert_int_equal(read_text(text, &index, &err), EPA_ERR_CONFIG);
        assert_non_null(strstr(err.text, "error: not JSON"));
    }
    free(text);
}

TEST(a_result_is_a_file_of_the_folder)
{
    static const char *const good[] = {"0123456789ab.json", "0123456789ab-2.json",
                                       "ffffffffffff-100000.json"};
    static const char *const bad[] = {"",
                                      "index.json",
                                      "../0123456789ab.json",
                                      "0123456789ab",
                                      "0123456789ab-.json",
                                      "0123456789ab-1/../x.json",
                                      "0123456789ab-1234567890.json",
                                      "0123456789abc.json",
                                      "0123456789AB.json",
                                      "0123456789ab.json.1-0.tmp"};
    char name[BATCH_INDEX_NAME];

    for (size_t i = 0; i < LENGTH(good); i++)
        assert_true(index_is_result_name(good[i]));
    for (size_t i = 0; i < LENGTH(bad); i++)
        assert_false(index_is_result_name(bad[i]));
    index_result_name("0123456789ab", 1, name);
    assert_string_equal(name, "0123456789ab.json");
    index_result_name("0123456789ab", 4294967295u, name);
    assert_string_equal(name, "0123456789ab-4294967295.json");
}

TEST(commands_are_added)
{
    char *text = text_of(), *line[] = {(char *)"epa2a", NULL};
    struct batch_index index;
    struct text again = {0};

    assert_int_equal(read_text(text, &index, NULL), EPA_OK);
    assert_int_equal(batch_index_command(&index, line, "", "there", NULL), EPA_OK);
    assert_string_equal(batch_index_last(&index, "host"), "there");
    assert_int_equal(batch_index_text(&index, &again, NULL), EPA_OK);
    assert_non_null(strstr(again.data, "\"a b.yaml\""));
    text_free(&again);
    batch_index_finish(&index);
    free(text);
}

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

TEST_GROUP(make_file, remove_file)
