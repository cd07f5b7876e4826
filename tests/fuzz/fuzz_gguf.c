/* fuzz_gguf.c - reads any bytes as a GGUF file: its keys, a model, a tokenizer, an adapter.
 *
 * The rules: A refusal has an error text. The values that keys and tensors claim exist in the file. If the keys of
 * a tokenizer are accepted, the tokenizer accepts the text that is made from them, and tokens are in the
 * vocabulary. The readers are those of models, adapters and tokenizers: a file that cannot be opened is tried with
 * one of them, a file that can be opened with two, and one input in eight with all. The mutator changes the
 * lengths, counts, types and offsets in the header as whole numbers, not byte by byte. */
#define _GNU_SOURCE
#define BPE_CACHE 256 /* as in fuzz_tokenizer.c */
#include "gradckpt.h"
#include "adapters.h"
#include "gguf_tokenizer.h"
#include "input_hash.h"
#include "memfs.h"
#include "once.h"
#include "reader.h"

static char path[64]; /* path of the file with the bytes */
static model_any golden;

/* Reads all keys and tensors. Returns whether the file can be opened. */
static int try_keys(void)
{
    gguf g;
    const int opened = gguf_open(&g, path) == 0;
    if (opened) {
        uint64_t sum = 0; /* the sum depends on every value, so that all of them are read */
        for (size_t i = 0; i < g.key_count; i++) {
            gguf_items all = gguf_array(&g, g.keys[i].name, g.keys[i].item_type);
            while (gguf_next(&all))
                sum += (uint64_t)(all.item_type != GGUF_STRING ? all.integer
                                  : all.size > 0        ? all.text[all.size - 1]
                                                        : 0);
            g.error[0] = 0;
            const char *text = gguf_text(&g, g.keys[i].name, NULL);
            sum += text != NULL ? strlen(text) : (uint64_t)gguf_int(&g, g.keys[i].name, 0);
            g.error[0] = 0;
        }
        for (size_t i = 0; i < g.tensor_count; i++) {
            float values[256];
            const gguf_tensor *t = &g.tensors[i];
            gguf_read_floats(&g, t, 0, t->elements < 256 ? t->elements : 256, values);
            g.error[0] = 0;
        }
        must(sum != 0x6772616465757465u);
    } else {
        must(g.error[0] != 0);
    }
    gguf_close(&g);
    return opened;
}

static void try_model(int as_file)
{
    model_any m;
    const model_source source = { GCKPT_STORAGE_F32, 0, NULL, as_file };
    gckpt_store *s = gckpt_store_new(NULL);
    must(model_load(&m, s, path, &source) == 0 || m.error[0] != 0);
    gckpt_store_free(s);
    model_close(&m);
}

static void try_tokenizer(void)
{
    static const char text[] = "the e\xcc\x81t <s> [INST]\n\n\nx  y <|end|>\xff 12 don't";
    bpe b;
    chat c;
    bpe_tokens t = { NULL, 0, 0, "" };
    must(gguf_open_chat(&c, path, NULL) == 0 || c.error[0] != 0);
    chat_free(&c);
    if (gguf_open_tokenizer(&b, path) != 0) {
        /* an error at "PATH:1:" would blame the text that the library made from the keys, which must be valid */
        const size_t n = strlen(path);
        must(b.error[0] != 0 &&
             (strncmp(b.error, path, n) != 0 || strncmp(b.error + n, ":1:", 3) != 0));
        return;
    }
    must(bpe_encode(&b, text, sizeof text - 1, BPE_SPECIALS | BPE_TEMPLATE, &t) == 0);
    for (size_t i = 0; i < t.count; i++)
        must(t.ids[i] >= 0 && t.ids[i] < b.count);
    size_t size;
    free(bpe_decode(&b, t.ids, t.count, &size));
    bpe_tokens_free(&t);
    bpe_free(&b);
}

static void try_adapter(void)
{
    adapters a;
    model_any m = golden;
    gckpt_store *s = gckpt_store_new(NULL);
    m.error[0] = 0;
    must(gguf_adapter_load(&a, &m, s, path) == 0 || m.error[0] != 0);
    adapters_end(&a);
    gckpt_store_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (golden.config.layers == 0)
        must(model_read_config(&golden, "tests/golden/llama/gqa") == 0);
    const uint64_t chosen = input_hash(bytes, size);
    memfs_put("x.gguf", bytes, size);
    snprintf(path, sizeof path, "%s/x.gguf", memfs_folder(chosen / 32));
    const int tries = chosen % 8 == 0 ? 3 : try_keys() ? 2 : 1;
    for (int i = 0; i < tries; i++)
        switch ((chosen / 8 + (uint64_t)i) % 3) {
        case 0: try_model((int)(size & 1)); break;
        case 1: try_adapter(); break;
        default: try_tokenizer();
        }
    memfs_end();
    return 0;
}

