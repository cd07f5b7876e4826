/* mpi.h - a gckpt_transport on MPI 3 (OpenMPI, MPICH). Copy it into your project and include it
 * after gradckpt.h; compile with mpicc or mpicxx as C99 or C++11. Its folder must not be an -I
 * path, because this file would then hide MPI's <mpi.h>.
 *
 *     mpi_ranks_open(&m, MPI_COMM_WORLD, 60); // timeout of an exchange: 60 seconds
 *     gckpt_store_ranks(store, m.ranks.rank, m.ranks.size, GCKPT_SHARD_VALUES);
 *     ...                  // gckpt_exec_desc.transport = &m.ranks
 *     mpi_ranks_close(&m); // after GCKPT_E_PEER aborts the job; MPI_Finalize might hang */
#ifndef MPI_RANKS_H
#define MPI_RANKS_H
#include <mpi.h>
#include <sched.h>
#include <string.h>
enum { MPI_RANKS_DATA = 1, MPI_RANKS_ABORT, MPI_RANKS_CHUNKS = 256, MPI_RANKS_CHUNK = 1 << 30 };
typedef struct {
    gckpt_transport ranks;
    MPI_Comm comm;
    /* requests of the exchange in progress, which is divided into chunks of 1 GiB; receives come
     * first */
    MPI_Request request[MPI_RANKS_CHUNKS];
    /* count: number of requests; receives: number of receives among them; gone: nonzero after a
     * rank has aborted */
    int count, receives, gone;
} mpi_ranks;

/* Starts to send `from` to rank `peer` or, if `from` is NULL, to receive `to` from it. */
static inline int mpi_ranks_begin(mpi_ranks *m, int peer, const char *from, char *to, size_t bytes)
{
    for (size_t at = 0; at < bytes && !m->gone; at += MPI_RANKS_CHUNK) {
        const int n = bytes - at < MPI_RANKS_CHUNK ? (int)(bytes - at) : MPI_RANKS_CHUNK;
        MPI_Request *r = &m->request[m->count++];
        *r = MPI_REQUEST_NULL;
        if (m->count == MPI_RANKS_CHUNKS)
            m->gone = 1;
        else if (from != NULL)
            m->gone = MPI_Isend(from + at, n, MPI_BYTE, peer, MPI_RANKS_DATA, m->comm, r);
        else
            m->gone = MPI_Irecv(to + at, n, MPI_BYTE, peer, MPI_RANKS_DATA, m->comm, r);
    }
    return !m->gone;
}

static inline int mpi_ranks_exchange(void *user, int peer, const void *send, size_t send_bytes,
                                     void *receive, size_t receive_bytes)
{
    mpi_ranks *m = (mpi_ranks *)user;
    mpi_ranks_begin(m, peer, NULL, (char *)receive, receive_bytes);
    m->receives = m->count;
    return mpi_ranks_begin(m, peer, (const char *)send, NULL, send_bytes);
}

/* Returns 1 if the exchange is complete, 0 if not yet, -1 if a rank has aborted. A complete
 * exchange counts even if a rank aborts. Yields the processor, since there may be more ranks than
 * processors. */
static inline int mpi_ranks_done(void *user)
{
    mpi_ranks *m = (mpi_ranks *)user;
    MPI_Status status;
    int complete = 0, gone = 0;
    m->gone = m->gone || MPI_Testall(m->count, m->request, &complete, MPI_STATUSES_IGNORE);
    if (!m->gone && !complete && sched_yield() == 0)
        m->gone = MPI_Iprobe(MPI_ANY_SOURCE, MPI_RANKS_ABORT, m->comm, &gone, &status) || gone;
    if (complete)
        m->count = m->receives = 0;
    return m->gone ? -1 : complete;
}

static inline void mpi_ranks_abort(void *user)
{
    mpi_ranks *m = (mpi_ranks *)user;
    MPI_Request r;
    for (int i = 0; i < m->receives; i++)
        if (m->request[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&m->request[i]);
    for (int i = 0; i < m->ranks.size; i++)
        if (i != m->ranks.rank && !MPI_Isend(&r, 0, MPI_BYTE, i, MPI_RANKS_ABORT, m->comm, &r))
            /* does not wait for the request, because the other rank may have ended */
            MPI_Request_free(&r);
    m->gone = 1;
}

static inline double mpi_ranks_clock(void *user) { return (void)user, MPI_Wtime(); }

/* Returns 0 if a call of MPI fails. */
static inline int mpi_ranks_open(mpi_ranks *m, MPI_Comm comm, double timeout)
{
    memset(m, 0, sizeof *m);
    m->ranks.exchange = mpi_ranks_exchange;
    m->ranks.done = mpi_ranks_done;
    m->ranks.abort = mpi_ranks_abort;
    m->ranks.clock = mpi_ranks_clock;
    m->ranks.timeout = timeout;
    m->ranks.user = m;
    return !MPI_Comm_dup(comm, &m->comm) && !MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN) &&
           !MPI_Comm_rank(m->comm, &m->ranks.rank) && !MPI_Comm_size(m->comm, &m->ranks.size);
}

static inline void mpi_ranks_close(mpi_ranks *m)
{
    if (m->gone)
        MPI_Abort(m->comm, 1);
    MPI_Comm_free(&m->comm);
}
#endif
