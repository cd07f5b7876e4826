/* ledger.h - a ledger of a training: records of step, rows fed, hyperparameters, loss, and the
 * SHA-256 of every weight and optimiser state, each with the hash of the record before it. Whoever
 * has the data repeats any range of steps, on any machine, and compares bits. Include gradckpt.h
 * first. To copy: the public API only; no heap, stdio or libc except memcpy, memset, memcmp and
 * strlen, so that it also runs on microcontrollers and in WebAssembly. LEDGER_PLAIN_SHA leaves out
 * the instructions of x86-64 for SHA-256. C99 or C++11.
 * ledger_file.h writes and reads files, and signs.
 *
 *     ledger_state now = { 0 };                       // of a new training
 *     ledger_chain chain = { 0 };                     // of a new ledger
 *     size_t n = ledger_digests(store, 1, digests, room); // of all tensors
 *     n = ledger_write(bytes, size, LEDGER_RUN, &chain, &now, digests, n, text, length);
 *     ...
 *     ledger_sha rows;                                // for each step
 *     ledger_sha_begin(&rows);
 *     ledger_sha_words(&rows, tokens, count);         // feeds in order, all rows of the step
 *     ledger_add_rows(&now, &rows);
 *     gckpt_step(exec, feeds, 2, batch, &hyper, &report);
 *     ledger_set_step(&now, &report, &hyper);
 *     n = ledger_digests(store, 0, digests, room);    // every n steps
 *     n = ledger_write(bytes, size, LEDGER_STEP, &chain, &now, digests, n, NULL, 0);
 *
 * An auditor calls ledger_verify, finds the records of its range with ledger_next, and repeats the
 * steps with the same calls, but ledger_compare in place of ledger_write. State by
 * gckpt_plan_desc.state_bytes is hashed as bytes, in the order that the machine has.
 *
 * Bytes of a record, integers little-endian:
 *
 *     0    8  "gckptled"                       120  32  hash of all rows fed so far
 *     8    4  version of the format, 1         152  32  public key (ed25519), or 0
 *     12   4  kind                             184  8   first bytes of SHA-256 of all above
 *     16   8  bytes of the whole record        192  32  D digests of tensors
 *     24   8  index, from 0                         T   text
 *     32   8  step: updates done                    32  SHA-256 of all bytes above
 *     40   8  batches fed                           64  signature of that hash, or 0
 *     48   8  bits of the step's loss, a double
 *     56   28 bits of the step's hyperparameters, the 7 floats of gckpt_hyper
 *     84   2  D
 *     86   2  0
 *     88   32 hash of the previous record, or 0
 */
#ifndef LEDGER_H
#define LEDGER_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(LEDGER_PLAIN_SHA)
#include <cpuid.h>
#include <immintrin.h>
#define LEDGER_SHA_TARGET __attribute__((target("sha,sse4.1")))
#endif

enum { LEDGER_HASH = 32, LEDGER_KEY = 32, LEDGER_SIGNATURE = 64 };

/* ---- SHA-256 (FIPS 180-4) -------------------------------------------------------------------- */
typedef struct {
    uint32_t h[8];
    uint64_t bytes; /* number of bytes hashed so far */
    unsigned char block[64];
} ledger_sha;

static inline void ledger_sha_begin(ledger_sha *s)
{
    static const uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(s->h, h, sizeof h);
    s->bytes = 0;
}

static inline uint32_t ledger_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static const uint32_t ledger_sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

/* One round of SHA-256 with word w; the caller rotates the names of the eight variables. */
static inline void ledger_sha_round(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e,
                                    uint32_t f, uint32_t g, uint32_t *h, uint32_t w)
{
    const uint32_t t = *h + (ledger_rotate(e, 6) ^ ledger_rotate(e, 11) ^ ledger_rotate(e, 25)) +
                       (g ^ (e & (f ^ g))) + w;
    *d += t;
    *h = t + (ledger_rotate(a, 2) ^ ledger_rotate(a, 13) ^ ledger_rotate(a, 22)) +
         ((a & b) | (c & (a | b)));
}

/* Replaces word i of the message schedule by word i + 16. */
static inline void ledger_sha_extend(uint32_t w[16], int i)
{
    const uint32_t y = w[(i + 1) & 15], z = w[(i + 14) & 15];
    w[i] += (ledger_rotate(y, 7) ^ ledger_rotate(y, 18) ^ y >> 3) + w[(i + 9) & 15] +
            (ledger_rotate(z, 17) ^ ledger_rotate(z, 19) ^ z >> 10);
}

