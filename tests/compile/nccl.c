/* nccl.c - tests that examples/nccl.h compiles as C and C++ and links (check_all.sh, nccl). */
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
