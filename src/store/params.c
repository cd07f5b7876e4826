/* =================================================================================================
 * >>store: parameters and optimiser state
 * ============================================================================================== */
typedef struct {
    /* what gckpt_store_get shows; p.name is owned; p.values and p.packed NULL: not made */
    gckpt_parameter p;
    unsigned char *next_block; /* in gckpt_store_pack: memory for what will stand in their place, */
    gckpt_storage next_storage; /* stored as this */
    unsigned char convolution;  /* one reads it: its axes have an order that files may not have */
    unsigned char unsaid;       /* a file filled it that does not say which order it has */
    int first; /* newest of the names whose hash modulo the capacity is this place; -1: none */
    int next;  /* the next older one of the list that this name is in; -1: none */
    unsigned char external;  /* values belong to the user */
    unsigned char locked;    /* external and not writable: stays frozen */
    unsigned char raw;       /* values have memory, but what stands there are not yet they */
    unsigned char optimiser; /* whose state: gckpt_optimiser + 1; 0: nobody's yet, or not known */
    gckpt_init init;         /* what values that are not made will be */
    uint64_t updates;        /* that the state has seen, for Adam's bias correction */
} gckpti_param;

/* A parameter's copy in a backend's own memory, while executors have one. */
typedef struct {
    const gckpt_backend *backend; /* NULL: there is none */
    float *array[5];              /* values, then state */
    int newest;                   /* GCKPTI_BOTH, .. */
} gckpti_mirror;
enum { GCKPTI_BOTH, GCKPTI_HOST, GCKPTI_MIRROR };

/* An executor on a backend with memory of its own, in its store's list. */
typedef struct gckpti_binding {
    gckpt_store *store; /* NULL: freed, or none */
    const gckpt_backend *backend;
    struct gckpti_binding *next;
} gckpti_binding;

struct gckpti_factors;
/* What packed values need; reached only where something packs them, or a plan that has some. */
typedef struct {
    void (*unpack)(const gckpt_call *call, const gckpt_unpacking *unpacking);
    void (*unpack_piece)(const gckpti_param *q, int64_t at, int64_t n, float *x);
    void (*draw)(const gckpt_store *s, gckpti_param *q);
    /* what reads a parameter as it is stored: elements at..at+n-1; a product whose b that is */
    void (*read)(const gckpt_unpacking *u, int64_t at, int64_t n, float *x);
    void (*product)(const struct gckpti_factors *t);
} gckpti_packing;

/* A parameter that an op reads as it is stored: call->packed. */
typedef struct gckpti_stored {
    gckpt_unpacking u;
    const gckpti_packing *packing;
} gckpti_stored;

/* Operands of a product (ops/products), in floats, in bf16, or as they are stored. */
typedef struct gckpti_factor {
    const float *f32;
    const uint16_t *bf16;        /* one of the two, */
    int64_t row, step, next;     /* to the next row of c (column for b), link, matrix */
    const gckpti_stored *stored; /* or this, of one matrix */
} gckpti_factor;
typedef struct gckpti_factors {
    int64_t batch, m, n, k;
    gckpti_factor a, b;
    const float *start;
    int accumulate;
    float *c;
    uint16_t *c_bf16; /* one of the two; rows of n */
    void *room;       /* scratch of the fast kernels: call->work */
} gckpti_factors;

static const gckpti_stored *gckpti_stored_of(const gckpt_call *call)
{
    return GCKPTI_LEAN ? NULL : (const gckpti_stored *)call->packed;
}

struct gckpt_store {
    gckpti_object object;
    gckpti_allocator memory;
    uint64_t seed, step;
    const gckpti_packing *packing; /* NULL: all values are floats */
    uint64_t packs; /* calls of gckpt_store_pack, which moves values and takes state away */
    gckpti_param *params;
    size_t count, capacity;
    size_t elements;        /* of all values but external ones, however they are stored */
    gckpti_mirror *mirrors; /* by parameter; fewer, or none, where executors need none */
    size_t mirror_count;
    gckpti_binding *bindings; /* those who need them */
    int rank, ranks;          /* of gckpt_store_ranks */
    gckpt_shard shard;
    char **notes; /* each "KEY\0VALUE\0" in a block of its own */
    size_t note_count, note_capacity;
};

