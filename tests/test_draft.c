/* test_draft.c - the two that say what a schedule takes agree: the search's evaluation
 * (gckpti_evaluate) and the draft that a plan is made of, on every position of schedules of every
 * mode and of the search's own; a draft is a function of its schedule; a plan that was asked for
 * alone is the frontier's.        build/test_draft [first seed] [graphs] */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "net.h"

static gckpti_planner p;
static gckpti_search s;
static gckpti_allocator memory;
static long positions;

/* Live bytes of the draft, each buffer rounded up, at instruction x. */
static int64_t live_at(const gckpti_draft *d, int x)
{
    int64_t sum = 0;
    for (size_t i = 0; i < d->buffer_count; i++)
        if (d->buffers[i].start <= x && x <= d->buffers[i].end)
            sum += (int64_t)gckpti_round_up(d->buffers[i].size, p.alignment);
    return sum;
}

/* The draft just made against an evaluation of its schedule. */
static void compare(const char *what)
{
    const gckpti_draft *d = &p.draft;
    gckpti_schedule *t = &s.now;
    if (!CHECK(gckpti_search_room(&s, t, d->s.length)))
        return;
    memcpy(t->item, d->s.item, (size_t)d->s.length * sizeof(int));
    t->length = d->s.length;
    gckpti_drop_evaluate(&s, t);
    CHECK_MSG(t->length == d->s.length, "%s: drops again", what);
    CHECK_MSG(t->extra == d->work - d->least_work, "%s: work %lu, %lu", what,
              (unsigned long)t->extra, (unsigned long)(d->work - d->least_work));
    for (int x = 0; x < t->length && t->length == d->s.length; x++, positions++)
        CHECK_MSG(t->live[x] == live_at(d, d->place[x]), "%s: position %d: %ld bytes, drafted %ld",
                  what, x, (long)t->live[x], (long)live_at(d, d->place[x]));
}

/* The same schedule again comes to the same. */
static void again(const char *what)
{
    gckpti_draft first = p.draft;
    p.draft = p.best;
    p.best = first;
    first = p.best;
    int result = gckpti_make_draft(&p, first.s.item, first.s.length);
    CHECK_MSG(
        result == GCKPT_OK && p.draft.length == first.length &&
            p.draft.buffer_count == first.buffer_count && p.draft.bound == first.bound &&
            !memcmp(p.draft.ins, first.ins, first.length * sizeof *first.ins) &&
            !memcmp(p.draft.operands, first.operands, first.operand_count * sizeof *first.operands),
        "%s: a draft depends on more than its schedule", what);
}

static void test_graph(unsigned seed, int how)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT, GCKPT_SCHEDULE };
    static gckpt_instruction list[20000];
    char what[64];
    build(seed, how & 1 ? 1 : 0);
    random_state = seed;
    for (int i = 0; i < net.count && how & 4; i++)
        if (net.nodes[i].t && net.nodes[i].is_op && chance(25))
            (chance(50) ? gckpt_keep : gckpt_recompute)(net.nodes[i].t);
    gckpt_plan_desc d = { .batch = net.batch,
                          .stage_parameters = how >> 1 & 1,
                          .update_in_backward = how == 8,
                          .alignment = how & 2 ? 4 : 64,
                          .precision = how == 5 ? GCKPT_BF16 : GCKPT_FP32,
                          .schedule = list };
    memset(&memory, 0, sizeof memory);
    memset(&s, 0, sizeof s);
    for (int k = 0; k < (how == 8 ? 4 : 5); k++) {
        snprintf(what, sizeof what, "seed %u, way %d, mode %d", seed, how, (int)modes[k]);
        d.mode = modes[k];
        if (k == 4)
            d.instructions = random_schedule(net.g, net.term, net.terms, list, 3000);
        CHECK(gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d) == GCKPT_OK);
        s.p = &p;
        s.scratch = gckpti_scratch_new(&memory, &p.failed);
        gckpti_sum_gradients(&s);
        if (CHECK_MSG(gckpti_draft_mode(&p, d.mode, k == 3 ? 3 : 0) == GCKPT_OK, "%s: %s", what,
                      gckpt_error_text(net.g))) {
            compare(what);
            again(what);
        }
        gckpti_scratch_free(&s.scratch);
        memset(&s, 0, sizeof s);
        gckpti_planner_free(&p);
    }
    d.mode = GCKPT_OPTIMAL;
    snprintf(what, sizeof what, "seed %u, way %d, the search", seed, how);
    CHECK(gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d) == GCKPT_OK);
    s.p = &p;
    s.scratch = gckpti_scratch_new(&memory, &p.failed);
    CHECK(gckpti_sweep(&s) == GCKPT_OK);
    for (int i = 0; i < s.slots; i++)
        if (s.slot[i].length) {
            CHECK(gckpti_make_draft(&p, s.slot[i].item, s.slot[i].length) == GCKPT_OK);
            compare(what);
        }
    gckpti_scratch_free(&s.scratch);
    memset(&s, 0, sizeof s);
    gckpti_planner_free(&p);
    destroy();
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    unsigned graphs = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 6;
    for (unsigned seed = first; seed < first + graphs; seed++)
        for (int how = 0; how < 9; how++)
            test_graph(seed, how);
    printf("%ld positions\n", positions);
    return check_report("test_draft");
}
