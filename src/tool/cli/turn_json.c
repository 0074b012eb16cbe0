/* Results of turns in memory files. */
#include "cli/turn_json.h"

#include <unistd.h>

#include "report/result_json.h"
#include "report/summary_json.h"

bool turn_json_write(int fd, const struct result *result, const struct facts *facts)
{
    json_auto_t *list = json_array();

    json_array_append_new(list, result_json(result, facts));
    return json_dumpfd(list, fd, 0) == 0;
}

bool turn_json_read(int fd, const char *path, struct results *out, struct epa_error *err)
{
    json_t *list;

    (void)lseek(fd, 0, SEEK_SET);
    list = json_loadfd(fd, 0, NULL);
    if (json_array_size(list) != 1) {
        json_decref(list);
        return false;
    }
    (void)results_of(path, report_document(list, NULL), out, err);
    return true;
}
