/* fuzz_simulate.c - any words as the command line of examples/simulate.c, which accepts a list of numbers of ranks;
 * and simulated steps with these options.
 *
 * The input is words, one a line. In addition to the rules of command_line.h: an accepted list has only powers of
 * two, and is the same after it is printed and parsed again. A simulated step of a small model is printed as JSON
 * lines, or an error is printed to stderr. The time of the step is the time of computing plus the time of waiting,
 * and a single rank sends nothing. One in four of the inputs with few ranks and micro-batches is simulated. */
#define PROGRAM "examples/simulate.c"
#include "command_line.h"

/* limits of the steps that this target simulates, since larger ones take seconds */
enum { RANKS = 64, MICRO_BATCHES = 256 };

static void fresh(void)
{
    memset(&o, 0, sizeof o);
    reset_messages();
}

static int try_ranks(int *ranks)
{
    char anew[MAX_RANKS * 8 + 1] = "";
    int again[MAX_RANKS];
    const int count = read_ranks(ranks);
    must(count >= 0 && count <= MAX_RANKS);
    for (int i = 0; i < count; i++) {
        must(ranks[i] > 0 && ranks[i] <= 1 << 20 && (ranks[i] & (ranks[i] - 1)) == 0);
        sprintf(anew + strlen(anew), "%s%d", i > 0 ? "," : "", ranks[i]);
    }
    const char *given = o.ranks;
    o.ranks = anew;
    must(read_ranks(again) == count &&
         (count == 0 || memcmp(ranks, again, (size_t)count * sizeof *ranks) == 0));
    o.ranks = given;
    return count;
}

/* Simulates a step of a model that has tensors smaller and larger than a block of 4096 elements. */
static void try_step(int ranks, uint64_t chosen)
{
    const model small = { "small", "small", 1, 2, 64, chosen % 2 ? 96 : 0, 8, 96, 64, 2, 4e6 };
    char *reported = NULL;
    size_t size;
    FILE *events = open_memstream(&reported, &size);
    json line;
    must(events != NULL);
    reset_messages();
    const int64_t vranks = o.virtual_ranks > 0 ? o.virtual_ranks : ranks;
    const int64_t batch = o.batch > 0 ? o.batch : small.batch, rows = o.rows > 0 ? o.rows : 2;
    if (ranks > RANKS || vranks / ranks > MICRO_BATCHES || batch / rows > MICRO_BATCHES || rows > 64) {
        fclose(events);
        free(reported);
        return;
    }
    simulate_ranks r = { 0, ranks, (int)vranks,
                         (gckpt_shard)(o.shard < SHARDS ? o.shard : (int64_t)(chosen / 2 % 4)) };
    const int good = simulate(&small, r, events);
    must_have_message(!good);
    must(fclose(events) == 0);
    FILE *f = size > 0 ? fmemopen(reported, size, "r") : NULL;
    json_init(&line, "result");
    int lines = 0;
    for (; f != NULL && json_read_line(&line, f) == 1; lines++) {
        const uint32_t all = json_require(&line, JSON_ROOT, "ranks", JSON_NUMBER);
        must(all != 0 && json_int_of(&line, all) == ranks);
        if (json_find(&line, JSON_ROOT, "seconds") == 0)
            continue; /* no plan fits into this budget */
        const double seconds = json_real(&line, JSON_ROOT, "seconds", -1);
        const double sum =
            json_real(&line, JSON_ROOT, "compute", -1) + json_real(&line, JSON_ROOT, "exposed", -1);
        must(seconds >= 0 && sum <= seconds * 1.0001 && sum >= seconds * 0.9999);
        must(json_int(&line, JSON_ROOT, "bytes", 0) <= (o.budget > 0 ? o.budget : 4000000));
        must(ranks > 1 || json_int(&line, JSON_ROOT, "bytes_sent", -1) == 0);
    }
    must(line.error[0] == 0 && (lines == last_network() - first_network() + 1 || !good));
    json_free(&line);
    if (f != NULL)
        fclose(f);
    free(reported);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static char line[TEXT];
    char *argv[WORDS + 1];
    int ranks[MAX_RANKS];
    if (size >= sizeof line)
        return 0;
    memcpy(line, bytes, size);
    line[size] = 0;
    const uint64_t chosen = input_hash(bytes, size);
    const int argc = parse_line(line, argv);
    if (!parse_both_ways(argc, argv))
        return 0;
    if (o.help)
        options_print_option(&options, options_at(&options, argc % options_count(&options)));
    int count = try_ranks(ranks);
    const int status = check_options(ranks, &count);
    must_have_message(status);
    if (status == 0 && chosen % 4 == 0)
        try_step(ranks[chosen / 4 % (uint64_t)count], chosen / 64);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const values[] = { "0",
                                          "1",
                                          "2",
                                          "8,64",
                                          "1,2,4,8,16,32",
                                          "3",
                                          "2,",
                                          ",2",
                                          "1e-9",
                                          "1e-300",
                                          "1e6",
                                          "0.001",
                                          "64",
                                          "1048576",
                                          "16",
                                          "5MB",
                                          "800K",
                                          "values",
                                          "state",
                                          "10gb",
                                          "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
                                          "all",
                                          "gpt2",
                                          "none" };
    return words_mutate(bytes, size, most, seed, values, sizeof values / sizeof *values);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const seeds[] = {
        "--model\nllama-7b\n--ranks\n64\n--shard\nvalues\n--network\n10gb",
        "--ranks=1,2,4\n--virtual-ranks\n8\n--batch=32\n--micro-batch\n4",
        "--ranks\n2\n--bandwidth=12.5\n--latency\n10\n--overlap=0",
        "--ranks\n4\n--shard=gradients\n--flops\n0.5\n--memory-bandwidth=1",
        "--ranks\n1\n--network=nvlink\n--budget=5MB",
        "--ranks\n8\n--shard=state\n--network=nodes\n--json\n-",
        "--ranks\n16\n--shard=values\n--budget=900K\n--bandwidth\n1",
        "-h"
    };
    (void)argc, (void)argv;
    words_begin(seeds, sizeof seeds / sizeof *seeds);
    return 0;
}
