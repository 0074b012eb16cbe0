/* Framework of the unit tests. TEST(its_promise) {...} defines and registers a test;
 * TEST_IN(set_up, tear_down, its_promise) adds a fixture in `*state`. The tests of a file form a
 * group in file order; test.c runs the groups of all files of a program. */
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

/* Checks that `text` contains the words in this order. " .. " separates words, so that a test
 * states facts and not the exact sentence. */
void assert_words(const char *text, const char *words);

/* Returns an emptied error for a call. assert_status() then checks the status and the words of its
 * message ("" for none). */
struct epa_error *test_error(void);
void assert_status(enum epa_status have, enum epa_status want, const char *words);

/* Sets variables of the environment: "A=1 B" sets A and unsets B. */
void set_variables(const char *text);

/* xorshift64; the state is never 0. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

extern int test_argc; /* arguments of main(), for the set_up of TEST_GROUP */
extern char **test_argv;

void test_add(const char *file, const struct CMUnitTest *test);
void test_group(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* Returns a port for rank 0. The socket *out keeps the port from other programs until the caller closes it;
 * rank 0 can listen there, since both set SO_REUSEADDR. */
uint32_t test_reserve_port(int *out);

#define TEST_IN(set_up, tear_down, name) \
    static void name(void **state); \
    __attribute__((constructor)) static void add_##name(void) \
    { \
        test_add(__FILE__, &(struct CMUnitTest){#name, name, set_up, tear_down, NULL}); \
    } \
    static void name(void **state __attribute__((unused)))

#define TEST(name) TEST_IN(NULL, NULL, name)

/* Defines a test on an object `type *of`, which `begin` creates and end(of) destroys. */
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

/* Runs set_up and tear_down around all tests of the file. */
#define TEST_GROUP(set_up, tear_down) \
    __attribute__((constructor)) static void add_group(void) \
    { \
        test_group(__FILE__, set_up, tear_down); \
    }

#endif
