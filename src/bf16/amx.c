#if GCKPTI_AMX && GCKPTI_ISA == 3
/* ---- AMX: a tile register is 16 rows of 16 words. tdpbf16ps adds a block of 32 terms to 16 x 16
 * elements: a chain from +0 over the words' lower halves, one over their upper halves, and the sum
 * of both to the element, subnormals being zeros: as 5l defines, whatever MXCSR says. ---- */

/* The instructions in AT&T and Intel syntax; tests replace them by an emulation. (Intrinsics are
 * not used: compilers do not know that they read memory.) */
#ifndef GCKPTI_AMX_LOAD
#define GCKPTI_AMX_SHAPES(at) __asm__ volatile("ldtilecfg {(%0)|[%0]}" ::"r"(at) : "memory")
#define GCKPTI_AMX_RELEASE()  __asm__ volatile("tilerelease" ::: "memory")
#define GCKPTI_AMX_ZERO(n)    __asm__ volatile("tilezero {%%|}tmm" #n ::)
#define GCKPTI_AMX_LOAD(n, at, row)                                                                \
    __asm__ volatile("tileloadd {(%0,%1,1), %%tmm" #n "|tmm" #n ", [%0+%1*1]}" ::"r"(at), "r"(row) \
                     : "memory")
#define GCKPTI_AMX_STORE(n, at, row)                                                               \
    __asm__ volatile("tilestored {%%tmm" #n ", (%0,%1,1)|[%0+%1*1], tmm" #n "}" ::"r"(at),         \
                     "r"(row)                                                                      \
                     : "memory")
#define GCKPTI_AMX_BLOCK(c, a, b)                                                                  \
    __asm__ volatile("tdpbf16ps {%%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tmm" #c ", tmm" #a          \
                     ", tmm" #b "}" ::)
#endif

/* Configures all 8 tile registers before a work item (enable = 1); releases them after it. */
static void gckpti_mixed_configure_amx(int enable)
{
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } full = {
        1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 }
    };
    if (enable)
        GCKPTI_AMX_SHAPES(&full);
    else
        GCKPTI_AMX_RELEASE();
}

/* Tiles of 16 or 32 rows and columns: registers 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b. */
static __attribute__((target("prfchw"))) void gckpti_mixed_tile_amx(const gckpti_mixed_tile *t)
{
    const int low = t->m > 16, right = t->width > 16;
    const int64_t a_row = 2 * t->a_row, b_row = 4 * t->b_row, c_row = 4 * t->c_row;
    const uint16_t *a = t->a;
    const uint32_t *b = t->b;
    float *const c = t->c, *const c_low = t->c + 16 * t->c_row;
    for (int64_t i = t->m; i < 2 * t->m && i < t->c_rows; i++)
        for (int64_t j = 0; j < t->width; j += 16)
            __builtin_prefetch(c + i * t->c_row + j, 1);
    if (t->from) {
        const float *from = t->from, *from_low = from + 16 * t->from_row;
        const int64_t row = 4 * t->from_row;
        GCKPTI_AMX_LOAD(0, from, row);
        if (right)
            GCKPTI_AMX_LOAD(1, from + 16, row);
        if (low)
            GCKPTI_AMX_LOAD(2, from_low, row);
        if (low && right)
            GCKPTI_AMX_LOAD(3, from_low + 16, row);
    } else {
        GCKPTI_AMX_ZERO(0);
        GCKPTI_AMX_ZERO(1);
        GCKPTI_AMX_ZERO(2);
        GCKPTI_AMX_ZERO(3);
    }
    t->prefetch->pace = 8;
    for (int64_t n = t->blocks; n > 0;
         n--, a += GCKPTI_K_BLOCK, b += GCKPTI_K_BLOCK / 2 * t->b_row) {
        GCKPTI_AMX_LOAD(4, a, a_row);
        GCKPTI_AMX_LOAD(6, b, b_row);
        GCKPTI_AMX_BLOCK(0, 4, 6);
        if (right) {
            GCKPTI_AMX_LOAD(7, b + 16, b_row);
            GCKPTI_AMX_BLOCK(1, 4, 7);
        }
        if (low) {
            GCKPTI_AMX_LOAD(5, a + 16 * t->a_row, a_row);
            GCKPTI_AMX_BLOCK(2, 5, 6);
        }
        if (low && right)
            GCKPTI_AMX_BLOCK(3, 5, 7);
        gckpti_prefetch_some(t->prefetch);
    }
    GCKPTI_AMX_STORE(0, c, c_row);
    if (right)
        GCKPTI_AMX_STORE(1, c + 16, c_row);
    if (low)
        GCKPTI_AMX_STORE(2, c_low, c_row);
    if (low && right)
        GCKPTI_AMX_STORE(3, c_low + 16, c_row);
    for (int64_t i = 0; t->c_bf16 && i < t->m; i++)
        gckpti_mixed_narrow_bf16(c + i * t->c_row, t->c_bf16 + i * t->bf16_row, t->width);
}

static const gckpti_mixed_kernels gckpti_mixed_kernels_amx = {
    { { 32, 32, 16, GCKPTI_WORDS_PAIRS, gckpti_mixed_tile_amx },
      { 32, GCKPTI_PANEL, 1, GCKPTI_WORDS_PAIRS, V(mixed_chain) } },
    gckpti_mixed_configure_amx,
    64,
    gckpti_mixed_pack_a_bf16,
    gckpti_mixed_pack_b_bf16,
    V(widen),
    gckpti_mixed_narrow_bf16,
    V(round_stochastic),
    { V(mixed_forward), GCKPTI_IF_TRAINING(V(mixed_backward)) }
};
#endif