/* Eight rounds with words w[0] to w[7], after which the variables have their names again. */
static inline void ledger_sha_rounds(uint32_t s[8], const uint32_t *k, const uint32_t *w)
{
    uint32_t a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    ledger_sha_round(a, b, c, &d, e, f, g, &h, k[0] + w[0]);
    ledger_sha_round(h, a, b, &c, d, e, f, &g, k[1] + w[1]);
    ledger_sha_round(g, h, a, &b, c, d, e, &f, k[2] + w[2]);
    ledger_sha_round(f, g, h, &a, b, c, d, &e, k[3] + w[3]);
    ledger_sha_round(e, f, g, &h, a, b, c, &d, k[4] + w[4]);
    ledger_sha_round(d, e, f, &g, h, a, b, &c, k[5] + w[5]);
    ledger_sha_round(c, d, e, &f, g, h, a, &b, k[6] + w[6]);
    ledger_sha_round(b, c, d, &e, f, g, h, &a, k[7] + w[7]);
    s[0] = a, s[1] = b, s[2] = c, s[3] = d, s[4] = e, s[5] = f, s[6] = g, s[7] = h;
}

#ifdef LEDGER_SHA_TARGET
/* Four rounds with the words w[0], which the next 16 words replace unless `last` is nonzero; w[1] to
 * w[3] are those after them. s: the state as ABEF, CDGH. */
LEDGER_SHA_TARGET static inline void ledger_sha_quad(__m128i s[2], __m128i *w0, __m128i w1,
                                                     __m128i w2, __m128i w3, const uint32_t *k,
                                                     int last)
{
    const __m128i t = _mm_add_epi32(*w0, _mm_loadu_si128((const __m128i *)(const void *)k));
    s[1] = _mm_sha256rnds2_epu32(s[1], s[0], t);
    s[0] = _mm_sha256rnds2_epu32(s[0], s[1], _mm_shuffle_epi32(t, 0x0e));
    if (!last)
        *w0 = _mm_sha256msg2_epu32(
            _mm_add_epi32(_mm_sha256msg1_epu32(*w0, w1), _mm_alignr_epi8(w3, w2, 4)), w3);
}

/* ledger_sha_plain by the processor's instructions for SHA-256, which take a fifth of the time. */
LEDGER_SHA_TARGET static inline void ledger_sha_x86(uint32_t hash[8], const unsigned char *p,
                                                    size_t blocks)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)hash),
            e = _mm_loadu_si128((const __m128i *)(const void *)(hash + 4)), s[2];
    a = _mm_shuffle_epi32(a, 0xb1);
    e = _mm_shuffle_epi32(e, 0x1b);
    s[0] = _mm_alignr_epi8(a, e, 8);
    s[1] = _mm_blend_epi16(e, a, 0xf0);
    for (; blocks > 0; blocks--, p += 64) {
        const __m128i before[2] = { s[0], s[1] };
        const uint32_t *k = ledger_sha_constants;
        __m128i w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)),
                                    order);
        for (int r = 0; r < 4; r++, k += 16) {
            ledger_sha_quad(s, &w[0], w[1], w[2], w[3], k, r == 3);
            ledger_sha_quad(s, &w[1], w[2], w[3], w[0], k + 4, r == 3);
            ledger_sha_quad(s, &w[2], w[3], w[0], w[1], k + 8, r == 3);
            ledger_sha_quad(s, &w[3], w[0], w[1], w[2], k + 12, r == 3);
        }
        s[0] = _mm_add_epi32(s[0], before[0]);
        s[1] = _mm_add_epi32(s[1], before[1]);
    }
    a = _mm_shuffle_epi32(s[0], 0x1b);
    e = _mm_shuffle_epi32(s[1], 0xb1);
    _mm_storeu_si128((__m128i *)(void *)hash, _mm_blend_epi16(a, e, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(hash + 4), _mm_alignr_epi8(e, a, 8));
}

/* Returns whether the processor has these instructions. */
static inline int ledger_has_sha(void)
{
    static int has; /* 0 if not known yet, 1 if not, 2 if so */
    int known = __atomic_load_n(&has, __ATOMIC_RELAXED);
    if (known == 0) {
        unsigned a, b = 0, c, d;
        known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) ? 2 : 1;
        known = __get_cpuid(1, &a, &b, &c, &d) && (c >> 19 & 1) ? known : 1; /* SSE 4.1 */
        __atomic_store_n(&has, known, __ATOMIC_RELAXED);
    }
    return known == 2;
}
#endif

