/* test_ledger.c - ledgers of a small training: SHA-256 of NIST's messages; records with equal bytes for every mode,
 * budget, micro-batch, number of threads and instruction set; forged ledgers, each of which must be refused with the
 * record named; files after a power cut at any byte, on a full disk, and continued from a checkpoint. A ledger that
 * was forged as a whole passes the check of its chain: the signature or the repetition must find it. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/ledger_file.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 8, WIDTH = 12, STEPS = 8, EVERY = 2, RECORDS = STEPS / EVERY + 2, ROOM = 1 << 16 };

/* ---- the training ---------------------------------------------------------------------------- */
/* How to train, and what to do wrong. */
typedef struct {
    gckpt_mode mode;
    size_t budget;
    int micro, threads;
    gckpt_isa isa;
    uint64_t seed, data;
    float lr;
    uint32_t flip_bits;
    int flip_step;    /* step before which a bit of `flip` is flipped, or 0 */
    const char *flip; /* parameter */
    int flip_state;   /* if nonzero, its first moment */
} training;

typedef struct {
    gckpt_store *store;
    gckpt_exec *exec;
    int input, target;
    ledger_state now;
} trained;

static gckpt_tensor *dense(gckpt_tensor *x, const char *name, int64_t in, int64_t out)
{
    gckpt_graph *g = gckpt_graph_of(x);
    char bias[32];
    const gckpt_init init = { 0.3f, 0, 0 }, zero = { 0, 0, 0 };
    snprintf(bias, sizeof bias, "%s.bias", name);
    gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(in, out), init);
    return gckpt_linear(x, w, gckpt_param(g, bias, gckpt_shape1(out), zero));
}

static void begin(trained *t, const training *how)
{
    const gckpt_store_desc desc = { .seed = how->seed };
    gckpt_plan_desc plan;
    gckpt_exec_desc exec;
    memset(t, 0, sizeof *t);
    memset(&plan, 0, sizeof plan);
    memset(&exec, 0, sizeof exec);
    t->store = gckpt_store_new(&desc);
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(how->micro, WIDTH));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(how->micro, 3));
    gckpt_tensor *h = x;
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer %d", i);
        h = gckpt_dropout(gckpt_tanh(dense(h, name, WIDTH, WIDTH)), 0.1f);
    }
    const gckpt_term term = { gckpt_mean_squared_error(dense(h, "head", WIDTH, 3), y, NULL), 1, 0 };
    gckpt_store_freeze(t->store, "layer 0*", 1);
    plan.mode = how->mode;
    plan.budget = how->budget;
    plan.batch = ROWS;
    plan.threads = how->threads;
    exec.isa = how->isa;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &plan);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    t->exec = gckpt_exec_new(p, t->store, &exec);
    CHECK_MSG(t->exec != NULL, "%s", gckpt_error_text(t->store));
    t->input = gckpt_id(x), t->target = gckpt_id(y);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
}

static void end(trained *t)
{
    gckpt_exec_free(t->exec);
    gckpt_store_free(t->store);
}

/* Trains a step. */
static void step(trained *t, const training *how)
{
    float x[ROWS * WIDTH], y[ROWS * 3];
    const gckpt_feed feeds[2] = { { t->input, x }, { t->target, y } };
    const gckpt_hyper hyper = gckpt_hyper_lr(how->lr);
    const uint64_t n = gckpt_store_step(t->store);
    gckpt_report report;
    ledger_sha rows;
    uint64_t random = how->data + 1000 * n;
    for (int i = 0; i < ROWS * (WIDTH + 3); i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        float *value = i < ROWS * WIDTH ? &x[i] : &y[i - ROWS * WIDTH];
        *value = (float)(random >> 40) / 16777216.0f - 0.5f;
    }
    if (how->flip_step > 0 && n + 1 == (uint64_t)how->flip_step) {
        gckpt_parameter p;
        CHECK(gckpt_store_get(t->store, gckpt_store_find(t->store, how->flip), &p) == GCKPT_OK);
        float *value = how->flip_state ? &p.state[0][1] : &p.values[1];
        uint32_t bits;
        memcpy(&bits, value, 4);
        bits ^= how->flip_bits;
        memcpy(value, &bits, 4);
    }
    ledger_sha_begin(&rows);
    ledger_sha_words(&rows, x, ROWS * WIDTH);
    ledger_sha_words(&rows, y, ROWS * 3);
    ledger_add_rows(&t->now, &rows);
    CHECK(gckpt_step(t->exec, feeds, 2, ROWS, &hyper, &report) == GCKPT_OK);
    ledger_set_step(&t->now, &report, &hyper);
}

static ledger_sodium sodium;
static int has_sodium;

/* Adds a record to `bytes`; signs it with the secret key unless that is NULL. */
static size_t record(unsigned char *bytes, size_t at, ledger_kind kind, ledger_chain *chain,
                     const trained *t, const char *text, const unsigned char *secret)
{
    unsigned char digests[64 * LEDGER_HASH];
    const size_t n =
        kind == LEDGER_END ? 0 : ledger_digests(t->store, kind == LEDGER_RUN, digests, 64);
    const size_t size = ledger_write(bytes + at, ROOM - at, kind, chain, &t->now, digests, n, text,
                                     text != NULL ? strlen(text) : 0);
    CHECK(size > 0);
    if (secret != NULL)
        sodium.sign(bytes + at + size - LEDGER_SIGNATURE, NULL, chain->hash, LEDGER_HASH, secret);
    return at + size;
}

