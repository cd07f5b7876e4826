/* nccl.c - a program that includes examples/nccl.h; it must compile as C and as C++ and link (check_all.sh, nccl). */
#include "gradckpt.h"

#include "examples/nccl.h"

int main(void)
{
    nccl_ranks m;
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess || !nccl_ranks_open(&m, 0, 1, id, 5))
        return 1;
    nccl_ranks_close(&m);
    return 0;
}
