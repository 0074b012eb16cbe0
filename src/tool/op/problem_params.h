/* Numbers that define a problem: its ranks, its shape and its generated inputs. The options of the
 * sections moe, routing, tokens, expert, allgather and gemm have these structs. */
#ifndef OP_PROBLEM_PARAMS_H
#define OP_PROBLEM_PARAMS_H

#include <epa2a/plugin.h>

enum { PROBLEM_EXPERTS_MAX = 4096, PROBLEM_RANKS_MAX = 64 };

enum moe_input { MOE_INPUT_NATIVE, MOE_INPUT_FP8 };

/* `moe:`; copied into struct epa_moe unchanged. */
struct moe_options {
    uint32_t max_tokens, hidden, experts, topk, fp8_group_size;
    int dtype;       /* enum epa_dtype */
    int input_dtype; /* enum moe_input: fp8 passes quantised rows to the algorithm */
};

enum routing_kind {
    ROUTING_UNIFORM,   /* topk distinct experts, all equally likely */
    ROUTING_ZIPF,      /* expert of popularity rank i drawn by (i + 1)^-exponent */
    ROUTING_LOGNORMAL, /* expert popularity exp(sigma * normal) */
    ROUTING_HOT,       /* `share` of the tokens choose expert 0 first; the rest is uniform */
    ROUTING_MASKED,    /* uniform, each choice dropped (-1) with probability `share` */
    ROUTING_MAXVIO,    /* the most loaded expert has (1 + violation) times the mean */
    ROUTING_FILE,      /* from `path` */
};

enum routing_weights { WEIGHTS_SUM_TO_ONE, WEIGHTS_UNIFORM, WEIGHTS_SIGNED };

/* `routing:` */
struct routing_options {
    int kind;         /* enum routing_kind */
    double exponent;  /* zipf */
    double sigma;     /* lognormal */
    double share;     /* hot, masked */
    double violation; /* maxvio */
    const char *path; /* file: .npy or .jsonl; absolute */
    uint32_t layer; /* file: index of the layer in a file of several; UINT32_MAX: the only layer */
    /* file: number of tokens to skip at its start, also in hidden_states; UINT32_MAX: skip the
     * repeated tokens. */
    uint32_t skip;
    int weights; /* enum routing_weights; file: the weights of the file */
    /* .npy float16/float32 [tokens][hidden] for x, absolute; NULL: generated */
    const char *hidden_states;
};

/* `allgather:`; copied into struct epa_allgather unchanged. */
struct allgather_options {
    uint32_t max_rows, row_bytes;
};

enum gemm_values_kind { GEMM_INTEGERS, GEMM_RANDOM };

/* `gemm:`; m and n are totals over all ranks. */
struct gemm_options {
    uint32_t m, n, k;
    int dtype; /* enum epa_dtype: BF16, F16 or FP8 */
    bool bias;
    int values;    /* enum gemm_values_kind */
    int out_dtype; /* of C: EPA_FP8_E4M3; 0: BF16, or F16 if dtype is F16 */
};

enum tokens_kind { TOKENS_FULL, TOKENS_RANDOM, TOKENS_LIST };

/* `tokens:` number of tokens or rows of each rank, of moe.max_tokens, allgather.max_rows or
 * gemm.m. */
struct tokens_options {
    int kind;     /* full; random: min..max, a new number in each iteration; list: per_rank */
    uint32_t min; /* random */
    struct epa_u32_list per_rank;
};

enum expert_kind {
    EXPERT_SCALE, /* by a factor for each expert */
    EXPERT_RANK,  /* by 1 + the rank of the expert */
    EXPERT_MLP,   /* real: up, activation, down */
};
enum expert_output { OUTPUT_IN_PLACE, OUTPUT_SEPARATE };

enum expert_weights {
    EXPERT_WEIGHTS_NATIVE,
    EXPERT_WEIGHTS_BF16,
    EXPERT_WEIGHTS_F16,
    EXPERT_WEIGHTS_FP8,
    EXPERT_WEIGHTS_INT8
};
enum expert_library { EXPERT_LIBRARY_AUTO, EXPERT_LIBRARY_OWN, EXPERT_LIBRARY_ONEDNN };
/* AUTO: verify uses integers if inputs are generated; a session has one of the other values. */
enum expert_values { EXPERT_VALUES_RANDOM, EXPERT_VALUES_INTEGERS, EXPERT_VALUES_AUTO };

/* `expert:` synthetic, or real. */
struct expert_options {
    int kind;
    int output; /* in_place: into y_space (zero copy); separate: a separate buffer */
    /* mlp */
    uint32_t ffn;
    int activation;          /* enum epa_activation */
    int weights;             /* enum expert_weights */
    uint32_t fp8_group_size; /* weights fp8: channels of the intermediate that share a scale */
    int values;              /* enum expert_values: of weights and inputs */
    int library;             /* enum expert_library: for experts that a host computes */
};

/* An operation reads the members of its own sections only. The owner of the struct owns strings and
 * lists. */
struct problem_params {
    uint32_t ranks, ranks_per_node; /* ranks_per_node 0: all ranks on one node */
    uint64_t seed;                  /* of all generated inputs */
    struct moe_options moe;
    struct routing_options routing;
    struct tokens_options tokens;
    struct expert_options expert;
    struct allgather_options allgather;
    struct gemm_options gemm;
};

#endif
