/* weights.c - a store with parameters in every storage, floats of all classes (NaN, subnormal ..) and unusual names,
 * printed as C and restored.
 *     weights            prints the bits of the store's parameters
 *     weights c          prints the parameters as C
 * With DEVICE and TABLE, the file that "weights c" printed, the program restores the parameters and prints the same
 * bits. With FLOATS, no parameter is quantised. */
#ifdef DEVICE
#define GCKPT_NO_EXPORT
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#ifdef DEVICE
#include TABLE
#else
#include "examples/weights.h"
#endif
#include <stdio.h>
#include <string.h>

static void print_words(const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)data + 4 * i, 4);
        printf(" %08lx", (unsigned long)word);
    }
}

/* Returns the bytes of a parameter's values in its storage. */
static size_t bytes_of(const gckpt_parameter *p)
{
    const size_t n = (size_t)p->elements, row = (size_t)p->shape.d[p->shape.n - (p->shape.n > 0)];
    return p->storage == GCKPT_STORAGE_F32  ? 4 * n
           : p->storage == GCKPT_STORAGE_I8 ? n + (row + 31) / 32 * (n / row) * 2
           : p->storage == GCKPT_STORAGE_I4 ? n / 32 * 19
                                            : 2 * n;
}

/* Prints all fields and values of all parameters of the store. */
static void show(const gckpt_store *s)
{
    for (int i = 0; i < gckpt_store_count(s); i++) {
        gckpt_parameter p;
        gckpt_store_peek(s, i, &p);
        for (const char *c = p.name; *c; c++)
            printf("%02x", (unsigned)(unsigned char)*c);
        printf(": %d of", (int)p.storage);
        for (int d = 0; d < p.shape.n; d++)
            printf(" %d", (int)p.shape.d[d]);
        printf(", frozen %d,", p.frozen);
        print_words(&p.lr_scale, 1);
        print_words(&p.decay_scale, 1);
        printf(":");
        if (p.storage == GCKPT_STORAGE_F32)
            print_words(p.values, (size_t)p.elements);
        for (size_t k = 0; k < bytes_of(&p) && p.quantised; k++)
            printf(" %02x", (unsigned)((const unsigned char *)p.quantised)[k]);
        printf("\n");
    }
    printf("%016llx\n", (unsigned long long)gckpt_store_hash(s));
}

#ifdef DEVICE
static int in_block(const void *at, const char *block, size_t size)
{
    return (uintptr_t)at >= (uintptr_t)block && (uintptr_t)at < (uintptr_t)block + size;
}

/* Restores the parameters into s. Returns 1 if any of them is wrong. */
static int bound(gckpt_store *s, char *block, size_t size)
{
    size_t bytes = 0;
    if (small_bind(s) != GCKPT_OK || gckpt_store_step(s) != 0)
        return 1;
    for (int i = 0; i < gckpt_store_count(s); i++) {
        gckpt_parameter p;
        gckpt_store_peek(s, i, &p);
        if (in_block(p.quantised ? p.quantised : p.values, block, size) || p.state[0])
            return 1;
        bytes += bytes_of(&p);
    }
    return bytes != small_bytes || gckpt_store_freeze(s, "flash*", 0) != GCKPT_OK;
}

