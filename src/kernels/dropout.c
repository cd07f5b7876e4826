/* ---- dropout ---- */
/* Computes elements first..end-1 of a dropout (ops/unary.c). */
static GCKPTI_TARGET void V(dropout)(const gckpti_dropout *d, int64_t first, int64_t end)
{
    const FLOATS factor = V(set1)(d->scale);
    uint32_t words[5 * W] = { 0 }; /* 4 W elements, and elements read after them */
    uint64_t at = (d->offset + (uint64_t)first) / 4;
    int64_t i = first - (int64_t)((d->offset + (uint64_t)first) % 4); /* start of block `at` */
    for (int64_t n; first < end; i += 4 * W, at += W) {
        INTS word[4];
        V(philox)(d->random.key, at, d->random.stream, d->random.step, word);
        for (int k = 0; k < 4 * W; k++)
            words[k] = word[k % 4][k / 4];
        for (; first < end && first < i + 4 * W; first += n) {
            n = gckpti_min(gckpti_min(end, i + 4 * W) - first, W);
            memcpy(word, words + (first - i), sizeof *word);
            const INTS kept = (INTS)(*word >> 8 >= d->threshold);
            const FLOATS x = V(floats)(V(bits)(V(load_n)(d->loop.x + first, n)) & kept);
            V(put_product_n)(d->loop.to + first, factor, x, d->loop.accumulate, n);
        }
    }
}