static void put_run(char *text, size_t size, const training *how, const gckpt_store *store)
{
    ledger_text t = { text, size, 0 };
    ledger_put(&t, "program test_ledger\noption seed ");
    ledger_put_number(&t, how->seed);
    ledger_put(&t, "\n");
    ledger_put_tensors(&t, store);
    CHECK(t.used < size);
}

/* Trains, and makes a ledger of it: a run, a record every `every` steps, and an end. */
static size_t make(unsigned char *bytes, const training *how, int every, const unsigned char *key,
                   const unsigned char *secret)
{
    ledger_chain chain;
    trained t;
    char text[4096];
    memset(&chain, 0, sizeof chain);
    if (key != NULL)
        memcpy(chain.key, key, LEDGER_KEY);
    begin(&t, how);
    put_run(text, sizeof text, how, t.store);
    size_t at = record(bytes, 0, LEDGER_RUN, &chain, &t, text, secret);
    for (int i = 1; i <= STEPS; i++) {
        step(&t, how);
        if (i % every == 0)
            at = record(bytes, at, LEDGER_STEP, &chain, &t, NULL, secret);
    }
    at = record(bytes, at, LEDGER_END, &chain, &t, NULL, secret);
    end(&t);
    return at;
}

/* Repeats the training of a ledger. Returns 1 if all records are equal, else 0 with the text. */
static int repeat(const unsigned char *bytes, size_t size, const training *how, char *text,
                  size_t room)
{
    unsigned char digests[64 * LEDGER_HASH];
    ledger_record r, run;
    trained t;
    int equal = 1;
    begin(&t, how);
    for (size_t at = 0; at < size && equal; at += r.bytes) {
        CHECK(ledger_read(bytes, size, at, &r) == NULL);
        if (r.kind == LEDGER_RUN)
            run = r;
        if (r.kind == LEDGER_END)
            break;
        if (r.state.step < gckpt_store_step(t.store)) { /* a run went back */
            end(&t);
            begin(&t, how);
        }
        while (gckpt_store_step(t.store) < r.state.step)
            step(&t, how);
        const size_t n = ledger_digests(t.store, r.kind == LEDGER_RUN, digests, 64);
        equal = ledger_compare(&run, &r, &t.now, digests, n, text, room);
    }
    end(&t);
    return equal;
}

static const training usual = { .micro = ROWS, .threads = 1, .seed = 1, .data = 7, .lr = 0.01f };
static unsigned char right[ROOM]; /* the ledger of `usual`, not signed */
static size_t right_size, offset[RECORDS + 1];

/* ---- SHA-256 --------------------------------------------------------------------------------- */
static void check_sha(const char *message, size_t repeats, const char *want)
{
    unsigned char hash[LEDGER_HASH], expected[LEDGER_HASH];
    CHECK(ledger_get_hex(want, expected, LEDGER_HASH));
    for (size_t cut = 1; cut<200; cut += repeats> 1 ? 61 : 7) { /* in pieces of any size */
        ledger_sha s;
        size_t in_piece = 0;
        char piece[256];
        ledger_sha_begin(&s);
        for (size_t i = 0; i < repeats * strlen(message); i++) {
            piece[in_piece++] = message[i % strlen(message)];
            if (in_piece == cut)
                ledger_sha_add(&s, piece, in_piece), in_piece = 0;
        }
        ledger_sha_add(&s, piece, in_piece);
        ledger_sha_end(&s, hash);
        CHECK_MSG(memcmp(hash, expected, sizeof hash) == 0, "SHA-256 of %s in pieces of %zu", want,
                  cut);
    }
}