/* ---- shares of ranks ---- */
/* Blocks are halved between ranks that differ in bit 0, the halves between those that differ in bit
 * 1, and so on, the first half of each being the larger: so the first rank has the largest share.
 * That is the order in which sums of ranks are added (>>ranks), so each ends where it is held. */
static int64_t gckpti_share(int64_t elements, int rank, int ranks, int64_t *first)
{
    int64_t low = 0, high = elements / GCKPT_UPDATE_BLOCK + (elements % GCKPT_UPDATE_BLOCK > 0);
    for (int bit = 1; bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        *(rank & bit ? &low : &high) = middle;
    }
    *first = gckpti_min(low * GCKPT_UPDATE_BLOCK, elements);
    return gckpti_min(high * GCKPT_UPDATE_BLOCK, elements) - *first;
}

/* Elements in memory of what is cut from the shard `least` on: all, or as many as the largest share
 * has; what is no longer than a block is whole on every rank. */
static int64_t gckpti_in_memory(int ranks, gckpt_shard shard, gckpt_shard least, int64_t elements)
{
    int64_t first;
    if (GCKPTI_LEAN || ranks < 2 || shard < least || elements <= GCKPT_UPDATE_BLOCK)
        return elements;
    return gckpti_share(elements, 0, ranks, &first);
}

/* Whether a parameter of so many elements is cut at all: updated, and its state held, by shares. */
static int gckpti_is_cut(const gckpt_store *s, int64_t elements)
{
    return !GCKPTI_LEAN && s->ranks > 1 && s->shard != GCKPT_SHARD_NONE &&
           elements > GCKPT_UPDATE_BLOCK;
}

/* Whether a parameter's values (slot below 0) or states are cut: elements p.first on, p.count of
 * them, are in memory then, with room for the largest share. Neither values that are the program's
 * nor packed ones are. */
static int gckpti_array_cut(const gckpt_store *s, const gckpti_param *q, int slot)
{
    return gckpti_is_cut(s, q->p.elements) &&
           (slot >= 0 ||
            (s->shard == GCKPT_SHARD_VALUES && !q->external && q->p.storage == GCKPT_STORED_F32));
}

/* How many of them are this rank's own, and which is the first. */
static int64_t gckpti_own(const gckpt_store *s, const gckpti_param *q, int slot, int64_t *first)
{
    const int cut = gckpti_array_cut(s, q, slot);
    *first = cut ? q->p.first : 0;
    return cut ? q->p.count : q->p.elements;
}

/* For how many of them there is memory. */
static int64_t gckpti_held(const gckpt_store *s, const gckpti_param *q, int slot)
{
    return gckpti_array_cut(s, q, slot)
               ? gckpti_in_memory(s->ranks, s->shard, GCKPT_SHARD_STATE, q->p.elements)
               : q->p.elements;
}

/* ---- names, as files can have them ---- */
/* Bytes of the UTF-8 character at s, 0 when it is not one: overlong, a surrogate, cut off. */
static int gckpti_utf8_length(const char *s, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t c = left ? (unsigned char)*s : 0xff;
    int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (n < 2 || (size_t)n > left)
        return n == 1;
    c &= 0x7fu >> n;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : n;
}

/* What else a file has of a parameter, as "NAME#...", by slot: states (no optimiser has more than
 * four), scales of I8's rows, and, in its metadata, whose state it is. */
static const char *const gckpti_suffixes[] = { "#state0", "#state1", "#state2", "#state3",
                                               "#state4", "#state5", "#state6", "#state7",
                                               "#state8", "#state9", "#scale",  "#updates" };
