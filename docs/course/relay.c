/* Lesson 8: a training that moves between machines. make relay compiles this file for each of them.
 *
 *     relay                            trains in one run, then in parts that hand on a checkpoint
 *     relay FROM TO STEPS              trains from a checkpoint (-: from the start), writes TO
 *     relay record LEDGER STEPS CHEAT  trains from the start, with a record of each step; before
 *                                      step CHEAT it changes a bit secretly, unless CHEAT is 0
 *     relay audit LEDGER FROM STEPS    repeats steps and compares each with its record */
#include "gradckpt.h"
#include "../playground/heap.h"
#include "relay.h"
#include "tools/machine.h"

/* Reads a checkpoint, trains some steps and writes the next one. Prints every step, or with a name
 * at most the last one. */
static int part(const char *from, const char *to, int steps, const gckpt_file_desc *files,
                const char *name)
{
    tiny t;
    double loss = 0;
    int fine = machine_load(&t, from, files);
    while (fine && steps-- > 0) {
        fine = tiny_step(&t, &loss);
        if (fine && (name == NULL || (steps == 0 && *name != 0)))
            printf("%sstep %d, loss %.4f, weights %016llx\n", name == NULL ? "" : name, (int)t.step,
                   loss, (unsigned long long)gckpt_store_hash(t.store));
    }
    fine = fine && machine_save(&t, to, files);
    return machine_close(&t, fine);
}

/* Trains in parts, each of which knows only the checkpoint of the one before. */
static int parts(const gckpt_file_desc *files, const char *name)
{
    static const char file[] = "relay.safetensors";
    int fine = 1;
    for (int i = 0; i < RELAY_PARTS && fine; i++)
        fine = part(i == 0 ? "-" : file, file, RELAY_STEPS / RELAY_PARTS, files,
                    i + 1 == RELAY_PARTS ? name : "");
    remove(file);
    return fine;
}

static int lesson(void)
{
    const gckpt_file_desc values = { .values_only = 1 };
    return part("-", "relay.safetensors", RELAY_STEPS, NULL, "in one run:            ") &&
           parts(NULL, "in five parts:         ") && parts(&values, "only the weights move: ");
}

int main(int argc, char **argv)
{
    int fine = machine_begin(&argc, &argv);
    if (fine && argc == 5 && strcmp(argv[1], "audit") == 0)
        fine = machine_audit(argv[2], argv[3], atoi(argv[4]));
    else if (fine && argc == 5 && strcmp(argv[1], "record") == 0)
        fine = machine_record(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (fine && argc == 4)
        fine = part(argv[1], argv[2], atoi(argv[3]), NULL, NULL);
    else if (fine)
        fine = argc == 1 ? lesson() : machine_says(0, "arguments: see the top of relay.c");
    machine_end();
    return fine ? 0 : 1;
}
