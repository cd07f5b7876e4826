/* The format in which a plan keeps activations and their gradients (manual, 5l). */
typedef enum {
    GCKPT_FP32,
    GCKPT_BF16,     /* 2 bytes an element, rounded to nearest even */
    GCKPT_BF16_FAST /* as GCKPT_BF16, on a device's tensor cores (manual, 5m) */
} gckpt_precision;
/* gckpt_plan_desc.bf16 */
typedef struct {
    gckpt_precision precision; /* of activations and their gradients; default GCKPT_FP32 */
} gckpt_bf16_options;

GCKPT_API uint16_t gckpt_to_bf16(float x);   /* to nearest even; subnormals give 0 */
GCKPT_API float gckpt_from_bf16(uint16_t x); /* converts exactly */

/* Flag: kernels read and write bf16 where out, in[0] or in[1] have bf16. Else all is f32. */
#define GCKPT_TAKES_BF16 (1u << 19)

/* Conversions between kernels. */
typedef enum {
    GCKPT_WIDEN,     /* x = from, as floats */
    GCKPT_WIDEN_ADD, /* adds from to x */
    GCKPT_NARROW,    /* rounds x to bf16 in `to` */
    GCKPT_ROUND      /* rounds x to bf16 values, kept as floats */
} gckpt_conversion_kind;
/* A conversion of n floats and n bf16. */
typedef struct {
    gckpt_conversion_kind kind;
    float *x;
    const uint16_t *from;
    uint16_t *to;
    int64_t n;
} gckpt_conversion;
