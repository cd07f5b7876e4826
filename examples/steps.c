/* steps.c - draws, instruction by instruction, which values the classic strategies keep in
 * memory, on a chain of 8 ops. The picture of docs/guide.md is made by this program, from plans
 * that could run.
 *
 *     cc -O2 -I. examples/steps.c -o steps && ./steps docs/steps.svg */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    OPS = 8,
    NODES = OPS + 1,
    CELL = 24,
    ROW = 15,
    LEFT = 34,
    PANEL = 318,
    TOP = 128,
    MAX_ROWS = 128
};

/* The plan of one strategy as a table: row r is an instruction, column c a node of the chain. */
typedef struct {
    const char *name;
    gckpt_mode mode;
    /* group: ops per segment, or 0; budget_of: index of the strategy whose bytes minus those of one
     * tensor are the budget, or 0 for no budget */
    int group, budget_of;
    /* F forward, R recompute, B backward of node c, or 0 */
    char event[MAX_ROWS][NODES];
    char value[MAX_ROWS][NODES];    /* nonzero if the value of node c is in memory */
    char gradient[MAX_ROWS][NODES]; /* nonzero if the gradient of node c is in memory */
    int rows, peak, forwards;
    size_t bytes;
} strategy;

/* Reads a plan into the table: forwards and backwards are its rows, and buffers tell which tensors
 * are in memory. Updates are left out. */
static void read_plan(strategy *s, const gckpt_plan *plan, const int *ids)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    int row_of[1024], seen[NODES] = { 0 };
    const int length = info.instructions;
    for (int x = 0; x < length; x++) {
        gckpt_instruction ins;
        row_of[x] = -1;
        if (gckpt_plan_get(plan, x, &ins) != GCKPT_OK || ins.kind > GCKPT_BACKWARD)
            continue;
        row_of[x] = s->rows++;
        for (int c = 0; c < NODES; c++)
            if (ids[c] == ins.id) {
                s->event[row_of[x]][c] = ins.kind == GCKPT_BACKWARD ? 'B' : seen[c] ? 'R' : 'F';
                seen[c] = 1;
                s->forwards += ins.kind == GCKPT_FORWARD;
            }
    }
    for (int i = 0; i < info.buffers; i++) {
        gckpt_buffer b;
        if (gckpt_plan_buffer(plan, i, &b) != GCKPT_OK ||
            (b.kind != GCKPT_BUFFER_VALUE && b.kind != GCKPT_BUFFER_GRADIENT))
            continue;
        for (int c = 0; c < NODES; c++)
            for (int x = b.start; x <= b.end && x < length; x++)
                if (ids[c] == b.id && row_of[x] >= 0)
                    (b.kind == GCKPT_BUFFER_VALUE ? s->value : s->gradient)[row_of[x]][c] = 1;
    }
}

static int live(const strategy *s, int row)
{
    int count = 0;
    for (int c = 0; c < NODES; c++)
        count += s->value[row][c] + s->gradient[row][c];
    return count;
}

static void draw(FILE *f, const strategy *s, int panel)
{
    const int left = LEFT + panel * PANEL, bars = left + NODES * CELL + 10;
    fprintf(f, "<text x=\"%d\" y=\"68\" class=\"h\">%s</text>\n", left, s->name);
    fprintf(f, "<text x=\"%d\" y=\"88\">%d forwards, at most %d tensors live</text>\n", left,
            s->forwards, s->peak);
    for (int c = 0; c < OPS; c++)
        fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"c\">x%d</text>\n", left + c * CELL + CELL / 2,
                TOP - 6, c + 1);
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"c\">L</text>\n", left + OPS * CELL + CELL / 2,
            TOP - 6);
    fprintf(f, "<text x=\"%d\" y=\"%d\">live</text>\n", bars, TOP - 6);
    for (int r = 0; r < s->rows; r++) {
        const int y = TOP + r * ROW, n = live(s, r);
        fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"r\">%d</text>", left - 6, y + 11, r + 1);
        for (int c = 0; c < NODES; c++) {
            const char e = s->event[r][c];
            const char *fill = e == 'F'         ? "#0072b2"
                               : e == 'R'       ? "#d55e00"
                               : e == 'B'       ? "#5d3a9b"
                               : s->value[r][c] ? "#a6d4f2"
                                                : "#f4f4f4";
            const int x = left + c * CELL;
            fprintf(f, "<path fill=\"%s\" d=\"M%d %dh%dv%dh-%dz\"/>", fill, x, y, CELL - 1, ROW - 1,
                    CELL - 1);
            if (s->gradient[r][c])
                fprintf(f, "<path fill=\"#e69f00\" d=\"M%d %dh%dv4h-%dz\"/>", x, y + ROW - 5,
                        CELL - 1, CELL - 1);
            if (e)
                fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"e\">%c</text>", x + CELL / 2, y + 10,
                        e);
        }
        fprintf(f, "<path fill=\"%s\" d=\"M%d %dh%dv%dh-%dz\"/>", n == s->peak ? "#222" : "#999",
                bars, y + 2, 5 * n, ROW - 5, 5 * n);
        fprintf(f, "<text x=\"%d\" y=\"%d\"%s>%d</text>\n", bars + 5 * n + 4, y + 11,
                n == s->peak ? " class=\"b\"" : "", n);
    }
}

