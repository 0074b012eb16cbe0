#!/usr/bin/env python3
"""thorough.py EPA2A SOURCE CC...: faults planted in tests/plugins/plainmoe.c, and the variant of `verify` or `verify
--thorough` that finds each. Harmless changes pass all variants."""
import json
import pathlib
import subprocess
import sys
import tempfile

PLAIN, NOBODY = "verify", None
# Ranks may have to wait for a core for seconds while other tests run. HANG_LIMIT is for faults after which ranks wait for
# each other without end. The variants with a stopped rank last as long as the limit.
LIMIT, HANG_LIMIT = "20s", "2s"
HANG_WORDS = ("", "did not return", "no time-out names")
FILE = """version: 1
ranks: 3
transport: shm
algorithm: plainmoe
moe: {{max_tokens: 8, hidden: 512, experts: 6, topk: 3, fp8_group_size: 64}}
timeout: {limit}
verify: {{iterations: 16}}
"""
FAULTS = [  # what it does, the text that it changes and to what, who finds it, and a word of what is said
    ("the last token is not sent", "i < m->tokens * m->topk && status", "i + m->topk < m->tokens * m->topk && status",
     PLAIN, "dispatch"),
    ("choices are added up backwards", "uint64_t i = (uint64_t)t * m->topk + k;",
     "uint64_t i = (uint64_t)t * m->topk + m->topk - 1 - k;", "f16", "combine"),
    ("no fault: added up backwards where any order will do", ("uint64_t i = (uint64_t)t * m->topk + k;", "EPA_SUM_ORDERED"),
     ("uint64_t i = (uint64_t)t * m->topk + m->topk - 1 - k;", "EPA_SUM_ANY"), NOBODY, ""),
    ("each step is rounded where any order will do", ("weight, sum);", "EPA_SUM_ORDERED"),
     ("weight, float_of_bf16(bf16_of_float(sum)));", "EPA_SUM_ANY"), PLAIN, "combine"),
    ("16 bytes of a row are claimed", ".dispatch_row_bytes = s.row", ".dispatch_row_bytes = 16", PLAIN, "claims"),
    ("a put goes past the heap of a peer", "status = put(p, mine + BOX_HEAD + n * p->s.row, row, p->s.row, r);",
     "status = put(p, mine + BOX_HEAD + n * p->s.row, row, p->s.row, r); "
     "if (r != me && n == 0) { char b = 0; (void)b; status = put(p, p->s.heap - 1, row, 2, r); }", PLAIN, "plan()"),
    ("-1 is taken for expert 0", "int32_t e = m->expert[i];", "int32_t e = m->expert[i] < 0 ? 0 : m->expert[i];",
     "dropped choices", "dispatch"),
    ("an odd token is left out", "i < m->tokens * m->topk && status", "i < m->tokens / 2 * 2 * m->topk && status",
     "changing counts", "dispatch"),
    ("the output of rows that no token has is cleared", "    for (uint32_t t = 0; t < m->tokens; t++)\n",
     "    memset(m->out, 0, (size_t)m->max_tokens * m->hidden * 2);\n    for (uint32_t t = 0; t < m->tokens; t++)\n",
     "changing counts", "no such token"),
    ("a row more than there is room for is output", "    for (uint32_t t = 0; t < m->tokens; t++)\n",
     "    memset((char *)m->out + (size_t)m->max_tokens * m->hidden * 2, 0, 16);\n    for (uint32_t t = 0; t < m->tokens; t++)\n",
     "guards", "'out'"),
    ("a byte behind the own heap is written", "    return status == EPA_OK ? p->t->ops->quiet(p->t) : status;\n}\n\nstatic void reduce",
     "    *here(p, p->s.heap) = 1;\n    return status == EPA_OK ? p->t->ops->quiet(p->t) : status;\n}\n\nstatic void reduce",
     "guards", "this rank's heap"),
    ("an input is written", "    memcpy(here(p, p->s.y + base * out), m->y,",
     "    ((char *)(uintptr_t)m->x)[0] = 0;\n    memcpy(here(p, p->s.y + base * out), m->y,",
     "guards", "'x'"),
    ("the algorithm's first signal is taken to be 0", ".signal = params->signal,", ".signal = 0,", "guards", "signal"),
    ("weights are 0.99 at most", "float weight = m->weight[i];", "float weight = m->weight[i] > 0.99f ? 0.99f : m->weight[i];",
     "uniform weights", "combine"),
    ("one buffer set for two calls", "SETS = 2,", "SETS = 1,", "pipelined", ""),
    ("a discarded call is not counted", "discard(struct epa_algorithm *a, struct epa_problem *problem)\n{\n",
     "discard(struct epa_algorithm *a, struct epa_problem *problem)\n{\n    ((struct plain *)a)->epoch--;\n", "discarded dispatches", ""),
    ("the call is counted in a static variable", "    uint32_t set = (uint32_t)(++p->epoch % SETS);\n",
     "    static uint64_t n;\n    uint32_t set = (uint32_t)((p->epoch = ++n) % SETS);\n",
     "threads", ""),
    ("no fence before a signal", "p->t->ops->fence(p->t, peer)", "EPA_OK", "reorder", ""),
    ("no quiet after rows", "        take_rows(p, &problem->u.moe, set);\n    return status == EPA_OK ? p->t->ops->quiet(p->t) : status;",
     "        take_rows(p, &problem->u.moe, set);\n    return status;", "reorder, pipelined", ""),
    ("a stale signal will do", "status = wait_all(p, ROWS, p->epoch);", "status = wait_all(p, ROWS, p->epoch - 1);",
     "reorder, late ranks", ""),
    ("the highest rank is not waited for", "if (r != p->world.rank) {\n", "if (r != p->world.rank && r + 1 < p->s.size) {\n",
     "reorder, late ranks", ""),
    ("calls are counted in 16 bits", "uint32_t word = p->signal + kind", "uint32_t word = (value = (uint16_t)value, p->signal) + kind",
     "epochs pass 2^32", ""),
    ("the sign of a weight is lost", "float weight = m->weight[i];", "float weight = fabsf(m->weight[i]);", PLAIN, "combine"),
    ("a weight above 1 is taken as 1", "float weight = m->weight[i];", "float weight = m->weight[i] > 1 ? 1 : m->weight[i];", PLAIN,
     "combine"),
    ("a sum that is NaN becomes 0", "            *out = m->dtype", "            sum = sum != sum ? 0 : sum;\n            *out = m->dtype",
     "NaN and infinity", "combine"),
    ("combine clears a received row first", "    enum epa_status status = send_outputs(p, m, m->epoch);\n",
     "    if (p->rows[m->epoch % SETS] > 0)\n        memset((void *)(uintptr_t)m->recv, 0, m->hidden * 2);\n"
     "    enum epa_status status = send_outputs(p, m, m->epoch);\n", PLAIN, "combine changed a view"),
    ("combine computes the experts by itself", "                if (m->expert[i] >= 0)\n",
     "                if (m->dtype == EPA_BF16 && m->expert[i] >= 0)\n"
     "                    y = bf16_of_float(float_of_bf16(((const uint16_t *)m->x)[(uint64_t)t * m->hidden + h]) *"
     " expert_factor((uint32_t)m->expert[i]));\n                if (m->expert[i] >= 0)\n", PLAIN, "combine"),
    ("ranks from 32 on are not waited for", "if (r != p->world.rank) {\n", "if (r != p->world.rank && r < 32) {\n", "33 ranks", ""),
    ("ranks from 63 on are not waited for", "if (r != p->world.rank) {\n", "if (r != p->world.rank && r < 63) {\n", "64 ranks", ""),
    ("16 channels are left out where 64 do not divide the rest", "m->hidden * 2);\n        status = put",
     "m->hidden * 2 - (m->hidden % 64 == 16 ? 32 : 0));\n        status = put", "hidden + 16", "dispatch"),
    ("tokens are counted in 8 bits", "{i / m->topk, i % m->topk,", "{(uint8_t)(i / m->topk), i % m->topk,", "300 tokens", ""),
    ("choices are counted in 4 bits", "{i / m->topk, i % m->topk,", "{i / m->topk, i % m->topk % 16,", "32 choices", ""),
    ("a single choice has weight 1", "float weight = m->weight[i];", "float weight = m->topk == 1 ? 1 : m->weight[i];", "one choice",
     "combine"),
    ("call 65536 does nothing", "    uint32_t set = (uint32_t)(++p->epoch % SETS);\n",
     "    static uint16_t calls;\n    uint32_t set = (uint32_t)(++p->epoch % SETS);\n    if (++calls == 0)\n        return EPA_OK;\n",
     "70,000 calls", ""),
    ("a call keeps 4 KiB", "    enum epa_status status = send_outputs(p, m, m->epoch);\n",
     "    memset(malloc(4096), 1, 4096);\n    enum epa_status status = send_outputs(p, m, m->epoch);\n", "70,000 calls", "memory"),
    ("each row is put twice", "        status = put(p, mine + BOX_HEAD + n * p->s.row, row, p->s.row, r);\n",
     "        for (int twice = 0; twice < 2 && status == EPA_OK; twice++)\n"
     "            status = put(p, mine + BOX_HEAD + n * p->s.row, row, p->s.row, r);\n", PLAIN, "claims"),
    ("one token in 2^20 is wrong", "            *out = m->dtype",
     "            static uint64_t done;\n            sum += ++done % ((uint64_t)m->hidden << 20) == 0;\n            *out = m->dtype",
     "a million tokens", "combine"),
    ("the time limit of dispatch never expires", "status = wait_all(p, ROWS, p->epoch);",
     "p->timeout_ns = UINT64_MAX / 4;\n    if (status == EPA_OK)\n        status = wait_all(p, ROWS, p->epoch);",
     "a stopped rank", "did not return"),
    ("the time limit of combine never expires", "status = wait_all(p, OUTPUTS, m->epoch);",
     "p->timeout_ns = UINT64_MAX / 4;\n    if (status == EPA_OK)\n        status = wait_all(p, OUTPUTS, m->epoch);",
     "a rank stopped before combine", "did not return"),
    ("a time-out names another rank", "epa_awaits(err, p->awaited)", "epa_awaits(err, (p->awaited + 1) % p->s.size)",
     "a stopped rank", "no time-out names"),
    ("no fault: rows of sources in another order", "source = 0; source < p->s.size; source++) {",
     "other = 0; other < p->s.size; other++) {\n            uint32_t source = (p->world.rank + other) % p->s.size;", NOBODY, ""),
    ("no fault: what was read is cleared", "    m->epoch = p->epoch;\n",
     "    for (uint32_t source = 0; source < p->s.size; source++)\n"
     "        memset(here(p, set * p->s.boxes + source * p->s.box + BOX_HEAD), 0, p->s.box - BOX_HEAD);\n    m->epoch = p->epoch;\n",
     NOBODY, ""),
]


