/* The figures of a stage in JSON, by the table of figures. */
#include "report/figures_json.h"

#include <math.h>
#include <string.h>

static json_t *figure_json(const struct figure *f, const struct stage_figures *from)
{
    const char *at = (const char *)from + f->offset;
    double bound[2];
    uint64_t count;
    json_t *interval;

    if (f->kind == FIGURE_COUNT) {
        memcpy(&count, at, sizeof(count));
        return json_count(count);
    }
    if (f->kind == FIGURE_NS)
        return json_whole(figure_value(f, from));
    if (f->kind != FIGURE_INTERVAL)
        return json_number(figure_value(f, from));
    memcpy(bound, at, sizeof(bound));
    if (isnan(bound[0]))
        return json_null();
    interval = json_array();
    json_array_append_new(interval, json_whole(bound[0]));
    json_array_append_new(interval, json_whole(bound[1]));
    return interval;
}

void figures_write(json_t *stage, const struct stage_figures *from)
{
    for (const struct figure *f = figures; f->path != NULL; f++)
        json_set_at(stage, f->path, figure_json(f, from));
}

void figures_read(const json_t *stage, struct stage_figures *out)
{
    for (const struct figure *f = figures; f->path != NULL; f++) {
        const json_t *value = json_at(stage, f->path);
        char *at = (char *)out + f->offset;
        uint64_t count = (uint64_t)json_integer_value(value);
        double number[2] = {json_is_number(value) ? json_number_value(value) : NAN, NAN};

        if (f->kind == FIGURE_INTERVAL && json_is_array(value)) {
            number[0] = json_number_value(json_array_get(value, 0));
            number[1] = json_number_value(json_array_get(value, 1));
        }
        if (f->kind == FIGURE_COUNT)
            memcpy(at, &count, sizeof(count));
        else
            memcpy(at, number, (f->kind == FIGURE_INTERVAL ? 2 : 1) * sizeof(*number));
    }
}
