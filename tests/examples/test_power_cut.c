/* test_power_cut.c - cuts the power at every erase and every written word of the flash store of examples/mcu. The state
 * that is read afterwards must be the state before or after that save, and training must continue to the same bits.
 * test_mcu.sh runs the firmware in QEMU with some of these cuts. With an argument (make check), every operation is
 * cut in all four ways (see chip.h); without one, most operations are cut in one of these ways. */
#define PLAN
#include "examples/mcu/job.h"
#include "examples/mcu/transformer.h"
#include "examples/mcu/flash.h"
#include "examples/mcu/chip.h"
#include "check.h"
#include <setjmp.h>

enum { TIME = 4, ROWS = 2, STEPS = 6, EVERY = 2, SAVES = STEPS / EVERY };

static unsigned char medium[CHIP_BYTES];
static jmp_buf power;
static void chip_power_fails(void) { longjmp(power, 1); }

size_t board_read(size_t at, void *bytes, size_t size)
{
    memcpy(bytes, medium + at, size);
    return size;
}

size_t board_write(size_t at, const void *bytes, size_t size)
{
    memcpy(medium + at, bytes, size);
    return size;
}

/* Objects in memory, which a power cut destroys. The flash memory `medium` and went_on survive. */
static gckpt_store *store;
static gckpt_exec *executor;
static const gckpt_plan *plan;
static uint64_t went_on; /* step from which the last boot continued */

static void lose(void)
{
    gckpt_exec_free(executor);
    gckpt_store_free(store);
    executor = NULL, store = NULL;
}

/* Boots, resumes from the stored state, and trains to the end or until `saves` saves are made. */
static void run(int saves)
{
    const gckpt_hyper hyper = gckpt_hyper_lr(0.02f);
    int32_t tokens[ROWS * TIME], targets[ROWS * TIME];
    const gckpt_feed feeds[2] = { { 0, tokens }, { 1, targets } };
    store = gckpt_store_new(NULL);
    CHECK(gckpt_plan_params(plan, store) == GCKPT_OK);
    flash_load(&chip, store);
    CHECK(gckpt_error(store) == GCKPT_OK);
    went_on = gckpt_store_step(store);
    executor = gckpt_exec_new(plan, store, NULL);
    while (gckpt_store_step(store) < STEPS && saves > 0) {
        transformer_rows(transformer_jack, gckpt_store_step(store), ROWS, TIME, tokens, targets);
        CHECK(gckpt_step(executor, feeds, 2, ROWS, &hyper, NULL) == GCKPT_OK);
        if (gckpt_store_step(store) % EVERY == 0) {
            CHECK(flash_save(&chip, store));
            saves--;
        }
    }
}

static int boot(int cut, int saves) /* returns 0 if the power failed */
{
    chip_fail_at = cut, chip_operations = 0;
    if (setjmp(power))
        return 0;
    run(saves);
    return 1;
}

static unsigned char before[SAVES + 1]
                           [CHIP_BYTES]; /* contents of the flash memory before each save, and at the end */
static int operations[SAVES];            /* number of flash operations in each save */
static uint64_t final_hash;                    /* hash of the weights at the end of training */

static void without_cuts(void)
{
    memset(medium, 0xff, sizeof medium);
    for (int save = 0; save < SAVES; save++) {
        memcpy(before[save], medium, sizeof medium);
        CHECK(boot(-1, 1) && went_on == (uint64_t)(save * EVERY));
        operations[save] = chip_operations;
        final_hash = gckpt_store_hash(store);
        lose();
    }
    memcpy(before[SAVES], medium, sizeof medium);
    memset(medium, 0xff, sizeof medium);
    CHECK(boot(-1, SAVES) && gckpt_store_hash(store) == final_hash); /* the whole training in one boot */
    CHECK(!memcmp(before[SAVES], medium, sizeof medium));
    lose();
}

