/* The library that missing_library.c is linked with and that no search finds at run
 * time. */
__attribute__((visibility("default"))) int epa2a_test_gone(void);

int epa2a_test_gone(void)
{
    return 0;
}
