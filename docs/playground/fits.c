/* fits.c - the bytes that fine-tuning a language model takes, for the playground's section 6: the page gives
 * a config.json, and examples/will_it_fit.h plans. A matrix of a large model has more than 4 GB, so this
 * program is compiled to 64-bit WebAssembly, and apart from engine.c, which runs in any browser. Results
 * are JSON with a final NUL, valid until the next call. Compiled natively, the program
 *
 *     fits CONFIG METHOD STORAGE LENGTH BUDGET
 *
 * prints the two answers, for tests. */
#ifdef __wasm__
#define GCKPT_STATIC
#define GRADCKPT_IMPLEMENTATION
#endif
#include "gradckpt.h"
#include "examples/print.h"
#include "libc.h"
#include "libc_io.h"
#include "text.h"
#include "examples/will_it_fit.h"

static struct {
    model_any model;
    int read; /* 1 after the model was read */
    text answer;
} now;

/* Reads a config.json. Returns the model's type and sizes, and its methods: the name of each, and 1 if
 * frozen matrices may be int8 or int4. */
static const char *read_config(const char *path)
{
    text *t = &now.answer;
    model_any *m = &now.model;
    empty(t);
    if (now.read)
        model_close(m);
    now.read = model_read_config(m, path) == 0;
    if (!now.read)
        return complain(t, m->error);
    uint64_t parameters = 0;
    for (int64_t i = 0; i < model_param_count(&m->config); i++) {
        const gckpt_shape s = model_get_param(&m->config, i).shape;
        parameters += (uint64_t)s.d[0] * (uint64_t)(s.n > 1 ? s.d[1] : 1);
    }
    put(t, "{\"type\":");
    put_name(t, m->config.type);
    put(t, ",");
    put_member(t, "layers", (uint64_t)m->config.layers);
    put_member(t, "width", (uint64_t)m->config.width);
    put_member(t, "context", (uint64_t)m->config.context);
    put_member(t, "parameters", parameters);
    put(t, "\"methods\":[");
    for (int i = 0; i < ADAPTERS_METHODS; i++) {
        put(t, i > 0 ? ",[" : "[");
        put_name(t, adapters_names[i]);
        put(t, will_it_fit_freezes((adapters_method)i) ? ",1]" : ",0]");
    }
    put(t, "]}");
    return end(t);
}

#ifdef __wasm__
/* Returns space for a text of `size` bytes, which the page fills with a config.json. */
unsigned char *EXPORT(playground_text)(int size)
{
    config.text = (char *)resize(NULL, config.text, config.size, (size_t)size);
    config.size = config.text == NULL ? 0 : (size_t)size;
    return (unsigned char *)config.text;
}

/* Reads that text. */
const char *EXPORT(playground_read)(void) { return read_config("config.json"); }
#endif

/* Plans rows of `length` tokens, one at a time, by a method, with frozen matrices in a gckpt_storage; a
 * budget of 0 is none. Returns the bytes. */
const char *EXPORT(playground_fits)(int method, int storage, int length, double budget)
{
    will_it_fit_case of;
    will_it_fit_bytes bytes;
    text *t = &now.answer;
    empty(t);
    if (!now.read)
        return complain(t, "no model");
    memset(&of, 0, sizeof of);
    of.adapter.method = (adapters_method)method;
    of.storage = (gckpt_storage)storage;
    of.length = length;
    of.desc.budget = (size_t)budget;
    if (will_it_fit(&now.model, &of, &bytes) != 0)
        return complain(t, now.model.error);
    put(t, "{");
    put_member(t, "least", bytes.least);
    put_member(t, "most", bytes.most);
    put_member(t, "fits", (uint64_t)bytes.fits);
    put(t, "\"overhead\":");
    put_fraction(t, bytes.overhead);
    put(t, "}");
    return end(t);
}

#ifndef __wasm__
int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    puts(read_config(argv[1]));
    puts(playground_fits(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atof(argv[5])));
    return 0;
}
#endif
