/* Tests of src/lib/options: options as text, with the messages of YAML. */
#include "test.h"

#include <locale.h>

#include <epa2a/plugin.h>

#include "base/memory.h"
#include "config/diag.h"
#include "config/options.h"
#include "config/yaml.h"
#include "failing_calloc.h"
#include "options/options_from_text.h"

/* ---- a table with options of every type ---- */

struct sample {
    bool on;
    uint32_t lanes, buffers;
    uint64_t seed, bytes, wait_ns;
    double share;
    const char *device;
    int mode;
    struct epa_u32_list list;
};

static const struct epa_choice modes[] = {{"auto", 0, ""}, {"spin", 1, ""}, {"yield", 2, ""}, {0}};
static const struct epa_choice named[] = {{"all", 0, ""}, {0}};
static const struct epa_option table[] = {
    {.name = "on", EPA_BOOL(struct sample, on)},
    {.name = "lanes", EPA_U32(struct sample, lanes), .max = 8, .choices = named},
    {.name = "buffers", EPA_U32(struct sample, buffers), .min = 1, .max = 2},
    {.name = "seed", EPA_U64(struct sample, seed)},
    {.name = "bytes", EPA_BYTES(struct sample, bytes), .min = 4096, .max = 1 << 30},
    {.name = "wait", EPA_DURATION(struct sample, wait_ns), .min = 1000},
    {.name = "share", EPA_REAL(struct sample, share), .least = 0.0, .most = 1.0},
    {.name = "device", EPA_STRING(struct sample, device)},
    {.name = "mode", EPA_CHOICE(struct sample, mode), .choices = modes},
    {.name = "list", EPA_U32_LIST(struct sample, list), .min = 1, .max = 8},
    {0},
};
static const struct sample defaults = {.buffers = 2, .bytes = 8192, .device = "first"};
static const struct epa_options options = {table, sizeof(struct sample), &defaults};

static enum epa_status read_text(const char *text, struct sample *out,
                                 struct options_memory *memory)
{
    *memory = (struct options_memory){0};
    return options_from_text(&options, text, memory, out, test_error());
}

static void assert_rejected(const char *text, const char *words)
{
    struct options_memory memory;
    struct sample out = {.lanes = 77};

    assert_status(read_text(text, &out, &memory), EPA_ERR_CONFIG, words);
    assert_int_equal(out.lanes, 77);
    options_memory_free(&memory);
}

TEST(values_of_every_type_are_read_and_others_keep_their_default)
{
    struct options_memory memory;
    struct sample s;

    assert_status(read_text("on=true, lanes = 3,\n bytes=64KiB\nwait=1.5ms,,share=50%,mode=yield,"
                            "device='a, [b]\n' , list=[ 1,\n2 ,3, ] ,seed=18446744073709551615\n",
                            &s, &memory),
                  EPA_OK, "");
    assert_true(s.on);
    assert_int_equal(s.lanes, 3);
    assert_int_equal(s.buffers, 2);
    assert_int_equal(s.bytes, 65536);
    assert_int_equal(s.wait_ns, 1500000);
    assert_true(s.share == 0.5);
    assert_int_equal(s.mode, 2);
    assert_string_equal(s.device, "a, [b]\n");
    assert_true(s.seed == UINT64_MAX);
    assert_int_equal(s.list.n, 3);
    assert_int_equal(s.list.item[0] + 10 * s.list.item[1] + 100 * s.list.item[2], 321);
    options_memory_free(&memory);
}

TEST(empty_text_gives_the_defaults)
{
    static const char *const texts[] = {NULL, "", " ,\n, \t\n"};
    struct options_memory memory;
    struct sample s;

    for (size_t i = 0; i < LENGTH(texts); i++) {
        assert_status(read_text(texts[i], &s, &memory), EPA_OK, "");
        assert_memory_equal(&s, &defaults, sizeof(s));
        options_memory_free(&memory);
    }
}

TEST(null_and_empty_lists_and_numbers_by_name_are_values)
{
    struct options_memory memory;
    struct sample s;

    assert_status(read_text("device=null,list=[],lanes=all", &s, &memory), EPA_OK, "");
    assert_null(s.device);
    assert_non_null(s.list.item);
    assert_int_equal(s.list.n, 0);
    options_memory_free(&memory);
    assert_status(read_text("device='null'", &s, &memory), EPA_OK, "");
    assert_string_equal(s.device, "null");
    options_memory_free(&memory);
}

TEST(wrong_syntax_is_rejected_with_the_place)
{
    assert_rejected("on", "'on' .. on=VALUE");
    assert_rejected("on=true, =3", "'=3' .. no key");
    assert_rejected("list=[1, 2", "list .. ]");
    assert_rejected("list=[1, 2] 3", "list .. '3' .. comma");
    assert_rejected("device='a", "device .. closing '");
    assert_rejected("device='a'b", "device .. 'b' .. comma");
    assert_rejected("device=a\x01", "byte 8 .. control");
    assert_rejected("device=\xff", "byte 7 .. UTF-8");
}

TEST(unknown_keys_get_a_suggestion_and_keys_are_set_once)
{
    assert_rejected("bufers=1", "'bufers' .. did you mean 'buffers'?");
    assert_rejected("zzzzzz=1", "'zzzzzz' .. it has: on, lanes, .. list");
    assert_rejected("buffers=1\nbuffers=1", "'buffers' is set twice");
}

