#ifndef GCKPT_NO_ATTENTION
typedef struct {
    int heads;             /* number of heads of q; 1 or more */
    int key_heads;         /* heads of k, v: a divisor of heads (neighbours share); default heads */
    int causal;            /* if nonzero, query t sees keys 0..S-T+t (S >= T), so the last query
                            * sees all keys; if 0, every query sees all keys */
    gckpt_tensor *lengths; /* i32 (B): number of keys that row b sees, 0..S (a step returns E_DATA
                            * for others); NULL selects S */
    int64_t window;        /* causal only: a query sees the last `window` of its keys (transformers'
                            * sliding_window), its own position included; 0, or >= S, sees all */
    float cap;             /* scores s become cap * tanh(s / cap), 1e-30 to 1e30; 0 disables it */
    float scale;           /* factor of the dot products q k'; 0 selects 1 / sqrt(D) */
    gckpt_tensor *mask;    /* f32, added to the scores (after scale and cap), -inf to hide a key
                            * (whose k and v must be finite); broadcast to (B,heads,T,S), trained or
                            * not: relative position biases, ALiBi, padding. Without causal, lengths
                            * and window */
    gckpt_tensor *decay;   /* f32 (B,T,heads), usually <= 0; with beta: the gated delta rule */
    gckpt_tensor *beta;    /* f32 (B,T,heads), usually 0 to 1; NULL without decay */
} gckpt_attention_desc;
/* Attention, softmax(scale q k') v per head: q (B,T,C), k and v (B,S,key_heads D) with D = C /
 * heads -> (B,T,C). Never stores T x S scores (Milakov & Gimelshein 2018, Dao 2022), nor repeats
 * shared heads (Ainslie 2023). Keys that causal, lengths or window hide have no effect, even if
 * NaN, and get gradient 0; a query without keys gives 0. Keys before a window cost nothing.
 * With desc.decay and desc.beta instead the gated delta rule (Yang 2024): each head has a state S
 * (K,D), at first 0, that takes the steps in order: S = exp(decay) S, S += k' beta (v - k S), and
 * the output is scale q S. Then q and k are (B,T,key_heads K), v is (B,T,heads D) -> (B,T,heads D),
 * with K and D at most 1024; causal must be 1, and lengths, window, cap and mask have no value. */
GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        const gckpt_attention_desc *desc);
typedef struct {
    int heads;
    float base;               /* base of the angles; 0 selects 10000 */
    int64_t position;         /* position of the first row; default 0 */
    int64_t columns;          /* R, even: only the first R columns of each head are rotated, as
                               * pairs (i, i + R/2); 0 selects D */
    const float *frequencies; /* radians per position, >= 0, for each of R/2 <= 512 pairs; copied
                               * (scaling of Llama 3, linear or YaRN); NULL selects base^(-2i/R) */
    float scale;              /* factor of cosines, sines (YaRN's attention factor); 0 selects 1 */
} gckpt_rotary_desc;
/* Rotary embedding: x (B,T,C), C = heads * D, D even -> (B,T,C): rotates each pair (i, i + D/2) of
 * a head by position * base^(-2i/D). Su 2021, with the half-split pairing of GPT-NeoX and Llama. */
GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, const gckpt_rotary_desc *desc);
/* x (B,T,C) + rows first..first+T-1 of a learned table (Tmax,C), which depends on no input. */
GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table, int64_t first);
#endif /* GCKPT_NO_ATTENTION */
