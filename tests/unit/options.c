/* Option tables: each type is read strictly, and its text reads back as the same value.
 * What is said about bad values stands in tests/cli/bad-inputs.txt. */
#include "test.h"

#include "base/arena.h"
#include "config/diag.h"
#include "fake_registry.h"
#include "config/options.h"
#include "base/text.h"
#include "config/value.h"

static const struct epa_options options = {fake_transport_options, sizeof(struct fake_transport),
                                           &fake_transport_defaults};

struct read {
    struct arena *arena;
    struct diag *diag;
    struct fake_transport value;
};

static struct read read_text(const char *text)
{
    struct read r = {.arena = arena_create(), .diag = diag_create()};
    struct node *root;

    yaml_parse(r.arena, "a.yaml", text, strlen(text), r.diag, &root);
    options_read(&options, "transport", "name", root, r.arena, r.diag, &r.value);
    return r;
}

static void finish(struct read *r)
{
    arena_destroy(r->arena);
    diag_destroy(r->diag);
}

TEST(defaults_stand_where_nothing_is_said)
{
    struct read r = read_text("name: shm\n");

    assert_int_equal(diag_errors(r.diag), 0);
    assert_memory_equal(&r.value, &fake_transport_defaults, sizeof(r.value));
    finish(&r);
}

TEST(every_type_is_read)
{
    struct read r = read_text("wait: yield\nprefault: true\nring: 1.5MiB\nlinger: 2.5us\n"
                              "share: 1e-1\ndevice: mlx5_0\nlanes: [1, 8]\n");

    assert_int_equal(diag_errors(r.diag), 0);
    assert_int_equal(r.value.wait, 2);
    assert_true(r.value.prefault);
    assert_int_equal(r.value.ring_bytes, 1536 << 10);
    assert_int_equal(r.value.linger_ns, 2500);
    assert_true(r.value.share == 0.1);
    assert_string_equal(r.value.device, "mlx5_0");
    assert_int_equal(r.value.lanes.n, 2);
    assert_int_equal(r.value.lanes.item[1], 8);
    finish(&r);
}

TEST(text_of_a_value_reads_back_as_the_value)
{
    struct read first = read_text("wait: spin\nprefault: true\nring: 12345\nlinger: 1500ms\n"
                                  "share: 0.3\ndevice: \"true\"\nlanes: [3, 2, 1]\n");
    struct text yaml = {0};
    struct read second;

    for (const struct epa_option *o = options.table; o->name != NULL; o++) {
        const char *quote = o->type == EPA_OPTION_STRING ? "\"" : "";

        text_add(&yaml, "%s: %s", o->name, quote);
        option_text(o, &first.value, &yaml);
        text_add(&yaml, "%s\n", quote);
    }
    assert_string_equal(yaml.data, "wait: spin\nprefault: true\nring: 12345\n"
                                   "linger: 1500ms\nshare: 0.3\ndevice: \"true\"\n"
                                   "lanes: [3, 2, 1]\n");
    second = read_text(yaml.data);
    assert_int_equal(diag_errors(second.diag), 0);
    assert_int_equal(second.value.ring_bytes, first.value.ring_bytes);
    assert_int_equal(second.value.linger_ns, first.value.linger_ns);
    assert_true(second.value.share == first.value.share);
    assert_string_equal(second.value.device, first.value.device);
    text_free(&yaml);
    finish(&first);
    finish(&second);
}

TEST(refused_value_leaves_the_default)
{
    struct read r = read_text("wait: never\nring: 64KB\nshare: 2\nlanes: [1, 9]\nlinger: 4\n"
                              "prefault: on\n");

    assert_int_equal(diag_errors(r.diag), 6);
    assert_memory_equal(&r.value, &fake_transport_defaults, sizeof(r.value));
    finish(&r);
}

TEST(notes_of_the_user_are_ignored)
{
    struct read r = read_text("x-why: {any: thing}\nx-: 1\n");

    assert_int_equal(diag_errors(r.diag), 0);
    finish(&r);
}

TEST(string_may_be_null_and_is_then_not_set)
{
    const struct epa_option *device = option_find(&options, "device");
    struct read plain = read_text("device: null\n"), quoted = read_text("device: \"null\"\n");

    assert_false(option_is_set(device, &plain.value));
    assert_true(option_is_set(device, &quoted.value));
    assert_string_equal(quoted.value.device, "null");
    finish(&plain);
    finish(&quoted);
}

