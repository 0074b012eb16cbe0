#include "api/moe_routes.h"

#include <stdlib.h>

enum { LEAST_ROOM = 8 };

enum epa_status moe_routes_reserve(struct moe_routes *r, struct epa_error *err)
{
    size_t room = r->room != 0 ? 2 * r->room : LEAST_ROOM;
    struct moe_route *route;

    if (r->n < r->room)
        return EPA_OK;
    route = realloc(r->route, room * sizeof(*route));
    if (route == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the list of %zu routes", room);
    r->route = route;
    r->room = room;
    return EPA_OK;
}

void moe_routes_add(struct moe_routes *r, struct moe_route new, size_t bytes)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->n; i++) {
        const char *other = r->route[i].memory;

        if (other + bytes <= new.memory || new.memory + bytes <= other)
            r->route[kept++] = r->route[i];
    }
    r->route[kept] = new;
    r->n = kept + 1;
}

const struct moe_route *moe_routes_find(const struct moe_routes *r, const void *memory)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->route[i].memory == memory)
            return &r->route[i];
    return NULL;
}

void moe_routes_finish(struct moe_routes *r)
{
    free(r->route);
    *r = (struct moe_routes){.route = NULL};
}
