/* machine.h - the machines of lesson 8's relay, for relay.c: with RELAY_MPI its processes are
 * ranks, with RELAY_CUDA it runs on a CUDA device. Also files, and the ledger of the relay with its
 * audit. Include relay.h and heap.h first. */
#ifndef MACHINE_H
#define MACHINE_H
#include <stdio.h>
#include <stdlib.h>
#ifdef RELAY_MPI
#include "../../../examples/mpi.h"
static mpi_ranks machine_mpi;
#endif

static const gckpt_transport *machine_ranks; /* NULL if there is one process */
static const gckpt_backend *machine_backend; /* NULL is the processor */

static int machine_says(int fine, const char *why)
{
    if (!fine)
        fprintf(stderr, "relay: %s\n", why);
    return fine;
}

/* Returns 1, or 0 after printing why this machine cannot begin. */
static int machine_begin(int *argc, char ***argv)
{
    const char *why = "MPI cannot begin";
    int fine = 1;
    (void)argc, (void)argv;
#ifdef RELAY_CUDA
    machine_backend = gckpt_cuda_backend(0, &why);
    fine = machine_backend != NULL;
#endif
#ifdef RELAY_MPI
    MPI_Init(argc, argv);
    fine = mpi_ranks_open(&machine_mpi, MPI_COMM_WORLD, 60);
    machine_ranks = &machine_mpi.ranks;
    if (fine && machine_ranks->rank > 0) /* one rank prints */
        fine =
            freopen("/dev/null", "w", stdout) != NULL && freopen("/dev/null", "w", stderr) != NULL;
#endif
    return machine_says(fine, why);
}

static void machine_end(void)
{
#ifdef RELAY_MPI
    mpi_ranks_close(&machine_mpi);
    MPI_Finalize();
#endif
}

/* Prepares to continue from a checkpoint, or to begin if the name is "-". */
static int machine_load(tiny *t, const char *from, const gckpt_file_desc *files)
{
    const gckpt_memory memory = { resize, NULL, NULL, 0 };
    if (!relay_begin(t, &memory, machine_ranks, machine_backend))
        return 0;
    if (*from != '-' && gckpt_store_load(t->store, from, files) != GCKPT_OK)
        return tiny_fails(t, gckpt_error_text(t->store));
    t->step = gckpt_store_step(t->store); /* selects the rows of the next step */
    return 1;
}

/* Writes a checkpoint; of several ranks, which all have the whole state, one writes it. */
static int machine_save(tiny *t, const char *to, const gckpt_file_desc *files)
{
    return (machine_ranks != NULL && machine_ranks->rank > 0) ||
           gckpt_store_save(t->store, to, files) == GCKPT_OK ||
           tiny_fails(t, gckpt_error_text(t->store));
}

static int machine_close(tiny *t, int fine)
{
    machine_says(fine, t->error);
    tiny_close(t);
    return fine;
}

/* ---- the ledger ------------------------------------------------------------------------------ */
static unsigned char machine_bytes[1 << 20]; /* space for a ledger */

/* Flips the lowest bit of one weight: the next record does not follow from the one before. */
static void machine_cheat(tiny *t)
{
    gckpt_parameter p;
    if (gckpt_store_get(t->store, 0, &p) == GCKPT_OK)
        ((unsigned char *)p.values)[0] ^= 1;
}

/* Trains from the start and writes a record of the beginning and of each step to the file `path`.
 * Cheats before step `cheat`, unless it is 0. */
static int machine_record(const char *path, int steps, int cheat)
{
    static char names[4096];
    static relay_ledger l;
    ledger_text text = { names, sizeof names, 0 };
    tiny t;
    size_t size = 0, n = 1;
    int fine = machine_load(&t, "-", NULL) && relay_digests(&t, &l);
    ledger_put(&text, "program relay\n");
    if (fine)
        ledger_put_tensors(&text, t.store);
    for (int i = 0; fine && n > 0 && i <= steps; size += n, i++) {
        if (i > 0 && i == cheat)
            machine_cheat(&t);
        fine = i == 0 || relay_step(&t, &l);
        n = ledger_write(machine_bytes + size, sizeof machine_bytes - size,
                         i == 0 ? LEDGER_RUN : LEDGER_STEP, &l.chain, &l.now, l.digests, l.count,
                         names, i == 0 ? text.used : 0);
    }
    FILE *f = fine && n > 0 ? fopen(path, "wb") : NULL;
    if (fine && (f == NULL || fwrite(machine_bytes, 1, size, f) != size || fflush(f) != 0))
        fine = tiny_fails(&t, "the ledger cannot be written: choose fewer steps or another file");
    if (f != NULL)
        fclose(f);
    return machine_close(&t, fine);
}

/* Repeats steps from a checkpoint and compares each with its record in the ledger. */
static int machine_audit(const char *path, const char *from, int steps)
{
    static relay_ledger l;
    tiny t;
    int fine = machine_load(&t, from, NULL);
    FILE *f = fopen(path, "rb");
    const size_t size = f == NULL ? 0 : fread(machine_bytes, 1, sizeof machine_bytes, f);
    const uint64_t first = fine ? t.step : 0;
    if (f != NULL)
        fclose(f);
    if (fine && size == 0)
        fine = tiny_fails(&t, "the ledger cannot be read");
    fine = fine && relay_audit(&t, &l, machine_bytes, size, steps);
    if (fine)
        printf("steps %d to %d: every record is true\n", (int)first + 1, (int)t.step);
    return machine_close(&t, fine);
}
#endif
