/* test_amx.c - runs test_bf16 with the AMX kernels on any processor that has AVX512-BF16. Functions of this file,
 * written after Intel's manual, replace the six AMX instructions. The functions ignore MXCSR, use nothing of src/, and
 * compute terms in doubles. On a processor with AMX, test_bf16 tests the real instructions. */
#include "num/num.h"
#include "store/store.h"
#include "ops/ops.h"
#include "attention/cpu.h"
#include "bf16/cpu.h"
#include "cpu/internal.h"
#include "check.h"

#if GCKPTI_HAS_FAST && GCKPTI_AMX
#ifdef __clang__
#define QUICKLY
#else
#define QUICKLY __attribute__((optimize("O3", "no-trapping-math"), target("avx512f,avx512dq")))
#endif
struct tile {
    uint32_t word[16][16];
};
static __thread struct tile tmm[8];       /* tile registers; each thread has its own */
/* The configuration that ldtilecfg loads; all 0 after tilerelease. */
static __thread unsigned char shapes[64];
static __thread int blocks_done;
/* Makes the emulated processor deviate from Intel's, which the library must detect: (1) all terms are summed in one
 * chain; (2) the chain of even terms starts at the element of c instead of 0; (3) results below 2^-126 are rounded to
 * multiples of 2^-149, as subnormals are, before they become zeros. */
static int differs;

static float float_at(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return u << 1 < 0x01000000 ? (u >> 31 ? -0.0f : 0.0f) : x;
}

/* Computes c[j] += a b[j], rounded once to 24 bits as if exponents were unlimited, then flushed to zero if
 * below 2^-126. */
QUICKLY static void add_terms(float a, const float *b, float *c)
{
    const double least = 0x1p-126 - (differs == 3 ? 0x1p-150 : 0x1p-151);
    for (int j = 0; j < 16; j++) {
        const double p = (double)a * (double)b[j], s = p + (double)c[j], part = s - p;
        const double rest = (p - (s - part)) + ((double)c[j] - part);
        const int64_t away = s > 0 ? 1 : -1;
        double odd, size;
        int64_t u; /* the sum rounded to odd: rounding this double to a float equals rounding the exact sum */
        memcpy(&u, &s, sizeof u);
        u += u & 1 ? 0 : rest > 0 ? away : rest < 0 ? -away : 0;
        memcpy(&odd, &u, sizeof odd);
        size = odd < 0 ? -odd : odd;
        size = size < least ? 0 : size < 0x1p-126 ? 0x1p-126 : size;
        c[j] = (float)__builtin_copysign(size, odd);
    }
}

static void tile_shapes(const void *at) { memcpy(shapes, at, sizeof shapes); }
static void tile_release(void) { memset(shapes, 0, sizeof shapes); }

/* Returns tile n. The tile must be configured as 16 rows of 64 bytes, since using an unconfigured tile is an illegal
 * instruction. */
static struct tile *tile_of(int n)
{
    if (shapes[0] != 1 || shapes[16 + 2 * n] != 64 || shapes[48 + n] != 16)
        CHECK(!"tiles of other shapes"), abort();
    return &tmm[n];
}
static void tile_zero(int n) { memset(tile_of(n), 0, sizeof tmm[n]); }
static void tile_load(int n, const void *at, int64_t row)
{
    struct tile *t = tile_of(n);
    for (int64_t i = 0; i < 16; i++)
        memcpy(t->word[i], (const char *)at + i * row, sizeof t->word[i]);
}
static void tile_store(int n, void *at, int64_t row)
{
    struct tile *t = tile_of(n);
    for (int64_t i = 0; i < 16; i++)
        memcpy((char *)at + i * row, t->word[i], sizeof t->word[i]);
}
static void tile_block(int to, int left, int right)
{
    const struct tile *a = tile_of(left), *b = tile_of(right);
    struct tile *c = tile_of(to);
    float words[2][16][16];
    for (int i = 0; i < 256; i++) {
        words[0][i / 16][i % 16] = float_at(b->word[i / 16][i % 16] << 16);
        words[1][i / 16][i % 16] = float_at(b->word[i / 16][i % 16] & 0xffff0000);
    }
    for (int i = 0; i < 16; i++) {
        float even[16] = { 0 }, odd[16] = { 0 }, element[16];
        for (int j = 0; j < 16; j++)
            element[j] = float_at(c->word[i][j]);
        for (int q = 0; q < 16; q++) {
            add_terms(float_at(a->word[i][q] << 16), words[0][q], differs == 2 ? element : even);
            add_terms(float_at(a->word[i][q] & 0xffff0000), words[1][q], differs == 1 ? even : odd);
        }
        add_terms(1, even, odd);
        add_terms(1, odd, element);
        memcpy(c->word[i], element, sizeof element);
    }
    blocks_done++;
}

#define GCKPTI_AMX_SHAPES(at)        tile_shapes(at)
#define GCKPTI_AMX_RELEASE()         tile_release()
#define GCKPTI_AMX_ZERO(n)           tile_zero(n)
#define GCKPTI_AMX_LOAD(n, at, row)  tile_load(n, at, row)
#define GCKPTI_AMX_STORE(n, at, row) tile_store(n, at, row)
#define GCKPTI_AMX_BLOCK(c, a, b)    tile_block(c, a, b)
#undef GCKPTI_CPU_HAS_AMX
#define GCKPTI_CPU_HAS_AMX()         1
#define main                         test_bf16
#include "bf16/test_bf16.c"
#undef main
#include "cpu/kernels.c"

int main(int argc, char **argv)
{
    int failed = 0;
    if (__builtin_cpu_supports("avx512bf16")) {
        CHECK(gckpt_isa_available(GCKPT_ISA_AMX));
        for (differs = 1; differs <= 3; differs++)
            CHECK_MSG(!gckpt_isa_available(GCKPT_ISA_AMX), "deviation %d of the processor is not detected", differs);
        differs = 0;
        /* By default only the parts that use AMX run; the program test_bf16 runs the others. */
        static char *parts[] = { "test_amx", "kernels", "bits", NULL };
        failed = argc > 1 || check_iterations(9) > 1 ? test_bf16(argc, argv) : test_bf16(3, parts);
        CHECK(blocks_done > 0 && shapes[0] == 0); /* the AMX kernels ran and have released the tiles */
    } else {
        printf("skipped: AMX, whose other instructions are AVX512-BF16\n");
    }
    return check_report("amx") || failed;
}

#define GCKPTI_ISA 3
#include "kernels/all.c"
#else
int main(void)
{
    printf("skipped: no AMX in this build\n");
    return check_report("amx");
}
#endif
