/* several_plans.c - device.c for several tables in one program, whose argument says which: the implementation is
 * compiled once for all. two: of two tables of one graph that their hashes are one. */
#define main   train_small
#define TABLE  "small.h"
#define PACKED 1 /* whose plan is of weights in memory */
#include "device.c"
#undef main
#undef TABLE
#undef PLAN

#define main  train_packed
#define TABLE "packed.h"
#define PLAN  packed
#include "device.c"
#undef main
#undef TABLE
#undef PLAN
#undef PACKED

#define main  train_chosen
#define TABLE "input_hash.h"
#define PLAN  chosen
#include "device.c"
#undef main
#undef TABLE
#undef PLAN

#define main  train_leaves
#define TABLE "leaves.h"
#define PLAN  leaves
#include "device.c"
#undef main
#undef TABLE
#undef PLAN

#define main  train_wrong
#define TABLE "wrong.h"
#define PLAN  wrong
#include "device.c"
#undef main

#include "twice1.h"
#include "twice2.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*train)(void);
    } all[] = { { "small", train_small },
                { "packed", train_packed },
                { "chosen", train_chosen },
                { "leaves", train_leaves },
                { "wrong", train_wrong } };
    for (size_t i = 0; argc > 1 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name))
            return all[i].train();
    return argc < 2 || strcmp(argv[1], "two") ||
           gckpt_plan_hash(&twice1) != gckpt_plan_hash(&twice2);
}