/* Messages of FIPS 180-2, appendix B, and of NIST's examples. */
static void test_sha(void)
{
    check_sha("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_sha(
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmno"
        "pqrsmnopqrstnopqrstu",
        1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    check_sha("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The processor's instructions, where it has them, against plain C. */
static void test_fast_sha(void)
{
    unsigned char bytes[8 * 64];
    uint32_t a[8], b[8];
    for (int tries = 0; tries < 100; tries++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)((i + 1) * (size_t)(tries + 3) * 2654435761u >> 13);
        for (int i = 0; i < 8; i++)
            a[i] = b[i] = 0x9e3779b9u * (uint32_t)(i + 7 * tries);
        ledger_sha_plain(a, bytes, (size_t)tries % 9);
        ledger_sha_blocks(b, bytes, (size_t)tries % 9);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

/* ---- equal on every machine ------------------------------------------------------------------- */
static void test_equal(void)
{
    /* the hash of the ledger's last record; it is the same on every machine, and changes with GCKPT_CONTRACT */
    static const char golden[] = "b84574b514a307779ab9b95c4580894265eab80ce91caa16bb66e8dee96c8542";
    char hash[2 * LEDGER_HASH + 1];
    ledger_text hex = { hash, sizeof hash, 0 };
    ledger_put_hex(&hex, right + right_size - LEDGER_TAIL, LEDGER_HASH);
    CHECK_MSG(strcmp(hash, golden) == 0, "the ledger ends with %s", hash);
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT,
                                        GCKPT_OPTIMAL };
    unsigned char other[ROOM];
    char text[256];
    for (int mode = 0; mode < 4; mode++)
        for (int micro = 1; micro <= ROWS; micro *= 2)
            for (int threads = 1; threads <= 3; threads += 2)
                for (int isa = GCKPT_ISA_AUTO; isa < GCKPT_ISA_COUNT; isa++) {
                    training how = usual;
                    how.mode = modes[mode], how.micro = micro, how.threads = threads;
                    how.isa = (gckpt_isa)isa;
                    if (!gckpt_isa_available(how.isa) || isa == GCKPT_ISA_AMX)
                        continue;
                    const size_t size = make(other, &how, EVERY, NULL, NULL);
                    CHECK_MSG(
                        size == right_size && memcmp(other, right, size) == 0,
                        "mode %d, micro-batch %d, %d threads, instruction set %d: other bytes",
                        mode, micro, threads, isa);
                }
    CHECK_MSG(repeat(right, right_size, &usual, text, sizeof text), "%s", text);
    /* the number of steps between records does not matter */
    for (int every = 1; every <= STEPS; every *= 2) {
        const size_t size = make(other, &usual, every, NULL, NULL);
        CHECK_MSG(repeat(other, size, &usual, text, sizeof text), "every %d: %s", every, text);
    }
}

/* ---- forged ledgers --------------------------------------------------------------------------- */
static int forged; /* number of ledgers that were tried */

/* Checks that a ledger is refused and that the text names the record. */
static void refused(const unsigned char *bytes, size_t size, ledger_check_fn check, int named,
                    const char *what)
{
    ledger_report r;
    char want[32];
    const int passed = ledger_verify(bytes, size, check, &sodium, &r);
    snprintf(want, sizeof want, "record %d ", named);
    forged++;
    CHECK_MSG(!passed, "%s at record %d: accepted", what, named);
    CHECK_MSG(passed || strncmp(r.error, want, strlen(want)) == 0,
              "%s: \"%s\" does not name record %d", what, r.error, named);
}

/* Computes all hashes of a ledger again from record `from` on, as a forger who knows the format. */
static void rehash(unsigned char *bytes, size_t size, size_t from, size_t records)
{
    unsigned char previous[LEDGER_HASH];
    size_t n = 0;
    for (size_t at = 0, next; at < size && n < from + records; at = next, n++) {
        ledger_sha s;
        next = at + (size_t)ledger_get_le(bytes + at + 16, 8);
        if (n > from)
            memcpy(bytes + at + 88, previous, LEDGER_HASH);
        if (n >= from) {
            ledger_hash_head(bytes + at, bytes + at + LEDGER_HEAD - 8);
            ledger_sha_begin(&s);
            ledger_sha_add(&s, bytes + at, next - at - LEDGER_TAIL);
            ledger_sha_end(&s, bytes + next - LEDGER_TAIL);
        }
        memcpy(previous, bytes + next - LEDGER_TAIL, LEDGER_HASH);
    }
}

/* Flips a bit of each field of a run, a step and the end: first alone, then with the record's own
 * hashes computed again. */
static void test_fields(void)
{
    static const struct {
        const char *name;
        size_t at;
    } fields[] = { { "magic", 3 },     { "version", 8 },   { "kind", 12 },    { "size", 16 },
                   { "index", 24 },    { "step", 32 },     { "batches", 40 }, { "loss", 50 },
                   { "lr", 57 },       { "decay", 60 },    { "clip", 80 },    { "count", 84 },
                   { "reserved", 86 }, { "previous", 99 }, { "rows", 130 },   { "key", 160 },
                   { "check", 187 },   { "digest", 200 },  { "middle", 0 },   { "hash", 0 },
                   { "signature", 0 } };
    static const int at_record[] = { 0, 2, RECORDS - 1 };
    unsigned char copy[ROOM];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        for (int k = 0; k < 3; k++) {
            const int n = at_record[k];
            const size_t end = offset[n + 1];
            size_t at = offset[n] + fields[i].at;
            at = strcmp(fields[i].name, "middle") == 0      ? (offset[n] + end) / 2
                 : strcmp(fields[i].name, "hash") == 0      ? end - LEDGER_TAIL + 5
                 : strcmp(fields[i].name, "signature") == 0 ? end - 9
                                                            : at;
            memcpy(copy, right, right_size);
            copy[at] ^= 4;
            refused(copy, right_size, NULL, n, fields[i].name);
            ledger_report r;
            ledger_verify(copy, right_size, NULL, NULL, &r);
            if (i > 0 && strcmp(fields[i].name, "check") != 0 && at < offset[n] + LEDGER_HEAD)
                CHECK_MSG(strstr(r.error, "the hash of its head is wrong") != NULL, "%s", r.error);
        }
    /* with its hashes right again, the record differs from the one that the next continues */
    for (size_t i = 6; i < sizeof fields / sizeof fields[0]; i++) {
        if (i >= 11 &&
            i <= 13) /* other sizes, or another record before: those are refused at once */
            continue;
        memcpy(copy, right, right_size);
        copy[offset[2] + fields[i].at] ^= 4;
        if (fields[i].at == 0 || strcmp(fields[i].name, "check") == 0)
            continue;
        rehash(copy, right_size, 2, 1);
        /* this field is checked by itself, before the next record: batches is 0 here */
        const int itself =
            strcmp(fields[i].name, "key") == 0 || strcmp(fields[i].name, "batches") == 0;
        refused(copy, right_size, NULL, itself ? 2 : 3, fields[i].name);
    }
}

static void test_order(void)
{
    unsigned char copy[ROOM];
    for (int n = 0; n < RECORDS; n++) { /* bytes are missing at the end */
        const size_t cuts[] = { offset[n] + 1,
                                offset[n] + 7,
                                offset[n] + LEDGER_HEAD - 1,
                                offset[n] + LEDGER_HEAD,
                                offset[n + 1] - LEDGER_TAIL,
                                offset[n + 1] - LEDGER_SIGNATURE,
                                offset[n + 1] - 1 };
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
            refused(right, cuts[i], NULL, n, "cut off");
    }
    for (int n = 0; n + 1 < RECORDS;
         n++) { /* a record is missing, twice there, or in another place */
        const size_t size = offset[n + 1] - offset[n], next = offset[n + 2] - offset[n + 1];
        memcpy(copy, right, right_size);
        memmove(copy + offset[n], copy + offset[n + 1], right_size - offset[n + 1]);
        refused(copy, right_size - size, NULL, n, "removed");
        memcpy(copy, right, right_size);
        memmove(copy + offset[n + 1] + size, copy + offset[n + 1], right_size - offset[n + 1]);
        memcpy(copy + offset[n + 1], copy + offset[n], size);
        refused(copy, right_size + size, NULL, n + 1, "repeated");
        memcpy(copy, right, right_size);
        memcpy(copy + offset[n], right + offset[n + 1], next);
        memcpy(copy + offset[n] + next, right + offset[n], size);
        refused(copy, right_size, NULL, n, "swapped");
    }
    /* records of another training, which are right by themselves */
    training other = usual;
    unsigned char others[ROOM];
    other.data = 8;
    CHECK(make(others, &other, EVERY, NULL, NULL) == right_size);
    for (int n = 1; n < RECORDS; n++) {
        memcpy(copy, right, right_size);
        memcpy(copy + offset[n], others + offset[n], offset[n + 1] - offset[n]);
        /* both begin with the same run, so that the first step continues it in both */
        refused(copy, right_size, NULL, n == 1 ? 2 : n, "of another training");
    }
    refused(right, 0, NULL, 0, "empty");
}

/* Ledgers whose whole chain was computed again, which break a rule of its contents. */
static void test_contents(void)
{
    static const struct {
        const char *why; /* of the refusal */
        int record;
        size_t at;
        unsigned char value;
    } cases[] = { { "has a step that is not after", 3, 32, 2 },
                  { "has fewer batches", 3, 40, 4 },
                  { "ends another run", RECORDS - 1, 32, 1 },
                  { "is not of the kind that begins", 0, 12, LEDGER_RUN ^ LEDGER_STEP },
                  { "resumes from a state", 3, 12, LEDGER_STEP ^ LEDGER_RUN },
                  { "has another index", 3, 24, 9 },
                  { "has another key", 3, 152, 1 },
                  { "ends another run", RECORDS - 1, 120, 1 },
                  { "has fewer digests than tensors", 0, 84, 16 },
                  { "has digests of other tensors", 3, 84, 8 },
                  { "has another version", 3, 8, 2 },
                  { "has a kind that does not exist", 3, 12, 8 },
                  { "states a size that cannot be", 3, 84, 1 } };
    static unsigned char copy[ROOM];
    ledger_report r;
    trained t;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(copy, right, right_size);
        copy[offset[cases[i].record] + cases[i].at] ^= cases[i].value;
        rehash(copy, right_size, 0, RECORDS);
        refused(copy, right_size, NULL, cases[i].record, cases[i].why);
        ledger_verify(copy, right_size, NULL, NULL, &r);
        CHECK_MSG(strstr(r.error, cases[i].why) != NULL, "\"%s\", not \"%s\"", r.error,
                  cases[i].why);
    }
    /* a step after an end, without a run between them */
    memcpy(copy, right, right_size);
    CHECK(ledger_verify(copy, right_size, NULL, NULL, &r));
    begin(&t, &usual);
    t.now = r.state;
    t.now.step++;
    refused(copy, record(copy, right_size, LEDGER_STEP, &r.end, &t, NULL, NULL), NULL, RECORDS,
            "a step after an end");
    end(&t);
}

/* Checks that the chain is whole, but that a repetition names `want`. */
static void found(const unsigned char *bytes, size_t size, const training *how, const char *want,
                  const char *what)
{
    ledger_report r;
    char text[256];
    forged++;
    CHECK_MSG(ledger_verify(bytes, size, NULL, NULL, &r), "%s: %s", what, r.error);
    CHECK_MSG(!repeat(bytes, size, how, text, sizeof text) && strcmp(text, want) == 0,
              "%s: \"%s\", not \"%s\"", what, text, want);
}

/* A forger computes the whole chain again: only the repetition finds the wrong record. */
static void test_repetition(void)
{
    static const struct {
        size_t at;
        const char *want;
    } cases[] = {
        { 48, "record 2, step 4: the loss differs" },
        { 57, "record 2, step 4: hyperparameter lr differs" },
        { 60, "record 2, step 4: hyperparameter weight_decay differs" },
        { 120, "record 2, step 4: other rows were fed" },
        { 192, "record 2, step 4: the first tensor that differs is values 12x12 layer 1" },
        { 192 + 32, "record 2, step 4: the first tensor that differs is state0 12x12 layer 1" },
        { 192 + 64, "record 2, step 4: the first tensor that differs is state1 12x12 layer 1" },
        { 192 + 32 * 23, "record 2, step 4: the first tensor that differs is state1 3 head.bias" }
    };
    unsigned char copy[ROOM];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(copy, right, right_size);
        copy[offset[2] + cases[i].at] ^= 1;
        rehash(copy, right_size, 0, RECORDS);
        found(copy, right_size, &usual, cases[i].want, "one field");
    }
    /* trainings that did something else than they state */
    training how = usual;
    how.seed = 2;
    found(copy, make(copy, &how, EVERY, NULL, NULL), &usual,
          "record 0, step 0: the first tensor that differs is values 12x12 layer 1", "seed");
    how = usual, how.data = 8;
    found(copy, make(copy, &how, EVERY, NULL, NULL), &usual,
          "record 1, step 2: other rows were fed", "data");
    how = usual, how.lr = 0.02f;
    found(copy, make(copy, &how, EVERY, NULL, NULL), &usual,
          "record 1, step 2: hyperparameter lr differs", "learning rate");
    how = usual, how.flip_bits = 1, how.flip_step = 5, how.flip = "layer 2", how.flip_bits = 1;
    found(copy, make(copy, &how, 1, NULL, NULL), &usual,
          "record 5, step 5: the first tensor that differs is values 12x12 layer 2", "a weight");
    how.flip = "head.bias", how.flip_state = 1;
    found(copy, make(copy, &how, 1, NULL, NULL), &usual,
          "record 5, step 5: the first tensor that differs is state0 3 head.bias", "a moment");
    how.flip = "layer 0", how.flip_state = 0, how.flip_step = 1, how.flip_bits = 1u << 20;
    found(copy, make(copy, &how, 1, NULL, NULL), &usual,
          "record 1, step 1: the first tensor that differs is values 12x12 layer 1",
          "a frozen weight");
}

static void test_signatures(void)
{
    unsigned char seed[LEDGER_SEED] = { 1 }, key[2][LEDGER_KEY], secret[2][LEDGER_SECRET];
    static unsigned char signed_[ROOM], copy[ROOM];
    ledger_report r;
    if (!has_sodium) {
        puts("test_ledger: libsodium is not installed, so signatures are not tested");
        return;
    }
    sodium.keypair(key[0], secret[0], seed);
    seed[0] = 2;
    sodium.keypair(key[1], secret[1], seed);
    const size_t size = make(signed_, &usual, EVERY, key[0], secret[0]);
    CHECK_MSG(ledger_verify(signed_, size, ledger_check_sodium, &sodium, &r), "%s", r.error);
    CHECK(r.has_key && r.has_end && memcmp(r.end.key, key[0], LEDGER_KEY) == 0);
    for (int n = 0; n < RECORDS; n++) {
        memcpy(copy, signed_, size); /* forged in one record, then the chain computed again */
        copy[offset[n] + 50] ^= 1;
        rehash(copy, size, 0, RECORDS);
        if (n > 0 && n + 2 < RECORDS) /* the loss of a beginning is 0, that of an end is known */
            CHECK_MSG(ledger_verify(copy, size, NULL, NULL, &r), "%s", r.error);
        refused(copy, size, ledger_check_sodium, n, "signed by nobody");
        memcpy(copy, signed_, size); /* a signature from another record */
        memcpy(copy + offset[n + 1] - LEDGER_SIGNATURE,
               signed_ + offset[(n + 1) % RECORDS + 1] - LEDGER_SIGNATURE, LEDGER_SIGNATURE);
        refused(copy, size, ledger_check_sodium, n, "signature of another record");
        memcpy(copy, signed_, size);
        memset(copy + offset[n + 1] - LEDGER_SIGNATURE, 0, LEDGER_SIGNATURE);
        refused(copy, size, ledger_check_sodium, n, "signature removed");
    }
    /* the key of one and the signatures of another */
    refused(copy, make(copy, &usual, EVERY, key[0], secret[1]), ledger_check_sodium, 0,
            "another key");
    CHECK(make(copy, &usual, EVERY, key[1], secret[1]) == size); /* whole, but its key is another */
    CHECK(ledger_verify(copy, size, ledger_check_sodium, &sodium, &r) &&
          memcmp(r.end.key, key[0], LEDGER_KEY) != 0);
}

/* ---- files ----------------------------------------------------------------------------------- */
/* the process's own, since checks run at the same time in one folder */
static char path[64], key_path[64];

static size_t read_file(unsigned char *bytes)
{
    FILE *f = fopen(path, "rb");
    const size_t n = f != NULL ? fread(bytes, 1, ROOM, f) : 0;
    if (f != NULL)
        fclose(f);
    return n;
}

static void write_file(const unsigned char *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, size, f) == size);
    if (f != NULL)
        fclose(f);
}

