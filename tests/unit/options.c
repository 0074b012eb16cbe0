/* Numbers of options: read strictly, and with a text that reads back. What is said about bad values stands
 * in tests/cli/bad-inputs.txt; that `config show` reads back is in config.case and config_schema.py. */
#include "test.h"

#include "config/options.h"

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
