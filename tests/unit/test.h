/* What each unit test includes. TEST(its_promise) {...} is a test, with TEST_IN(set_up,
 * tear_down, its_promise) in a fixture, `*state`; it need not be listed. The tests of one file
 * are a group, in the order of the file; test.c runs the groups of all files of a program. */
#ifndef TEST_H
#define TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <epa2a/status.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* `text` has these words in this order, which have " .. " between: what must be said, and not
 * how. */
void assert_words(const char *text, const char *words);

/* For a call that must end with a status and say these words, or nothing where they are "": its
 * error is test_error(), emptied. */
struct epa_error *test_error(void);
void assert_status(enum epa_status have, enum epa_status want, const char *words);

/* "A=1 B" sets the variable A and takes B away. */
void set_variables(const char *text);

/* xorshift64; the state is never 0. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

extern int test_argc; /* of main(), for TEST_GROUP's set_up */
extern char **test_argv;

void test_add(const char *file, const struct CMUnitTest *test);
void test_group(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define TEST_IN(set_up, tear_down, name) \
    static void name(void **state); \
    __attribute__((constructor)) static void add_##name(void) \
    { \
        test_add(__FILE__, &(struct CMUnitTest){#name, name, set_up, tear_down, NULL}); \
    } \
    static void name(void **state __attribute__((unused)))

#define TEST(name) TEST_IN(NULL, NULL, name)

/* A test of `type *of`, which `begin` makes and end(of) gives back. */
#define TEST_OF(name, type, of, begin, end) \
    static void name##_of(type *); \
    TEST(name) \
    { \
        type *made = begin; \
\
        name##_of(made); \
        end(made); \
    } \
    static void name##_of(type *of)

/* Around all tests of the file. */
#define TEST_GROUP(set_up, tear_down) \
    __attribute__((constructor)) static void add_group(void) \
    { \
        test_group(__FILE__, set_up, tear_down); \
    }

#endif
