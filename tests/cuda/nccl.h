/* nccl.h - emulates the part of NCCL that examples/nccl.h calls, on the shim: the ranks are threads of this process,
 * each with its own device. A transfer runs when the streams of all its ranks have reached it; until then it blocks
 * later operations of these streams. The result does not depend on which stream arrives first or which thread runs the
 * transfer. An abort releases the transfers of the aborting rank; their partners on other ranks stay blocked. */
#ifndef TESTS_CUDA_NCCL_H
#define TESTS_CUDA_NCCL_H
#include "cuda_shim.h"
#include <deque>

typedef enum { ncclSuccess, ncclUnhandledCudaError, ncclInvalidUsage = 5, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclChar = 0, ncclFloat = 7 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

namespace shim
{
struct world;
/* One rank's part in a transfer. It blocks the rank's stream, which has reached it at `there`, until `gate` is
 * released. */
struct part {
    int rank;
    void *to;
    const void *from;
    size_t bytes;
    job there, gate;
};
typedef std::shared_ptr<part> part_ptr;
} // namespace shim
struct ncclComm {
    shim::world *world;
    int rank, device, aborted;
    std::vector<shim::part_ptr> mine;
};
typedef ncclComm *ncclComm_t;

namespace shim
{
struct world {
    int size = 0, arrived = 0;
    std::map<std::pair<int, int>, std::deque<part_ptr>> sends, receives; /* by sending and receiving rank */
    std::vector<std::deque<part_ptr>> sums;                              /* by rank */
};
inline std::map<int, world> &worlds = *new std::map<int, world>();
struct transfer_request {
    ncclComm_t comm;
    cudaStream_t stream;
    int peer; /* rank of the partner, or -1 for all ranks */
    part_ptr p;
};
inline thread_local std::vector<transfer_request> group;
inline thread_local int grouped;

/* Called when all ranks have posted their parts of a transfer. stream_op, the copy, runs when each stream has reached
 * its part; then all streams continue. */
inline void match(const std::vector<part_ptr> &all, std::function<void()> stream_op)
{
    job both = std::make_shared<struct stream_op>();
    both->run = std::move(stream_op);
    both->device = all[0]->there->device;
    both->opens = ALL_MEMORY;
    for (const part_ptr &p : all)
        both->after.push_back(p->there);
    for (const part_ptr &p : all)
        p->gate->after.push_back(both);
    for (const part_ptr &p : all)
        release_ops(p->gate);
}

/* Matches the first send with the first receive of two queues. Returns false if their sizes differ. */
inline bool pair_up(std::deque<part_ptr> &sends, std::deque<part_ptr> &receives)
{
    if (sends.empty() || receives.empty())
        return true;
    part_ptr s = sends.front(), r = receives.front();
    sends.pop_front();
    receives.pop_front();
    if (s->bytes != r->bytes)
        return false;
    match({ s, r }, [=] { memmove(r->to, s->from, s->bytes); });
    return true;
}

inline bool post_part(const transfer_request &a)
{
    world &w = *a.comm->world;
    const int me = a.comm->rank, peer = a.peer;
    if (peer >= 0) {
        const std::pair<int, int> way(a.p->from ? me : peer, a.p->from ? peer : me);
        (a.p->from ? w.sends : w.receives)[way].push_back(a.p);
        return pair_up(w.sends[way], w.receives[way]);
    }
    w.sums[(size_t)me].push_back(a.p);
    std::vector<part_ptr> all;
    for (const auto &line : w.sums)
        if (!line.empty())
            all.push_back(line.front());
    if ((int)all.size() < w.size)
        return true;
    for (auto &line : w.sums)
        line.pop_front();
    const size_t n = all[0]->bytes / sizeof(float);
    for (const part_ptr &p : all)
        if (p->bytes != all[0]->bytes)
            return false;
    match(all, [=] {
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (const part_ptr &p : all)
                sum += ((float *)p->to)[i];
            for (const part_ptr &p : all)
                ((float *)p->to)[i] = sum;
        }
    });
    return true;
}

/* Ends a group of transfers. In each stream, the group's transfers begin together after earlier operations, and end
 * together. */
inline ncclResult_t end_group(void)
{
    std::vector<transfer_request> all;
    all.swap(group);
    entry in;
    bool good = !in.error;
    for (transfer_request &a : all) {
        good = good && !a.comm->aborted && stream_of(a.stream) && !a.stream->capture;
        if (!good)
            break;
        post(a.stream, NO_MEMORY, [] {});
        a.p->there = a.stream->last;
        a.p->gate = std::make_shared<stream_op>();
        a.p->gate->run = [] {};
        a.p->gate->device = a.comm->device;
        a.p->gate->opens = NO_MEMORY;
        a.p->gate->held = true;
        a.comm->mine.push_back(a.p);
    }
    for (size_t i = 0; i < all.size() && good; i++)
        good = post(all[i].stream, NO_MEMORY, [] {}, all[i].p->gate) == cudaSuccess;
    for (size_t i = 0; i < all.size() && good; i++)
        good = post_part(all[i]);
    return good ? ncclSuccess : ncclInvalidUsage;
}
inline ncclResult_t post_request(ncclComm_t comm, cudaStream_t stream, int peer, const void *from, void *to,
                        size_t bytes)
{
    if (!owner(from ? from : to, bytes))
        return ncclInvalidUsage; /* the pointer is not memory of a device */
    part_ptr p = std::make_shared<part>();
    *p = { comm->rank, to, from, bytes, NULL, NULL };
    group.push_back({ comm, stream, peer, p });
    return grouped ? ncclSuccess : end_group();
}
} // namespace shim