/* Opens the file as a training that begins, or continues, at the state `now`. */
static int open_file(ledger_file *f, trained *t, const char *key)
{
    static const char text[] = "program test_ledger\noption seed 1\n";
    memset(f, 0, sizeof *f);
    f->now = t->now;
    return ledger_file_open(f, path, key, t->store, text, sizeof text - 1);
}

/* Trains to `last`, with a record every two steps. */
static int train_to(ledger_file *f, trained *t, uint64_t last)
{
    int failed = 0;
    while (gckpt_store_step(t->store) < last && !failed) {
        t->now = f->now;
        step(t, &usual);
        f->now = t->now;
        failed = f->now.step % EVERY == 0 && ledger_file_append(f, LEDGER_STEP, t->store) != 0;
    }
    return failed;
}

/* Brings a new training to a step, as a checkpoint does. */
static void resume(trained *t, uint64_t at)
{
    begin(t, &usual);
    while (gckpt_store_step(t->store) < at)
        step(t, &usual);
    memset(&t->now, 0, sizeof t->now);
    t->now.step = at;
}

/* Cuts the power at bytes of the last record: its beginning, zeros, or its end remain. A
 * training that continues must cut it off, lose no other record, and repeat equally. */
static void test_power(void)
{
    unsigned char whole[ROOM], cut[ROOM], after[ROOM];
    char text[256];
    ledger_file f;
    ledger_report r;
    trained t;
    remove(path);
    resume(&t, 0);
    CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
    CHECK(train_to(&f, &t, 4) == 0);
    const off_t before = f.size;
    CHECK(train_to(&f, &t, 6) == 0);
    ledger_file_close(&f);
    end(&t);
    const size_t size = read_file(whole), begins = (size_t)before;
    for (size_t at = begins + 1; at < size; at += at + 13 < size ? 13 : 1)
        for (int kind = 0; kind < 3; kind++) {
            memcpy(cut, whole, size);
            if (kind == 1) /* the file has its length, but the rest was not written */
                memset(cut + at, 0, size - at);
            if (kind == 2) /* a later part was written, an earlier one not */
                memset(cut + begins, 0, at - begins);
            write_file(cut, kind == 0 ? at : size);
            if (kind == 1 && memcmp(cut, whole, size) == 0) /* the bytes were 0 anyway */
                continue;
            resume(&t, 4);
            CHECK_MSG(open_file(&f, &t, NULL) == 0, "cut at %zu of %zu: %s", at, size, f.error);
            CHECK_MSG(f.cut == (kind == 0 ? at : size) - begins, "cut at %zu: %zu bytes", at,
                      f.cut);
            CHECK(train_to(&f, &t, 8) == 0);
            CHECK(ledger_file_append(&f, LEDGER_END, t.store) == 0);
            ledger_file_close(&f);
            end(&t);
            const size_t n = read_file(after);
            CHECK_MSG(memcmp(after, whole, begins) == 0 &&
                          ledger_verify(after, n, NULL, NULL, &r) && r.has_end && r.runs == 2,
                      "cut at %zu: %s", at, r.error);
            if (check_sampled((unsigned)at, 5))
                CHECK_MSG(repeat(after, n, &usual, text, sizeof text), "%s", text);
        }
    /* damage before the last record is no power cut: nothing is cut off */
    for (size_t at = 5; at < begins; at += 97) {
        memcpy(cut, whole, size);
        cut[at] ^= 1;
        write_file(cut, size);
        resume(&t, 4);
        CHECK_MSG(open_file(&f, &t, NULL) != 0 && strstr(f.error, "record") != NULL,
                  "damage at %zu: %s", at, f.error);
        ledger_file_close(&f);
        end(&t);
        CHECK(read_file(after) == size && memcmp(after, cut, size) == 0);
    }
    /* nor are a damaged record with a part of the next one, and a file that is no ledger */
    for (int kind = 0; kind < 2; kind++) {
        memcpy(cut, whole, size);
        cut[begins + LEDGER_HEAD + 40] ^= 1;
        memcpy(cut + size, whole, 100);
        if (kind == 1)
            memset(cut, 'a', size + 100);
        write_file(cut, size + 100);
        resume(&t, 4);
        CHECK(open_file(&f, &t, NULL) != 0);
        ledger_file_close(&f);
        end(&t);
        CHECK(read_file(after) == size + 100 && memcmp(after, cut, size + 100) == 0);
    }
}