/* Hashes `blocks` blocks of 64 bytes. The schedule is unrolled: in a loop it takes 3 times as long. */
static inline void ledger_sha_plain(uint32_t hash[8], const unsigned char *p, size_t blocks)
{
    uint32_t s[8], w[16];
    for (; blocks > 0; blocks--, p += 64) {
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
                   (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
        memcpy(s, hash, sizeof s);
        for (int r = 0; r < 64; r += 16) {
            if (r > 0) {
                ledger_sha_extend(w, 0), ledger_sha_extend(w, 1), ledger_sha_extend(w, 2);
                ledger_sha_extend(w, 3), ledger_sha_extend(w, 4), ledger_sha_extend(w, 5);
                ledger_sha_extend(w, 6), ledger_sha_extend(w, 7), ledger_sha_extend(w, 8);
                ledger_sha_extend(w, 9), ledger_sha_extend(w, 10), ledger_sha_extend(w, 11);
                ledger_sha_extend(w, 12), ledger_sha_extend(w, 13), ledger_sha_extend(w, 14);
                ledger_sha_extend(w, 15);
            }
            ledger_sha_rounds(s, ledger_sha_constants + r, w);
            ledger_sha_rounds(s, ledger_sha_constants + r + 8, w + 8);
        }
        for (int i = 0; i < 8; i++)
            hash[i] += s[i];
    }
}

static inline void ledger_sha_blocks(uint32_t hash[8], const unsigned char *p, size_t blocks)
{
#ifdef LEDGER_SHA_TARGET
    if (ledger_has_sha()) {
        ledger_sha_x86(hash, p, blocks);
        return;
    }
#endif
    ledger_sha_plain(hash, p, blocks);
}

static inline void ledger_sha_add(ledger_sha *s, const void *bytes, size_t size)
{
    const unsigned char *p = (const unsigned char *)bytes;
    const size_t used = (size_t)(s->bytes % 64), room = 64 - used;
    s->bytes += size;
    if (used > 0 || size < 64) {
        const size_t n = size < room ? size : room;
        if (n > 0)
            memcpy(s->block + used, p, n);
        p += n, size -= n;
        if (n < room)
            return;
        ledger_sha_blocks(s->h, s->block, 1);
    }
    ledger_sha_blocks(s->h, p, size / 64);
    memcpy(s->block, p + size / 64 * 64, size % 64);
}

static inline void ledger_sha_end(ledger_sha *s, unsigned char hash[LEDGER_HASH])
{
    const uint64_t bits = 8 * s->bytes;
    unsigned char end[72] = { 0x80 };
    const size_t zeros = (size_t)((119 - s->bytes % 64) % 64);
    for (int i = 0; i < 8; i++)
        end[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    ledger_sha_add(s, end, zeros + 9);
    for (int i = 0; i < LEDGER_HASH; i++)
        hash[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* Hashes elements of 1, 2 or 4 bytes as little-endian bytes, on machines of either order. */
static inline void ledger_sha_elements(ledger_sha *s, const void *from, size_t count, size_t size)
{
    const unsigned char *p = (const unsigned char *)from;
    const uint32_t one = 1;
    unsigned char little[64], first;
    memcpy(&first, &one, 1);
    if (first == 1 || size == 1) {
        ledger_sha_add(s, p, count * size);
        return;
    }
    for (size_t left = count * size; left > 0; p += 64) {
        const size_t n = left < 64 ? left : 64;
        for (size_t k = 0; k < n; k++)
            little[k] = p[k / size * size + size - 1 - k % size];
        ledger_sha_add(s, little, n);
        left -= n;
    }
}

/* Hashes words of 4 bytes (float, int32_t) as little-endian bytes. */
static inline void ledger_sha_words(ledger_sha *s, const void *words, size_t count)
{
    ledger_sha_elements(s, words, count, 4);
}

/* ---- contents of a record ---------------------------------------------------------------------- */
enum { LEDGER_HYPER = 7 };
/* State of a training, besides its tensors. All zero at the beginning. */
typedef struct {
    uint64_t step;                /* number of updates done */
    uint64_t batches;             /* number of batches fed, skipped ones included */
    uint64_t loss;                /* bits of the last step's loss, a double */
    uint32_t hyper[LEDGER_HYPER]; /* bits of the floats of gckpt_hyper, in order */
    unsigned char
        rows[LEDGER_HASH]; /* hash of all rows fed: hash of (hash before, hash of batch) */
} ledger_state;

/* Adds a batch, of which `batch` has hashed all feeds in order, each with all rows of the step. */
static inline void ledger_add_rows(ledger_state *now, ledger_sha *batch)
{
    unsigned char hash[LEDGER_HASH];
    ledger_sha all;
    ledger_sha_end(batch, hash);
    ledger_sha_begin(&all);
    ledger_sha_add(&all, now->rows, LEDGER_HASH);
    ledger_sha_add(&all, hash, LEDGER_HASH);
    ledger_sha_end(&all, now->rows);
    now->batches++;
}

static inline void ledger_set_step(ledger_state *now, const gckpt_report *report,
                                   const gckpt_hyper *hyper)
{
    const float values[LEDGER_HYPER] = { hyper->lr,    hyper->weight_decay, hyper->beta1,
                                         hyper->beta2, hyper->eps,          hyper->momentum,
                                         hyper->clip };
    now->step = report->step;
    memcpy(&now->loss, &report->loss, sizeof now->loss);
    memcpy(now->hyper, values, sizeof now->hyper);
}

/* ---- digests of tensors ---------------------------------------------------------------------- */
/* Blocks of a tensor. Its digest is the SHA-256 of the SHA-256 of its blocks. Ranks shard tensors
 * at multiples of 4096 elements, so each rank can hash its blocks by itself. */
enum { LEDGER_BLOCK = 16384 };

/* A tensor of a store: the values or one optimiser state of a parameter. */
typedef struct {
    int index, part; /* parameter; 0 for the values, n for state n - 1 */
    int frozen;
    gckpt_parameter p;
} ledger_tensor;

/* Finds the next tensor in the order of the digests: values and state of each parameter that is
 * trained; then, unless `all` is 0, values of the frozen ones. Begin with *t all 0 and index -1.
 * Returns 0 at the end. Values that were not created yet are a tensor without bytes. */
static inline int ledger_next_tensor(const gckpt_store *store, int all, ledger_tensor *t)
{
    if (t->index >= 0 && !t->frozen && t->part < 4 && t->p.state[t->part] != NULL) {
        t->part++;
        return 1;
    }
    t->part = 0;
    for (;;) {
        t->index++;
        if (gckpt_store_peek(store, t->index, &t->p) != GCKPT_OK) {
            if (t->frozen || !all)
                return 0;
            t->frozen = 1;
            t->index = -1;
        } else if ((t->p.frozen != 0) == t->frozen) {
            return 1;
        }
    }
}

/* Hashes a block: `count` elements of `size` bytes, at most LEDGER_BLOCK bytes. */
static inline void ledger_hash_block(const void *from, size_t count, size_t size,
                                     unsigned char hash[LEDGER_HASH])
{
    ledger_sha s;
    ledger_sha_begin(&s);
    ledger_sha_elements(&s, from, count, size);
    ledger_sha_end(&s, hash);
}

/* Hashes `count` elements of `size` bytes by blocks, and adds the blocks' hashes to `all`. */
static inline void ledger_hash_blocks(ledger_sha *all, const void *from, size_t count, size_t size)
{
    const unsigned char *p = (const unsigned char *)from;
    const size_t most = LEDGER_BLOCK / size;
    unsigned char hash[LEDGER_HASH];
    for (size_t n; count > 0; count -= n, p += n * size) {
        n = count < most ? count : most;
        ledger_hash_block(p, n, size, hash);
        ledger_sha_add(all, hash, LEDGER_HASH);
    }
}

static inline void ledger_digest(const ledger_tensor *t, unsigned char digest[LEDGER_HASH])
{
    const gckpt_parameter *p = &t->p;
    const size_t n = (size_t)p->elements;
    const size_t width = p->shape.n > 0 ? (size_t)p->shape.d[p->shape.n - 1] : 1;
    const float *words = t->part > 0 ? p->state[t->part - 1] : p->values;
    ledger_sha all;
    ledger_sha_begin(&all);
    if (t->part > 0 && p->state_bytes > 0)
        ledger_hash_blocks(&all, words, p->state_bytes, 1);
    else if (words != NULL)
        ledger_hash_blocks(&all, words, n, 4);
    else if (p->quantised != NULL && p->storage == GCKPT_STORAGE_I4)
        ledger_hash_blocks(&all, p->quantised, n / 32 * 19, 1);
    else if (p->quantised != NULL && p->storage == GCKPT_STORAGE_I8)
        ledger_hash_blocks(&all, p->quantised, n + n / width * ((width + 31) / 32) * 2, 1);
    else if (p->quantised != NULL)
        ledger_hash_blocks(&all, p->quantised, n, 2);
    ledger_sha_end(&all, digest);
}

/* Writes the digests of all tensors (if `all` is 0, of those that are trained) to `to`, which has
 * room for `room` of them; to NULL only counts them. Returns their number, or 0 if there are more
 * than `room`, this process has only a part of one (gckpt_store_ranks), or a device does not give
 * its values. Call it between steps. */
static inline size_t ledger_digests(gckpt_store *store, int all, unsigned char *to, size_t room)
{
    ledger_tensor t;
    size_t n = 0;
    memset(&t, 0, sizeof t);
    t.index = -1;
    if (to != NULL && gckpt_store_pull(store, "*") != GCKPT_OK)
        return 0;
    for (; ledger_next_tensor(store, all, &t); n++) {
        if (to != NULL && (n == room || t.p.count != t.p.elements))
            return 0;
        if (to != NULL)
            ledger_digest(&t, to + LEDGER_HASH * n);
    }
    return n;
}

/* ---- text ------------------------------------------------------------------------------------ */
/* A text of limited size, always terminated. */
typedef struct {
    char *to;
    size_t size, used; /* `used` may exceed size; then the text is cut off */
} ledger_text;

static inline void ledger_put_bytes(ledger_text *t, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++, t->used++)
        if (t->used + 1 < t->size)
            t->to[t->used] = bytes[i];
    if (t->size > 0)
        t->to[t->used < t->size ? t->used : t->size - 1] = 0;
}

static inline void ledger_put(ledger_text *t, const char *text)
{
    ledger_put_bytes(t, text, strlen(text));
}

static inline void ledger_put_number(ledger_text *t, uint64_t x)
{
    char digits[20];
    size_t n = sizeof digits;
    do
        digits[--n] = (char)('0' + (char)(x % 10));
    while ((x /= 10) > 0);
    ledger_put_bytes(t, digits + n, sizeof digits - n);
}

static inline void ledger_put_hex(ledger_text *t, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < 2 * n; i++)
        ledger_put_bytes(t, &"0123456789abcdef"[bytes[i / 2] >> (i % 2 ? 0 : 4) & 15], 1);
}

/* Reads n bytes from hexadecimal digits; returns 1, or 0 if there are other characters. */
static inline int ledger_get_hex(const char *text, unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < 2 * n; i++) {
        const int c = text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return 0;
        bytes[i / 2] = (unsigned char)(i % 2 == 0 ? digit : bytes[i / 2] << 4 | digit);
    }
    return 1;
}

/* Writes a line for each digest: "tensor values 128x384 h.0.attention.weight". A run's text ends
 * with these lines. */
static inline void ledger_put_tensors(ledger_text *text, const gckpt_store *store)
{
    static const char *const parts[] = { "values", "state0", "state1", "state2", "state3" };
    ledger_tensor t;
    memset(&t, 0, sizeof t);
    t.index = -1;
    while (ledger_next_tensor(store, 1, &t)) {
        ledger_put(text, t.frozen ? "frozen " : "tensor ");
        ledger_put(text, parts[t.part]);
        if (t.part > 0 && t.p.state_bytes > 0) {
            ledger_put(text, " ");
            ledger_put_number(text, t.p.state_bytes);
            ledger_put(text, " bytes");
        }
        for (int i = 0; i < t.p.shape.n && (t.part == 0 || t.p.state_bytes == 0); i++) {
            ledger_put(text, i == 0 ? " " : "x");
            ledger_put_number(text, (uint64_t)t.p.shape.d[i]);
        }
        ledger_put(text, " ");
        ledger_put(text, t.p.name);
        ledger_put(text, "\n");
    }
}

/* ---- records --------------------------------------------------------------------------------- */
typedef enum {
    LEDGER_RUN = 1,  /* a program begins or resumes; has all digests and, as text, its options */
    LEDGER_STEP = 2, /* has the digests of the trained tensors */
    LEDGER_END = 3   /* the program ended as it wanted; has no digests */
} ledger_kind;
enum { LEDGER_HEAD = 192, LEDGER_TAIL = LEDGER_HASH + LEDGER_SIGNATURE, LEDGER_VERSION = 1 };

/* The end of a chain, to which ledger_write appends. All zero for a new ledger; then `key` may be
 * set, to the public key that signs. */
typedef struct {
    uint64_t index;                  /* number of records */
    unsigned char hash[LEDGER_HASH]; /* of the last one */
    unsigned char key[LEDGER_KEY];
} ledger_chain;

/* A record. Pointers are into the bytes that it was read from. */
typedef struct {
    ledger_kind kind;
    size_t bytes; /* of the whole record */
    uint64_t index;
    ledger_state state;
    const unsigned char *previous, *key; /* hash of the record before; public key */
    size_t count;                        /* number of digests */
    const unsigned char *digests;
    const char *text; /* not terminated */
    size_t length;    /* bytes of text */
    const unsigned char *hash, *signature;
} ledger_record;

static inline void ledger_put_le(unsigned char *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(x >> 8 * i);
}

static inline uint64_t ledger_get_le(const unsigned char *from, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)from[i] << 8 * i;
    return x;
}

