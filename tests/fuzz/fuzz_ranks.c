/* fuzz_ranks.c - two or four threads as ranks train a net made from the input, save it and load it, with any shards,
 * virtual ranks, modes and kinds of steps. In some runs a transport fails, hangs or loses a rank at any call, or an
 * allocation fails. Before the save there may be a file, complete or damaged.
 *
 * The rules: Sanitizers report nothing, and the ranks keep the transport's rules. Without a fault, the steps give
 * the bits of one process with the same number of virtual ranks, any number of ranks loads the checkpoint to the
 * same bits. With a fault, all calls return, errors have a text, and
 * the old or the new checkpoint can be loaded. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#define PLAN_CHECK_OFF "plans of several ranks are not printed"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_net.h"
#include "tests/dist/rank_threads.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FEEDS = 24, RANKS = 4 };

typedef struct {
    heap memory;
    gckpt_store *s;
    gckpt_graph *g;
    fuzz_net net;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_feed feed[FEEDS];
    int feeds;
    gckpt_result result, saved;
    gckpt_report report[2];
    uint64_t hash;
} one;
typedef struct {
    int ranks, virtual_ranks, way, saves, table;
    int64_t rows, batch; /* rows of a step; batch of a plan */
    char path[600];
    one rank[RANKS];
} trial;

static char folder[512];
static long tried, planned, trained, faults, saves, loads;

static size_t row_bytes(const gckpt_graph *g, int id)
{
    gckpt_node node;
    size_t size = 0;
    if (gckpt_graph_node(g, id, &node) == GCKPT_OK)
        for (size = node.type == GCKPT_U8 ? 1 : 4; node.shape.n-- > 1;)
            size *= (size_t)node.shape.d[node.shape.n];
    return size;
}

/* ---- one rank ---- */
static void train(ranks_world *w, int rank, void *context)
{
    trial *t = (trial *)context;
    one *r = &t->rank[rank];
    gckpt_feed f[FEEDS];
    gckpt_hyper h = gckpt_hyper_lr(0.02f);
    int64_t first = 0;
    h.clip = 0.5f;
    if (w)
        gckpt_plan_rank_rows(r->p, t->rows, rank, &first);
    for (int i = 0; i < r->feeds; i++) {
        f[i].input = r->feed[i].input;
        f[i].data = (const char *)r->feed[i].data + (size_t)first * row_bytes(r->g, f[i].input);
    }
    for (int i = 0; i < 2 && r->result == GCKPT_OK; i++) {
        if (t->way == 1 && i == 1) {
            r->result = gckpt_step_start(r->e, f, r->feeds, t->rows, &h);
            for (r->result = r->result == GCKPT_OK ? GCKPT_MORE : r->result;
                 r->result == GCKPT_MORE;)
                r->result = gckpt_run_some(r->e, 3, &r->report[i]);
        } else
            r->result = gckpt_step(r->e, f, r->feeds, t->rows, &h, &r->report[i]);
    }
    if (w && r->result == GCKPT_OK)
        r->result = gckpt_gather_values(r->e, -1, NULL, &r->hash);
    else if (!w)
        r->hash = gckpt_store_hash(r->s);
    if (w && t->saves)
        r->saved = gckpt_ranks_save(r->e, t->path);
}

static gckpt_store *store_of(heap *memory, int rank, int ranks, gckpt_shard shard)
{
    gckpt_store_desc d;
    memset(&d, 0, sizeof d);
    d.memory = heap_memory(memory), d.seed = 7;
    gckpt_store *s = gckpt_store_new(&d);
    if (s && ranks > 1)
        MUST(gckpt_store_ranks(s, rank, ranks, shard) == GCKPT_OK, "%s", gckpt_error_text(s));
    return s;
}

/* Makes store, graph, plan and executor of a rank. Returns 0 if one of them cannot be made. */
static int prepare(trial *t, int rank, gckpt_shard shard, bytes net, int64_t rows,
                   const gckpt_plan_desc *desc, gckpt_exec_desc x, bytes in)
{
    static const gckpt_init small = { 0.1f, 0, 0 };
    one *r = &t->rank[rank];
    gckpt_plan_desc d = *desc;
    r->s = store_of(&r->memory, rank, t->ranks, shard);
    d.memory = x.memory = heap_memory(&r->memory);
    r->g = gckpt_graph_new(r->s, &d.memory);
    net_make(&r->net, r->g, net, rows);
    /* adds a parameter of two blocks, which is large enough to be sharded */
    if (t->table && r->net.terms < NET_TERMS) {
        T *w = gckpt_param(r->g, "table", gckpt_shape2(1050, 4), small);
        gckpt_term *term = &r->net.term[r->net.terms++];
        term->loss = gckpt_sum_loss(gckpt_mul(w, w)), term->weight = 0.01f, term->regulariser = 1;
    }
    r->feeds = net_feed_all(r->g, &in, r->feed, FEEDS);
    r->p = gckpt_plan_new(r->g, r->net.term, r->net.terms, &d);
    MUST(r->p || gckpt_error_text(r->g)[0], "no text");
    r->e = r->p && r->feeds >= 0 ? gckpt_exec_new(r->p, r->s, &x) : NULL;
    return r->e != NULL;
}