/* Opens a file of these bytes as a ledger at step `at`: it must be refused with `why`, and keep its
 * bytes. */
static void kept(const unsigned char *bytes, size_t size, uint64_t at, const char *key,
                 const char *why, const char *what)
{
    unsigned char after[ROOM];
    ledger_file f;
    trained t;
    write_file(bytes, size);
    resume(&t, at);
    CHECK_MSG(open_file(&f, &t, key) != 0 && strstr(f.error, why) != NULL, "%s: %s", what, f.error);
    ledger_file_close(&f);
    end(&t);
    CHECK_MSG(read_file(after) == size && memcmp(after, bytes, size) == 0, "%s: changed", what);
}

/* Files that no power cut leaves: none may be cut. The ledger `right` has records of steps 0 to 8. */
static void test_kept(void)
{
    static const char text[] = "gckptled is the first word of these notes, which are no ledger";
    unsigned char copy[ROOM];
    kept((const unsigned char *)text, sizeof text, 0, NULL, "not complete", "a text");
    memcpy(copy, text, sizeof text);
    memset(copy + sizeof text, 'a', 400);
    kept(copy, sizeof text + 400, 0, NULL, "is damaged", "a long text");
    for (int n = 0; n < 3; n += 2) { /* the first record, and a later one which is the last */
        const size_t size = n == 0 ? right_size : offset[3];
        memcpy(copy, right, size);
        copy[offset[n] + 8] = 2;
        ledger_hash_head(copy + offset[n], copy + offset[n] + LEDGER_HEAD - 8);
        kept(copy, size, 2, NULL, "another version of the format", "another version");
        kept(copy, offset[n] + LEDGER_HEAD, 2, NULL, "another version", "another version, cut");
        if (n == 0)
            kept(copy, 20, 0, NULL, "not complete", "a part of a head of another version");
        memcpy(copy, right, size);
        copy[offset[n] + 12] = 9;
        ledger_hash_head(copy + offset[n], copy + offset[n] + LEDGER_HEAD - 8);
        kept(copy, size, 2, NULL, "a kind that does not exist", "another kind");
    }
    memcpy(copy, right, right_size);
    copy[offset[1] - LEDGER_TAIL - 9] ^= 1; /* the only record, which has its length */
    kept(copy, offset[1], 0, NULL, "its hash is wrong", "a damaged first record");
    /* the last record is whole, but not right: another index, chain, key */
    static const struct {
        size_t at;
        const char *why;
    } whole[] = { { 24, "has another index" },
                  { 88, "the chain is broken" },
                  { 152, "another key" } };
    for (size_t i = 0; i < 3; i++) {
        memcpy(copy, right, right_size);
        unsigned char *const last = copy + offset[2];
        const size_t bytes = offset[3] - offset[2];
        ledger_sha sha;
        last[whole[i].at] ^= 64;
        ledger_hash_head(last, last + LEDGER_HEAD - 8);
        ledger_sha_begin(&sha);
        ledger_sha_add(&sha, last, bytes - LEDGER_TAIL);
        ledger_sha_end(&sha, last + bytes - LEDGER_TAIL);
        kept(copy, offset[3], 2, NULL, whole[i].why, whole[i].why);
    }
    if (has_sodium) {
        unsigned char seed[LEDGER_SEED] = { 1 }, key[LEDGER_KEY], secret[LEDGER_SECRET];
        char hex[2 * LEDGER_SEED + 1];
        ledger_text digits = { hex, sizeof hex, 0 };
        ledger_put_hex(&digits, seed, sizeof seed);
        remove(key_path);
        FILE *f = fopen(key_path, "w");
        CHECK(f != NULL && fputs(hex, f) >= 0 && fclose(f) == 0);
        sodium.keypair(key, secret, seed);
        make(copy, &usual, EVERY, key, secret);
        copy[offset[3] - 9] ^= 1;
        kept(copy, offset[3], 2, key_path, "has a wrong signature", "a wrong signature");
        remove(key_path);
    }
}