/* Returns the bytes of a record with `count` digests and `length` bytes of text. */
static inline size_t ledger_bytes(size_t count, size_t length)
{
    return LEDGER_HEAD + LEDGER_HASH * count + length + LEDGER_TAIL;
}

/* Writes the first 8 bytes of the SHA-256 of a head, by which a size can be trusted. */
static inline void ledger_hash_head(const unsigned char *head, unsigned char check[8])
{
    unsigned char hash[LEDGER_HASH];
    ledger_sha sha;
    ledger_sha_begin(&sha);
    ledger_sha_add(&sha, head, LEDGER_HEAD - 8);
    ledger_sha_end(&sha, hash);
    memcpy(check, hash, 8);
}

/* Writes a record of at most 65535 digests to `to`, and advances the chain. `digests` may already
 * be in its place, to + LEDGER_HEAD. The last 64 bytes, the signature, are 0. The caller signs
 * chain->hash if the chain has a key. Returns the bytes written, or 0 if `room` is too small. */
static inline size_t ledger_write(unsigned char *to, size_t room, ledger_kind kind,
                                  ledger_chain *chain, const ledger_state *state,
                                  const unsigned char *digests, size_t count, const char *text,
                                  size_t length)
{
    const size_t bytes = ledger_bytes(count, length);
    unsigned char *end = to + bytes - LEDGER_TAIL;
    ledger_sha sha;
    if (count > 65535 || room < bytes)
        return 0;
    if (count > 0)
        memmove(to + LEDGER_HEAD, digests, LEDGER_HASH * count);
    if (length > 0)
        memcpy(to + LEDGER_HEAD + LEDGER_HASH * count, text, length);
    memset(to, 0, LEDGER_HEAD);
    memcpy(to, "gckptled", 8);
    ledger_put_le(to + 8, LEDGER_VERSION, 4);
    ledger_put_le(to + 12, (uint64_t)kind, 4);
    ledger_put_le(to + 16, bytes, 8);
    ledger_put_le(to + 24, chain->index, 8);
    ledger_put_le(to + 32, state->step, 8);
    ledger_put_le(to + 40, state->batches, 8);
    ledger_put_le(to + 48, state->loss, 8);
    for (int i = 0; i < LEDGER_HYPER; i++)
        ledger_put_le(to + 56 + 4 * i, state->hyper[i], 4);
    ledger_put_le(to + 84, count, 2);
    memcpy(to + 88, chain->hash, LEDGER_HASH);
    memcpy(to + 120, state->rows, LEDGER_HASH);
    memcpy(to + 152, chain->key, LEDGER_KEY);
    ledger_hash_head(to, to + LEDGER_HEAD - 8);
    ledger_sha_begin(&sha);
    ledger_sha_add(&sha, to, bytes - LEDGER_TAIL);
    ledger_sha_end(&sha, end);
    memset(end + LEDGER_HASH, 0, LEDGER_SIGNATURE);
    memcpy(chain->hash, end, LEDGER_HASH);
    chain->index++;
    return bytes;
}