/* Plans the chain x1 = x W1, x2 = x1 W2, and so on. The backward of x3 reads x2, so x2 must be in
 * memory at that time. */
static int plan_chain(strategy *s, size_t budget)
{
    const gckpt_init normal = { 0.1f, 0, 0 };
    int ids[NODES], bad = 1;
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(64, 8));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(64, 8));
    for (int i = 0; i < OPS; i++) {
        char name[16];
        snprintf(name, sizeof name, "W%d", i + 1);
        x = gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(8, 8), normal), NULL);
        ids[i] = gckpt_id(x);
    }
    const gckpt_term loss = { gckpt_mean_squared_error(x, y, NULL), 1, 0 };
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.mode = s->mode;
    desc.schedule.segment_size = s->group;
    desc.budget = budget;
    /* frees the gradients of weights at once, so that they do not add to the memory shown */
    desc.update_in_backward = 1;
    ids[OPS] = gckpt_id(loss.loss);
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    if (plan == NULL) {
        fprintf(stderr, "steps: %s\n", gckpt_error_text(g));
    } else if (gckpt_plan_describe(plan).instructions <= MAX_ROWS) {
        read_plan(s, plan, ids);
        for (int r = 0; r < s->rows; r++)
            s->peak = live(s, r) > s->peak ? live(s, r) : s->peak;
        s->bytes = gckpt_plan_bytes(plan);
        bad = 0;
    }
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(store);
    return bad;
}

int main(int argc, char **argv)
{
    static strategy all[] = {
        { .name = "store-all", .mode = GCKPT_STORE_ALL },
        { .name = "checkpoints: keep x3, x6", .mode = GCKPT_SQRT, .group = 3 },
        { .name = "optimal, a tensor less", .mode = GCKPT_OPTIMAL, .budget_of = 1 },
        { .name = "memory-poor", .mode = GCKPT_MEMORY_POOR }
    };
    enum { PANELS = sizeof all / sizeof all[0] };
    static const char *const legend[][2] = { { "#0072b2", "F computed" },
                                             { "#d55e00", "R computed again" },
                                             { "#5d3a9b", "B backward" },
                                             { "#a6d4f2", "value in memory" },
                                             { "#e69f00", "gradient in memory" } };
    const char *path = argc > 1 ? argv[1] : "steps.svg";
    int rows = 0;
    for (int i = 0; i < PANELS; i++) {
        if (plan_chain(&all[i], all[i].budget_of
                                    ? all[all[i].budget_of].bytes - 64 * 8 * sizeof(float)
                                    : 0) != 0)
            return 1;
        rows = all[i].rows > rows ? all[i].rows : rows;
    }
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        fprintf(stderr, "steps: cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    const int width = LEFT + PANELS * PANEL - 20, height = TOP + rows * ROW + 16;
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
        "<style>.h{font-size:16px;font-weight:bold}.b{font-weight:bold}.c,.e{text-anchor:middle}"
        ".r{text-anchor:end;font-size:10px;fill:#666}.e{fill:#fff;font-size:11px}</style>\n"
        "<path fill=\"#fff\" d=\"M0 0h%dv%dH0z\"/>\n",
        width, height, width, height, width, height);
    for (int i = 0, x = LEFT; i < 5; i++, x += 170) {
        fprintf(f, "<path fill=\"%s\" d=\"M%d 18h%dv%dh-%dz\"/>", legend[i][0], x, CELL - 1,
                i == 4 ? 4 : ROW - 1, CELL - 1);
        fprintf(f, "<text x=\"%d\" y=\"29\">%s</text>\n", x + CELL + 6, legend[i][1]);
    }
    for (int i = 0; i < PANELS; i++) {
        draw(f, &all[i], i);
        printf("%-26s %3d forwards, at most %d tensors live\n", all[i].name, all[i].forwards,
               all[i].peak);
    }
    fprintf(f, "</svg>\n");
    int bad = ferror(f);
    if (fclose(f) != 0 || bad) {
        fprintf(stderr, "steps: cannot write %s\n", path);
        return 1;
    }
    return 0;
}
