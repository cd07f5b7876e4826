/* block.h - compares kernels of gradckpt_cuda.cu with the plain kernels of gradckpt.h, bit by bit. cuda_elementwise.c,
 * cuda_images.c, cuda_products.c and cuda_rows.c include it. All operands are in one block of memory that exists on the
 * host and on the device, so that the comparison also finds bytes that a kernel must not write.
 *
 *     if (block_open(argc, argv)) {          opens the device and the block; argv[1] is the first seed
 *         used = 0;                          empties the block
 *         float *x = block_take(n, 1);       takes n floats, which the test fills
 *         both(op, GCKPT_FORWARD, &call);    runs both kernels on operands in the block, compares the memories
 *         block_close();
 *     }
 *
 * To compare functions that are not kernels of an op: call block_upload(), then both functions, then block_same("what",
 * NULL). Each test chooses values that are difficult for its kernels. */
#ifndef TESTS_CUDA_BLOCK_H
#define TESTS_CUDA_BLOCK_H
#include "util.h"

static const gckpt_backend *device;
/* Sizes in floats. The comparison includes GUARD floats after the used ones. */
enum { SPACE = 1 << 22, WORKSPACE = 1 << 16, GUARD = 8 };
/* host: memory of the plain kernels; device_block: memory of the device; result: a copy of device_block. */
static float *host, *result, *device_block;
static int64_t used;                 /* number of floats in use */

static inline int block_open(int argc, char **argv)
{
    const char *error;
    device = gckpt_cuda_backend(0, &error);
    if (!CHECK_MSG(device != NULL, "%s", error))
        return 0;
    random_state = argc > 1 ? (uint64_t)atol(argv[1]) : 1;
    host = (float *)calloc(SPACE, sizeof *host);
    result = (float *)malloc(SPACE * sizeof *result);
    device_block = (float *)device->allocate(device->context, SPACE * sizeof *device_block, 256);
    return 1;
}

static inline void block_close(void)
{
    device->release(device->context, device_block, SPACE * sizeof *device_block);
    free(host);
    free(result);
}

/* Empties the block and fills it with a value that no operand has. */
static inline void block_clear(void)
{
    int64_t most =
        used + GUARD > 4096 ? used + GUARD : 4096; /* later floats were never written */
    used = 0;
    for (int64_t i = 0; i < most; i++)
        host[i] = -77.25f;
}

/* Returns n floats of the block, after some unused floats. Their offset is a multiple of `multiple`; if that is 1, it
 * is random. */
static inline float *block_take(int64_t n, int multiple)
{
    used += 4 + (multiple == 1 ? (int64_t)below(4) : 0);
    used = (used + multiple - 1) / multiple * multiple;
    if (!CHECK_MSG(used + n + GUARD <= SPACE, "no room for %ld floats", (long)n))
        exit(check_report("block"));
    used += n;
    return host + used - n;
}

/* Returns the address in the device's memory for a pointer into `host`. */
static inline void *to_device(const void *p)
{
    return p ? (void *)((char *)device_block + ((const char *)p - (const char *)host)) : NULL;
}

static inline void block_upload(void)
{
    device->copy_in(device->context, device_block, host, (size_t)(used + GUARD) * 4);
}

/* Returns whether x and y have equal bits or are both NaN. If `halves` is nonzero, x and y may also be pairs of bf16
 * numbers, and two bf16 NaNs at the same place count as equal. */
static inline int same_bits(float x, float y, int halves)
{
    uint32_t a = bits_of(x), b = bits_of(y);
    for (int i = 0; halves && i < 32; i += 16)
        if ((a >> i & 0x7fffu) > 0x7f80u && (b >> i & 0x7fffu) > 0x7f80u)
            a &= ~(0xffffu << i), b &= ~(0xffffu << i);
    return a == b || (x != x && y != y);
}

/* Returns whether the doubles at x and y are both NaN. */
static inline int both_nan(const float *x, const float *y)
{
    double a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return a != a && b != b;
}

/* Returns the name of the operand that has float number `at` of the block, and sets *inside to the offset within it. */
static inline const char *block_owner(const gckpt_call *c, int64_t at, int64_t *inside)
{
    static const char *const names[] = { "out",  "out_bf16",     "saved", "loss_sum", "loss_count",
                                         "grad", "compensation", "grad",  "data",     "data" };
    const char *name = "nothing's";
    int64_t nearest = -1;
    for (int i = 0; i < 5 + 5 * c->inputs; i++) {
        const gckpt_arg *a = &c->in[i < 5 ? 0 : (i - 5) / 5];
        const void *const all[] = { c->out,  c->out_bf16, c->saved,       c->loss_sum, c->loss_count,
                                    a->grad, a->compensation,      a->grad_bf16, a->data,     a->bf16 };
        const int which = i < 5 ? i : 5 + i % 5;
        int64_t where = all[which] ? ((const char *)all[which] - (const char *)host) / 4 : -1;
        if (where >= 0 && where <= at && where > nearest)
            nearest = where, name = names[which];
    }
    *inside = at - nearest;
    return name;
}