#define LEDGER_UNFINISHED "is not complete: the ledger ends within it"

/* Checks a head, all bytes of which exist. Returns NULL, or the reason to refuse it. */
static inline const char *ledger_check_head(const unsigned char *p)
{
    unsigned char check[8];
    const uint64_t kind = ledger_get_le(p + 12, 4), bytes = ledger_get_le(p + 16, 8);
    if (memcmp(p, "gckptled", 8) != 0)
        return "does not begin as a record does";
    ledger_hash_head(p, check);
    if (memcmp(p + LEDGER_HEAD - 8, check, 8) != 0)
        return "is damaged: the hash of its head is wrong";
    if (ledger_get_le(p + 8, 4) != LEDGER_VERSION)
        return "has another version of the format";
    if (kind < LEDGER_RUN || kind > LEDGER_END || ledger_get_le(p + 86, 2) != 0)
        return "has a kind that does not exist";
    if (bytes < ledger_bytes((size_t)ledger_get_le(p + 84, 2), 0) || bytes > (size_t)-1 / 2)
        return "states a size that cannot be";
    return NULL;
}

/* Reads the record at p, which must be whole and right. */
static inline void ledger_parse(const unsigned char *p, ledger_record *r)
{
    r->kind = (ledger_kind)ledger_get_le(p + 12, 4);
    r->bytes = (size_t)ledger_get_le(p + 16, 8);
    r->count = (size_t)ledger_get_le(p + 84, 2);
    r->hash = p + r->bytes - LEDGER_TAIL;
    r->signature = r->hash + LEDGER_HASH;
    r->index = ledger_get_le(p + 24, 8);
    r->state.step = ledger_get_le(p + 32, 8);
    r->state.batches = ledger_get_le(p + 40, 8);
    r->state.loss = ledger_get_le(p + 48, 8);
    for (int i = 0; i < LEDGER_HYPER; i++)
        r->state.hyper[i] = (uint32_t)ledger_get_le(p + 56 + 4 * i, 4);
    memcpy(r->state.rows, p + 120, LEDGER_HASH);
    r->previous = p + 88;
    r->key = p + 152;
    r->digests = p + LEDGER_HEAD;
    r->text = (const char *)r->digests + LEDGER_HASH * r->count;
    r->length = (size_t)((const char *)r->hash - r->text);
}