inline ncclResult_t ncclGroupStart(void) { return shim::grouped++, ncclSuccess; }
inline ncclResult_t ncclGroupEnd(void)
{
    return --shim::grouped ? ncclSuccess : shim::end_group();
}
inline size_t nccl_bytes(size_t n, ncclDataType_t type) { return type == ncclFloat ? 4 * n : n; }
inline ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
    return shim::post_request(comm, stream, peer, from, NULL, nccl_bytes(n, type));
}
inline ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
    return shim::post_request(comm, stream, peer, NULL, to, nccl_bytes(n, type));
}
inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t,
                                  ncclComm_t comm, cudaStream_t stream)
{
    return from != to ? ncclInvalidUsage : shim::post_request(comm, stream, -1, NULL, to, nccl_bytes(n, type));
}
inline ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream)
{
    if (from != to)
        return ncclInvalidUsage;
    ncclGroupStart();
    for (int i = 0; i < comm->world->size && comm->rank == root; i++)
        if (i != root)
            ncclSend(from, n, type, i, comm, stream);
    if (comm->rank != root)
        ncclRecv(to, n, type, root, comm, stream);
    return ncclGroupEnd();
}
/* Returns when all ranks have called it. */
inline ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    std::unique_lock<std::recursive_mutex> lock(shim::c.mutex);
    shim::world &w = shim::worlds[*(int *)(void *)id.internal];
    w.size = size;
    w.sums.resize((size_t)size);
    w.arrived++;
    *comm = new ncclComm{ &w, rank, shim::device, 0, {} };
    shim::c.freed.notify_all();
    while (w.arrived < size)
        shim::c.freed.wait(shim::c.mutex);
    return ncclSuccess;
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::lock_guard<std::recursive_mutex> lock(shim::c.mutex);
    static int next;
    memset(id, 0, sizeof *id);
    return *(int *)(void *)id->internal = ++next, ncclSuccess;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error)
{
    return *error = ncclSuccess, ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> lock(shim::c.mutex);
    comm->aborted = 1;
    for (const shim::part_ptr &p : comm->mine) {
        if (p->gate->done)
            continue;
        for (const shim::job &both : p->gate->after) {
            both->held = !both->done; /* the partner will never post its part */
            both->run = [] {};
        }
        p->gate->after.clear();
        shim::release_ops(p->gate);
    }
    return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
#endif