TEST(default_out_of_bounds_is_not_set)
{
    const struct epa_option layer = {.name = "layer", .type = EPA_OPTION_U32, .max = 7};
    const uint32_t is = 7, is_not = UINT32_MAX;

    assert_true(option_is_set(&layer, &is));
    assert_false(option_is_set(&layer, &is_not));
}

TEST(whole_numbers_are_strict)
{
    static const char *const bad[] = {
        "",    "4x",  "4 ",  " 4",  "+4",  "-4",   "010", "00",
        "0x4", "4.0", "4e2", "4_0", "4,0", "four", "4k",  "18446744073709551616"};
    struct value_error error;
    uint64_t value = 77;

    for (size_t i = 0; i < LENGTH(bad); i++)
        assert_false(value_u64(bad[i], &value, &error));
    assert_int_equal(value, 77);
    assert_true(value_u64("0", &value, &error));
    assert_int_equal(value, 0);
    assert_true(value_u64("18446744073709551615", &value, &error));
    assert_true(value == UINT64_MAX);
}

TEST(reals_are_finite_decimal_numbers)
{
    static const char *const bad[] = {"",      "nan", "inf", ".inf", "0x1p3", "1e", "1e+",
                                      "1e999", ".",   "-",   "1,5",  "1 ",    "e5", "1.5x"};
    static const char *const good[] = {"1", "-1.5", "+2", ".5", "5.", "1e3", "1E-3", "0.1"};
    struct value_error error;
    double value = 77.0;

    for (size_t i = 0; i < LENGTH(bad); i++)
        assert_false(value_real(bad[i], &value, &error));
    assert_true(value == 77.0);
    for (size_t i = 0; i < LENGTH(good); i++) {
        assert_true(value_real(good[i], &value, &error));
        assert_true(value == strtod(good[i], NULL));
    }
}

TEST(sizes_and_durations_are_exact)
{
    struct value_error error;
    uint64_t value = 77;

    assert_true(value_bytes("64K", &value, &error) && value == 65536);
    assert_true(value_bytes("64 KiB", &value, &error) && value == 65536);
    assert_true(value_bytes("100", &value, &error) && value == 100);
    assert_true(value_bytes("0.5G", &value, &error) && value == 1 << 29);
    assert_true(value_bytes("0", &value, &error) && value == 0);
    assert_true(value_duration("0", &value, &error) && value == 0);
    assert_true(value_duration("0.000001s", &value, &error) && value == 1000);
    value = 77;
    assert_false(value_bytes("0.3K", &value, &error));
    assert_false(value_bytes("16777216T", &value, &error));
    assert_false(value_bytes("99999999999999999999", &value, &error));
    assert_false(value_bytes("1.0000001G", &value, &error));
    assert_false(value_bytes("1.K", &value, &error));
    assert_false(value_bytes("KiB", &value, &error));
    assert_false(value_bytes("-1K", &value, &error));
    assert_false(value_bytes("64kib", &value, &error));
    assert_false(value_duration("5", &value, &error));
    assert_false(value_duration("1.5ns", &value, &error));
    assert_false(value_duration("05s", &value, &error));
    assert_false(value_duration("5 m s", &value, &error));
    assert_int_equal(value, 77);
}

TEST(numbers_have_texts_that_read_back)
{
    static const double real[] = {0.0, 0.1, 1.0 / 3.0, 10.0, 1e300, 5e-324, -2.5, 123456789.0};
    static const uint64_t whole[] = {0, 1, 1023, 1024, 65536, 1000000, 5000000000, UINT64_MAX};
    struct value_error error;
    char buf[64];

    for (size_t i = 0; i < LENGTH(real); i++) {
        double back = -1.0;

        assert_true(value_real(value_real_text(buf, sizeof(buf), real[i]), &back, &error));
        assert_true(back == real[i]);
    }
    assert_string_equal(value_real_text(buf, sizeof(buf), 10.0), "10.0");
    assert_string_equal(value_real_text(buf, sizeof(buf), 0.1), "0.1");
    for (size_t i = 0; i < LENGTH(whole); i++) {
        uint64_t back = 77;

        assert_true(value_bytes(value_bytes_text(buf, sizeof(buf), whole[i]), &back, &error));
        assert_true(back == whole[i]);
        assert_true(value_duration(value_duration_text(buf, sizeof(buf), whole[i]), &back, &error));
        assert_true(back == whole[i]);
    }
}
