/* nccl.h - ranks of a training, a CUDA device each, reach each other by NCCL 2.7 or newer. To copy;
 * include gradckpt.h first; C99 or C++11, POSIX; links with -lnccl -lcudart. Not confirmed until it
 * has run on two GPUs: so far it compiles and links, and runs on a stand-in for NCCL. Gradients and
 * values go from device to device, in the backend's own order; no host waits for them. The id is
 * rank 0's, of ncclGetUniqueId; the program brings it to the others (MPI_Bcast, a file) and calls
 * cudaSetDevice before:
 *
 *     nccl_ranks_open(&m, rank, size, id, 60); // 60 seconds without an answer are too many
 *     ...                                      // gckpt_exec_desc.ranks = &m.ranks
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
    ncclComm_t comm, queued; /* of what is waited for, of what is enqueued; NULL: given up */
    cudaStream_t stream;
    cudaEvent_t over, landed; /* what is under way; all that was enqueued */
    char *room, *from;     /* on the device, for what is on the host: what is sent; what came, */
    void *to;              /* and goes here then, */
    size_t came, capacity; /* so many bytes */
} nccl_ranks;

static inline int nccl_ranks_on_host(const void *p, size_t bytes)
{
    struct cudaPointerAttributes a;
    return bytes > 0 && (cudaPointerGetAttributes(&a, p) || a.type < cudaMemoryTypeDevice);
}

static inline int nccl_ranks_exchange(void *user, int peer, const void *send, size_t send_bytes,
                                      void *receive, size_t receive_bytes)
{
    nccl_ranks *m = (nccl_ranks *)user;
    const size_t copied = nccl_ranks_on_host(send, send_bytes) ? (send_bytes + 255) / 256 * 256 : 0;
    int bad = m->comm == NULL;
    m->to = receive;
    m->came = nccl_ranks_on_host(receive, receive_bytes) ? receive_bytes : 0;
    if (!bad && copied + m->came > m->capacity) {
        m->capacity = copied + m->came;
        bad = cudaFree(m->room) || cudaMalloc((void **)&m->room, m->capacity);
    }
    m->from = m->room + copied;
    bad = bad ||
          (copied && cudaMemcpyAsync(m->room, send, send_bytes, cudaMemcpyHostToDevice, m->stream));
    send = copied > 0 ? m->room : send;
    receive = m->came > 0 ? m->from : receive;
    bad = bad || ncclGroupStart() ||
          (send_bytes && ncclSend(send, send_bytes, ncclChar, peer, m->comm, m->stream));
    bad = bad ||
          (receive_bytes && ncclRecv(receive, receive_bytes, ncclChar, peer, m->comm, m->stream));
    return !bad && !ncclGroupEnd() && !cudaEventRecord(m->over, m->stream);
}

static inline int nccl_ranks_all_reduce(void *user, float *x, size_t n) /* the device's */
{
    nccl_ranks *m = (nccl_ranks *)user;
    m->came = 0;
    return m->comm != NULL && !ncclAllReduce(x, x, n, ncclFloat, ncclSum, m->comm, m->stream) &&
           !cudaEventRecord(m->over, m->stream);
}

/* In the backend's own queue: nobody waits. */
static inline int nccl_ranks_enqueue(void *user, void *queue, int peer, const void *send,
                                     size_t send_bytes, void *receive, size_t receive_bytes)
{
    nccl_ranks *m = (nccl_ranks *)user;
    cudaStream_t stream = (cudaStream_t)queue;
    int bad = m->queued == NULL;
    if (peer < 0) {
        bad = bad || ncclAllReduce(receive, receive, receive_bytes / sizeof(float), ncclFloat,
                                   ncclSum, m->queued, stream);
        return !bad && !cudaEventRecord(m->landed, stream);
    }
    bad = bad || ncclGroupStart() ||
          (send_bytes && ncclSend(send, send_bytes, ncclChar, peer, m->queued, stream));
    bad = bad ||
          (receive_bytes && ncclRecv(receive, receive_bytes, ncclChar, peer, m->queued, stream));
    return !bad && !ncclGroupEnd() && !cudaEventRecord(m->landed, stream);
}

