/* mpi_transport.c - tests examples/mpi.h without an executor, under mpirun (test_mpi.sh): exchanged bytes arrive,
 * also in several messages; sums are right; a failure of MPI becomes an error; an abort reaches all ranks.
 *
 *     mpi_transport [large]      large: more than 2^31 bytes, for which 5 GB must be free */
#include "gradckpt.h"

#include "examples/mpi.h"
#include "check.h"
#include <stdlib.h>

static mpi_ranks m;

static int finish(void)
{
    int done;
    const double until = MPI_Wtime() + 30;
    do
        done = m.ranks.done(m.ranks.user);
    while (done == 0 && MPI_Wtime() < until);
    return done;
}

static unsigned char byte_of(int from, int to, size_t i)
{
    return (unsigned char)((size_t)(31 * from + 7 * to) + i * 2654435761u % 251);
}

/* Tests exchanges in which one rank sends more, or fewer, bytes than it receives. */
static void test_exchange(int peer, size_t low_sends, size_t high_sends)
{
    const int low = m.ranks.rank < peer, rank = m.ranks.rank;
    const size_t out = low ? low_sends : high_sends, in = low ? high_sends : low_sends;
    unsigned char *send = (unsigned char *)calloc(out + 1, 1);
    unsigned char *receive = (unsigned char *)calloc(in + 1, 1);
    /* touches only some bytes of a large buffer, since untouched pages take no memory */
    const size_t step = in + out > 1 << 24 ? 65521 : 1;
    int wrong = send == NULL || receive == NULL;
    for (size_t i = 0; i < out && !wrong; i += step)
        send[i] = byte_of(rank, peer, i);
    CHECK(!wrong && m.ranks.exchange(m.ranks.user, peer, send, out, receive, in) && finish() == 1);
    for (size_t i = 0; i < in && !wrong; i += step)
        wrong = receive[i] != byte_of(peer, rank, i);
    CHECK(!wrong && receive[in] == 0);
    free(send);
    free(receive);
}

/* Tests an abort by the last rank: all pending exchanges of all ranks must end with an error. */
static void test_give_up(void)
{
    const int last = m.ranks.size - 1, peer = m.ranks.rank ^ 1;
    const double begin = MPI_Wtime();
    test_exchange(peer, 100, 100);
    MPI_Barrier(MPI_COMM_WORLD); /* the abort also ends exchanges between other ranks */
    if (m.ranks.rank == last) {
        m.ranks.abort(m.ranks.user);
    } else {
        char nothing[10];
        CHECK(m.ranks.exchange(m.ranks.user, last, NULL, 0, nothing, sizeof nothing));
        CHECK(finish() == -1);
    }
    CHECK(MPI_Wtime() - begin < 10);
    CHECK(!m.ranks.exchange(m.ranks.user, peer, NULL, 0, NULL, 0));
    CHECK(m.ranks.done(m.ranks.user) == -1);
}

int main(int argc, char **argv)
{
    static const size_t sizes[][2] = {
        { 0, 0 },        { 1, 0 },       { 0, 100 }, { 4, 4 },
        { 1000, 70000 }, { 3000017, 5 }, { 16, 16 }, { 65536, 65536 }
    };
    MPI_Init(&argc, &argv);
    CHECK(mpi_ranks_open(&m, MPI_COMM_WORLD, 30) && m.ranks.size > 1);
    if (argc > 1) {
        if (m.ranks.rank < 2)
            test_exchange(m.ranks.rank ^ 1, ((size_t)1 << 31) + 12345, 0);
    } else {
        for (int bit = 1; bit < m.ranks.size; bit *= 2)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                test_exchange(m.ranks.rank ^ bit, sizes[i][0], sizes[i][1]);
        mpi_ranks bad; /* a separate transport, since a transport cannot be used any more after a failure */
        CHECK(mpi_ranks_open(&bad, MPI_COMM_WORLD, 30));
        CHECK(!bad.ranks.exchange(bad.ranks.user, m.ranks.size, "", 1, NULL, 0));
        CHECK(bad.ranks.done(bad.ranks.user) == -1);
        test_give_up();
    }
    const int status = check_report("mpi_transport");
    MPI_Finalize(); /* all ranks still run */
    return status;
}
