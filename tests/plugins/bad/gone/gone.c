/* The library that the plugin missing_library is linked with and that no search finds at run
 * time. */
__attribute__((visibility("default"))) int epa2a_test_gone(void);

int epa2a_test_gone(void)
{
    return 0;
}
