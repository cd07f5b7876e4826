#pragma once
#include "tables/tables.h"
#include "base/base.h"
#include "plan/plan.h"

/* What the files of tables share; no other folder uses it. */

/* ---- tables/write.c ---- */
#define GCKPTI_PLAN_MAGIC UINT64_C(0x6e6c707470636b67)

typedef struct {
    gckpt_read_fn read;
    void *user;
    uint64_t check, list_hash;
    size_t at;      /* bytes read */
    int ended, bad; /* nothing more to read; a number was out of range */
    gckpti_planner p;
    gckpt_plan head; /* its numbers alone */
    gckpt_plan_desc d;
    gckpt_cost *costs, *built;
    gckpt_term *terms;
    gckpt_pick *picks;
    gckpt_instruction *list;
    gckpti_scratch scratch; /* of the arrays above */
} gckpti_plan_reader;
