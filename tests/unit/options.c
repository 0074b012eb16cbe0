/* Option tables: each type is read strictly, and its text reads back as the same value.
 * What is said about bad values stands in tests/cli/bad-inputs.txt. */
#include "test.h"

#include "base/text.h"
#include "config/options.h"
#include "fake_registry.h"

static const struct epa_options options = {fake_transport_options, sizeof(struct fake_transport),
                                           &fake_transport_defaults};

/* Reads it, expects so many errors; `out` points into the arena. */
static struct fake_transport read_text(struct arena *arena, const char *text, uint32_t errors)
{
    struct diag *diag = diag_create();
    struct fake_transport out;
    struct node *root;

    yaml_parse(arena, "a.yaml", text, strlen(text), diag, &root);
    options_read(&options, "transport", "name", root, arena, diag, &out);
    assert_int_equal(diag_errors(diag), errors);
    diag_destroy(diag);
    return out;
}

TEST_OF(every_type_is_read_and_its_text_reads_back, struct arena, arena, arena_create(),
        arena_destroy)
{
    const char *yaml = "wait: spin\nprefault: true\nring: 12345\nlinger: 1500ms\n"
                       "share: 0.3\ndevice: \"true\"\nlanes: [3, 2, 1]\n";
    struct fake_transport x = read_text(arena, yaml, 0);
    struct text text = {0};

    assert_int_equal(x.wait, 1);
    assert_true(x.prefault && x.share == 0.3);
    assert_int_equal(x.ring_bytes, 12345);
    assert_int_equal(x.linger_ns, 1500000000);
    assert_string_equal(x.device, "true");
    assert_int_equal(x.lanes.n, 3);
    assert_int_equal(x.lanes.item[0], 3);
    for (const struct epa_option *o = options.table; o->name != NULL; o++) {
        const char *quote = o->type == EPA_OPTION_STRING ? "\"" : "";

        text_add(&text, "%s: %s", o->name, quote);
        option_text(o, &x, &text);
        text_add(&text, "%s\n", quote);
    }
    assert_string_equal(text.data, yaml);
    text_free(&text);
}

TEST_OF(what_is_not_said_or_refused_is_the_default, struct arena, arena, arena_create(),
        arena_destroy)
{
    struct fake_transport x = read_text(arena, "name: shm\nx-why: {any: thing}\nx-: 1\n", 0);

    assert_memory_equal(&x, &fake_transport_defaults, sizeof(x));
    x = read_text(arena,
                  "wait: never\nring: 64KB\nshare: 2\nlanes: [1, 9]\nlinger: 4\nprefault: on\n", 6);
    assert_memory_equal(&x, &fake_transport_defaults, sizeof(x));
}

TEST_OF(a_string_may_be_null_and_a_default_out_of_bounds, struct arena, arena, arena_create(),
        arena_destroy)
{
    const struct epa_option layer = {.name = "layer", .type = EPA_OPTION_U32, .max = 7};
    const struct epa_option *device = option_find(&options, "device");
    struct fake_transport plain = read_text(arena, "device: null\n", 0);
    struct fake_transport quoted = read_text(arena, "device: \"null\"\n", 0);

    assert_false(option_is_set(device, &plain));
    assert_true(option_is_set(device, &quoted));
    assert_string_equal(quoted.device, "null");
    assert_true(option_is_set(&layer, &(uint32_t){7}));
    assert_false(option_is_set(&layer, &(uint32_t){UINT32_MAX}));
}

TEST(numbers_are_strict)
{
    static const char *const not_whole[] = {
        "",    "4x",  "4 ",  " 4",  "+4",  "-4",   "010", "00",
        "0x4", "4.0", "4e2", "4_0", "4,0", "four", "4k",  "18446744073709551616"};
    static const char *const not_real[] = {"",      "nan", "inf", ".inf", "0x1p3", "1e", "1e+",
                                           "1e999", ".",   "-",   "1,5",  "1 ",    "e5", "1.5x"};
    static const char *const not_bytes[] = {
        "0.3K", "16777216T", "99999999999999999999", "1.0000001G", "1.K", "KiB", "-1K", "64kib"};
    static const char *const not_time[] = {"5", "1.5ns", "05s", "5 m s"};
    static const char *const real[] = {"1", "-1.5", "+2", ".5", "5.", "1e3", "1E-3", "0.1"};
    struct value_error error;
    uint64_t value = 77;
    double number = 77.0;

    for (size_t i = 0; i < LENGTH(not_whole); i++)
        assert_false(value_u64(not_whole[i], &value, &error));
    for (size_t i = 0; i < LENGTH(not_real); i++)
        assert_false(value_real(not_real[i], &number, &error));
    for (size_t i = 0; i < LENGTH(not_bytes); i++)
        assert_false(value_bytes(not_bytes[i], &value, &error));
    for (size_t i = 0; i < LENGTH(not_time); i++)
        assert_false(value_duration(not_time[i], &value, &error));
    assert_true(value == 77 && number == 77.0);
    for (size_t i = 0; i < LENGTH(real); i++)
        assert_true(value_real(real[i], &number, &error) && number == strtod(real[i], NULL));
    assert_true(value_bytes("64K", &value, &error) && value == 65536);
    assert_true(value_bytes("64 KiB", &value, &error) && value == 65536);
    assert_true(value_bytes("100", &value, &error) && value == 100);
    assert_true(value_bytes("0.5G", &value, &error) && value == 1 << 29);
    assert_true(value_duration("0.000001s", &value, &error) && value == 1000);
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
