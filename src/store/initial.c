#include "store/store.h"
#include "num/num.h"

/* Computes n initial values from index `at`: fma(uniform, U, fma(normal, N, constant)). They
 * depend on seed, name and element only (5j). Philox: key = FNV-1a of the seed's 8 bytes, lowest
 * first, and the name; counter = element / 2, 0, 0. N = gckpti_normal(words 0, 1)[element % 2], U =
 * fma(2, u(word 2 + element % 2), -1). Without a random term, as if all words were 0. */
static void gckpti_init_values(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t n,
                               float *out)
{
    const gckpt_init *init = &q->init;
    const int random = GCKPTI_RANDOM && gckpti_is_random(init);
    const float constant = gckpti_fma(init->uniform, GCKPTI_RANDOM ? -1.0f : 0.0f,
                                      gckpti_fma(init->normal, 0, init->constant));
    uint64_t key = gckpti_fnv_number(GCKPTI_FNV_START, s->seed);
    key = gckpti_fnv(key, q->p.name, gckpti_strlen(q->p.name));
    for (int64_t i = 0; i < n && !random; i++)
        out[i] = constant;
    for (int64_t i = -(at & 1); i < n && random; i += 2) { /* a block of words makes two values */
        float normal[2] = { 0, 0 };
        uint32_t word[4];
        gckpti_philox(key, (uint64_t)(at + i) / 2, 0, 0, word);
        if (init->normal < 0 || init->normal > 0)
            gckpti_normal(word[0], word[1], normal);
        for (int j = i < 0; j < 2 && i + j < n; j++)
            out[i + j] = gckpti_fma(init->uniform, gckpti_fma(2, gckpti_uniform(word[2 + j]), -1),
                                    gckpti_fma(init->normal, normal[j], init->constant));
    }
}