/* Writes a seed with two keys of each type and a tensor. */
static void small_seed(void)
{
    static const unsigned char sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    static const unsigned char zeros[128];
    reader_seed s = { NULL, 0 };
    reader_add(&s, "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\30\0\0\0\0\0\0\0", 24);
    for (int array = 0; array < 2; array++)
        for (unsigned char type = 0; type < GGUF_TYPES; type++) {
            const unsigned char name[] = { 2,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0,
                                           (unsigned char)('a' + array),
                                           (unsigned char)('a' + type),
                                           9,
                                           0,
                                           0,
                                           0,
                                           type,
                                           0,
                                           0,
                                           0,
                                           2,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0,
                                           0 };
            if (type == GGUF_ARRAY)
                continue;
            /* the type of the value; for an array also the type and the number of its items */
            reader_add(&s, name, 10);
            reader_add(&s, array ? name + 10 : name + 14, array ? 16 : 4);
            for (int i = 0; i < 1 + array; i++)
                reader_add(&s, type == GGUF_STRING ? (const void *)"\1\0\0\0\0\0\0\0x" : zeros,
                           type == GGUF_STRING ? 9 : sizes[type]);
        }
    reader_add(&s, "\1\0\0\0\0\0\0\0t\1\0\0\0\40\0\0\0\0\0\0\0\10\0\0\0\0\0\0\0\0\0\0\0", 33);
    reader_add(&s, zeros, 32 - s.size % 32 + 34);
    reader_end_seed(&s, "small");
}

/* Writes a seed without keys, with a tensor of 256 values of each supported type. */
static void blocks_seed(void)
{
    static const int types[] = { GGUF_T_F32,  GGUF_T_F16,  GGUF_T_BF16, GGUF_T_Q8_0,
                                 GGUF_T_Q4_0, GGUF_T_Q4_1, GGUF_T_Q5_0, GGUF_T_Q5_1,
                                 GGUF_T_Q4_K, GGUF_T_Q5_K, GGUF_T_Q6_K };
    enum { COUNT = sizeof types / sizeof types[0] };
    unsigned char bits[1024], none[32] = { 0 };
    reader_seed s = { NULL, 0 };
    uint32_t at = 0;
    for (size_t i = 0; i < sizeof bits; i++)
        bits[i] = (unsigned char)(i * 37 % 64);
    reader_add(&s, "GGUF\3\0\0\0\13\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    must(COUNT == 11);
    for (int i = 0; i < COUNT; i++) {
        unsigned char entry[33] = { 1, 0, 0, 0, 0, 0, 0, 0, (unsigned char)('a' + i), 1 };
        entry[14] = 1; /* one axis of 256 */
        entry[21] = (unsigned char)types[i];
        entry[25] = (unsigned char)at;
        entry[26] = (unsigned char)(at >> 8);
        reader_add(&s, entry, sizeof entry);
        at += ((uint32_t)gguf_bytes(types[i], 256) + 31) / 32 * 32;
    }
    reader_add(&s, none, (32 - s.size % 32) % 32);
    for (int i = 0; i < COUNT; i++)
        reader_add(&s, bits, (gguf_bytes(types[i], 256) + 31) / 32 * 32);
    reader_end_seed(&s, "blocks");
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const files[] = { "gguf/gpt2-q4_0", "gguf/llama-q8_0", "gguf/lora",
                                         "gguf_tokenizer/bpe", "gguf_tokenizer/spm" };
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char from[128];
        snprintf(from, sizeof from, "tests/golden/%s.gguf", files[i]);
        reader_add_file(&s, from);
        reader_end_seed(&s, files[i]);
    }
    small_seed();
    blocks_seed();
    exit(0);
}

/* A mutator. Mostly changes some bytes of the header, or replaces a number of 4 or 8 bytes by a small one, a huge
 * one, or one close to the old one; sometimes changes a text together with its length, or cuts the file off. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const uint64_t odd[] = { 0,
                                    1,
                                    2,
                                    31,
                                    32,
                                    255,
                                    256,
                                    65535,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    INT64_MAX,
                                    0x8000000000000000u,
                                    UINT64_MAX };
    const size_t head = size < 8192 ? size : 8192;
    reader_state = seed;
    if (size < 64 || reader_draw(6) == 0)
        return reader_mutate_bytes(bytes, size, most);
    if (reader_draw(16) == 0)
        return 24 + reader_draw(size - 24);
    for (size_t n = 1 + reader_draw(3); n > 0; n--) {
        const size_t wide = reader_draw(3) == 0 ? 8 : reader_draw(2) == 0 ? 4 : 1;
        const size_t at = reader_draw(head - 8);
        const uint64_t was = gguf_read_le(bytes + at, 8);
        /* probably the length of a text */
        if (wide == 8 && was > 0 && was < 64 && at + 8 + was <= size) {
            uint8_t text[72];
            memcpy(text, bytes + at + 8, was);
            const size_t length = reader_mutate_bytes(text, was, sizeof text);
            bytes[at] = (uint8_t)length;
            size = reader_splice(bytes, size, most, at + 8, at + 8 + was, text, length);
            return size;
        }
        uint64_t value = reader_draw(2) == 0
                             ? odd[reader_draw(sizeof odd / sizeof odd[0])]
                             : gguf_read_le(bytes + at, (int)wide) + reader_draw(9) - 4;
        for (size_t i = 0; i < wide; i++, value >>= 8)
            bytes[at + i] = (uint8_t)value;
    }
    return size;
}