/* Returns whether training reaches the right weights when the power fails at operation `cut` of this save. If `again`
 * is not negative, the power fails again, at operation `again` of the next boot. */
static int survives(int save, int cut, int again)
{
    memcpy(medium, before[save], sizeof medium);
    int fine = !boot(cut, 1);
    lose();
    if (again >= 0) {
        fine = !boot(again, SAVES) && fine;
        lose();
    }
    fine = boot(-1, SAVES) && fine && gckpt_store_hash(store) == final_hash &&
           (went_on == (uint64_t)(save * EVERY) || went_on == (uint64_t)((save + 1) * EVERY));
    lose();
    return fine;
}

/* If any byte of the newest state is damaged, the older state must be read. */
static void damaged(void)
{
    const size_t begin = flash_slot(&chip, (SAVES - 1) % 2);
    flash_header head;
    CHECK(flash_newest(&chip, &head) == (SAVES - 1) % 2 && head.sequence == SAVES);
    for (size_t i = 0; i < sizeof head + head.size; i += i < sizeof head ? 1 : 61) {
        medium[begin + i] ^= (unsigned char)(1 << i % 8);
        flash_header h;
        CHECK(flash_newest(&chip, &h) == SAVES % 2 && h.sequence == SAVES - 1);
        medium[begin + i] ^= (unsigned char)(1 << i % 8);
    }
}

/* A chip with a worn page: one of its bytes cannot be erased, or a bit of that byte is written wrongly. */
static size_t worn_page;
static int worn_erase(size_t at)
{
    const int fine = chip_erase(at);
    if (at / CHIP_PAGE == worn_page / CHIP_PAGE)
        medium[worn_page] = 0x7f;
    return fine;
}
static int worn_program(size_t at, const unsigned char *word)
{
    const int fine = chip_program(at, word);
    if (at <= worn_page && worn_page < at + FLASH_WORD)
        medium[worn_page] ^= 1;
    return fine;
}

static void worn_out(void)
{
    flash_chip bad = chip;
    flash_header h;
    memcpy(medium, before[SAVES], sizeof medium);
    CHECK(boot(-1, SAVES));
    worn_page = flash_slot(&chip, SAVES % 2) + CHIP_PAGE + 5;
    bad.erase = worn_erase;
    CHECK(!flash_save(&bad, store));
    bad.erase = chip_erase, bad.program = worn_program;
    CHECK(!flash_save(&bad, store));
    CHECK(flash_newest(&chip, &h) == (SAVES - 1) % 2 && h.sequence == SAVES);
    CHECK(flash_save(&chip, store) && flash_newest(&chip, &h) == SAVES % 2);
    memset(medium, 0xff, sizeof medium);
    bad.program = chip_program, bad.pages = 2; /* a chip with 2 pages is too small for a state */
    CHECK(!flash_save(&bad, store) && flash_newest(&bad, &h) == -1);
    lose();
}

int main(int argc, char **argv)
{
    const transformer_size size = { TIME, 4, 1, 4, 1, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_term term = transformer_build(g, &size, 1);
    const gckpt_plan_desc desc = { .batch = ROWS };
    (void)argv;
    plan = gckpt_plan_new(g, &term, 1, &desc);
    CHECK(plan != NULL);
    without_cuts();
    damaged();
    worn_out();
    for (int save = 0; save < SAVES; save++)
        for (int cut = 0; cut < 4 * operations[save]; cut++)
            if (argc > 1 || cut % 4 == cut / 4 % 4 || cut / 4 < CHIP_PAGES ||
                cut / 4 >= operations[save] - (int)sizeof(flash_header) / FLASH_WORD)
                CHECK_MSG(survives(save, cut, -1), "save %d, cut %d", save, cut);
    for (int i = 0; i < 200; i++) {
        const int cut = i * 97 % (4 * operations[1]), again = i * 61 % (4 * operations[1]);
        CHECK_MSG(survives(1, cut, again), "cuts %d, %d", cut, again);
    }
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return check_report("power");
}
