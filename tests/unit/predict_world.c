/* The error of a prediction, over measurements that are made up. */
#include "test.h"

#include "cli/predict.h"
#include "op/op.h"

/* What a core takes: a call, and what sharing the core adds to each. */
enum { CALL_NS = 3000, SHARED_NS = 5000 };

/* On two cores sharing begins with 4 ranks. */
TEST(what_sharing_cores_costs_is_no_error_of_ranks_that_do_not)
{
    static const struct epa_algorithm_plugin plugin = {.op = EPA_OP_ALLGATHER};
    struct experiment x = {.ranks = 2, .algorithm = {.plugin = &plugin.plugin}};
    struct prediction p = {
        .arena = arena_create(), .x = &x, .op = &op_allgather, .n = 3, .n_worlds = 3};

    for (uint32_t i = 0; i < p.n; i++) {
        struct measured *m = &p.run[i];
        uint32_t share = 1u << i;

        *m = (struct measured){.ranks = 2 * share, .x = &x, .tokens = (uint32_t)p.op->size(&x)};
        m->copies = operation_copies(&x);
        p.world[i] = m->ranks;
        for (uint32_t k = 0; k < p.op->n_phases; k++) {
            struct predict_point *point = &m->point[k];

            *point = (struct predict_point){.share = share, .weight = 1};
            point->term[PREDICT_CALL] = 1;
            point->term[PREDICT_SHARED_CALL] = share > 1;
            point->ns = share * (CALL_NS + (share > 1 ? SHARED_NS : 0));
            m->total_ns += point->ns;
        }
        m->second_ns = m->total_ns;
    }
    prediction_fit(&p);
    assert_true(p.error < 0.01);
    arena_destroy(p.arena);
}