enum { GCKPTI_VALUES = -1, GCKPTI_SCALE = 10, GCKPTI_UPDATES };

/* Where the suffix begins that ends the name; NULL: it does not. */
static const char *gckpti_ending(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcmp(name + n - m, suffix) ? name + n - m : NULL;
}

/* The slot that the name of a tensor is for, and the length of its parameter's. */
static int gckpti_slot_of(const char *name, size_t *length)
{
    for (int slot = 0; slot < GCKPTI_UPDATES; slot++) {
        const char *end = gckpti_ending(name, gckpti_suffixes[slot]);
        *length = end ? (size_t)(end - name) : strlen(name);
        if (end)
            return slot;
    }
    return GCKPTI_VALUES;
}

static int gckpti_is_utf8(const char *text)
{
    int n = 1;
    for (size_t left = strlen(text); left && n; text += n, left -= (size_t)n)
        n = gckpti_utf8_length(text, left);
    return n > 0;
}

/* Why a file cannot have a parameter of this name; NULL: it can. */
static const char *gckpti_name_problem(const char *name)
{
    size_t length;
    if (!*name || !strcmp(name, "__metadata__") || !strcmp(name, "__sums__"))
        return "is reserved";
    if (gckpti_slot_of(name, &length) != GCKPTI_VALUES)
        return "ends like the name of optimiser state or scales";
    return gckpti_is_utf8(name) ? NULL : "is not UTF-8";
}

/* What a file says of itself beside notes. */
static const char *const gckpti_metadata_keys[] = { "format", "contract", "step", "seed",
                                                    "optimiser" };
enum { GCKPTI_METADATA_KEYS = sizeof gckpti_metadata_keys / sizeof *gckpti_metadata_keys };

#ifdef GCKPT_NO_STDIO
enum {
    GCKPTI_ASKS_AXES = 0
}; /* a device's weights come from this library, and its flash is short */
#else
enum { GCKPTI_ASKS_AXES = 1 };
#endif
/* Says of a file, with "HWIO", that convolutions can read its weights; with another value, or where
 * the file is not this library's and has no such key, that is not known. */
static const char gckpti_axes_key[] = "convolution_axes";
#define GCKPTI_AXES_PROBLEM                                                                        \
    "convolutions read (KH,KW,I,O), PyTorch writes (O,I,KH,KW), the file does not say: load with " \
    "desc.convolutions = GCKPT_AXES_HWIO once it, and what is behind a Flatten, is permuted "      \
    "(docs/from-pytorch.md)"

static int gckpti_note_reserved(const char *key)
{
    int reserved = !*key || gckpti_ending(key, gckpti_suffixes[GCKPTI_UPDATES]) ||
                   (GCKPTI_ASKS_AXES && !strcmp(key, gckpti_axes_key));
    for (int i = 0; i < GCKPTI_METADATA_KEYS; i++)
        reserved |= !strcmp(key, gckpti_metadata_keys[i]);
    return reserved;
}

GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc)
{
    gckpti_allocator memory = gckpti_allocator_of(desc ? &desc->memory : NULL);
    gckpt_store *s = (gckpt_store *)gckpti_new(&memory, 1, sizeof *s);
    if (!s)
        return NULL;
    s->object.magic = GCKPTI_MAGIC;
    s->memory = memory;
    s->seed = desc ? desc->seed : 0;
    s->ranks = 1;
    int broken = gckpti_self_test();
    if (broken) {
        gckpti_error(s, GCKPT_E_BACKEND,
                     "self-test %i failed: this build or processor does not keep the numeric "
                     "contract (flush-to-zero? -ffast-math at link time?)",
                     broken);
        s->object.sticky = s->object.last;
    }
    return s;
}

/* Its values (slot GCKPTI_VALUES) on the host, or one of its states; NULL: not made, or packed. All
 * that reads or writes them asks here. */
static float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}

