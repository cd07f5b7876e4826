/* nccl_transport.cpp - compiles examples/nccl.h for nccl_ranks.c, with the shim's devices and the emulated NCCL
 * (nccl.h). */
#define GRADCKPT_IMPLEMENTED
#include "gradckpt.h"
#include "examples/nccl.h"

extern "C" void nccl_transport_id(void *id) { ncclGetUniqueId((ncclUniqueId *)id); }

/* Opens the transport of rank number `rank`, which uses the device of that number. All ranks must call it. */
extern "C" gckpt_transport *nccl_transport_open(int rank, int size, const void *id, double timeout)
{
    nccl_ranks *m = new nccl_ranks;
    cudaSetDevice(rank);
    return nccl_ranks_open(m, rank, size, *(const ncclUniqueId *)id, timeout) ? &m->ranks : NULL;
}
extern "C" void nccl_transport_close(gckpt_transport *ranks)
{
    nccl_ranks *m = (nccl_ranks *)ranks->user;
    cudaSetDevice(ranks->rank);
    nccl_ranks_close(m);
    delete m;
}
