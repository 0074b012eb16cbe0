/* Test of the error estimate of a prediction, with made-up measurements. */
#include "base/memory.h"
#include "test.h"

#include "cli/predict_world.h"

#include "experiment/operation.h"
#include "report/predict.h"

/* Time of a call on its core, and the additional time if ranks share the core. */
enum { CALL_NS = 3000, SHARED_NS = 5000 };

/* With two cores, sharing begins at 4 ranks. */
TEST(core_sharing_adds_no_error_to_worlds_without_sharing)
{
    static const struct epa_algorithm_plugin plugin = {.op = EPA_OP_ALLGATHER};
    struct experiment x = {.problem.ranks = 2, .algorithm = {.plugin = &plugin.plugin}};
    struct prediction p = {
        .arena = arena_create(), .x = &x, .op = &op_allgather, .n = 3, .n_worlds = 3};

    for (uint32_t i = 0; i < p.n; i++) {
        struct measured *m = &p.run[i];
        uint32_t share = 1u << i;

        *m = (struct measured){
            .ranks = 2 * share, .x = &x, .tokens = (uint32_t)p.op->size(&x.problem)};
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