/* 1: the event has come; 0: not yet; -1: it never will. */
static inline int nccl_ranks_ask(ncclComm_t comm, cudaEvent_t event)
{
    ncclResult_t failed;
    if (comm == NULL || ncclCommGetAsyncError(comm, &failed) || failed != ncclSuccess)
        return -1;
    const cudaError_t over = cudaEventQuery(event);
    if (over == cudaErrorNotReady)
        sched_yield();
    return over == cudaSuccess ? 1 : over == cudaErrorNotReady ? 0 : -1;
}

static inline int nccl_ranks_landed(void *user)
{
    nccl_ranks *m = (nccl_ranks *)user;
    return nccl_ranks_ask(m->queued, m->landed);
}

static inline int nccl_ranks_done(void *user)
{
    nccl_ranks *m = (nccl_ranks *)user;
    int over = nccl_ranks_ask(m->comm, m->over);
    if (over > 0 && m->came > 0 && cudaMemcpy(m->to, m->from, m->came, cudaMemcpyDeviceToHost))
        over = -1;
    return over;
}

static inline void nccl_ranks_give_up(void *user) /* the others notice by their timeout */
{
    nccl_ranks *m = (nccl_ranks *)user;
    if (m->queued != NULL)
        ncclCommAbort(m->queued);
    if (m->comm != NULL)
        ncclCommAbort(m->comm);
    m->comm = m->queued = NULL;
}

static inline double nccl_ranks_clock(void *user) { return (void)user, (double)time(NULL); }

/* Two communicators, so that what is waited for does not stand behind what is enqueued: the other
 * one's id goes to all by the first. */
static inline int nccl_ranks_join(nccl_ranks *m, int rank, int size, ncclUniqueId id)
{
    ncclUniqueId other;
    memset(&other, 0, sizeof other);
    if (ncclCommInitRank(&m->comm, size, id, rank) || (rank == 0 && ncclGetUniqueId(&other)))
        return 0;
    m->capacity = 1 << 20; /* to grow waits for the device */
    return !cudaMalloc((void **)&m->room, m->capacity) &&
           !cudaMemcpy(m->room, &other, sizeof other, cudaMemcpyHostToDevice) &&
           !ncclBroadcast(m->room, m->room, sizeof other, ncclChar, 0, m->comm, m->stream) &&
           !cudaStreamSynchronize(m->stream) &&
           !cudaMemcpy(&other, m->room, sizeof other, cudaMemcpyDeviceToHost) &&
           !ncclCommInitRank(&m->queued, size, other, rank);
}

static inline int nccl_ranks_open(nccl_ranks *m, int rank, int size, ncclUniqueId id,
                                  double timeout) /* 0: there is no device, or NCCL failed */
{
    memset(m, 0, sizeof *m);
    m->ranks.rank = rank;
    m->ranks.size = size;
    m->ranks.device_aware = 1;
    m->ranks.exchange = nccl_ranks_exchange;
    m->ranks.done = nccl_ranks_done;
    m->ranks.all_reduce = nccl_ranks_all_reduce;
    m->ranks.abort = nccl_ranks_give_up;
    m->ranks.clock = nccl_ranks_clock;
    m->ranks.timeout = timeout;
    m->ranks.user = m;
    m->ranks.enqueue = nccl_ranks_enqueue;
    m->ranks.enqueued_done = nccl_ranks_landed;
    return !cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) &&
           !cudaEventCreateWithFlags(&m->over, cudaEventDisableTiming) &&
           !cudaEventCreateWithFlags(&m->landed, cudaEventDisableTiming) &&
           nccl_ranks_join(m, rank, size, id);
}

static inline void nccl_ranks_close(nccl_ranks *m)
{
    if (m->queued != NULL)
        ncclCommDestroy(m->queued);
    if (m->comm != NULL)
        ncclCommDestroy(m->comm);
    cudaFree(m->room);
    cudaEventDestroy(m->over);
    cudaEventDestroy(m->landed);
    cudaStreamDestroy(m->stream);
}
#endif