/* Reads the record at bytes[at], at < size, of a ledger of `size` bytes. Returns NULL; or what is
 * wrong with it, LEDGER_UNFINISHED if the bytes end within it. Checks the record, not the chain. */
static inline const char *ledger_read(const unsigned char *bytes, size_t size, size_t at,
                                      ledger_record *r)
{
    const unsigned char *p = bytes + at;
    const size_t left = size - at;
    unsigned char hash[LEDGER_HASH];
    ledger_sha sha;
    if (left < LEDGER_HEAD)
        return memcmp(p, "gckptled", left < 8 ? left : 8) != 0 ? "does not begin as a record does"
                                                               : LEDGER_UNFINISHED;
    const char *wrong = ledger_check_head(p);
    if (wrong != NULL)
        return wrong;
    if (ledger_get_le(p + 16, 8) > left)
        return LEDGER_UNFINISHED;
    ledger_parse(p, r);
    ledger_sha_begin(&sha);
    ledger_sha_add(&sha, p, r->bytes - LEDGER_TAIL);
    ledger_sha_end(&sha, hash);
    return memcmp(hash, r->hash, LEDGER_HASH) == 0 ? NULL : "is damaged: its hash is wrong";
}

/* Finds the line "NAME VALUE" of a run's text. Returns the value and sets *length, or NULL. */
static inline const char *ledger_value(const ledger_record *run, const char *name, size_t *length)
{
    const size_t n = strlen(name);
    for (const char *p = run->text, *end = p + run->length, *next; p < end; p = next + 1) {
        next = p;
        while (next < end && *next != '\n')
            next++;
        if ((size_t)(next - p) > n && memcmp(p, name, n) == 0 && p[n] == ' ') {
            *length = (size_t)(next - p) - n - 1;
            return p + n + 1;
        }
    }
    return NULL;
}