TEST(texts_are_limited)
{
    char *long_text = malloc(OPTIONS_TEXT_BYTES + 2), *many = malloc(16 * OPTIONS_ENTRIES);
    char key[16];

    assert_non_null(long_text);
    assert_non_null(many);
    memset(long_text, ' ', OPTIONS_TEXT_BYTES + 1);
    long_text[OPTIONS_TEXT_BYTES + 1] = '\0';
    assert_rejected(long_text, "65536 bytes");
    *many = '\0';
    for (int i = 0; i <= OPTIONS_ENTRIES; i++) {
        snprintf(key, sizeof(key), "k%d=1,", i);
        strcat(many, key);
    }
    assert_rejected(many, "256 options");
    free(long_text);
    free(many);
}

/* ---- the same reasons and suggestions as YAML ---- */

/* Writes "KEY: REASON; HINT" of the first error that YAML reports for the value. */
static void explain_as_yaml(const char *key, const char *value, char *out, size_t room)
{
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    const char *text = arena_printf(arena, "%s: %s\n", key, value);
    char *printed = NULL, *hint;
    struct node *map = NULL;
    struct sample s;
    size_t bytes = 0;
    FILE *file = open_memstream(&printed, &bytes);

    assert_int_equal(yaml_parse(arena, "x", text, strlen(text), 0, false, diag, &map), EPA_OK);
    options_read(&options, "s", NULL, map, arena, diag, &s);
    assert_int_equal(diag_errors(diag), 1);
    diag_print(diag, file);
    fclose(file);
    hint = strrchr(printed, '^');
    assert_non_null(hint);
    hint += strspn(hint, "^~ ");
    hint[strcspn(hint, "\n")] = '\0';
    /* The section is part of the key in YAML. */
    snprintf(out, room, "options: %s; %s", diag_first_text(diag) + strlen("s."), hint);
    free(printed);
    diag_destroy(diag);
    arena_destroy(arena);
}

TEST(wrong_values_have_the_reason_and_the_suggestion_of_yaml)
{
    static const char *const wrong[][2] = {
        {"on", "yes"},
        {"on", "2"},
        {"on", "'true'"},
        {"on", ""},
        {"on", "[1, 2]"},
        {"lanes", "9"},
        {"lanes", "-1"},
        {"lanes", "1e3"},
        {"lanes", "any"},
        {"buffers", "0"},
        {"buffers", "4x"},
        {"buffers", "0x2"},
        {"buffers", "07"},
        {"buffers", "18446744073709551616"},
        {"buffers", "\"1\""},
        {"seed", "12.5"},
        {"seed", "99999999999999999999"},
        {"bytes", "1KiB"},
        {"bytes", "64XB"},
        {"bytes", "1.3B"},
        {"bytes", "64"},
        {"wait", "10"},
        {"wait", "10min"},
        {"wait", "-5us"},
        {"wait", "1.5ns"},
        {"wait", "1ns"},
        {"share", "1.5"},
        {"share", "x"},
        {"share", "1e999"},
        {"share", "[0.5]"},
        {"device", "[a]"},
        {"device", ""},
        {"mode", "spinn"},
        {"mode", "qqqqqq"},
        {"mode", "[spin]"},
        {"list", "3"},
        {"list", "[0]"},
        {"list", "[1, 9]"},
        {"list", "[1, x]"},
        {"list", "['1']"},
        {"list", "[1, a b]"},
    };
    char yaml[1024], text[256];

    for (size_t i = 0; i < LENGTH(wrong); i++) {
        struct options_memory memory = {0};
        struct epa_error *err = test_error();
        struct sample s;

        explain_as_yaml(wrong[i][0], wrong[i][1], yaml, sizeof(yaml));
        snprintf(text, sizeof(text), "%s=%s", wrong[i][0], wrong[i][1]);
        assert_int_equal(options_from_text(&options, text, &memory, &s, err), EPA_ERR_CONFIG);
        assert_string_equal(err->text, yaml);
        assert_string_equal(err->key, wrong[i][0]);
        options_memory_free(&memory);
    }
}

/* ---- environment of the application ---- */

/* Chooses a locale with a decimal comma, made from the sources of the C library. Returns false if
 * the machine lacks them. */
static bool choose_decimal_comma(char *folder)
{
    char command[256];

    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>&1", folder);
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
}

static void remove_folder(const char *folder)
{
    char command[256];

    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

TEST(numbers_do_not_depend_on_the_locale)
{
    char folder[] = "/tmp/epa2a-locale-XXXXXX", buf[32];
    bool comma = choose_decimal_comma(folder);
    struct options_memory memory;
    struct sample s;

    remove_folder(folder);
    if (!comma)
        skip(); /* localedef, or the source of de_DE, is missing */
    assert_status(read_text("share=0.25", &s, &memory), EPA_OK, "");
    assert_true(s.share > 0.2);
    assert_string_equal(value_real_text(buf, sizeof(buf), 0.25), "0.25");
    options_memory_free(&memory);
    assert_rejected("share=1.5", "'1.5' is out of range; .. 0.0 to 1.0");
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
}

TEST(each_failed_allocation_is_an_error_and_leaks_nothing)
{
    static const char text[] = "device='a', list=[1, 2], mode=spin";
    struct options_memory memory;
    struct sample s;
    long needed;

    calloc_calls = 0;
    assert_status(read_text(text, &s, &memory), EPA_OK, "");
    needed = calloc_calls;
    options_memory_free(&memory);
    assert_true(needed > 5);
    for (long i = 0; i < needed; i++) {
        enum epa_status status;

        s.mode = 7;
        calloc_allowed = i;
        status = read_text(text, &s, &memory);
        calloc_allowed = -1;
        assert_status(status, EPA_ERR_NOMEM, "options .. memory");
        assert_int_equal(s.mode, 7);
        options_memory_free(&memory);
    }
}