/* A training whose frozen weights, or whose number of batches, are others does not continue a ledger. */
static void test_frozen(void)
{
    ledger_file f;
    trained t;
    gckpt_parameter p;
    remove(path);
    resume(&t, 0);
    CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
    ledger_file_close(&f);
    end(&t);
    resume(&t, 0);
    for (int i = 0; gckpt_store_peek(t.store, i, &p) == GCKPT_OK; i++)
        if (strcmp(p.name, "layer 0") == 0)
            ((float *)(uintptr_t)p.values)[3] += 1;
    CHECK_MSG(open_file(&f, &t, NULL) != 0 && strstr(f.error, "frozen weights are others") != NULL,
              "%s", f.error);
    ledger_file_close(&f);
    end(&t);
    resume(&t, 0);
    memset(&f, 0, sizeof f);
    f.fed = 3;
    CHECK(ledger_file_open(&f, path, NULL, t.store, "", 0) != 0 &&
          strstr(f.error, "has 0 batches at step 0, but the checkpoint was saved after 3") != NULL);
    ledger_file_close(&f);
    end(&t);
    remove(path); /* a ledger that is refused is not created */
    resume(&t, 0);
    CHECK(open_file(&f, &t, "README.md") != 0 && access(path, F_OK) != 0);
    ledger_file_close(&f);
    end(&t);
}