/* Writes the name of digest `index` of a run and of its steps: "values 128x384 h.0.mlp.weight". */
static inline void ledger_put_tensor(ledger_text *text, const ledger_record *run, size_t index)
{
    const char *p = run->text, *end = p + run->length, *next;
    for (; p < end; p = next + 1) {
        const int is_tensor =
            (size_t)(end - p) > 7 && (memcmp(p, "tensor ", 7) == 0 || memcmp(p, "frozen ", 7) == 0);
        next = p;
        while (next < end && *next != '\n')
            next++;
        if (is_tensor && index-- == 0) {
            ledger_put_bytes(text, p + 7, (size_t)(next - p) - 7);
            return;
        }
    }
    ledger_put(text, "a tensor without a name");
}

/* Returns the number of digests that each step of a run has: of its tensors that are trained. */
static inline size_t ledger_trained(const ledger_record *run)
{
    size_t n = 0;
    for (size_t i = 0; i + 7 < run->length; i++)
        n += (i == 0 || run->text[i - 1] == '\n') && memcmp(run->text + i, "tensor ", 7) == 0;
    return n;
}

/* ---- a whole ledger -------------------------------------------------------------------------- */
/* Checks a signature; returns 1 if `key` signed `hash`, else 0. */
typedef int (*ledger_check_fn)(void *user, const unsigned char signature[LEDGER_SIGNATURE],
                               const unsigned char hash[LEDGER_HASH],
                               const unsigned char key[LEDGER_KEY]);
/* What ledger_verify found. */
typedef struct {
    ledger_chain end;        /* to append to */
    size_t bytes;            /* of the records that are right: the first ones */
    ledger_record run, last; /* the last run; the last record */
    ledger_state state;      /* at the end */
    uint64_t runs;           /* number of runs */
    int has_key, has_end;    /* nonzero if the records have a key; if the last record is an end */
    char error[200];         /* which record is wrong, and why; "" if none is */
} ledger_report;

static inline int ledger_refuse(ledger_report *r, const char *why)
{
    ledger_text t = { r->error, sizeof r->error, 0 };
    ledger_put(&t, "record ");
    ledger_put_number(&t, r->end.index);
    ledger_put(&t, " ");
    ledger_put(&t, why);
    return 0;
}

/* Finds the record of `step` to which the record at bytes[end] continues: the last one whose step
 * no later run went back before. Returns 1, or 0 if no record is found. All records before bytes[end]
 * must be right. */
static inline int ledger_find(const unsigned char *bytes, size_t end, uint64_t step,
                              ledger_record *out)
{
    size_t last = end;
    for (size_t at = 0; at < end; at += (size_t)ledger_get_le(bytes + at + 16, 8)) {
        const uint64_t kind = ledger_get_le(bytes + at + 12, 4),
                       here = ledger_get_le(bytes + at + 32, 8);
        if (kind == LEDGER_RUN && here < step)
            last = end;
        if (kind != LEDGER_END && here == step)
            last = at;
    }
    if (last < end)
        ledger_parse(bytes + last, out);
    return last < end;
}

static inline int ledger_equal(const ledger_state *a, const ledger_state *b)
{
    return a->step == b->step && a->batches == b->batches && a->loss == b->loss &&
           memcmp(a->hyper, b->hyper, sizeof a->hyper) == 0 &&
           memcmp(a->rows, b->rows, LEDGER_HASH) == 0;
}

static inline int ledger_same_state(const ledger_record *a, const ledger_record *b, size_t count)
{
    return ledger_equal(&a->state, &b->state) &&
           memcmp(a->digests, b->digests, LEDGER_HASH * count) == 0;
}

/* Checks that record `now` may follow those of the report. Returns NULL, or the reason to refuse it. */
static inline const char *ledger_check_next(const unsigned char *bytes, const ledger_report *r,
                                            const ledger_record *now)
{
    static const unsigned char none[LEDGER_HASH] = { 0 };
    const size_t trained = now->kind == LEDGER_RUN ? ledger_trained(now) : 0;
    const int first = r->end.index == 0;
    const ledger_state *s = &now->state;
    ledger_state begin;
    ledger_record from;
    memset(&begin, 0, sizeof begin); /* a training that begins, or is resumed with a new ledger */
    begin.step = s->step;
    begin.batches = s->step > 0 ? s->batches : 0;
    if (now->index != r->end.index)
        return "has another index: records are missing, or not in order";
    if (memcmp(now->previous, first ? none : r->end.hash, LEDGER_HASH) != 0)
        return "does not continue the record before it: the chain is broken";
    if (first && now->kind != LEDGER_RUN)
        return "is not of the kind that begins a ledger";
    if (first && (!ledger_equal(s, &begin) || s->batches < s->step))
        return "begins a training with a state that is not of a beginning";
    if (!first && memcmp(now->key, r->end.key, LEDGER_KEY) != 0)
        return "has another key than the record before it";
    if (now->kind == LEDGER_RUN && now->count == 0)
        return "has no digests";
    if (now->kind == LEDGER_RUN && now->count < trained)
        return "has fewer digests than tensors";
    if (now->kind == LEDGER_RUN && !first &&
        (!ledger_find(bytes, r->bytes, now->state.step, &from) ||
         !ledger_same_state(&from, now, from.count < trained ? from.count : trained)))
        return "resumes from a state that no record before it has";
    if (now->kind == LEDGER_STEP && r->has_end)
        return "follows an end: a record of the kind run is missing";
    if (now->kind == LEDGER_STEP && now->count != ledger_trained(&r->run))
        return "has digests of other tensors than its run";
    if (now->kind == LEDGER_STEP && now->state.step <= r->state.step)
        return "has a step that is not after the one before it";
    if (now->kind == LEDGER_END && (r->has_end || now->count != 0 || !ledger_equal(s, &r->state)))
        return "ends another run than the one before it";
    if (now->kind != LEDGER_RUN && now->state.batches < r->state.batches)
        return "has fewer batches than the record before it";
    return NULL;
}