int main(void)
{
    static char block[8192], again[8192];
    const gckpt_store_desc desc = { { NULL, NULL, block, sizeof block }, 0 };
    gckpt_store_desc other = { { NULL, NULL, again, 0 }, 0 };
    gckpt_store *s = gckpt_store_new(&desc), *t = NULL;
    gckpt_parameter p;
    if (bound(s, block, sizeof block))
        return 1;
    show(s);
    const int count = gckpt_store_count(s);
    const uint64_t hash = gckpt_store_hash(s);
    if (small_bind(s) != GCKPT_E_ARG || gckpt_store_count(s) != count || gckpt_store_hash(s) != hash)
        return 3; /* a second call must fail, since the store has the parameters */
    for (other.memory.size = gckpt_store_need(NULL);; other.memory.size++) {
        t = gckpt_store_new(&other);
        if (!t || other.memory.size > sizeof again)
            return 4;
        if (small_bind(t) == GCKPT_OK)
            break;
        if (gckpt_error(t) != GCKPT_E_MEMORY || gckpt_store_count(t) >= count)
            return 5;
    }
    printf("again\n");
    show(t);
    for (int i = 0; i < count; i++) { /* values of trained parameters can be changed; all others stay frozen */
        gckpt_store_get(s, i, &p);
        if (!p.frozen)
            memset(p.values, 0, 4 * (size_t)p.elements);
        if (!strcmp(p.name, "flash") && !p.frozen)
            return 2;
    }
    return gckpt_store_hash(s) == hash || small_bind(NULL) != GCKPT_E_ARG;
}
#else
static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

static void add(gckpt_graph *g, const char *name, gckpt_shape shape, float deviation)
{
    const gckpt_init init = { deviation, 0, 0 };
    gckpt_param(g, name, shape, init);
}

static int fill(gckpt_store *s, const char *name, const uint32_t *bits, size_t n)
{
    gckpt_parameter p;
    if (gckpt_store_get(s, gckpt_store_find(s, name), &p) != GCKPT_OK)
        return 1;
    memcpy(p.values, bits, n * sizeof *bits);
    return 0;
}

int main(int argc, char **argv)
{
    static const uint32_t odd[] = { 0,           0x80000000u, 1,           0x80000001u, 0x007fffffu,
                                    0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
                                    0x7fc00000u, 0xffc00000u, 0x7fa12345u, 0xff800001u, 0x3eaaaaabu };
    static float mine[6] = { 1, -2, 3, -4, 5, -6 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_store_external(s, "mine", gckpt_shape2(2, 3), mine, 1);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    add(g, "trained", gckpt_shape2(3, 5), 1);
    add(g, "flash", gckpt_shape3(5, 1, 3), 1);
    add(g, "?\?/ \"odd\"\\ %s\n\t'\x7f*/ \xc3\xa4\xe6\xbc\xa2 7", gckpt_shape1(1), 1);
    add(g, "bf16", gckpt_shape3(3, 2, 3), 1);
    add(g, "f16", gckpt_shape2(1, 7), 1);
    add(g, "i8", gckpt_shape4(2, 1, 3, 32), 1);
    add(g, "i4", gckpt_shape2(3, 64), 1);
    gckpt_shape few = gckpt_shape1(19); /* the sizes after the first, here INT64_MAX, must be ignored */
    few.d[1] = few.d[GCKPT_MAX_DIMS - 1] = INT64_MAX;
    add(g, "bias", few, 1);
    add(g, "drawn", gckpt_shape2(9, 11), 0.5f);
    if (fill(s, "trained", odd, 15) || fill(s, "flash", odd, 15) || gckpt_store_group(s, "d*", 0.1f, 0.3f) != GCKPT_OK)
        return 1;
    gckpt_store_freeze(s, "*", 1);
    gckpt_store_freeze(s, "*r*n*", 0); /* parameters with these names are trained and get random initial values */
    gckpt_store_freeze(s, "m*", 0);
#ifndef FLOATS
    gckpt_parameter p;
    static const char *const names[] = { "bf16", "f16", "i8", "i4" };
    for (int i = 0; i < 4; i++)
        if (gckpt_store_quantise(s, names[i], (gckpt_storage)(i + 1)) != GCKPT_OK ||
            gckpt_store_get(s, gckpt_store_find(s, names[i]), &p) != GCKPT_OK || (int)p.storage != i + 1)
            return 1;
#endif
    if (argc > 1 && argv[1][0] == 'c') /* some parameters, like "drawn", are not initialised yet */
        return weights_print(s, "small", to_stdout, NULL) != GCKPT_OK;
    for (int i = 0; i < gckpt_store_count(s); i++) {
        gckpt_parameter made;
        gckpt_store_get(s, i, &made);
    }
    show(s);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return 0;
}
#endif