/* Many runs that follow each other, each from the state of the one before. */
static void test_many_runs(void)
{
    enum { RUNS = 4000, EACH = 320 };
    static unsigned char bytes[RUNS * EACH];
    const unsigned char digest[LEDGER_HASH] = { 1 };
    ledger_chain chain;
    ledger_state now;
    ledger_report r;
    size_t size = 0;
    memset(&chain, 0, sizeof chain);
    memset(&now, 0, sizeof now);
    for (int i = 0; i < RUNS; i++)
        size += ledger_write(bytes + size, sizeof bytes - size, LEDGER_RUN, &chain, &now, digest, 1,
                             NULL, 0);
    CHECK_MSG(ledger_verify(bytes, size, NULL, NULL, &r) && r.runs == RUNS, "%s", r.error);
    memset(&chain, 0, sizeof chain);
    size = ledger_write(bytes, sizeof bytes, LEDGER_RUN, &chain, &now, digest, 0, NULL, 0);
    CHECK(!ledger_verify(bytes, size, NULL, NULL, &r) && strstr(r.error, "has no digests") != NULL);
}

/* Continues from checkpoints: records after them stay, and are no longer those of the training. */
static void test_resume(void)
{
    unsigned char bytes[ROOM];
    char text[256];
    ledger_file f, g;
    ledger_report r;
    ledger_record found_;
    trained t;
    remove(path);
    resume(&t, 0);
    CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
    CHECK(train_to(&f, &t, 6) == 0 && f.chain.index == 4);
    ledger_file_close(&f);
    end(&t);
    resume(&t, 4);
    CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
    CHECK(f.now.step == 4 && f.now.batches == 4 && f.chain.index == 5);
    CHECK(!ledger_find(bytes, read_file(bytes), 6, &found_)); /* the training went back before it */
    CHECK(train_to(&f, &t, 8) == 0 && ledger_file_append(&f, LEDGER_END, t.store) == 0);
    ledger_file_close(&f);
    const size_t size = read_file(bytes);
    CHECK_MSG(ledger_verify(bytes, size, NULL, NULL, &r), "%s", r.error);
    CHECK(ledger_find(bytes, size, 4, &found_) && found_.index == 4 && found_.kind == LEDGER_RUN);
    CHECK(ledger_find(bytes, size, 6, &found_) && found_.index == 5);
    CHECK_MSG(repeat(bytes, size, &usual, text, sizeof text), "%s", text);
    end(&t);
    /* the first record again may be resumed from; a step without a record, and other weights, not */
    resume(&t, 3);
    CHECK(open_file(&f, &t, NULL) != 0 && strstr(f.error, "has no record of step 3") != NULL);
    ledger_file_close(&f);
    end(&t);
    training other = usual;
    other.flip_step = 2, other.flip = "layer 3", other.flip_bits = 1;
    begin(&t, &other);
    step(&t, &other), step(&t, &other);
    CHECK(open_file(&f, &t, NULL) != 0 &&
          strstr(f.error, "is of another training: record 1, step 2: "
                          "the first tensor that differs") != NULL);
    ledger_file_close(&f);
    end(&t);
    CHECK(read_file(bytes) == size);
    resume(&t, 8);
    CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
    const pid_t child = fork(); /* a lock holds against other processes */
    if (child == 0)
        _exit(open_file(&g, &t, NULL) != 0 && strstr(g.error, "another program is writing") != NULL
                  ? 0
                  : 1);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ledger_file_close(&f);
    if (has_sodium) {
        remove(key_path);
        CHECK(open_file(&f, &t, key_path) != 0 &&
              strstr(f.error, "was begun without a key") != NULL);
        ledger_file_close(&f);
        remove(path);
        t.now.batches = 8;
        CHECK_MSG(open_file(&f, &t, key_path) == 0, "%s", f.error);
        CHECK(ledger_file_append(&f, LEDGER_END, t.store) == 0);
        ledger_file_close(&f);
        const size_t n = read_file(bytes);
        CHECK_MSG(ledger_verify(bytes, n, ledger_check_sodium, &sodium, &r) && r.has_key, "%s",
                  r.error);
        CHECK_MSG(open_file(&f, &t, key_path) == 0, "%s", f.error); /* the same key again */
        ledger_file_close(&f);
        CHECK(open_file(&f, &t, NULL) != 0 && strstr(f.error, "is signed: give its key") != NULL);
        ledger_file_close(&f);
        CHECK(open_file(&f, &t, "README.md") != 0 &&
              strstr(f.error, "README.md is not a key") != NULL);
        ledger_file_close(&f);
    }
    end(&t);
}

