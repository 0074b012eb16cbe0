/* How the samples of each row are spread, in one line: a place for each part of the range
 * from the shortest to p99, as high as samples fall there; the last has all that took longer. */
#include "report/report_lines.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PLACES = 40, LEVELS = 8, NAME = 20, EACH = 5, LEAST = 50 };

/* So many that each may have some. */
static uint32_t places_of(uint64_t n)
{
    return n / EACH >= PLACES ? PLACES : (uint32_t)(n / EACH);
}

static uint64_t count(const struct result_stage *stage, double low, double high,
                      uint64_t place[PLACES])
{
    uint32_t places = places_of(stage->slowest.n);
    uint64_t most = 0;

    for (uint64_t i = 0; i < stage->slowest.n; i++) {
        double at = (stage->sample[i] - low) / (high - low) * places;
        uint32_t p = at >= places ? places - 1 : (uint32_t)at;

        place[p]++;
        most = place[p] > most ? place[p] : most;
    }
    return most;
}

/* 0: nothing is there; what there is, is seen. */
static uint32_t level(uint64_t n, uint64_t most)
{
    return (uint32_t)((n * LEVELS + most - 1) / most);
}

/* Of microseconds: so that all are about as long. */
static int digits(double ns)
{
    return ns < 1e5 ? 2 : ns < 1e7 ? 1 : 0;
}

static void print_line(FILE *file, const struct result_stage *stage, bool unicode)
{
    static const char *const block[LEVELS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[LEVELS + 1] = {" ", ".", ":", "-", "=", "+", "*", "%", "#"};
    const struct stats *s = &stage->slowest;
    uint64_t place[PLACES] = {0}, most = count(stage, s->min, s->p99, place);

    fprintf(file, "#   %-*.*s |", NAME, NAME, stage->name);
    for (uint32_t i = 0; i < places_of(s->n); i++)
        fputs((unicode ? block : ascii)[level(place[i], most)], file);
    fprintf(file, "| %.*f to %.*f us\n", digits(s->min), s->min / 1e3, digits(s->p99),
            s->p99 / 1e3);
}

bool report_unicode(void)
{
    static const char *const name[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        const char *value = getenv(name[i]);

        if (value != NULL && value[0] != '\0')
            return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
    }
    return false;
}

void report_sparks(FILE *file, const struct result *result)
{
    bool any = false, unicode = report_unicode();

    for (uint32_t i = 0; i < result->n_stages; i++) {
        const struct stats *s = &result->stage[i].slowest;

        if (s->n < LEAST || !(s->p99 > s->min))
            continue;
        if (!any)
            report_comment(file,
                           "samples from the shortest to p99; the last place has those above");
        any = true;
        print_line(file, &result->stage[i], unicode);
    }
}