/* Checks every record, the chain and, unless `check` is NULL, the signatures of a ledger that has a
 * key. Returns 1; or 0 with r->error, and then the report is of the records before. Does not repeat
 * the training: only that shows that the records are true. */
static inline int ledger_verify(const unsigned char *bytes, size_t size, ledger_check_fn check,
                                void *user, ledger_report *r)
{
    static const unsigned char none[LEDGER_SIGNATURE] = { 0 };
    memset(r, 0, sizeof *r);
    if (size == 0)
        return ledger_refuse(r, "is missing: the ledger is empty");
    while (r->bytes < size) {
        ledger_record now;
        const char *wrong = ledger_read(bytes, size, r->bytes, &now);
        wrong = wrong != NULL ? wrong : ledger_check_next(bytes, r, &now);
        if (wrong != NULL)
            return ledger_refuse(r, wrong);
        r->has_key = memcmp(now.key, none, LEDGER_KEY) != 0;
        if (!r->has_key && memcmp(now.signature, none, LEDGER_SIGNATURE) != 0)
            return ledger_refuse(r, "has a signature but no key");
        if (r->has_key && check != NULL && !check(user, now.signature, now.hash, now.key))
            return ledger_refuse(r, "has a wrong signature");
        memcpy(r->end.hash, now.hash, LEDGER_HASH);
        memcpy(r->end.key, now.key, LEDGER_KEY);
        r->end.index++;
        r->bytes += now.bytes;
        r->has_end = now.kind == LEDGER_END;
        r->state = now.state;
        r->last = now;
        if (now.kind == LEDGER_RUN)
            r->run = now, r->runs++;
    }
    return 1;
}

/* Compares a repeated state and its digests with record `r` of the run `run`. Returns 1; or 0 with
 * a text that names the record and the first part that differs. */
static inline int ledger_compare(const ledger_record *run, const ledger_record *r,
                                 const ledger_state *state, const unsigned char *digests,
                                 size_t count, char *text, size_t room)
{
    static const char *const names[LEDGER_HYPER] = { "lr",  "weight_decay", "beta1", "beta2",
                                                     "eps", "momentum",     "clip" };
    ledger_text t = { text, room, 0 };
    size_t i = 0;
    ledger_put(&t, "record ");
    ledger_put_number(&t, r->index);
    ledger_put(&t, ", step ");
    ledger_put_number(&t, r->state.step);
    ledger_put(&t, ": ");
    if (state->step != r->state.step || state->batches != r->state.batches) {
        ledger_put(&t, "here it is step ");
        ledger_put_number(&t, state->step);
        ledger_put(&t, " after ");
        ledger_put_number(&t, state->batches);
        ledger_put(&t, " batches; the ledger has ");
        ledger_put_number(&t, r->state.batches);
        return 0;
    }
    if (memcmp(state->rows, r->state.rows, LEDGER_HASH) != 0) {
        ledger_put(&t, "other rows were fed");
        return 0;
    }
    for (; i < LEDGER_HYPER && state->hyper[i] == r->state.hyper[i]; i++) {
    }
    if (i < LEDGER_HYPER) {
        ledger_put(&t, "hyperparameter ");
        ledger_put(&t, names[i]);
        ledger_put(&t, " differs");
        return 0;
    }
    for (i = 0; i < count && i < r->count &&
                memcmp(digests + LEDGER_HASH * i, r->digests + LEDGER_HASH * i, LEDGER_HASH) == 0;
         i++) {
    }
    if (i < count && i < r->count) {
        ledger_put(&t, "the first tensor that differs is ");
        ledger_put_tensor(&t, run, i);
        return 0;
    }
    if (count != r->count && r->kind != LEDGER_END) {
        ledger_put(&t, "the number of tensors differs");
        return 0;
    }
    ledger_put(&t, state->loss != r->state.loss ? "the loss differs" : "equal");
    return state->loss == r->state.loss;
}
#endif