/* Fills the disk within a record: the file keeps its whole records, and goes on when there is space. */
static void test_full_disk(void)
{
    unsigned char bytes[ROOM];
    struct rlimit all, few;
    ledger_report r;
    ledger_file f;
    trained t;
    remove(path);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &all) == 0);
    few = all;
    for (rlim_t more = 0; more < 900; more += 150) {
        remove(path);
        resume(&t, 0);
        CHECK_MSG(open_file(&f, &t, NULL) == 0, "%s", f.error);
        CHECK(train_to(&f, &t, 2) == 0);
        const size_t size = (size_t)f.size;
        few.rlim_cur = (rlim_t)size + more;
        CHECK(setrlimit(RLIMIT_FSIZE, &few) == 0);
        CHECK(train_to(&f, &t, 4) != 0 && strstr(f.error, "its 2 records are whole") != NULL);
        CHECK(setrlimit(RLIMIT_FSIZE, &all) == 0);
        CHECK(read_file(bytes) == size && ledger_verify(bytes, size, NULL, NULL, &r));
        CHECK(train_to(&f, &t, 6) == 0 && ledger_file_append(&f, LEDGER_END, t.store) == 0);
        ledger_file_close(&f);
        end(&t);
        const size_t n = read_file(bytes);
        CHECK_MSG(ledger_verify(bytes, n, NULL, NULL, &r) && r.state.step == 6, "%s", r.error);
    }
    resume(&t, 0);
    f.path = "build/no such folder/a.ledger";
    memset(&f, 0, sizeof f);
    CHECK(ledger_file_open(&f, "build/no such folder/a.ledger", NULL, t.store, "", 0) != 0 &&
          strstr(f.error, "No such file") != NULL);
    ledger_file_close(&f);
    end(&t);
}

int main(void)
{
    ledger_report r;
    snprintf(path, sizeof path, "build/test_ledger_%ld.ledger", (long)getpid());
    snprintf(key_path, sizeof key_path, "build/test_ledger_%ld.key", (long)getpid());
    has_sodium = ledger_load_sodium(&sodium);
    right_size = make(right, &usual, EVERY, NULL, NULL);
    CHECK_MSG(ledger_verify(right, right_size, NULL, NULL, &r) && r.end.index == RECORDS &&
                  r.has_end,
              "%s", r.error);
    for (int n = 0; n < RECORDS; n++)
        offset[n + 1] = offset[n] + (size_t)ledger_get_le(right + offset[n] + 16, 8);
    for (int n = 1; n < RECORDS; n++) /* a ledger cut off between records has no end */
        CHECK(ledger_verify(right, offset[n], NULL, NULL, &r) && !r.has_end), forged++;
    test_sha();
    test_fast_sha();
    test_equal();
    test_fields();
    test_order();
    test_contents();
    test_repetition();
    test_signatures();
    CHECK_MSG(forged >= 40, "only %d forged ledgers", forged);
    printf("%d forged ledgers\n", forged);
    test_power();
    test_kept();
    test_frozen();
    test_many_runs();
    test_resume();
    test_full_disk();
    remove(path);
    remove(key_path);
    return check_report("test_ledger");
}
