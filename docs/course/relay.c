/* Lesson 8: a training that moves between machines. make relay compiles this file for each of them.
 *
 *     relay                 trains in one run, then in five parts that hand on a checkpoint
 *     relay FROM TO STEPS   trains from the file FROM (-: from the start), and writes TO */
#include "gradckpt.h"
#include "../playground/heap.h"
#include "relay.h"
#include <stdio.h>
#ifdef RELAY_MPI
#include "../../examples/mpi.h"
#endif

static const gckpt_transport *ranks;
static const gckpt_backend *backend;

/* Reads a checkpoint, trains some steps and writes the next one. Prints every step, or with a name
 * at most the last one. */
static int part(const char *from, const char *to, int steps, const gckpt_file_desc *files, const char *name)
{
    const gckpt_memory memory = { resize, NULL, NULL, 0 };
    tiny t;
    double loss = 0;
    int fine = relay_begin(&t, &memory, ranks, backend);
    if (fine && from != NULL && gckpt_store_load(t.store, from, files) != GCKPT_OK)
        fine = tiny_fails(&t, gckpt_error_text(t.store));
    t.step = fine ? gckpt_store_step(t.store) : 0; /* selects the rows of the next step */
    while (fine && steps-- > 0) {
        fine = tiny_step(&t, &loss);
        if (fine && (name == NULL || (steps == 0 && *name != 0)))
            printf("%sstep %d, loss %.4f, weights %016llx\n", name == NULL ? "" : name, (int)t.step,
                   loss, (unsigned long long)gckpt_store_hash(t.store));
    }
    if (fine && (ranks != NULL ? gckpt_ranks_save(t.exec, to)
                               : gckpt_store_save(t.store, to, files)) != GCKPT_OK)
        fine = tiny_fails(&t, gckpt_error_text(ranks != NULL ? (void *)t.exec : (void *)t.store));
    if (!fine)
        fprintf(stderr, "relay: %s\n", t.error);
    tiny_close(&t);
    return fine;
}

static int run(int argc, char **argv)
{
    static const char file[] = "relay.safetensors";
    static const char *const names[] = { "in one run:            ", "in five parts:         ",
                                         "only the weights move: " };
    const gckpt_file_desc values = { .values_only = 1 };
    if (argc == 4)
        return part(argv[1][0] == '-' ? NULL : argv[1], argv[2], atoi(argv[3]), NULL, NULL);
    int fine = part(NULL, file, RELAY_STEPS, NULL, names[0]);
    for (int i = 0; i < 2 * RELAY_LEGS; i++) {
        const int of = i / RELAY_LEGS, at = i % RELAY_LEGS;
        fine = fine && part(at == 0 ? NULL : file, file, RELAY_STEPS / RELAY_LEGS, of == 0 ? NULL : &values,
                            at == RELAY_LEGS - 1 ? names[1 + of] : "");
    }
    remove(file);
    return fine;
}

int main(int argc, char **argv)
{
    int fine = 1;
#ifdef RELAY_CUDA
    const char *why = NULL;
    backend = gckpt_cuda_backend(0, &why);
    fine = backend != NULL || fprintf(stderr, "relay: %s\n", why) < 0;
#endif
#ifdef RELAY_MPI
    static mpi_ranks mpi;
    MPI_Init(&argc, &argv);
    fine = mpi_ranks_open(&mpi, MPI_COMM_WORLD, 60);
    ranks = &mpi.ranks;
    fine = fine && (mpi.ranks.rank == 0 || freopen("/dev/null", "w", stdout) != NULL);
#endif
    fine = fine && run(argc, argv);
#ifdef RELAY_MPI
    mpi_ranks_close(&mpi);
    MPI_Finalize();
#endif
    return fine ? 0 : 1;
}
