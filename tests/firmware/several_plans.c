/* several_plans.c - includes device.c once for each of several printed plans. The program's argument selects a plan;
 * "two" checks that two plans of one graph have the same hash. The implementation is compiled once. */
#define main   train_small
#define TABLE  "small.h"
#define QUANTISED 1 /* weights in flash, although host.c made this plan for weights in memory */
#include "device.c"
#undef main
#undef TABLE
#undef PLAN

#define main  train_quantised
#define TABLE "quantised.h"
#define PLAN  quantised
#include "device.c"
#undef main
#undef TABLE
#undef PLAN
#undef QUANTISED

#define main  train_chosen
#define TABLE "input_hash.h"
#define PLAN  chosen
#include "device.c"
#undef main
#undef TABLE
#undef PLAN

#define main  train_virtual_ranks
#define TABLE "virtual_ranks.h"
#define PLAN  virtual_ranks
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
                { "quantised", train_quantised },
                { "chosen", train_chosen },
                { "virtual_ranks", train_virtual_ranks },
                { "wrong", train_wrong } };
    for (size_t i = 0; argc > 1 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name))
            return all[i].train();
    return argc < 2 || strcmp(argv[1], "two") ||
           twice1.hash != twice2.hash;
}
