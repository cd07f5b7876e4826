#ifndef GCKPT_NO_TRAINING
#include "store/own.h"
#include "num/num.h"

/* Initial values from index `at`: fma(uniform, U, fma(normal, N, constant)), a function of seed,
 * name and element (5j). So they are the same whenever they are drawn, and as often. Philox: key =
 * FNV-1a of the seed's 8 bytes, lowest first, and the name; counter = element / 2, 0, 0. N =
 * gckpti_normal(words 0, 1)[element % 2], U = fma(2, u(word 2 + element % 2), -1). */
GCKPTI_FN void gckpti_draw_values(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t n,
                                  float *out)
{
    const gckpt_init *init = &q->init;
    uint64_t key = gckpti_fnv_number(GCKPTI_FNV_START, s->seed);
    key = gckpti_fnv(key, q->p.name, gckpti_length(q->p.name));
    for (int64_t i = -(at & 1); i < n; i += 2) { /* in pairs, of which the first may be half */
        float normal[2] = { 0, 0 };
        uint32_t word[4] = { 0, 0, 0, 0 };
        if (init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0)
            gckpti_philox(key, (uint64_t)(at + i) / 2, 0, 0, word);
        if (init->normal < 0 || init->normal > 0)
            gckpti_normal(word[0], word[1], normal);
        for (int j = i < 0; j < 2 && i + j < n; j++) {
            float uniform = gckpti_fma(2, gckpti_uniform(word[2 + j]), -1);
            out[i + j] = gckpti_fma(init->uniform, uniform,
                                    gckpti_fma(init->normal, normal[j], init->constant));
        }
    }
}
#endif
