/* fuzz_gguf.c - any bytes as a GGUF file: its keys, a model, a tokenizer, an adapter; nothing but
 * an error may come of them.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/fuzz_gguf.c -o fuzz_gguf -lm
 *     mkdir seeds && cp $(find tests/golden -name "*.gguf") seeds
 *     ./fuzz_gguf -max_len=40000 -rss_limit_mb=512 seeds
 *
 * Without -fsanitize=fuzzer: -DFUZZ_ALONE, and ./fuzz_gguf SECONDS SEED FILE.. changes bytes and
 * numbers of the files by chance. */
#define _XOPEN_SOURCE 700
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "examples/adapters.h"
#include "examples/gguf_tokenizer.h"
#include <sys/stat.h>
#include <unistd.h>

static char path[64]; /* where the bytes lie, in memory if there is /dev/shm */
static model_any golden;
static long accepted[4];

static void try_keys(void)
{
    gguf g;
    if (gguf_open(&g, path) == 0) {
        volatile int64_t sum = 0;
        accepted[0]++;
        for (size_t i = 0; i < g.key_count; i++) {
            gguf_items all = gguf_array(&g, g.keys[i].name, g.keys[i].of);
            while (gguf_next(&all))
                sum +=
                    all.of == GGUF_STRING ? (all.size > 0 ? all.text[all.size - 1] : 0) : all.whole;
            g.error[0] = 0;
            const char *text = gguf_text(&g, g.keys[i].name, NULL);
            sum += text != NULL ? (int64_t)strlen(text) : gguf_int(&g, g.keys[i].name, 0);
            g.error[0] = 0;
        }
        for (size_t i = 0; i < g.tensor_count; i++) {
            float values[256];
            const gguf_tensor *t = &g.tensors[i];
            gguf_read_floats(&g, t, 0, t->elements < 256 ? t->elements : 256, values);
            g.error[0] = 0;
        }
    }
    gguf_close(&g);
}

static void try_model(int as_file)
{
    model_any m;
    const model_source source = { GCKPT_STORED_F32, 0, NULL, as_file };
    gckpt_store *s = gckpt_store_new(NULL);
    accepted[1] += model_load(&m, s, path, &source) == 0;
    gckpt_store_free(s);
    model_close(&m);
}

static void try_tokenizer(void)
{
    static const char text[] = "the e\xcc\x81t <s> [INST]\n\n\nx  y <|end|>\xff 12 don't";
    bpe b;
    chat c;
    bpe_tokens t = { NULL, 0, 0, "" };
    gguf_open_chat(&c, path, NULL);
    if (gguf_open_tokenizer(&b, path) != 0) {
        if (strstr(b.error, ".gguf:1:") != NULL) /* what was made of the keys was refused */
            abort();
        return;
    }
    accepted[3]++;
    if (bpe_encode(&b, text, sizeof text - 1, BPE_SPECIALS | BPE_TEMPLATE, &t) != 0)
        abort();
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
    accepted[2] += gguf_adapter_load(&a, &m, s, path) == 0;
    adapters_end(&a);
    gckpt_store_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (path[0] == 0) {
        snprintf(path, sizeof path, "%s/fuzz_gguf.%ld.gguf",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
        if (model_read_config(&golden, "tests/golden/llama/gqa") != 0)
            abort();
    }
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, size, f) != size || fclose(f) != 0)
        abort();
    try_keys();
    try_model((int)(size & 1));
    try_adapter();
    try_tokenizer();
    return 0;
}

#ifdef FUZZ_ALONE
#include <time.h>

static uint64_t state = 1;
static uint64_t draw(uint64_t n)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* Some bytes, or a number of 4 or 8 bytes that is small, huge, or near to what was there. */
static void change(uint8_t *bytes, size_t size)
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
                                    0x7fffffffffffffff,
                                    0x8000000000000000,
                                    UINT64_MAX };
    const size_t head = size < 6144 ? size : 6144;
    const size_t n = draw(3) == 0 ? 8 : draw(2) == 0 ? 4 : 1, at = (size_t)draw(head - 8);
    uint64_t value = draw(2) == 0 ? odd[draw(sizeof odd / sizeof odd[0])]
                                  : gguf_little(bytes + at, (int)n) + draw(9) - 4;
    for (size_t i = 0; i < n; i++, value >>= 8)
        bytes[at + i] = (uint8_t)value;
}

int main(int argc, char **argv)
{
    const time_t end = time(NULL) + (argc > 2 ? atoi(argv[1]) : 0);
    long tries = 0;
    state = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
    for (int i = 3; time(NULL) < end; i = i + 1 < argc ? i + 1 : 3, tries++) {
        static uint8_t bytes[1 << 17];
        FILE *f = fopen(argv[i], "rb");
        const size_t size = f != NULL ? fread(bytes, 1, sizeof bytes, f) : 0;
        if (size < 64 || fclose(f) != 0)
            return 1;
        for (uint64_t n = 1 + draw(3); n > 0; n--)
            change(bytes, size);
        LLVMFuzzerTestOneInput(bytes, draw(8) == 0 ? (size_t)draw(size) : size);
    }
    printf("%ld tries: %ld opened, %ld models, %ld adapters, %ld tokenizers\n", tries, accepted[0],
           accepted[1], accepted[2], accepted[3]);
    remove(path);
    return 0;
}
#endif