/* Compares the device's block with the host's block, and reports the first difference as one of `what`. */
static inline void block_same(const char *what, const gckpt_call *c)
{
    int64_t first = -1, count = 0, inside = 0;
    device->copy_out(device->context, result, device_block, (size_t)(used + GUARD) * 4);
    const int64_t sum = c && c->loss_sum ? ((const char *)c->loss_sum - (const char *)host) / 4 : -1;
    for (int64_t i = 0; i < used + GUARD; i++)
        if (!same_bits(host[i], result[i], c && c->precision != GCKPT_FP32) &&
            !((i == sum || i == sum + 1) && both_nan(host + sum, result + sum)))
            first = first < 0 ? i : first, count++;
    const char *owner = c && first >= 0 ? block_owner(c, first, &inside) : "";
    CHECK_MSG(first < 0, "%s: %ld differ, first float %ld, %s[%ld]: %08x, must be %08x", what,
              (long)count, (long)first, owner, (long)inside, bits_of(result[first < 0 ? 0 : first]),
              bits_of(host[first < 0 ? 0 : first]));
    for (int i = 0; c && first >= 0 && i < c->inputs; i++) {
        const gckpt_shape *s = &c->in[i].shape;
        fprintf(stderr, "    input %d of", i);
        for (int k = 0; k < s->n; k++)
            fprintf(stderr, " %ld", (long)s->d[k]);
        fprintf(stderr, ", precision %d\n", (int)c->precision);
    }
    const char *problem = device->finish(device->context);
    CHECK_MSG(!problem, "%s", problem ? problem : "");
}

/* Runs the plain kernel and the device's kernel of an op on operands in the block, then compares the blocks. */
static inline void both(const gckpt_op *op, gckpt_kind kind, const gckpt_call *call)
{
    static float plain_workspace[WORKSPACE];
    gckpt_call c = *call, d = *call, planned = *call;
    char what[80];
    gckpt_kernel kernel = device->find(device->context, op, kind);
    if (!CHECK_MSG(kernel != NULL, "%s has no kernel", op->name))
        return;
    CHECK(op->shape(&planned) == GCKPT_OK);
    CHECK(planned.workspace_forward <= sizeof plain_workspace && planned.workspace_backward <= sizeof plain_workspace);
    c.workspace = planned.workspace_forward || planned.workspace_backward ? plain_workspace : NULL;
    CHECK(device->workspace(device->context, op, &planned) == GCKPT_OK);
    const size_t workspace = kind == GCKPT_FORWARD ? planned.workspace_forward : planned.workspace_backward;
    for (int i = 0; i < c.inputs; i++) {
        gckpt_arg *a = &d.in[i];
        a->data = (const float *)to_device(a->data), a->grad = (float *)to_device(a->grad);
        a->compensation = (float *)to_device(a->compensation), a->index = (const int32_t *)to_device(a->index);
        a->bytes = (const uint8_t *)to_device(a->bytes);
        a->bf16 = (const uint16_t *)to_device(a->bf16), a->grad_bf16 = (uint16_t *)to_device(a->grad_bf16);
    }
    d.out = (float *)to_device(c.out), d.out_bf16 = (uint16_t *)to_device(c.out_bf16), d.saved = to_device(c.saved);
    d.grad_out = (const float *)to_device(c.grad_out);
    d.grad_out_bf16 = (const uint16_t *)to_device(c.grad_out_bf16);
    d.loss_sum = (double *)to_device(c.loss_sum), d.loss_count = (int64_t *)to_device(c.loss_count);
    d.backend = device->context;
    d.workspace = workspace ? device->allocate(device->context, workspace, 64) : NULL;
    block_upload();
    kernel(&d);
    (kind == GCKPT_FORWARD ? op->forward : op->backward)(&c);
    snprintf(what, sizeof what, "%s %s", op->name, kind == GCKPT_FORWARD ? "forward" : "backward");
    block_same(what, &c);
    if (d.workspace)
        device->release(device->context, d.workspace, workspace);
}

/* Returns a call for one thread in training, without inputs. */
static inline gckpt_call block_call(const void *attributes)
{
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.attributes = attributes;
    c.training = c.threads = 1;
    c.rows = 1;
    return c;
}
#endif
