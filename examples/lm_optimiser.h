/* lm_optimiser.h - the option --optimiser of gpt.c and finetune.c: AdamW, or an optimiser of the
 * folder optimisers/. To copy, with that folder; lm.h includes it.
 *
 *     gckpt_plan_desc d = { .threads = .. };  lm_optimiser_plan(&d, seed);
 *     gckpt_exec_desc e = { .. };             lm_optimiser_exec(&e);
 *     lm_optimiser_rates(store) // once the store has the parameters that are trained
 *
 * Hidden matrices are those of two or more rows and columns, without embeddings and heads. Muon and
 * APOLLO-Mini update these, and AdamW the other parameters. Muon's rate for them is 20 times --lr,
 * so that 0.001 gives the 0.02 that its author uses. C99 or C++11. */
#ifndef LM_OPTIMISER_H
#define LM_OPTIMISER_H
#include "optimisers/adam8bit.h"
#include "optimisers/apollo_mini.h"
#include "optimisers/muon.h"

enum { LM_ADAMW, LM_ADAM8BIT, LM_MUON, LM_APOLLO_MINI, LM_MUON_RATE = 20 };
static const char *const lm_optimiser_names[] = { "adamw", "adam8bit", "muon", "apollo-mini",
                                                  NULL };
static struct {
    int64_t kind; /* set by the option */
    adam8bit maps;
    muon orthogonal;
    apollo_mini projected;
} lm_optimiser;

static int lm_is_hidden(const char *name, int64_t rows, int64_t columns)
{
    static const char *const others[] = { "wte", "wpe", "embed", "head" };
    for (int i = 0; i < 4; i++)
        if (strstr(name, others[i]) != NULL)
            return 0;
    return rows > 1 && columns > 1;
}

/* Updates a parameter; a gckpt_exec_desc.custom_optimiser. */
static void lm_optimiser_update(void *user, const gckpt_update *u)
{
    (void)user;
    if (lm_optimiser.kind == LM_ADAM8BIT)
        adam8bit_update(&lm_optimiser.maps, u);
    else if (lm_optimiser.kind == LM_MUON)
        muon_update(&lm_optimiser.orthogonal, u);
    else
        apollo_mini_update(&lm_optimiser.projected, u);
}

/* Prepares the optimiser and selects it in the description of a training plan. */
static void lm_optimiser_plan(gckpt_plan_desc *d, int64_t seed)
{
    if (lm_optimiser.kind == LM_ADAMW)
        return;
    adam8bit_init(&lm_optimiser.maps);
    lm_optimiser.projected.hidden = lm_optimiser.orthogonal.hidden = lm_is_hidden;
    lm_optimiser.projected.seed = (uint64_t)seed;
    lm_optimiser.orthogonal.threads = d->threads;
    d->optimiser = GCKPT_CUSTOM_OPTIMISER;
    if (lm_optimiser.kind == LM_ADAM8BIT) {
        d->state_bytes = adam8bit_bytes;
    } else if (lm_optimiser.kind == LM_MUON) {
        d->state_bytes = muon_bytes;
        d->workspace_bytes = muon_workspace;
        d->user = &lm_optimiser.orthogonal;
    } else {
        d->state_bytes = apollo_mini_bytes;
        d->user = &lm_optimiser.projected;
    }
}

/* Selects the optimiser of an executor of such a plan. */
static void lm_optimiser_exec(gckpt_exec_desc *e)
{
    if (lm_optimiser.kind != LM_ADAMW)
        e->custom_optimiser = lm_optimiser_update;
}

/* Sets Muon's rates of the parameters that a store has and that are trained. Returns 0, or -1 with
 * the store's error. */
static int lm_optimiser_rates(gckpt_store *store)
{
    gckpt_parameter q;
    for (int i = 0; lm_optimiser.kind == LM_MUON && gckpt_store_peek(store, i, &q) == GCKPT_OK;
         i++) {
        const int64_t columns = q.shape.n > 0 ? q.shape.d[q.shape.n - 1] : 1;
        if (!q.frozen && lm_is_hidden(q.name, q.elements / columns, columns) &&
            gckpt_store_group(store, q.name, LM_MUON_RATE, q.decay_scale) != GCKPT_OK)
            return -1;
    }
    return 0;
}
#endif