static void end(trial *t)
{
    for (int i = 0; i < t->ranks; i++) {
        one *r = &t->rank[i];
        util_free(r->e, r->p, r->g, r->s);
        MUST(r->memory.live == 0 && r->memory.blocks == 0 && r->memory.wrong_sizes == 0,
             "rank %d: %lu bytes are left", i, (unsigned long)r->memory.live);
    }
}

/* ---- the folder ---- */
static void write_file(const char *name, const void *at, size_t size)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(at, 1, size, f) == size && fclose(f) == 0, "%s", path);
}
static void empty_folder(void)
{
    char path[1200];
    struct dirent *e;
    DIR *d = opendir(folder);
    MUST(d, "%s", folder);
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            MUST(remove(path) == 0, "%s", path);
        }
    closedir(d);
}

static int is_there(const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Loads the checkpoint into the stores of `ranks` ranks. Returns 1, or 0 if a load is refused with an error text. If
 * ranks is 1 and the save succeeded, the values must have the bits that were saved. */
static int load(const trial *t, int ranks, gckpt_shard shard, gckpt_result *result)
{
    uint64_t h = 0;
    for (int i = 0; i < ranks; i++) {
        heap memory;
        memset(&memory, 0, sizeof memory);
        gckpt_store *s = store_of(&memory, i, ranks, shard);
        *result = gckpt_store_load(s, t->path, NULL);
        MUST(*result == GCKPT_OK || gckpt_error_text(s)[0], "no text");
        h = *result == GCKPT_OK && ranks == 1 ? gckpt_store_hash(s) : h;
        if (*result == GCKPT_OK && ranks == 1 && t->rank[0].saved == GCKPT_OK &&
            t->rank[0].result == GCKPT_OK)
            MUST(h == t->rank[0].hash, "what was saved is loaded to other bits");
        gckpt_store_free(s);
        MUST(memory.live == 0, "bytes are left");
        if (*result != GCKPT_OK)
            return 0;
    }
    loads++;
    return 1;
}

/* ---- one input ---- */
static void try_one(bytes in)
{
    static const char *const names[] = { "ckpt",     "two words", "a.1-0.safetensors", "%s%n",
                                         "\xc3\xbc", "\xff",      "ckpt.gckpt-tmp3" };
    static trial t, alone, old;
    ranks_world w;
    memset(&t, 0, sizeof t), memset(&alone, 0, sizeof alone);
    const bytes net = part(&in, byte(&in) % 72);
    const unsigned a = byte(&in), b = byte(&in), c = byte(&in);
    const gckpt_shard shard = (gckpt_shard)(a >> 6);
    t.ranks = a & 1 ? 4 : 2, t.virtual_ranks = t.ranks << (a >> 1) % 3 % (t.ranks == 4 ? 2 : 3);
    const int64_t rows = 1 + (a >> 3 & 1);
    t.batch = t.virtual_ranks * rows, t.rows = a & 16 && t.batch > 1 ? t.batch - b % 3 % t.batch : t.batch;
    t.way = a >> 5 & 1, t.saves = c % 4 != 3;
    t.rows = t.rows < 1 ? 1 : t.rows;
    gckpt_plan_desc d;
    gckpt_exec_desc x;
    memset(&d, 0, sizeof d), memset(&x, 0, sizeof x);
    d.ranks.virtual_ranks = t.virtual_ranks, d.batch = t.batch;
    d.optimiser = b & 1 ? GCKPT_SGD : b & 2 ? GCKPT_MOMENTUM : GCKPT_ADAMW;
    d.mode = GCKPT_STORE_ALL;
    x.isa = b % 32 == 9 ? GCKPT_ISA_AUTO : GCKPT_ISA_PLAIN;
    tried++;
    t.table = alone.table = (b & 48) == 48;
    alone.ranks = 1, alone.rows = t.rows, alone.batch = t.batch;
    bytes feeds = in;
    if (!prepare(&alone, 0, GCKPT_SHARD_NONE, net, rows, &d, x, feeds)) {
        end(&alone);
        return;
    }
    planned++;
    train(NULL, 0, &alone);
    /* files that exist before */
    byte(&in), byte(&in);
    const char *name = names[c / 4 % 2 ? 0 : c / 8 % 7];
    const unsigned before = byte(&in), f = byte(&in);
    /* no saves with this fault: a thread that ends within a save does not free its names */
    if (f % 2 && f & 2 && f >> 4 & 2)
        t.saves = 0;
    snprintf(t.path, sizeof t.path, "%s/%s", folder, name);
    d.mode = b & 4 ? GCKPT_MEMORY_POOR : b & 8 ? GCKPT_SQRT : GCKPT_STORE_ALL;
    int sound_before = 0, ready = 1;
    ranks_open(&w, t.ranks);
    w.blocking = f % 16 == 5;
    for (int i = 0; i < t.ranks && ready; i++) {
        x.transport = &w.rank[i].transport;
        ready = prepare(&t, i, shard, net, rows, &d, x, feeds);
    }
    if (ready && t.saves && before & 1) { /* first lets the ranks save a file, which may then be damaged */
        old = t;
        ranks_world other;
        ranks_open(&other, t.ranks);
        gckpt_exec *kept[RANKS];
        for (int i = 0; i < t.ranks; i++) {
            kept[i] = t.rank[i].e;
            x.transport = &other.rank[i].transport;
            x.memory = heap_memory(&t.rank[i].memory);
            t.rank[i].e = gckpt_exec_new(t.rank[i].p, t.rank[i].s, &x);
            MUST(t.rank[i].e, "%s", gckpt_error_text(t.rank[i].s));
        }
        const int way = t.way;
        ranks_run(&other, train, &t);
        t.way = way;
        MUST(other.wrong == 0, "%s", other.text);
        ranks_close(&other);
        sound_before = t.rank[0].saved == GCKPT_OK;
        for (int i = 0; i < t.ranks; i++) {
            gckpt_exec_free(t.rank[i].e);
            t.rank[i].e = kept[i];
            t.rank[i].result = t.rank[i].saved = GCKPT_OK;
        }
    }
    if (before & 2 && t.saves && is_there(name)) {
        FILE *at = fopen(t.path, "rb+");
        MUST(at && fseek(at, byte(&in) * 8, SEEK_SET) == 0 && putc((int)byte(&in), at) != EOF &&
                 fclose(at) == 0,
             "%s", t.path);
        sound_before = 0;
    } else if (before & 4 && t.saves && !is_there(name))
        write_file(name, "{\"gckpt\":[1,7,8],\"files\":{", before & 8 ? 10 : 26);
    /* chooses the fault of this run: of the transport, or of memory */
    const int faulty = f % 2;
    if (faulty && f & 2) {
        const ranks_fault fault = { (int)(f >> 2) % t.ranks, f & 8 ? RANKS_DONE : RANKS_EXCHANGE,
                                    (ranks_how)((f >> 4) % 4), 1 + byte(&in) % 120 };
        w.fault = fault;
    } else if (faulty && ready)
        t.rank[f % (unsigned)t.ranks].memory.fail_at =
            t.rank[f % (unsigned)t.ranks].memory.calls + 1 + byte(&in) % 30;
    if (ready) {
        ranks_run(&w, train, &t);
        MUST(w.wrong == 0, "%s", w.text);
        trained++, faults += faulty;
        for (int i = 0; i < t.ranks; i++) {
            one *r = &t.rank[i];
            MUST(faulty || alone.rank[0].result != GCKPT_OK || before & 1 || r->result == GCKPT_OK,
                 "rank %d: %s", i, gckpt_error_text(r->e));
            MUST(r->result < GCKPT_E_SHAPE || gckpt_error_text(r->e)[0], "no text");
            if (faulty || r->result != GCKPT_OK || alone.rank[0].result != GCKPT_OK || before & 1)
                continue;
            MUST(r->hash == alone.rank[0].hash, "rank %d of %d has other weights than one process",
                 i, t.ranks);
            for (int k = 0; k < 2; k++) {
                const double u = r->report[k].loss, v = alone.rank[0].report[k].loss;
                MUST((u == v || (u != u && v != v)) &&
                         r->report[k].count == alone.rank[0].report[k].count,
                     "rank %d: loss %.17g, not %.17g", i, u, v);
            }
            if (t.saves)
                MUST(r->saved == GCKPT_OK, "save: %s", gckpt_error_text(r->e));
        }
        saves += t.saves && t.rank[0].saved == GCKPT_OK;
        gckpt_result result = GCKPT_OK;
        if (t.saves) {
            const int there = load(&t, 1, GCKPT_SHARD_NONE, &result);
            MUST(there || (faulty && !sound_before) || result == GCKPT_OTHER_CONTRACT,
                 "what was saved is gone: %d", (int)result);
            if (there)
                load(&t, 1 << c % 3, (gckpt_shard)(c >> 6), &result);
        }
    }
    ranks_close(&w);
    end(&t);
    end(&alone);
    empty_folder();
}

static void print_counts(void)
{
    fprintf(stderr, "%ld tries, %ld nets, %ld by ranks, %ld with a fault, %ld saved, %ld loaded\n",
            tried, planned, trained, faults, saves, loads);
}
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const uint8_t head[] = { 40 };
    (void)argc, (void)argv;
    write_seeds("ranks", 200, 70, head, sizeof head);
    net_data();
    net_with_caches = 0;
    snprintf(folder, sizeof folder, "%s/ranks.%ld", getenv("FUZZ_DIR") ? getenv("FUZZ_DIR") : ".",
             (long)getpid());
    MUST(mkdir(folder, 0777) == 0, "%s", folder);
    if (getenv("FUZZ_COUNT"))
        atexit(print_counts);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size)
{
    bytes in;
    in.at = at, in.left = size, in.odd = 0;
    try_one(in);
    return 0;
}
