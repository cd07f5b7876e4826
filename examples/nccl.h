/* nccl.h - a gckpt_transport on NCCL 2.7 or newer, for ranks with one CUDA device each. Copy it
 * into your project and include it after gradckpt.h; C99 or C++11, POSIX; link with -lnccl
 * -lcudart.
 *
 * Status: not yet run on two GPUs; it compiles, links, and passes its tests on a simulation of
 * NCCL. Gradients and values go from device to device in a queue of the backend, without waiting on
 * the host. Rank 0 gets the id from ncclGetUniqueId, and the program sends it to the other ranks
 * (MPI_Bcast, a file). Every rank calls cudaSetDevice first, then:
 *
 *     nccl_ranks_open(&m, rank, size, id, 60); // timeout of an exchange: 60 seconds
 *     ...                                      // gckpt_exec_desc.transport = &m.ranks
 *     nccl_ranks_close(&m); */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sched.h>
#include <string.h>
#include <time.h>
typedef struct {
    gckpt_transport ranks;
    /* comm: for exchanges for which the host waits; queue_comm: for enqueued ones; both are NULL
     * after an abort */
    ncclComm_t comm, queue_comm;
    cudaStream_t stream;
    /* done_event: end of the current exchange; queue_event: end of all enqueued ones */
    cudaEvent_t done_event, queue_event;
    /* device memory: staging for bytes of the host to be sent, incoming for bytes received for the
     * host */
    char *staging, *incoming;
    void *host_target;               /* memory of the host to which received bytes are copied */
    /* incoming_bytes: bytes received into `incoming`; capacity: bytes of `staging` */
    size_t incoming_bytes, capacity;
} nccl_ranks;

static inline int nccl_ranks_is_on_host(const void *p, size_t bytes)
{
    struct cudaPointerAttributes a;
    return bytes > 0 && (cudaPointerGetAttributes(&a, p) || a.type < cudaMemoryTypeDevice);
}

static inline int nccl_ranks_exchange(void *user, int peer, const void *send, size_t send_bytes,
                                      void *receive, size_t receive_bytes)
{
    nccl_ranks *m = (nccl_ranks *)user;
    const size_t copied = nccl_ranks_is_on_host(send, send_bytes) ? (send_bytes + 255) / 256 * 256 : 0;
    int bad = m->comm == NULL;
    m->host_target = receive;
    m->incoming_bytes = nccl_ranks_is_on_host(receive, receive_bytes) ? receive_bytes : 0;
    if (!bad && copied + m->incoming_bytes > m->capacity) {
        m->capacity = copied + m->incoming_bytes;
        bad = cudaFree(m->staging) || cudaMalloc((void **)&m->staging, m->capacity);
    }
    m->incoming = m->staging + copied;
    bad = bad ||
          (copied && cudaMemcpyAsync(m->staging, send, send_bytes, cudaMemcpyHostToDevice, m->stream));
    send = copied > 0 ? m->staging : send;
    receive = m->incoming_bytes > 0 ? m->incoming : receive;
    bad = bad || ncclGroupStart() ||
          (send_bytes && ncclSend(send, send_bytes, ncclChar, peer, m->comm, m->stream));
    bad = bad ||
          (receive_bytes && ncclRecv(receive, receive_bytes, ncclChar, peer, m->comm, m->stream));
    return !bad && !ncclGroupEnd() && !cudaEventRecord(m->done_event, m->stream);
}

/* Adds an exchange to a queue of the backend and returns without waiting for it. */
static inline int nccl_ranks_enqueue(void *user, void *queue, int peer, const void *send,
                                     size_t send_bytes, void *receive, size_t receive_bytes)
{
    nccl_ranks *m = (nccl_ranks *)user;
    cudaStream_t stream = (cudaStream_t)queue;
    int bad = m->queue_comm == NULL;
    bad = bad || ncclGroupStart() ||
          (send_bytes && ncclSend(send, send_bytes, ncclChar, peer, m->queue_comm, stream));
    bad = bad ||
          (receive_bytes && ncclRecv(receive, receive_bytes, ncclChar, peer, m->queue_comm, stream));
    return !bad && !ncclGroupEnd() && !cudaEventRecord(m->queue_event, stream);
}

