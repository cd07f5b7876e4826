/* subnormals.c - checks on a board that the library's loops over 1 to 17 floats give the results of scalar
 * instructions, for subnormals, products that underflow, -0 and NaN. It is for a Cortex-M55, whose vector instructions
 * flush subnormals to 0 (test_mcu.sh). */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "board.h"

enum { N = 17, K = 3, ROW = 20 };

static float a[K], b[N * ROW], d[N], want[N];

static float value(uint32_t i) /* returns a subnormal, a small or an ordinary number, -0, or sometimes NaN */
{
    static const uint32_t some[8] = { 0x00000001, 0x80000123, 0x007fffff, 0x80000000,
                                      0x0d800000, 0xb1400000, 0x3f9d70a4, 0xbf000000 };
    return gckpti_float(i % 29 == 28 ? 0x7fc00000u : some[i * 2654435761u >> 29]);
}

static void fill(uint32_t seed)
{
    for (uint32_t i = 0; i < N * ROW; i++)
        b[i] = value(seed + i);
    for (uint32_t i = 0; i < K; i++)
        a[i] = value(seed * 5 + i);
    for (uint32_t i = 0; i < N; i++)
        d[i] = want[i] = value(seed * 3 + i);
}

/* Computes want[j] = fma(a[p], b[j * row + p * step], want[j]) for p = 0, 1, .., k - 1. */
static void by_scalars(int n, int k, int row, int step)
{
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++) {
            volatile float x = b[j * row + p * step], y = want[j], s = a[p];
            y = gckpti_fma(s, x, y);
            want[j] = y;
        }
}

static int differs(int n)
{
    for (int j = 0; j < n; j++)
        if (gckpti_bits(d[j]) != gckpti_bits(want[j]) && (d[j] == d[j] || want[j] == want[j]))
            return 1;
    return 0;
}

int main(void)
{
    int wrong[4] = { 0, 0, 0, 0 };
    for (uint32_t seed = 0; seed < 64; seed++)
        for (int n = 1; n <= N; n++) {
            fill(seed);
            by_scalars(n, K, 1, ROW);
            gckpti_axpy_rows(a, 1, b, ROW, n, K, d);
            wrong[0] += differs(n);
            fill(seed);
            by_scalars(n, K, ROW, 1);
            gckpti_chains(a, 1, b, ROW, n, K, d);
            wrong[1] += differs(n);
            fill(seed);
            by_scalars(n, 1, 1, ROW);
            gckpti_axpy(a[0], b, n, d);
            wrong[2] += differs(n);
            fill(seed);
            a[0] = 1.0f;
            by_scalars(n, 1, 1, ROW);
            gckpti_add_into(d, b, n);
            wrong[3] += differs(n);
        }
    if (wrong[0] + wrong[1] + wrong[2] + wrong[3] == 0)
        return 0;
    board_print("not what scalars give:");
    board_print(wrong[0] ? " gckpti_axpy_rows" : "");
    board_print(wrong[1] ? " gckpti_chains" : "");
    board_print(wrong[2] ? " gckpti_axpy" : "");
    board_print(wrong[3] ? " gckpti_add_into\n" : "\n");
    return 1;
}
