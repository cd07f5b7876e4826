/* Trains the same GPT as scratch_header.c by docs/course/scratch/train.c, and prints the same lines:
 *
 *     scratch_train SCHEDULE BLOCKS HEADS WIDTH CONTEXT ROWS MICRO UNEQUAL DECAY FAULT STEPS
 *
 * SCHEDULE is all, none, halves, roots, or a file of entries. Bytes of the peak go to stderr. */
#define main train_main
#include "../../docs/course/scratch/train.c"
#undef main

static schedule schedule_of(const char *name)
{
    static const struct {
        const char *name;
        int (*is_kept)(int x);
    } known[] = { { "all", all }, { "none", none }, { "halves", halves }, { "roots", roots } };
    for (int i = 0; i < 4; i++)
        if (strcmp(name, known[i].name) == 0)
            return recompute(known[i].is_kept, known[i].is_kept == none);
    schedule s = { 0 };
    FILE *file = fopen(name, "r");
    char what;
    for (int i; file && fscanf(file, " %c %d", &what, &i) == 2;)
        append(&s, what, i);
    if (file)
        fclose(file);
    return s;
}

/* The fault: each micro-batch's losses are divided by its own number of targets, and the means by the
 * number of micro-batches. update still divides by all targets, so the scale has them. */
static void step_with_fault(const schedule *s, int step)
{
    int targets = 0, here;
    for (int r = 0; r < rows; r++)
        targets += draw_row(step, r, 0);
    for (int first = 0; first < rows; first += micro) {
        here = 0;
        for (int r = 0; r < micro; r++)
            here += draw_row(step, first + r, r);
        scale = 1.0f / (float)here;
        scale *= (float)targets * (float)micro / (float)rows;
        run(s);
    }
    update(step + 1, targets);
}

int main(int argc, char **argv)
{
    int n[10];
    for (int i = 0; i < 10; i++)
        n[i] = i + 2 < argc ? atoi(argv[i + 2]) : 0;
    blocks = n[0], heads = n[1], width = n[2], context = n[3], rows = n[4], micro = n[5];
    unequal = n[6], weight_decay = (float)n[7] / 100;
    build_gpt();
    begin_training();
    const schedule s = schedule_of(argv[1]);
    for (int step = 0; step < n[9]; step++)
        if (n[8])
            step_with_fault(&s, step);
        else
            printf("loss %a\n", train_step(&s, step));
    printf("%016llx\n", (unsigned long long)hash_of_weights());
    fprintf(stderr, "%d bytes, %d again\n", 4 * peak, forwards - ops);
    return 0;
}
