/* model_files.h - checks the paths of a program's models, and copies the tokenizer and other texts of
 * a model into the folder of a saved one. To copy, with model.h, gguf_tokenizer.h and session.h.
 *
 *     if (model_copy_files(&m, "model.gguf", "tuned") != 0)
 *         fprintf(stderr, "%s\n", m.error);
 */
#ifndef MODEL_FILES_H
#define MODEL_FILES_H
#include "gguf_tokenizer.h"
#include "session.h"
#ifndef MODEL_H
#error "include model.h before model_files.h"
#endif

static inline const char *model_file_path(char path[MODEL_PATH], const char *folder,
                                          const char *name)
{
    snprintf(path, MODEL_PATH, "%s/%s", folder, name);
    return path;
}

/* Returns an error if the path of an option is a file but no GGUF file, a folder with an adapter
 * where the option needs a model, or a folder with a model where the option needs an adapter. */
static inline int model_check_source(const char *option, const char *path)
{
    char name[MODEL_PATH];
    struct stat info;
    const int takes_adapter = strcmp(option, "adapter") == 0 || strcmp(option, "reference") == 0,
              takes_model = strcmp(option, "adapter") != 0;
    if (path == NULL || stat(path, &info) != 0 || (!S_ISDIR(info.st_mode) && gguf_is_file(path)))
        return 0;
    if (!S_ISDIR(info.st_mode))
        return session_fail(2,
                            "--%s %s: is a file; give the folder that contains %s, or a FILE.gguf",
                            option, path, takes_model ? "config.json" : "adapter_config.json");
    const int model = access(model_file_path(name, path, "config.json"), F_OK) == 0,
              adapter = access(model_file_path(name, path, "adapter_config.json"), F_OK) == 0;
    if (adapter && !model && !takes_adapter)
        return session_fail(
            2, "--%s %s: the folder contains an adapter, not a model; %s", option, path,
            strcmp(option, "model") == 0 ? "give it with --adapter, and its base model with "
                                           "--model"
                                         : "--merge writes a whole model of adapter and base");
    if (model && !adapter && !takes_model)
        return session_fail(2, "--%s %s: the folder contains a whole model; give it with --model",
                            option, path);
    return 0;
}

/* Returns the end of the error text for a model that cannot be read: what to do if there is no such
 * folder, else "". */
static inline const char *model_source_hint(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 || path[0] == '/' || path[0] == '.' || gguf_is_file_name(path)
               ? ""
               : "; give a folder; hf download NAME --local-dir DIR gets a model from Hugging Face";
}

/* Writes `size` bytes to the file `name` of a folder. Returns 0, or -1 with m->error. */
static inline int model_write_file(model_any *m, const char *folder, const char *name,
                                   const char *text, size_t size)
{
    char path[MODEL_PATH];
    FILE *f = model_begin_file(m, path, folder, name);
    if (f != NULL)
        fwrite(text, 1, size, f);
    return f == NULL || model_end_file(m, f, path) != 0 ? -1 : 0;
}

/* Copies a file of folder `from` to folder `to`, if it exists. */
static inline int model_copy_file(model_any *m, const char *from, const char *to, const char *name)
{
    char path[MODEL_PATH], part[4096];
    json_buffer all;
    memset(&all, 0, sizeof all);
    if (!model_has_file(m, path, from, name))
        return 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return model_fail(m, "%s: %s", path, strerror(errno));
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        json_add(&all, part, n);
    int failed = ferror(f) || all.failed ? model_fail(m, "%s: cannot be read", path) : 0;
    fclose(f);
    failed = failed || model_write_file(m, to, name, all.text != NULL ? all.text : "", all.size);
    free(all.text);
    return failed;
}

/* Writes the tokenizer that a GGUF file contains as files of a folder. */
static inline int model_write_gguf_files(model_any *m, const char *file, const char *folder)
{
    gguf g;
    int failed = gguf_open(&g, file) != 0;
    for (int i = 0; i < 2 && !failed; i++) {
        size_t size;
        char *text = i == 0 ? gguf_tokenizer_json(&g, &size) : gguf_tokenizer_config(&g, &size);
        failed = text == NULL ||
                 model_write_file(m, folder, i == 0 ? "tokenizer.json" : "tokenizer_config.json",
                                  text, size) != 0;
        free(text);
    }
    if (g.error[0] != 0)
        model_fail(m, "%s", g.error);
    gguf_close(&g);
    return failed ? -1 : 0;
}

/* Copies the files that programs need in addition to the weights from a model, a folder or a GGUF
 * file, to a folder. Returns 0, or -1 with m->error. */
static inline int model_copy_files(model_any *m, const char *from, const char *folder)
{
    static const char *const files[] = { "vocab.txt",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "sentencepiece.bpe.model",
                                         "tekken.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "generation_config.json" };
    if (gguf_is_file(from))
        return model_write_gguf_files(m, from, folder);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (model_copy_file(m, from, folder, files[i]) != 0)
            return -1;
    return 0;
}
#endif
