/* Version of the library. */
#include <epa2a.h>

uint32_t epa2a_version(void)
{
    return EPA2A_VERSION;
}