def verify(epa2a, folder, *more):
    """Returns the exit code, the JSON document, and the whole output."""
    done = subprocess.run([epa2a, "verify", folder / "x.yaml", "--plugin-path", folder, "--quiet", "--json", folder / "x.json",
                           "--force", *more], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (0, 1, 3, 4, 5), (done.returncode, done.stdout, done.stderr)
    return done.returncode, json.loads((folder / "x.json").read_text()), done.stdout + done.stderr


def main(epa2a, source, *cc):
    text = pathlib.Path(source, "tests/plugins/plainmoe.c").read_text(encoding="utf-8")
    wrong = []
    for name, old, new, finder, words in FAULTS:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            changed = text
            for was, becomes in [(old, new)] if isinstance(old, str) else zip(old, new):
                assert text.count(was) == 1, f"{was} is there {text.count(was)} times"
                changed = changed.replace(was, becomes)
            hangs = finder not in (PLAIN, NOBODY) and words in HANG_WORDS
            (folder / "x.yaml").write_text(FILE.format(limit=HANG_LIMIT if hangs else LIMIT))
            (folder / "x.c").write_text(changed)
            subprocess.run([*cc, "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", f"-I{source}/include", f"-I{source}/src/lib", folder / "x.c", "-o",
                            folder / "epa2a-algorithm-plainmoe.so", "-lm"], check=True)
            plain, _, said = verify(epa2a, folder)
            if finder == NOBODY:
                code, results, said = verify(epa2a, folder, "--thorough")
                ends = [row["end"] for row in results["summary"]]
                skipped = [row["label"] for row in results["summary"] if row["end"] == "skipped"]
                good = plain == code == 0 and len(ends) > 30 and skipped == ["combines again"]
            elif finder == PLAIN:
                good = plain == 1 and words in said
            else:
                code, results, said = verify(epa2a, folder, "--thorough", "--only", finder)
                good = code in (1, 4, 5) and results["results"][0]["label"] == finder and words in said
            print(f"{'' if good else 'WRONG: '}{name}: {finder}; verify {plain}\n{said}", flush=True)
            wrong += [] if good else [name]
    assert not wrong, wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