/* Returns 1 if the event has occurred, 0 if not yet, -1 if CUDA or NCCL failed. */
static inline int nccl_ranks_query(ncclComm_t comm, cudaEvent_t event)
{
    ncclResult_t failed;
    if (comm == NULL || ncclCommGetAsyncError(comm, &failed) || failed != ncclSuccess)
        return -1;
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady)
        sched_yield();
    return status == cudaSuccess ? 1 : status == cudaErrorNotReady ? 0 : -1;
}

static inline int nccl_ranks_queue_done(void *user)
{
    nccl_ranks *m = (nccl_ranks *)user;
    return nccl_ranks_query(m->queue_comm, m->queue_event);
}

static inline int nccl_ranks_done(void *user)
{
    nccl_ranks *m = (nccl_ranks *)user;
    int status = nccl_ranks_query(m->comm, m->done_event);
    if (status > 0 && m->incoming_bytes > 0 &&
        cudaMemcpy(m->host_target, m->incoming, m->incoming_bytes, cudaMemcpyDeviceToHost))
        status = -1;
    return status;
}

static inline void nccl_ranks_abort(void *user) /* other ranks notice the abort by their timeout */
{
    nccl_ranks *m = (nccl_ranks *)user;
    if (m->queue_comm != NULL)
        ncclCommAbort(m->queue_comm);
    if (m->comm != NULL)
        ncclCommAbort(m->comm);
    m->comm = m->queue_comm = NULL;
}

static inline double nccl_ranks_clock(void *user) { return (void)user, (double)time(NULL); }

/* Creates two communicators, so that other exchanges need not wait for enqueued ones. The first
 * communicator broadcasts the id of the second one. */
static inline int nccl_ranks_join(nccl_ranks *m, int rank, int size, ncclUniqueId id)
{
    ncclUniqueId other;
    memset(&other, 0, sizeof other);
    if (ncclCommInitRank(&m->comm, size, id, rank) || (rank == 0 && ncclGetUniqueId(&other)))
        return 0;
    /* large enough that it need not grow later, because growing waits for the device */
    m->capacity = 1 << 20;
    return !cudaMalloc((void **)&m->staging, m->capacity) &&
           !cudaMemcpy(m->staging, &other, sizeof other, cudaMemcpyHostToDevice) &&
           !ncclBroadcast(m->staging, m->staging, sizeof other, ncclChar, 0, m->comm, m->stream) &&
           !cudaStreamSynchronize(m->stream) &&
           !cudaMemcpy(&other, m->staging, sizeof other, cudaMemcpyDeviceToHost) &&
           !ncclCommInitRank(&m->queue_comm, size, other, rank);
}

static inline int nccl_ranks_open(nccl_ranks *m, int rank, int size, ncclUniqueId id,
                                  /* returns 0 if there is no device or NCCL failed */
                                  double timeout)
{
    memset(m, 0, sizeof *m);
    m->ranks.rank = rank;
    m->ranks.size = size;
    m->ranks.device_aware = 1;
    m->ranks.exchange = nccl_ranks_exchange;
    m->ranks.done = nccl_ranks_done;
    m->ranks.abort = nccl_ranks_abort;
    m->ranks.clock = nccl_ranks_clock;
    m->ranks.timeout = timeout;
    m->ranks.user = m;
    m->ranks.enqueue = nccl_ranks_enqueue;
    m->ranks.enqueued_done = nccl_ranks_queue_done;
    return !cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) &&
           !cudaEventCreateWithFlags(&m->done_event, cudaEventDisableTiming) &&
           !cudaEventCreateWithFlags(&m->queue_event, cudaEventDisableTiming) &&
           nccl_ranks_join(m, rank, size, id);
}

static inline void nccl_ranks_close(nccl_ranks *m)
{
    if (m->queue_comm != NULL)
        ncclCommDestroy(m->queue_comm);
    if (m->comm != NULL)
        ncclCommDestroy(m->comm);
    cudaFree(m->staging);
    cudaEventDestroy(m->done_event);
    cudaEventDestroy(m->queue_event);
    cudaStreamDestroy(m->stream);
}
#endif
