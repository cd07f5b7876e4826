/* finetune.c - fine-tunes a language model in Hugging Face's format within a byte budget.
 *
 *     cc -O2 -fopenmp -I. examples/finetune.c -o finetune
 *     ./finetune --model gpt2 --method lora --data my.txt --budget 1G --save tuned
 *     ./finetune --model gpt2 --method full --data chat.jsonl --budget 750M --save tuned
 *     ./finetune --model gpt2 --method all --data my.txt --retention-data wiki.txt --save compared
 *     ./finetune --model gpt2 --objective dpo --data pairs.jsonl --save tuned
 *     ./finetune --model gpt2 --objective distill --teacher gpt2-large --data my.txt --save tuned
 *     ./finetune --resume tuned/training.safetensors
 *     ./finetune --new 4x128x4x128 --model small          # a small model for experiments
 *     ./finetune --new llama:4x128x4x2x128 --model small  # a small Llama
 *     ./finetune --help
 *
 * The model is a GPT-2 or a Llama-like one, according to its config.json (model.h). The method
 * (adapters.h) determines the trained parameters. All others are frozen: they have no gradient and
 * no optimiser state, and can be quantised (--store).
 *
 * --save DIR keeps the weights that evaluate best: a whole model that transformers loads, or an
 * adapter, in peft's format if peft has the method (adapters.h). DIR/training.safetensors contains
 * all that --resume needs: trained parameters, optimiser state, options and the position in the
 * data.
 *
 * The loss of a step is the sum over all its targets divided by their number. If answers differ in
 * length, this is not the mean of the rows' means; an evaluation prints both. */
#define _XOPEN_SOURCE 700 /* clock_gettime, isatty, realpath */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "adapters.h"
#include "calibrate.h"
#include "dataset.h"
#include "evaluate.h"
#include "generate.h"
#include "gguf_export.h"
#include "model_files.h"
#include "lm.h"
#include "talk.h"
#include "teacher.h"
#include "tokenizer.h"
#include "will_it_fit.h"

#define TEMPLATE_REMEDY                                                                            \
    "name one with --chat (such as chatml), or give --user-turn and --assistant-turn"

/* ---- options of finetune.c; lm.h has those shared with gpt.c --------------------------------- */
static struct {
    int64_t method, store, context, no_shuffle, layers, size, hidden, rslora, bias, map;
    double alpha, lora_dropout;
    const char *model, *new_model, *retention_data, *adapter, *targets, *rank_pattern, *alpha_pattern, *memory_svg;
    const char *chat, *turns[CHAT_ROLES], *fields;
    const char *merge, *gguf, *modules_to_save, *layers_to_transform;
    int64_t dora, tied, gguf_type, patience;
    int64_t special_tokens, epochs, eval, generate, interactive, export_as, keep;
    int64_t objective, teacher_store;
    double beta, label_smoothing, distill_temperature, distill_alpha;
    const char *reference, *teacher, *system, *accuracy, *will_it_fit;
} o;

static const char *const method_names[] = { "full",    "last",  "head",   "bias",   "new-blocks", "lora",
                                            "houlsby", "llama", "prefix", "prompt", "all",   NULL };
enum { OBJECTIVE_NEXT_TOKEN, OBJECTIVE_DPO, OBJECTIVE_DISTILL };
static const char *const objective_names[] = { "next-token", "dpo", "distill", NULL };
static const char *const storage_names[] = { "f32", "bf16", "f16", "int8", "int4", "auto", NULL };
enum { STORE_AUTO = 5 };
enum { KEEP_BEST, KEEP_LAST, KEEP_BOTH };
static const char *const keep_names[] = { "best", "last", "both", NULL };
static const char *const export_names[] = { "f32", "bf16", "f16", NULL };
static const gckpt_storage export_types[] = { GCKPT_STORAGE_F32, GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16 };
static const char *const gguf_type_names[] = { "f16", "bf16", "f32", "q8_0", "q4_0", NULL };
static const int gguf_types_by_name[] = { GGUF_T_F16, GGUF_T_BF16, GGUF_T_F32, GGUF_T_Q8_0,
                                          GGUF_T_Q4_0 };
static const char *const bias_names[] = { "none", "all", "lora_only", NULL };

/* Default learning rates, in the order of adapters_method. Methods that train few or new parameters
 * have larger ones. */
static const double default_lr[ADAPTERS_METHODS] = { 5e-5, 1e-4, 1e-4, 1e-3, 3e-4,
                                                   1e-3, 1e-3, 1e-2, 1e-2, 3e-2 };

static const options_desc option_descs[] = {
    { "model", OPTIONS_PATH, &o.model, NULL, 0, 0, NULL,
      "folder with config.json, model.safetensors (or its shards) and the tokenizer's files, or "
      "a model of llama.cpp as FILE.gguf" },
    { "method", OPTIONS_CHOICE, &o.method, "lora", 0, 0, method_names,
      "parameters to train; all trains with each method in turn and prints a table" },
    { "objective", OPTIONS_CHOICE, &o.objective, "next-token", 0, 0, objective_names,
      "loss to minimise: of the next token (next-token), of pairs of answers compared with a "
      "reference model (dpo), or of the next token and of the distance from --teacher's "
      "probabilities (distill)" },
    { "data", OPTIONS_FILE, &lm.data, NULL, 0, 0, NULL,
      "training data: text (- for standard input), FILE.bin of 16-bit tokens, or FILE.jsonl "
      "with one object per line: {\"messages\": [{\"role\": \"user\", \"content\": \"..\"}, "
      "..]}, where answers are trained, {\"prompt\": .., \"completion\": ..}, {\"instruction\": "
      ".., \"output\": ..} or {\"text\": ..}; with --objective dpo {\"prompt\": .., \"chosen\": "
      ".., \"rejected\": ..}, as texts or messages" },
    { "beta", OPTIONS_REAL, &o.beta, "0.1", 1e-6, 1e6, NULL,
      "dpo: factor of the log-probabilities relative to the reference" },
    { "label-smoothing", OPTIONS_REAL, &o.label_smoothing, "0", 0, 0.5, NULL,
      "dpo: assumed fraction of pairs with swapped labels" },
    { "reference", OPTIONS_PATH, &o.reference, NULL, 0, 0, NULL,
      "dpo: reference model: folder, FILE.gguf, or an adapter of --model; default: --model with "
      "--adapter as they are when training begins (with --eval, --model alone)" },
    { "teacher", OPTIONS_PATH, &o.teacher, NULL, 0, 0, NULL,
      "distill: folder or FILE.gguf with a model of the same vocabulary, which is not trained" },
    { "teacher-store", OPTIONS_CHOICE, &o.teacher_store, "auto", 0, 0, storage_names,
      "distill: storage of the teacher's matrices; auto takes that of --store" },
    { "distill-temperature", OPTIONS_REAL, &o.distill_temperature, "2", 0.01, 100, NULL,
      "distill: divisor of both models' logits; its square multiplies the distillation loss" },
    { "distill-alpha", OPTIONS_REAL, &o.distill_alpha, "0.5", 0, 0.999, NULL,
      "distill: weight of the next token's loss; the rest is the weight of the distillation "
      "loss" },
    { "validation", OPTIONS_FILE, &lm.validation, NULL, 0, 0, NULL,
      "validation data; default: the last 10 % of --data" },
    { "retention-data", OPTIONS_FILE, &o.retention_data, NULL, 0, 0, NULL,
      "text of another kind, to measure how much the model forgets" },
    { "save", OPTIONS_FOLDER, &lm.save, NULL, 0, 0, NULL,
      "folder for the weights that evaluate best and for training.safetensors, from which "
      "--resume continues" },
    { "keep", OPTIONS_CHOICE, &o.keep, "best", 0, 0, keep_names,
      "weights that --save keeps: those that evaluate best, the last step's, or both (the last "
      "step's in DIR/last)" },
    { "export", OPTIONS_CHOICE, &o.export_as, "f32", 0, 0, export_names,
      "type of a whole model that --save (with --method full) or --merge writes" },
    { "merge", OPTIONS_FOLDER, &o.merge, NULL, 0, 0, NULL,
      "folder for a whole model in Hugging Face's format, with the changes of lora, last, head, "
      "bias or new-blocks applied: those of --adapter (without --data) or of the training" },
    { "export-gguf", OPTIONS_FILE, &o.gguf, NULL, 0, 0, NULL,
      "also write FILE for llama.cpp and Ollama: a whole model with its tokenizer (methods full, "
      "last, head, bias and new-blocks; --merge; or --model as it is), or LoRA for llama.cpp's "
      "--lora; of --adapter without --data, or of the training" },
    { "gguf-type", OPTIONS_CHOICE, &o.gguf_type, "f16", 0, 0, gguf_type_names,
      "type of the matrices of a whole model in --export-gguf's file" },
    { "resume", OPTIONS_PATH, &lm.resume, NULL, 0, 0, NULL,
      "continue from a training.safetensors, or the folder with it, with its options except "
      "those given now" },
    { "adapter", OPTIONS_PATH, &o.adapter, NULL, 0, 0, NULL,
      "folder with an adapter to start from, written by peft or --save, or a LoRA as FILE.gguf" },
    { "new", OPTIONS_TEXT, &o.new_model, NULL, 0, 0, NULL,
      "create --model first, with new weights and a tokenizer of bytes: "
      "LAYERSxDIMxHEADSxCONTEXT[xVOCABULARY] for a GPT-2 (gpt2 has 12x768x12x1024x50257); "
      "llama:LAYERSxDIMxHEADSxKVHEADSxCONTEXT[xVOCABULARY] for a Llama; gemma2: or gemma3: in "
      "the same form for these" },
    { "store", OPTIONS_CHOICE, &o.store, "auto", 0, 0, storage_names,
      "storage of frozen matrices; changes memory and, slightly, results; auto takes f32 or, "
      "for a GGUF, the storage nearest to the file's" },
    { "map", OPTIONS_FLAG, &o.map, NULL, 0, 0, NULL,
      "map the file with the weights instead of reading it; the system may drop and reload "
      "them, and the budget does not count them" },
    { "chat", OPTIONS_TEXT, &o.chat, NULL, 0, 0, NULL,
      "chat template: chatml, llama3, gemma, mistral, zephyr or none; default: that of --model" },
    { "user-turn", OPTIONS_TEXT, &o.turns[CHAT_USER], NULL, 0, 0, NULL,
      "another chat template, together with --assistant-turn: a user's message with {} for its "
      "text: '<|user|>\\n{}\\n'" },
    { "assistant-turn", OPTIONS_TEXT, &o.turns[CHAT_ASSISTANT], NULL, 0, 0, NULL,
      "the same for answers: '<|assistant|>\\n{}</s>\\n'; the text after {} is trained with the "
      "answer" },
    { "system-turn", OPTIONS_TEXT, &o.turns[CHAT_SYSTEM], NULL, 0, 0, NULL,
      "the same for the system's message; default: the template has none" },
    { "fields", OPTIONS_TEXT, &o.fields, NULL, 0, 0, NULL,
      "names of keys in FILE.jsonl: prompt=problem,answer=solution; the keys are those of the forms "
      "of data" },
    { "special-tokens", OPTIONS_FLAG, &o.special_tokens, NULL, 0, 0, NULL,
      "take special tokens spelled out in FILE.jsonl as tokens; without this option they are "
      "text" },
    { "size", OPTIONS_INT, &o.size, "0", 0, 65536, NULL,
      "lora: rank (0 takes 8); houlsby: bottleneck (0 takes 64); llama, prefix, prompt: tokens "
      "(0 takes 10)" },
    { "layers", OPTIONS_INT, &o.layers, "0", 0, 1000, NULL,
      "number of blocks, counted from the top, for last and new-blocks (0 takes 1) and llama (0 "
      "takes all)" },
    { "alpha", OPTIONS_REAL, &o.alpha, "0", 0, 1e6, NULL,
      "lora: alpha of the scale alpha / rank; 0 takes 8" },
    { "rslora", OPTIONS_FLAG, &o.rslora, NULL, 0, 0, NULL, "lora: scale by alpha / sqrt(rank)" },
    { "lora-dropout", OPTIONS_REAL, &o.lora_dropout, "0", 0, 0.99, NULL,
      "lora: dropout rate of the adapter's input" },
    { "targets", OPTIONS_TEXT, &o.targets, NULL, 0, 0, NULL,
      "lora: modules to adapt, named as in peft: c_attn,mlp.c_fc, or all-linear; default: "
      "c_attn of a GPT-2, q_proj,v_proj of a Llama, qkv_proj of a Phi-3" },
    { "rank-pattern", OPTIONS_TEXT, &o.rank_pattern, NULL, 0, 0, NULL,
      "lora: other ranks for some modules: mlp.c_fc=4" },
    { "alpha-pattern", OPTIONS_TEXT, &o.alpha_pattern, NULL, 0, 0, NULL,
      "lora: other alphas for some modules: mlp.c_fc=16" },
    { "bias", OPTIONS_CHOICE, &o.bias, "none", 0, 0, bias_names, "lora: biases to train as well" },
    { "dora", OPTIONS_FLAG, &o.dora, NULL, 0, 0, NULL,
      "lora: DoRA, which also trains the lengths of the weights' rows (use_dora of peft)" },
    { "modules-to-save", OPTIONS_TEXT, &o.modules_to_save, NULL, 0, 0, NULL,
      "lora: modules to train as a whole and save with the adapter: lm_head,embed_tokens or "
      "norm" },
    { "ensure-weight-tying", OPTIONS_FLAG, &o.tied, NULL, 0, 0, NULL,
      "lora: keep embeddings in --modules-to-save tied to the head; without this option one of "
      "them becomes a copy" },
    { "layers-to-transform", OPTIONS_TEXT, &o.layers_to_transform, NULL, 0, 0, NULL,
      "lora: blocks to adapt, counted from 0: 4-7 or 0,2,5; default: all" },
    { "hidden", OPTIONS_INT, &o.hidden, "0", 0, 65536, NULL,
      "prefix: units of an MLP that produces the prefix during training; 0 trains it without "
      "one" },
    { "context", OPTIONS_INT, &o.context, "0", 0, 1 << 20, NULL,
      "tokens per row; 0 takes 1024 or as many as the model and the method allow, for JSON at "
      "most those of the longest line" },
    { "lr", OPTIONS_REAL, &lm.lr, "0", 0, 10, NULL,
      "learning rate after the warm-up; 0 takes that of the method, 5e-5 (full) to 3e-2 "
      "(prompt)" },
    { "no-shuffle", OPTIONS_FLAG, &o.no_shuffle, NULL, 0, 0, NULL,
      "take the rows in the order of --data; without this option each epoch has another order" },
    { "epochs", OPTIONS_INT, &o.epochs, "0", 0, 1e6, NULL,
      "number of passes over --data, instead of --steps; 0 takes --steps" },
    { "eval-every", OPTIONS_INT, &lm.eval_every, "50", 0, 1e12, NULL,
      "steps between evaluations, also before the first and after the last step; 0 turns them "
      "off" },
    { "patience", OPTIONS_INT, &o.patience, "0", 0, 1e9, NULL,
      "end the training after this number of evaluations in sequence without a better loss; 0 trains "
      "all steps" },
    { "eval", OPTIONS_FLAG, &o.eval, NULL, 0, 0, NULL,
      "do not train: print the loss of --model with --adapter on --validation, or else on all "
      "of --data" },
    { "accuracy", OPTIONS_FILE, &o.accuracy, NULL, 0, 0, NULL,
      "do not train: print the share of right answers of --model with --adapter on FILE.jsonl. "
      "Lines {\"question\": .., \"choices\": [..], \"answer\": index or text}: the choice of the "
      "greatest log-probability (acc, acc_norm as in lm-evaluation-harness); lines with answers as "
      "for --data: the answer generated greedily, compared without white space around it" },
    { "generate", OPTIONS_FLAG, &o.generate, NULL, 0, 0, NULL,
      "do not train: continue --prompt with --model and --adapter; with a chat template, answer "
      "it instead (unless --chat none)" },
    { "interactive", OPTIONS_FLAG, &o.interactive, NULL, 0, 0, NULL,
      "do not train: chat with --model and --adapter, on the terminal or through a pipe, a message "
      "per line; /reset begins a new chat, /system TEXT one with this message of the system, "
      "/exit ends; Ctrl-C stops an answer" },
    { "system", OPTIONS_TEXT, &o.system, NULL, 0, 0, NULL,
      "--interactive, --generate: message of the system at the beginning of the chat" },
    { "prompt", OPTIONS_TEXT, &lm.prompt, NULL, 0, 0, NULL,
      "text for samples to continue, before and after training, or - for standard input; "
      "default: the end-of-text token" },
    { "sample", OPTIONS_INT, &lm.sample, "0", 0, 1e9, NULL,
      "tokens to generate, fewer if the model's context is full; 0 takes 200 with --generate, 1024 "
      "with --interactive" },
    { "plan", OPTIONS_FLAG, &lm.plan, NULL, 0, 0, NULL,
      "print the bytes that the plan needs, then stop" },
    { "will-it-fit", OPTIONS_PATH, &o.will_it_fit, NULL, 0, 0, NULL,
      "print the bytes that each method needs for a model, from its folder or its config.json "
      "alone, then stop; --budget, --method, --store, --context, --bf16 and --batch ask for less" },
    { "memory-svg", OPTIONS_FILE, &o.memory_svg, NULL, 0, 0, NULL,
      "with --method all: draw the memory of each method (SVG)" },
};
static const char *const defaults[] = { "top-k", "40", NULL };
static const options_table options = { "finetune", option_descs, sizeof option_descs / sizeof option_descs[0],
                                       20,         "WHICH", lm_options,
                                       LM_OPTIONS,    defaults };
static const char title[] =
    "fine-tunes a language model from Hugging Face within a byte budget\n\n"
    "Usage: finetune --model DIR --data FILE [--OPTION VALUE ..]\n"
    "       finetune --model DIR [--adapter DIR] --generate --prompt TEXT\n\n"
    "Examples:\n"
    "    finetune --model smol --data chats.jsonl --budget 800M --save tuned\n"
    "    finetune --model smol --adapter tuned --generate --prompt 'Which tea?'\n"
    "    finetune --resume tuned --epochs 6                 continues to epoch 6\n"
    "    finetune --model smol --data chats.jsonl --plan    prints the bytes needed\n"
    "    finetune --will-it-fit config.json --budget 6G     prints which methods fit";
static const char *const groups[] = {
    "Model",
    "model new adapter store map",
    "Data and output",
    "data validation retention-data context fields special-tokens chat user-turn assistant-turn system-turn save "
    "keep save-every resume export merge export-gguf gguf-type",
    "Method",
    "method size layers hidden",
    "LoRA",
    "alpha rslora lora-dropout targets rank-pattern alpha-pattern bias dora modules-to-save "
    "ensure-weight-tying layers-to-transform",
    "Objective",
    "objective beta label-smoothing reference teacher teacher-store "
    "distill-temperature distill-alpha",
    "Steps",
    "steps epochs batch no-shuffle optimiser lr min-lr warmup weight-decay beta1 beta2 clip dropout seed "
    "eval-every eval-iters patience",
    "Memory and speed, without changing results",
    "budget micro-batch checkpoint threads device offload-state",
    "Memory and speed, changing results",
    "bf16",
    "Ledger, by which others check the training",
    "ledger ledger-every ledger-key audit audit-until",
    "Sampling",
    "interactive system generate sample prompt samples temperature top-k top-p",
    "Reports",
    "will-it-fit eval accuracy plan timeline memory-svg json log peak-tflops help",
    NULL
};
/* fixed: options that determine the trained parameters, so that --resume refuses to change them;
 * other_notes: further notes of a run; not_kept: options that training.safetensors does not
 * store. */
static const char fixed[] =
    "method size layers alpha rslora targets rank-pattern alpha-pattern bias hidden store dora modules-to-save "
    "ensure-weight-tying layers-to-transform objective optimiser";
static const char other_notes[] = "data base model skipped position best stale before retention cut.step "
                                  "cut.row rows.validation rows.retention";
static const char not_kept[] =
    "resume save new json log timeline memory-svg plan will-it-fit help eval accuracy generate interactive system merge export-gguf gguf-type "
    "ledger ledger-every ledger-key audit audit-until";

static const char *join(char *path, size_t size, const char *folder, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* Returns whether the program generates texts instead of training. */
static int answers(void) { return o.generate || o.interactive || o.accuracy != NULL; }

/* Checks --steps and --epochs. --steps on the command line replaces the --epochs of a resumed
 * run. */
static int check_steps(int argc, char **argv)
{
    const int steps = options_given(&options, argc, argv, "steps") != NULL,
              epochs = options_given(&options, argc, argv, "epochs") != NULL;
    if (steps && epochs && o.epochs > 0)
        return session_fail(2, "--steps %lld and --epochs %lld exclude each other; give one of "
                               "them",
                            (long long)lm.steps, (long long)o.epochs);
    o.epochs = steps ? 0 : o.epochs;
    return 0;
}

/* Refuses options that belong to another --objective, and reports missing options of the selected
 * one. */
static int check_objective(int argc, char **argv)
{
    static const struct {
        const char *option;
        int objective;
    } own[] = { { "beta", OBJECTIVE_DPO },
                { "label-smoothing", OBJECTIVE_DPO },
                { "reference", OBJECTIVE_DPO },
                { "teacher", OBJECTIVE_DISTILL },
                { "teacher-store", OBJECTIVE_DISTILL },
                { "distill-temperature", OBJECTIVE_DISTILL },
                { "distill-alpha", OBJECTIVE_DISTILL } };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (own[i].objective != o.objective && lm.audit == NULL && /* a ledger states all options */
            options_given(&options, argc, argv, own[i].option) != NULL)
            return session_fail(2, "--%s belongs to --objective %s; add that option",
                                own[i].option, objective_names[own[i].objective]);
    if (o.objective == OBJECTIVE_DISTILL && o.teacher == NULL && !o.eval && !answers())
        return session_fail(2, "--objective distill needs --teacher DIR, a model with the same "
                               "vocabulary");
    if (o.objective == OBJECTIVE_DPO && o.retention_data != NULL)
        return session_fail(2, "--retention-data is a text, but --objective dpo evaluates pairs; "
                               "to measure forgetting, run --eval on the text without "
                               "--objective dpo");
    return 0;
}

/* Returns the learning rate after the warm-up: --lr or the method's default. */
static double learning_rate(adapters_method method)
{
    return lm.lr > 0                      ? lm.lr
           : o.objective == OBJECTIVE_DPO ? default_lr[method] / 50
                                          : default_lr[method];
}

/* Checks that --min-lr is not above the learning rate of any method that runs. */
static int check_rates(void)
{
    for (int i = 0; i < ADAPTERS_METHODS && lm.data != NULL && !o.eval; i++)
        if ((o.method == i || o.method == ADAPTERS_METHODS) &&
            lm.min_lr > learning_rate((adapters_method)i))
            return session_fail(2,
                                "--min-lr %g: allowed is at most the learning rate, which is %g "
                                "by --method %s unless --lr is given",
                                lm.min_lr, learning_rate((adapters_method)i), method_names[i]);
    return 0;
}

static int quantised_by_option(void) { return o.store != GCKPT_STORAGE_F32 && o.store != STORE_AUTO; }

/* Returns whether the method's result is a whole model without additional tensors, so that any file
 * format for weights can hold it. */
static int is_plain_model(adapters_method method)
{
    return method == ADAPTERS_LAST || method == ADAPTERS_HEAD || method == ADAPTERS_BIAS ||
           method == ADAPTERS_NEW_BLOCKS;
}

/* Returns whether --export-gguf writes a whole model, and not an adapter. */
static int exports_model(void)
{
    return o.gguf != NULL && (o.merge != NULL || o.method == ADAPTERS_FULL ||
                              is_plain_model((adapters_method)o.method) ||
                              (lm.data == NULL && o.adapter == NULL));
}

/* Returns whether --store auto keeps the matrices of a GGUF model in the file's storage. It does if
 * the method trains no matrix of the model and no adapter is merged into them. */
static int as_file(const char *model, adapters_method method)
{
    return o.store == STORE_AUTO && o.merge == NULL && !exports_model() && method != ADAPTERS_FULL &&
           method != ADAPTERS_LAST && gguf_is_file(model);
}

static int check_merge(void)
{
    const adapters_method method = (adapters_method)o.method;
    if (o.merge == NULL)
        return 0;
    if (quantised_by_option() || o.map || o.eval || answers() || lm.plan)
        return session_fail(2,
                            "--merge %s needs weights as floats and only writes them; omit "
                            "--store, --map, --eval, --accuracy, --generate, --interactive and --plan",
                            o.merge);
    if (method == ADAPTERS_FULL || method == ADAPTERS_METHODS)
        return session_fail(2, method == ADAPTERS_FULL
                                   ? "--merge: not needed with --method full, whose --save "
                                     "writes a whole model"
                                   : "--merge takes one method; after --method all, give "
                                     "--adapter DIR/METHOD");
    if (method != ADAPTERS_LORA && !is_plain_model(method))
        return session_fail(2,
                            "--merge: the parameters of --method %s cannot be merged into "
                            "weights; load them with --adapter, %s",
                            method_names[method],
                            method == ADAPTERS_HOULSBY ? "in this program only" : "in this program and in peft");
    if (lm.data == NULL && o.adapter == NULL)
        return session_fail(2, "--merge needs --adapter DIR, or --data to train one first");
    return 0;
}

static int check_gguf(void)
{
    const int whole = exports_model();
    if (o.gguf_type != 0 && !whole)
        return session_fail(2, "--gguf-type %s: needs --export-gguf of a whole model; LoRA is F32",
                            gguf_type_names[o.gguf_type]);
    if (o.gguf == NULL)
        return 0;
    if (o.eval || answers() || lm.plan || o.method == ADAPTERS_METHODS)
        return session_fail(2,
                            "--export-gguf %s: omit --eval, --accuracy, --generate, --interactive, "
                            "--plan and --method all",
                            o.gguf);
    if (!gguf_is_file(o.gguf) && !gguf_is_file_name(o.gguf))
        return session_fail(2, "--export-gguf %s: its name must end in .gguf", o.gguf);
    if (whole && (quantised_by_option() || o.map))
        return session_fail(2, "--export-gguf %s: a whole model needs weights as floats; omit "
                               "--store and --map",
                            o.gguf);
    if (!whole && (o.method != ADAPTERS_LORA || (lm.data != NULL && lm.save == NULL)))
        return session_fail(2,
                            "--export-gguf %s: needs --method lora with --save, or with --merge for "
                            "a whole model, or another method whose result is a whole model",
                            o.gguf);
    if (!whole && (o.dora || o.modules_to_save != NULL || o.bias != 0))
        return session_fail(2,
                            "--export-gguf %s: a GGUF holds LoRA's A and B only; omit --dora, "
                            "--modules-to-save and --bias, or add --merge DIR for a whole model",
                            o.gguf);
    return 0;
}

/* Checks --eval, --generate and the options that name output files. */
static int check_modes(void)
{
    if (o.eval && (lm.resume != NULL || lm.save != NULL || o.method == ADAPTERS_METHODS ||
                   lm.timeline != NULL || lm.plan))
        return session_fail(2, "--eval does not train; omit --resume, --save, --method all, "
                               "--timeline and --plan, and give saved weights with --model or "
                               "--adapter");
    if (o.interactive && (o.generate || lm.prompt != NULL || lm.samples > 1))
        return session_fail(2, "--interactive reads messages from standard input; omit --generate, "
                               "--prompt and --samples");
    if (o.accuracy != NULL && (o.generate || o.interactive || o.eval))
        return session_fail(2, "--accuracy %s: omit --eval, --generate and --interactive", o.accuracy);
    if (o.system != NULL && !o.generate && !o.interactive)
        return session_fail(2, "--system needs --interactive, or --generate with --prompt");
    if (answers() && (lm.data != NULL || lm.resume != NULL || lm.save != NULL || o.eval ||
                      o.method == ADAPTERS_METHODS || lm.plan || lm.timeline != NULL))
        return session_fail(2,
                            "--%s; omit --data, --resume, --save, --eval, --method all, --plan and "
                            "--timeline%s",
                            o.interactive ? "interactive only chats"
                            : o.generate  ? "generate only continues --prompt"
                                          : "accuracy only evaluates",
                            !o.generate ? "" : "; to sample during training, give --sample N");
    if (check_merge() != 0)
        return 2;
    if (check_gguf() != 0)
        return 2;
    if (o.export_as != 0 && o.method != ADAPTERS_FULL && o.merge == NULL)
        return session_fail(
            2,
            "--export %s needs a whole model (--method full or --merge); adapters are saved as "
            "f32",
            export_names[o.export_as]);
    if (o.patience > 0 && lm.eval_every == 0)
        return session_fail(2, "--patience %lld counts evaluations; give --eval-every above 0",
                            (long long)o.patience);
    if (lm.log != NULL && (lm.data == NULL || o.eval || answers() || o.method == ADAPTERS_METHODS))
        return session_fail(2,
                            "--log %s: logs the training by one method; omit it without --data, and "
                            "with --eval and --method all",
                            lm.log);
    if (o.keep != KEEP_BEST && lm.save == NULL)
        return session_fail(2, "--keep %s needs --save DIR", keep_names[o.keep]);
    return 0;
}

/* Checks that --method uses the options of methods that are given. */
static int check_lora(void)
{
    const int lora = o.method == ADAPTERS_LORA, prefix = o.method == ADAPTERS_PREFIX,
              tokens = prefix || o.method == ADAPTERS_LLAMA || o.method == ADAPTERS_PROMPT,
              blocks = o.method == ADAPTERS_LAST || o.method == ADAPTERS_NEW_BLOCKS ||
                       o.method == ADAPTERS_LLAMA;
    const struct {
        const char *name, *methods;
        int given, used;
    } all[] = { { "size", "lora, houlsby, llama, prefix or prompt", o.size > 0,
                  lora || tokens || o.method == ADAPTERS_HOULSBY },
                { "layers", "last, new-blocks or llama", o.layers > 0 && !lora, blocks },
                { "hidden", "prefix", o.hidden > 0, prefix },
                { "alpha", "lora", o.alpha > 0, lora },
                { "rslora", "lora", o.rslora != 0, lora },
                { "lora-dropout", "lora", o.lora_dropout > 0, lora },
                { "targets", "lora", o.targets != NULL, lora },
                { "rank-pattern", "lora", o.rank_pattern != NULL, lora },
                { "alpha-pattern", "lora", o.alpha_pattern != NULL, lora },
                { "bias", "lora", o.bias != 0, lora },
                { "dora", "lora", o.dora != 0, lora },
                { "modules-to-save", "lora", o.modules_to_save != NULL, lora },
                { "ensure-weight-tying", "lora", o.tied != 0, lora },
                { "layers-to-transform", "lora", o.layers_to_transform != NULL, lora } };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].given && !all[i].used && o.method != ADAPTERS_METHODS)
            return session_fail(2, "--%s needs --method %s, not %s", all[i].name, all[i].methods,
                                method_names[o.method]);
    if (o.tied && o.modules_to_save == NULL)
        return session_fail(2, "--ensure-weight-tying needs --modules-to-save with the embeddings");
    if (o.layers > 0 && o.method == ADAPTERS_LORA)
        return session_fail(2,
                            "--layers does not apply to lora; to select blocks, give "
                            "--layers-to-transform, such as 4-7");
    return 0;
}

static int check_chat(void)
{
    const char *turn = o.turns[CHAT_USER] != NULL ? o.turns[CHAT_USER] : o.turns[CHAT_ASSISTANT];
    if ((turn != NULL || o.turns[CHAT_SYSTEM] != NULL) &&
        (o.turns[CHAT_USER] == NULL || o.turns[CHAT_ASSISTANT] == NULL))
        return session_fail(2, "--user-turn and --assistant-turn must be given together, and "
                               "--system-turn only with both");
    if (o.fields != NULL && !dataset_fields_valid(o.fields))
        return session_fail(
            2,
            "--fields %s: expected KEY=NAME,.., where KEY is prompt, answer, completion, "
            "instruction, input, output, question, context, response, messages, "
            "conversations, text, chosen, rejected or tools",
            o.fields);
    if (turn != NULL && o.chat != NULL)
        return session_fail(2,
                            "--chat %s and --user-turn both select a template; omit one of them",
                            o.chat);
    return 0;
}

/* Returns an error if an option that needs an output folder names a GGUF file, unless a folder has
 * that name. */
static int check_folder(const char *option, const char *path)
{
    struct stat info;
    if (path == NULL || !gguf_is_file_name(path) || (stat(path, &info) == 0 && S_ISDIR(info.st_mode)))
        return 0;
    return session_fail(
        2,
        "--%s %s: writes a folder; give a name that does not end in .gguf (--export-gguf writes a "
        "GGUF)",
        option, path);
}

static int check_paths(void)
{
    return check_folder("save", lm.save) || check_folder("merge", o.merge) ||
                   (o.new_model == NULL && model_check_source("model", o.model)) ||
                   model_check_source("adapter", o.adapter) || model_check_source("teacher", o.teacher) ||
                   model_check_source("reference", o.reference)
               ? 2
               : 0;
}

static int check_options(void)
{
    struct stat info;
    if (o.model == NULL)
        return session_fail(
            2,
            "--model is missing: give a folder with a GPT-2 or a Llama-like model, such as "
            "huggingface.co/gpt2, or a FILE.gguf; --new 4x128x4x128 --model DIR creates a small "
            "one");
    if (o.new_model != NULL && lm.resume != NULL)
        return session_fail(2, "--new creates a model and --resume continues with one; omit one "
                               "of them");
    if (o.generate && lm.sample == 0)
        lm.sample = 200;
    const int given = lm.data != NULL || (o.eval && lm.validation != NULL);
    const int others = answers() || o.merge != NULL || o.gguf != NULL ||
                       (o.new_model != NULL && lm.resume == NULL);
    if (!given && (!others || (o.eval && !answers())))
        return session_fail(2, "--data is missing: give a FILE %s",
                            o.eval ? "to evaluate with" : "to train on");
    if (o.method == ADAPTERS_METHODS && (lm.save == NULL || lm.resume != NULL || o.adapter != NULL))
        return session_fail(2, lm.save == NULL
                                   ? "--method all needs --save DIR; it saves each method in "
                                     "DIR/METHOD"
                                   : "--method all: omit --resume and --adapter, which belong to "
                                     "one method");
    if (quantised_by_option() &&
        (o.method == ADAPTERS_FULL || o.method == ADAPTERS_LAST || o.method == ADAPTERS_METHODS))
        return session_fail(2,
                            "--store %s: only frozen matrices can be quantised, but --method %s "
                            "trains matrices; omit --store or choose another method",
                            storage_names[o.store], method_names[o.method]);
    if (quantised_by_option() && o.map)
        return session_fail(2, "--map uses the weights as stored in the file; omit --store %s",
                            storage_names[o.store]);
    if (o.map && gguf_is_file(o.model))
        return session_fail(2, "--map: not available for a GGUF; omit it (--store auto needs "
                               "about as many bytes as the file)");
    if (o.adapter != NULL && (o.size > 0 || o.layers > 0 || o.hidden > 0 || o.alpha > 0 ||
                              o.rslora || o.lora_dropout > 0 || o.targets != NULL ||
                              o.rank_pattern != NULL || o.alpha_pattern != NULL || o.bias != 0 || o.dora ||
                              o.modules_to_save != NULL || o.tied || o.layers_to_transform != NULL))
        return session_fail(2,
                            "--adapter %s: its adapter_config.json determines sizes and scales; "
                            "omit --size, --alpha, --dora and similar options",
                            o.adapter);
    if (lm.data != NULL && (lm.ledger != NULL || lm.audit != NULL) &&
        (session_is_dash(lm.data) || (stat(lm.data, &info) == 0 && !S_ISREG(info.st_mode))))
        return session_fail(2, "--%s: an audit reads --data again; give a file instead of %s",
                            lm.ledger != NULL ? "ledger" : "audit",
                            session_is_dash(lm.data) ? "-" : "a pipe");
    if (o.method == ADAPTERS_METHODS && (lm.ledger != NULL || lm.audit != NULL))
        return session_fail(2, "--%s: --method all trains several times; choose one method",
                            lm.ledger != NULL ? "ledger" : "audit");
    if (o.memory_svg != NULL && o.method != ADAPTERS_METHODS)
        return session_fail(2,
                            "--memory-svg compares methods and needs --method all; for one "
                            "method, give --timeline");
    const int status =
        check_lora() != 0 || check_modes() != 0 || check_paths() != 0 ? 2 : check_chat();
    return status != 0 ? status : lm_check_options();
}

/* ---- the run: state common to all methods ---------------------------------------------------- */
enum { DEFAULT_CONTEXT = 1024 };

typedef struct { /* rows first, first + 1, .., first + count - 1 of a data set */
    const dataset *data;
    uint64_t first, count;
} split;

static struct {
    bpe tokenizer;
    chat chat; /* the chat template */
    int chats; /* nonzero if the data or the prompt consists of chats */
    dataset data, validation, retention;
    /* rows of T tokens: for training, for validation, of --retention-data; count is 0 if there are
     * none */
    split train, valid, other;
    /* order of training rows in which rows of a batch have similar lengths */
    dataset_batches batches;
    /* row lengths to plan for, in tokens, ascending; the last one is first.T */
    int64_t lengths[LM_CLASSES];
    int grouped, classes;
    /* tokens that an epoch computes divided by tokens that are not padding: padding, with rows
     * grouped by length; unsorted, without grouping */
    double padding, unsorted;
    int32_t end;                  /* the end-of-text token, or -1 */
    int32_t stops[MODEL_EOS + 1]; /* tokens at which a generated text ends; -1 ends the list */
    lm_run first;                 /* initial value of the `run` of each method: device, feeds, T */
    uint64_t resumed_at;          /* step at which the resumed file was saved */
    /* cut_step: step at which --batch last changed, or 0; cut_row: number of rows before that
     * step */
    uint64_t cut_step, cut_row;
    int64_t cut_was;              /* value of --batch before this run changed it, or 0 */
    int biases;                   /* nonzero if the model has biases */
    int64_t vocabulary;           /* size of the model's vocabulary */
    /* For --objective dpo, log-probabilities by the reference model. references: two arrays
     * (rows,2), for --data and for --validation. reference, label: feeds for the rows of the
     * current step. */
    float *references[2], *reference, *label;
    int refers;   /* nonzero while references[] are being computed */
    int exported; /* nonzero after the file of --export-gguf was written */
    int cancelled;    /* nonzero after an interrupt before the first step */
    double int8_loss; /* --store int4: the validation loss with int8; 0 if it was not measured */
} run;

typedef struct { /* result of training by one method: a row of the table of --method all */
    int64_t parameters;
    size_t bytes, file, kinds[GCKPT_BYTES_KINDS];
    double seconds; /* median time of a step */
    double before, after, best, retention_before, retention_after;
    uint64_t stale; /* number of evaluations since the best one */
} outcome; /* all losses are 0 if they were not computed */

typedef struct {
    gckpt_store *notes; /* notes to be stored in training.safetensors only */
    model_any model, teacher;
    adapters adapters;
    model_options options;
    int training;     /* nonzero if the graph being built is for training */
    int64_t teacher_params;   /* parameters of the teacher */
    const char *save; /* folder of --save, or NULL if nothing is saved */
    int saved;        /* nonzero if the saved model or adapter has the weights of this moment */
    lm_run run;
    outcome result;
} tuning;

/* ---- a new model ----------------------------------------------------------------------------- */
/* Writes the tokenizer of a new model: 256 tokens for the bytes, an end-of-text token, no
 * merges. */
static int write_tokenizer(void)
{
    char path[MODEL_PATH];
    FILE *f = fopen(join(path, sizeof path, o.model, "vocab.json"), "wb");
    if (f == NULL)
        return session_fail(1, "%s: %s", path, strerror(errno));
    fputc('{', f);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        const int n = json_put_utf8(name, bpe_character_of(byte));
        json_write_string(f, name, (size_t)n);
        fprintf(f, ": %d, ", byte);
    }
    fputs("\"<|endoftext|>\": 256}\n", f);
    int failed = ferror(f) != 0;
    failed = fclose(f) != 0 || failed;
    f = failed ? NULL : fopen(join(path, sizeof path, o.model, "merges.txt"), "wb");
    if (f != NULL)
        fputs("#version: 0.2\n", f);
    if (f == NULL || fclose(f) != 0)
        return session_fail(1, "%s: %s", path, strerror(errno));
    return 0;
}

/* Writes the chat template of a model made by --new with --chat NAME. */
static int write_template(int which)
{
    char path[MODEL_PATH];
    FILE *f = fopen(join(path, sizeof path, o.model, "chat_template.jinja"), "wb");
    if (f != NULL)
        fputs(chat_templates[which].text, f);
    return f == NULL || fclose(f) != 0 ? session_fail(1, "%s: %s", path, strerror(errno)) : 0;
}

/* Reads numbers separated by x, such as 4x128x4x128 of --new, into n. Returns 1, or 0 if the text
 * is not such a list. */
static int read_sizes(const char *text, int least, int most, long long *n)
{
    char *end = NULL;
    int count = 0;
    for (; count < most && (count == 0 || *end == 'x'); count++) {
        const char *at = count > 0 ? end + 1 : text;
        n[count] = strtoll(at, &end, 10);
        if (end == at || n[count] < 1 || n[count] > 1 << 24)
            return 0;
    }
    return count >= least && *end == 0;
}

/* Sets the sizes of a new model from --new. Returns 1, or 0 if the option's text is not valid. */
static int size_model(model_any *m)
{
    enum { LAYERS, DIM, HEADS, CONTEXT, VOCABULARY };
    enum { KEY_HEADS = 3, L_CONTEXT, L_VOCABULARY };
    static const char *const names[] = { "llama:", "gemma2:", "gemma3:" };
    int which = 0;
    while (which < 3 && strncmp(o.new_model, names[which], strlen(names[which])) != 0)
        which++;
    const int llama = which < 3;
    long long n[6] = { 0, 0, 0, 0, 257, 257 };
    const char *sizes = o.new_model + (llama ? strlen(names[which]) : 0);
    if (!read_sizes(sizes, 4 + llama, 5 + llama, n) || n[LAYERS] > 1000 || n[DIM] > 65536 ||
        n[DIM] % n[HEADS] != 0 || n[llama ? L_CONTEXT : CONTEXT] > 1 << 20 ||
        n[llama ? L_VOCABULARY : VOCABULARY] < 257)
        return 0;
    if (!llama) {
        gpt2_new(m, n[LAYERS], n[HEADS], n[DIM], n[CONTEXT], n[VOCABULARY]);
        return 1;
    }
    llama_new(m, n[LAYERS], n[DIM], n[HEADS], n[KEY_HEADS], n[L_CONTEXT], n[L_VOCABULARY]);
    const long long half = n[L_CONTEXT] / 2 + n[L_CONTEXT] % 2;
    if (which > 0)
        llama_as_gemma(m, which + 1, which == 2 && half > 512 ? 512 : half);
    if (which > 0 && n[LAYERS] > LLAMA_MASK_BITS)
        return 0;
    return n[HEADS] % n[KEY_HEADS] == 0 && m->config.head_dim % 2 == 0 && m->config.head_dim <= LLAMA_MAX_HEAD_DIM;
}

static int make_model(void)
{
    char path[MODEL_PATH];
    model_any m;
    gckpt_store_desc desc = { .seed = (uint64_t)lm.seed };
    const char *chat_name = o.chat != NULL ? o.chat : "none";
    int which = 0;
    while (which < CHAT_TEMPLATES && strcmp(chat_name, chat_templates[which].name) != 0)
        which++;
    if (which == CHAT_TEMPLATES && strcmp(chat_name, "none") != 0)
        return session_fail(2, "--chat %s: allowed is %s; or none", chat_name,
                            chat_list_names(path, sizeof path));
    if (!size_model(&m))
        return session_fail(2,
                            "--new %s: allowed is LAYERSxDIMxHEADSxCONTEXT, such as 4x128x4x128, "
                            "with DIM a multiple of HEADS, and optionally xVOCABULARY, 257 or "
                            "more; or llama:LAYERSxDIMxHEADSxKVHEADSxCONTEXT, such as "
                            "llama:4x128x4x2x128, with DIM an even multiple of HEADS, and HEADS "
                            "of KVHEADS; gemma2: and gemma3: as llama:",
                            o.new_model);
    if (access(join(path, sizeof path, o.model, "config.json"), F_OK) == 0)
        return session_fail(
            2, "--new: %s is there already; give another --model, or leave --new out", path);
    gckpt_store *store = gckpt_store_new(&desc);
    m.config.eos[0] = 256;
    m.config.eos[1] = -1;
    int failed =
        model_declare(&m, store) != 0 || model_save(&m, store, o.model, GCKPT_STORAGE_F32) != 0
            ? session_fail(1, "--new: %s", m.error)
            : write_tokenizer();
    failed = failed || (which < CHAT_TEMPLATES && write_template(which) != 0);
    if (!failed)
        fprintf(session.out,
                "new    %s: %s, %lld parameters, %lld positions, a tokenizer of bytes; chat "
                "template: %s\n",
                o.model, m.config.type, (long long)lm_param_count(store),
                (long long)m.config.context,
                which < CHAT_TEMPLATES ? chat_name : "none (--new .. --chat chatml adds one)");
    gckpt_store_free(store);
    return failed;
}

/* ---- data ------------------------------------------------------------------------------------ */
/* Prints notes about data that is valid but probably not meant so. */
static void note_data(const char *option, const char *path, const dataset *d)
{
    const int one = d->replaced == 1;
    if (dataset_ends_with(path, ".csv") || dataset_ends_with(path, ".tsv"))
        fprintf(
            session.out,
            "note   --%s: %s is read as plain text, including headings and separators; for a "
            "table, write FILE.jsonl with one row per line: %s\n",
            option, path, o.objective == OBJECTIVE_DPO ? dataset_pair_formats : dataset_formats);
    if (d->replaced > 0 && d->examples != NULL)
        fprintf(session.out,
                "note   --%s: %zu unpaired surrogate%s (such as \\ud83d) replaced by U+FFFD, first in "
                "line %u; was a text cut there?\n",
                option, d->replaced, one ? "" : "s", (unsigned)d->replaced_line);
    else if (d->replaced > 0)
        fprintf(session.out,
                "note   --%s: %zu byte%s not UTF-8 and replaced by U+FFFD; is the file in another "
                "encoding?\n",
                option, d->replaced, one ? " is" : "s are");
    if (d->skipped > 0)
        fprintf(
            session.out,
            "note   --%s: %zu line%s an empty text or answer and %s skipped\n",
            option, d->skipped, d->skipped == 1 ? " has" : "s have",
            d->skipped == 1 ? "is" : "are");
    if (d->empty > 0)
        fprintf(session.out, "note   --%s: %zu answer%s empty; only %s trained, as in TRL\n",
                option, d->empty, d->empty == 1 ? " is" : "s are",
                d->empty == 1 ? "its end is" : "their ends are");
    if (d->same_pairs > 0)
        fprintf(session.out, "note   --%s: %zu pair%s the same answer twice and train%s nothing\n",
                option, d->same_pairs, d->same_pairs == 1 ? " has" : "s have", d->same_pairs == 1 ? "s" : "");
}

static int open_data(const char *option, const char *path, const model_any *m, dataset *d)
{
    if (path == NULL)
        return 0;
    if (session_is_dash(path) && session_claim_stdin(option) != 0)
        return 2;
    const dataset_desc desc = { run.end, (int)o.special_tokens, &run.chat, o.fields };
    const int pairs = o.objective == OBJECTIVE_DPO;
    if ((pairs ? dataset_open_pairs
               : dataset_open_as)(d, session_is_dash(path) ? "/dev/stdin" : path, &run.tokenizer,
                                  (int32_t)m->config.vocabulary, &desc) != 0)
        return session_fail(1, "--%s: %s", option, d->error);
    note_data(option, path, d);
    if (d->special_texts > 0)
        fprintf(session.out, "note   --%s: %zu special token%s spelled out and read as %s\n", option,
                d->special_texts, d->special_texts == 1 ? " is" : "s are",
                d->examples == NULL ? "such"
                : desc.specials     ? "such (--special-tokens)"
                                    : "text; --special-tokens takes them as such");
    return 0;
}

/* Returns how many positions an adapter puts before the tokens of a row. Returns 0 if the adapter
 * cannot be read; loading will report that error. */
static int64_t virtual_tokens(const char *adapter)
{
    char path[MODEL_PATH];
    json d;
    if (adapter == NULL || access(join(path, sizeof path, adapter, "adapter_config.json"), F_OK))
        return 0;
    const int64_t n =
        json_read_file(&d, path) == 0 ? json_int(&d, JSON_ROOT, "num_virtual_tokens", 0) : 0;
    const int read = d.error[0] == 0 && n > 0;
    json_free(&d);
    return read ? n : 0;
}

/* Returns how many positions are taken by an adapter before the tokens of a row, and sets *option
 * to the option that causes this. */
static int64_t positions_before(const char **option)
{
    const int takes = o.method >= ADAPTERS_PREFIX;
    const int64_t tokens = o.size > 0 && o.method != ADAPTERS_METHODS ? o.size
                         : o.size > 10                              ? o.size
                                                                    : 10;
    const int64_t own = o.adapter != NULL ? virtual_tokens(o.adapter) : takes ? tokens : 0;
    const int64_t others = virtual_tokens(o.reference);
    *option = others > own ? "reference" : o.adapter != NULL ? "adapter" : "size";
    return others > own ? others : own;
}

/* Opens the chat template that the options select, by default that of the model. */
static int open_chat(void)
{
    const int none = o.chat != NULL && strcmp(o.chat, "none") == 0;
    if ((gguf_is_file(o.model) ? gguf_open_chat : chat_open)(&run.chat, o.model, NULL) != 0)
        return session_fail(1, "--model: %s", run.chat.error);
    if (o.chat != NULL && !none && chat_select_named(&run.chat, o.chat) != 0)
        return session_fail(2,
                            "--chat %s; or none; for another template, give --user-turn and "
                            "--assistant-turn",
                            run.chat.error);
    if (none)
        chat_free(&run.chat), run.chat.source[0] = 0;
    for (int i = 0; i < CHAT_ROLES; i++)
        if (o.turns[i] != NULL && chat_set_turn(&run.chat, (chat_role)i, o.turns[i]) != 0)
            return session_fail(2, "--%s-turn: %s", chat_roles[i], run.chat.error);
    /* GPT-2's folder may not name an end-of-text token */
    if (run.chat.bos_eos[1][0] == 0 && run.end >= 0) {
        size_t size;
        const char *text = bpe_bytes(&run.tokenizer, run.end, &size);
        if (size < sizeof run.chat.bos_eos[1])
            memcpy(run.chat.bos_eos[1], text, size);
    }
    return 0;
}

/* Prints a note if the model's chat template cannot be used and no option selects another one.
 * `what` says how the program continues. */
static void note_unknown_template(const char *what)
{
    if (run.chat.name[0] == 0 && run.chat.source[0] != 0 && o.chat == NULL)
        fprintf(
            session.out,
            "note   the model's %s cannot be used, %s: %s; name a template with --chat NAME or\n"
            "       --user-turn and --assistant-turn, or hide this note with --chat none\n",
            run.chat.source, run.chat.problem, what);
}

/* Adds the token that ends an answer to run.stops. Returns it, or -1 if the chat has no such token. */
static int32_t add_chat_end(void)
{
    const int32_t end = chat_end_token(&run.chat, &run.tokenizer);
    int n = 0;
    while (n < MODEL_EOS && run.stops[n] >= 0 && run.stops[n] != end)
        n++;
    if (end >= 0 && run.stops[n] < 0 && n < MODEL_EOS) {
        run.stops[n] = end;
        run.stops[n + 1] = -1;
    }
    return end;
}

/* Prints the chat template in use. */
static void print_chats(void)
{
    const int32_t end = add_chat_end();
    run.chats = 1;
    const int model = strcmp(run.chat.name, "model") == 0;
    fprintf(session.out, "chats  %s%s%s\n", model ? "by the model's " : run.chat.name,
            model ? run.chat.source : "",
            end >= 0 ? "" : "; the model has no end-of-turn token, so the end is spelled out");
}

/* Returns the number of sequences in a row: 2 for pairs of answers, else 1. */
static int64_t row_width(void) { return o.objective == OBJECTIVE_DPO ? 2 : 1; }

/* Allocates the arrays that are fed to a step. */
static int make_batch(void)
{
    const int64_t T = run.first.T, width = row_width();
    if (lm_alloc_batch(&run.first, width * T) != 0)
        return 1;
    run.first.T = T;
    run.first.row_width = width;
    if (width == 1)
        return 0;
    run.reference = calloc((size_t)lm.batch, 2 * sizeof(float));
    run.label = malloc((size_t)lm.batch * sizeof(float));
    if (run.reference == NULL || run.label == NULL)
        return session_fail(1, "out of memory for a batch of %lld pairs", (long long)lm.batch);
    for (int64_t i = 0; i < lm.batch; i++)
        run.label[i] = (float)(1 - o.label_smoothing);
    run.first.extra_feeds[0] = run.reference;
    run.first.extra_feeds[1] = run.label;
    run.first.extra_floats[0] = 2;
    run.first.extra_floats[1] = 1;
    return 0;
}

/* Groups training rows of similar length into batches, and chooses run.lengths, the row lengths to
 * plan for. */
static int group_rows(void)
{
    const dataset_batches b = { run.train.data,
                                run.train.first,
                                run.train.count,
                                (uint64_t)lm.batch,
                                (uint64_t)lm.seed,
                                run.first.T,
                                0,
                                0,
                                NULL,
                                NULL };
    const int64_t width = row_width();
    double real = 0, computed = 0;
    run.grouped = run.train.data->examples != NULL && !o.no_shuffle;
    if (!run.grouped)
        return 0;
    run.batches = b;
    if (dataset_batches_new(&run.batches) != 0 ||
        (run.classes = dataset_classes(&run.batches, LM_CLASSES, run.lengths)) == 0)
        return session_fail(1, "out of memory for the order of %llu rows",
                            (unsigned long long)run.train.count);
    for (uint64_t p = 0, n; p < run.train.count; p += n) {
        n = dataset_batch(&run.batches, p);
        const int64_t length = dataset_batch_length(&run.batches, n);
        int k = 0;
        while (run.lengths[k] < length)
            k++;
        computed += (double)n * (double)(width * run.lengths[k]);
        for (uint64_t i = 0; i < n; i++)
            real += (double)dataset_real_tokens(run.train.data, run.batches.current[i], run.first.T);
    }
    /* rows of an evaluation may be longer than all training rows */
    run.lengths[run.classes - 1] = run.first.T;
    run.padding = computed / real;
    run.unsorted = (double)run.train.count * (double)(width * run.first.T) / real;
    return 0;
}

/* Converts --epochs to a number of steps; epochs are counted from the row at which --batch last
 * changed. */
static void count_steps(void)
{
    const uint64_t rows = run.train.count, batch = (uint64_t)lm.batch,
                   all = (uint64_t)o.epochs * rows;
    uint64_t steps = run.cut_step;
    if (o.epochs > 0 && run.grouped && run.cut_row == 0)
        steps += (uint64_t)o.epochs * dataset_steps(&run.batches);
    else if (o.epochs > 0 && run.grouped)
        for (uint64_t p = run.cut_row; p < all; p += dataset_batch(&run.batches, p))
            steps++;
    else if (all > run.cut_row)
        steps += (all - run.cut_row + batch - 1) / batch;
    lm.steps = o.epochs > 0 ? (int64_t)steps : lm.steps;
    if (run.cut_was == 0)
        return;
    fprintf(session.out, "note   from step %llu on, a step has %lld rows instead of %lld",
            (unsigned long long)run.resumed_at, (long long)lm.batch, (long long)run.cut_was);
    if (o.epochs > 0)
        fprintf(session.out, ": %lld steps make %lld epoch%s; the current epoch is reordered",
                (long long)lm.steps, (long long)o.epochs, session_plural(o.epochs));
    fputc('\n', session.out);
}

static int has_biases(const model_config *c)
{
    int biases = 0;
    for (int64_t i = 0; i < model_param_count(c) && !biases; i++)
        biases = strstr(model_get_param(c, i).name, ".bias") != NULL;
    return biases;
}

/* Opens --model: reads its sizes, tokenizer and chat template, but no weights. */
static int open_model(model_any *m)
{
    if (model_read_config(m, o.model) != 0)
        return session_fail(1, "--model: %s%s", m->error, model_source_hint(o.model));
    model_close(m);
    const int keys = gguf_is_file(o.model);
    if ((keys ? gguf_open_tokenizer : bpe_open)(&run.tokenizer, o.model) != 0)
        return session_fail(1, "--model: %s%s", run.tokenizer.error,
                            keys ? "; the model's folder in Hugging Face's format has a tokenizer "
                                   "that is read: --model DIR"
                                 : "");
    run.biases = has_biases(&m->config);
    run.vocabulary = m->config.vocabulary;
    const bpe_added *end = bpe_find_added(&run.tokenizer, "<|endoftext|>");
    if (m->config.eos[0] < 0 && end != NULL)
        m->config.eos[0] = end->id, m->config.eos[1] = -1;
    run.end = m->config.eos[0];
    memcpy(run.stops, m->config.eos, sizeof run.stops);
    return open_chat();
}

/* Reads all texts as tokens, and divides the rows of --data between training and validation. */
static int load_data(void)
{
    model_any m;
    const int alone = lm.data == NULL; /* nonzero for --eval of --validation, without --data */
    int status = open_model(&m);
    if (alone) {
        lm.data = lm.validation;
        lm.validation = NULL;
    }
    if (status == 0)
        status = open_data(alone ? "validation" : "data", lm.data, &m, &run.data);
    if (status == 0)
        status = open_data("validation", lm.validation, &m, &run.validation);
    if (status == 0)
        status = open_data("retention-data", o.retention_data, &m, &run.retention);
    if (status != 0)
        return status;
    if (run.data.lines[DATASET_CHATS] > 0 ||
        (run.data.lines[DATASET_INSTRUCTIONS] > 0 && run.chat.name[0] != 0))
        print_chats();
    else if (run.data.lines[DATASET_INSTRUCTIONS] > 0)
        note_unknown_template("instructions stand behind ### Instruction:");
    const char *option;
    const int64_t before = positions_before(&option), available = m.config.context - before;
    run.first.T = o.context > 0 ? o.context : available < DEFAULT_CONTEXT ? available : DEFAULT_CONTEXT;
    int64_t longest = dataset_longest(&run.data);
    if (dataset_longest(&run.validation) > longest && longest > 0)
        longest = dataset_longest(&run.validation);
    if (o.context == 0 && longest > 0)
        /* a larger context would only add padding */
        run.first.T = longest < available ? longest : available;
    if (available < 1)
        return session_fail(2, "--%s: the model has %lld positions, which leaves none for text",
                            option, (long long)m.config.context);
    if (run.first.T > available && before > 0 && strcmp(option, "size") != 0)
        return session_fail(2,
                            "--context %lld: allowed is at most %lld; the %s takes %lld of the "
                            "model's %lld positions",
                            (long long)o.context, (long long)available, option, (long long)before,
                            (long long)m.config.context);
    if (run.first.T < 1 || run.first.T > available)
        return session_fail(2,
                            "--context %lld: allowed is 1 to %lld; the model has %lld positions%s",
                            (long long)o.context, (long long)available, (long long)m.config.context,
                            available < m.config.context ? ", and the method takes some" : "");
    const uint64_t rows = dataset_rows(&run.data, run.first.T);
    const uint64_t tenth = lm.validation != NULL ? 0 : o.eval ? rows : (rows + 9) / 10;
    const uint64_t held_out = lm.eval_every > 0 && !o.eval ? tenth : 0;
    const split train = { &run.data, 0, rows - held_out }, last = { &run.data, rows - tenth, tenth },
               own = { &run.validation, 0, dataset_rows(&run.validation, run.first.T) },
               other = { &run.retention, 0, dataset_rows(&run.retention, run.first.T) };
    run.train = train;
    run.valid = lm.validation != NULL ? own : last;
    run.other = other;
    if (train.count == 0 || ((lm.eval_every > 0 || o.eval) && run.valid.count == 0))
        return session_fail(1,
                            "%s has %llu row%s of %lld token%s, too few for training and "
                            "evaluation; %s",
                            lm.data, (unsigned long long)rows, session_plural((int64_t)rows),
                            (long long)run.first.T, session_plural(run.first.T),
                            longest > 0 ? "give --validation FILE or --eval-every 0 to train on "
                                          "all"
                                        : "give a smaller --context for more rows");
    if (make_batch() != 0 || group_rows() != 0)
        return 1;
    count_steps();
    const uint64_t cut = dataset_truncated(&run.data, run.first.T);
    fprintf(session.out,
            o.eval ? "data   %s: %zu token%s, %llu row%s of %lld\n"
                   : "data   %s: %zu token%s, %llu row%s of %lld, %llu of them for validation\n",
            session_is_dash(lm.data) ? "standard input" : lm.data, run.data.tokens.count,
            session_plural((int64_t)run.data.tokens.count), (unsigned long long)rows,
            session_plural((int64_t)rows), (long long)run.first.T, (unsigned long long)held_out);
    if (cut > 0)
        fprintf(session.out,
                "note   %llu row%s too long and lose%s the start of the prompt, then the end of "
                "the answer\n",
                (unsigned long long)cut, cut == 1 ? " is" : "s are", cut == 1 ? "s" : "");
    return 0;
}

static uint64_t data_hash(void)
{
    uint64_t h =
        session_hash(14695981039346656037u, run.data.tokens.ids, run.data.tokens.count * sizeof(int32_t));
    h = session_hash(h, run.data.examples, run.data.count * sizeof(dataset_example));
    return run.data.lines[DATASET_CHATS] > 0
               ? session_hash(h, run.data.targets.flags, run.data.tokens.count)
               : h;
}

/* Returns how many rows an evaluation of this split reads; they are spread evenly over the
 * split. */
static uint64_t split_used(const split *p)
{
    const uint64_t most = lm.eval_iters > 0 ? (uint64_t)(lm.eval_iters * lm.batch) : p->count;
    return most < p->count ? most : p->count;
}

static uint64_t split_row(const split *p, uint64_t i)
{
    return p->first + i * p->count / split_used(p);
}

/* Returns a hash of everything that determines a loss of this split except the weights. Two losses
 * can be compared only if their hashes are equal. */
static uint64_t split_hash(const split *p)
{
    const lm_run *r = &run.first;
    const size_t bytes = (size_t)(row_width() * r->T) * sizeof(int32_t);
    const double by[] = { o.beta, o.label_smoothing };
    /* all objectives except dpo have the same hash, since a teacher does not affect evaluations */
    const int pairs = o.objective == OBJECTIVE_DPO;
    char *whole = pairs && o.reference != NULL ? realpath(o.reference, NULL) : NULL;
    uint64_t h = session_hash(14695981039346656037u, &lm.precision, sizeof lm.precision);
    if (pairs)
        h = session_hash(h, by, sizeof by);
    if (whole != NULL)
        h = session_hash(h, whole, strlen(whole));
    free(whole);
    for (uint64_t i = 0; i < split_used(p); i++) {
        dataset_row(p->data, split_row(p, i), r->T, r->tokens, r->targets);
        h = session_hash(session_hash(h, r->tokens, bytes), r->targets, bytes);
    }
    return h;
}

/* Returns whether `path` is a GGUF file without matrices of type Q4_0, the only type that int4
 * keeps. */
static int is_rounded_gguf(const char *path)
{
    gguf g;
    if (!gguf_is_file(path))
        return 0;
    int rounded = gguf_open(&g, path) == 0;
    for (uint64_t i = 0; rounded && i < g.tensor_count; i++)
        rounded = g.tensors[i].type != GGUF_T_Q4_0;
    gguf_close(&g);
    return rounded;
}

/* Prints a note how much accuracy int4 loses, as measured with SmolLM2-135M-Instruct whose columns
 * were scaled, so that no matrix is on a grid of 4 bits (tests/bench/rescale.py). */
static void note_storage(void)
{
    const int64_t stores[2] = { o.store, o.teacher != NULL ? o.teacher_store : GCKPT_STORAGE_F32 };
    const char *const models[2] = { o.model, o.teacher };
    const int chosen = lm.data != NULL || (o.eval && lm.validation != NULL);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "store" : "teacher-store";
        if (stores[i] != GCKPT_STORAGE_I4 ||
            (gguf_is_file(models[i]) && !is_rounded_gguf(models[i])))
            continue;
        fprintf(session.out,
                "note   --%s int4 raises the loss of SmolLM2-135M by %s nats per token, %s,\n"
                "       int8 by less than 0.001; measure this model's with --eval\n",
                name, chosen ? "0.03" : "0.3",
                chosen ? "with numbers that the data choose"
                       : "since no --data choose its numbers");
        if (gguf_is_file(models[i]))
            fprintf(session.out, "note   --%s int4 rounds this GGUF again, since it is not Q4_0; "
                                 "auto does not\n", name);
    }
}

/* ---- a method: loading and planning ---------------------------------------------------------- */
/* Returns whether the matrix of the LM head is trained. */
static int trains_head(const tuning *t)
{
    const model_config *c = &t->model.config;
    char name[MODEL_NAME];
    gckpt_parameter p;
    model_join(name, c->tied ? c->family->embeddings : "lm_head", ".weight");
    return gckpt_store_peek(t->run.store, gckpt_store_find(t->run.store, name), &p) == GCKPT_OK &&
           !p.frozen;
}

static int build_pairs(gckpt_graph *g, int64_t rows, int64_t T, gckpt_term *term, lm_stage *m)
{
    tuning *t = (tuning *)m->user;
    const gckpt_shape shape = gckpt_shape2(rows, 2 * T);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_tensor *reference = gckpt_input(g, "reference", GCKPT_F32, gckpt_shape2(rows, 2));
    gckpt_tensor *label = gckpt_input(g, "label", GCKPT_F32, gckpt_shape1(rows));
    const int64_t chunk = preference_chunk_rows(&t->model, T, t->training && trains_head(t));
    m->logits.tensor = preference_logps(&t->model, tokens, targets, &t->options, chunk);
    term->loss = preference_loss(m->logits.tensor, reference, label, o.beta);
    term->weight = 1;
    m->feeds[0].input = gckpt_id(tokens);
    m->feeds[1].input = gckpt_id(targets);
    m->feeds[2].input = gckpt_id(reference);
    m->feeds[3].input = gckpt_id(label);
    return 1;
}

static int build_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    lm_stage *m = (lm_stage *)user;
    tuning *t = (tuning *)m->user;
    const int64_t T = m->T > 0 ? m->T : t->run.T;
    if (o.objective == OBJECTIVE_DPO)
        return build_pairs(g, rows, T, term, m);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *hidden = model_hidden(&t->model, tokens, &t->options);
    const int distils = o.objective == OBJECTIVE_DISTILL && t->training,
              plain = !distils || o.distill_alpha > 0;
    int n = 0;
    m->feeds[0].input = gckpt_id(tokens);
    m->feeds[1].input = gckpt_id(targets);
    if (plain) {
        term[n].loss = model_loss(&t->model, hidden, targets);
        term[n++].weight = distils ? (float)o.distill_alpha : 1;
    }
    if (distils) {
        const int64_t chunk = preference_chunk_rows(&t->model, T, trains_head(t));
        term[n].loss = teacher_loss(&t->model, hidden, &t->teacher, tokens, targets,
                                    o.distill_temperature, chunk);
        term[n++].weight = (float)(1 - o.distill_alpha);
    }
    return n;
}

/* Checks that the model of `option` in `dir` has the vocabulary of --model, if it has a
 * tokenizer. */
static int check_tokens(const char *option, const char *dir)
{
    bpe other;
    size_t n = 0, k = 0;
    char path[MODEL_PATH];
    const int keys = gguf_is_file(dir);
    if (!keys && access(join(path, sizeof path, dir, "tokenizer.json"), F_OK) != 0 &&
        access(join(path, sizeof path, dir, "vocab.json"), F_OK) != 0)
        return 0;
    if ((keys ? gguf_open_tokenizer : bpe_open)(&other, dir) != 0)
        return keys ? 0 : session_fail(1, "--%s: %s", option, other.error);
    int failed = 0;
    for (int32_t i = 0; i < other.count && i < run.tokenizer.count && !failed; i++) {
        const char *a = bpe_bytes(&other, i, &n), *b = bpe_bytes(&run.tokenizer, i, &k);
        if (n != k || memcmp(a, b, n) != 0)
            failed = session_fail(1,
                                  "--%s %s: token %d is \"%.*s\" there, and \"%.*s\" in --model; "
                                  "both need the same vocabulary",
                                  option, dir, (int)i, (int)(n < 40 ? n : 40), a,
                                  (int)(k < 40 ? k : 40), b);
    }
    bpe_free(&other);
    return failed;
}

/* Says that an interrupt ended the preparation of a training. */
static int fail_interrupted(void)
{
    run.cancelled = 1;
    return session_fail(130, "interrupted before the first step; nothing was saved");
}

/* Returns whether the data choose the numbers of int4 for a model that is stored as `store`: not those
 * of a GGUF file's Q4_0, which stay as they are. */
static int is_calibrated(int64_t store, const char *path)
{
    return store == GCKPT_STORAGE_I4 && run.train.count > 0 && !lm.plan &&
           (!gguf_is_file(path) || is_rounded_gguf(path));
}

/* Fills `to` with tokens of the training rows, without padding, and returns their number, at most
 * `most`. */
static int64_t first_tokens(int32_t *to, int64_t most)
{
    const lm_run *r = &run.first;
    const dataset *data = run.train.data;
    int64_t n = 0;
    for (uint64_t row = 0; row < run.train.count && n < most; row++) {
        dataset_row(data, run.train.first + row, r->T, r->tokens, r->targets);
        for (int i = 0; i <= data->pairs; i++) {
            const int32_t *targets = r->targets + i * r->T;
            int64_t used = r->T;
            while (used > 0 && targets[used - 1] < 0)
                used--;
            used = used < most - n ? used : most - n;
            memcpy(to + n, r->tokens + i * r->T, (size_t)used * sizeof *to);
            n += used;
        }
    }
    return n;
}

/* Stores the matrices of the model at `path`, which are int8, as int4 with the numbers that are best
 * for 4,096 tokens of the training rows, except those of the modules in `floats`. Runs on the
 * processor, for equal bits. */
static int choose_int4(model_any *m, gckpt_store *store, const char *path, const char *floats)
{
    enum { MOST = 4096 };
    static int32_t tokens[MOST];
    calibration c = { .threads = (int)lm.threads, .exec = { .progress = session_cancelled } };
    const int64_t n = first_tokens(tokens, MOST), T = run.first.T < n ? run.first.T : n;
    int failed = T > 0 ? calibrate_measure(&c, m, store, tokens, n / T, T) : 0;
    if (session.interrupted)
        failed = fail_interrupted();
    else if (failed || calibrate_store(&c, store, m) != 0 ||
             model_quantise_except(m, store, GCKPT_STORAGE_I4, floats) != 0)
        failed = session_fail(1, "--store int4: %s", m->error);
    else
        fprintf(
            session.out,
            "store  int4 of %s: its numbers were chosen by %lld tokens of the data, in %llu bytes%s\n",
            path, (long long)(T > 0 ? n / T * T : 0), (unsigned long long)c.bytes,
            lm.budget > 0 && c.bytes > (size_t)lm.budget ? ", more than --budget" : "");
    calibrate_end(&c);
    return failed;
}

/* Loads the teacher into the store of the trained model. */
static int load_teacher(tuning *t)
{
    const int as_is = o.teacher_store == STORE_AUTO;
    const int calibrates = is_calibrated(o.teacher_store, o.teacher);
    const model_source source = { as_is        ? GCKPT_STORAGE_F32
                                  : calibrates ? GCKPT_STORAGE_I8
                                               : (gckpt_storage)o.teacher_store,
                                  0, NULL, as_is && gguf_is_file(o.teacher) };
    const int64_t before = lm_param_count(t->run.store);
    if (teacher_load(&t->teacher, t->run.store, o.teacher, &source, &t->model) != 0)
        return session_fail(1, "--teacher: %s", t->teacher.error);
    if (check_tokens("teacher", o.teacher) != 0)
        return 1;
    if (t->teacher.config.context < run.first.T)
        return session_fail(2,
                            "--teacher %s has %lld positions, rows %lld; give a --context of at "
                            "most that many",
                            o.teacher, (long long)t->teacher.config.context,
                            (long long)run.first.T);
    if (calibrates && choose_int4(&t->teacher, t->run.store, o.teacher, NULL) != 0)
        return 1;
    t->teacher_params = lm_param_count(t->run.store) - before;
    if (t->teacher.note[0] != 0)
        fprintf(session.out, "note   %s\n", t->teacher.note);
    fprintf(session.out, "teacher %s: %s, %lld parameters, matrices as %s\n", o.teacher,
            t->teacher.config.type, (long long)t->teacher_params,
            source.as_file ? "in its file"
                           : storage_names[as_is ? GCKPT_STORAGE_F32 : o.teacher_store]);
    return 0;
}

/* Describes the whole model that --export-gguf writes. */
static gguf_export whole_model(tuning *t)
{
    const gguf_export e = { &t->model,   t->run.store, &run.tokenizer,
                            o.model,     gguf_types_by_name[o.gguf_type],
                            run.stops };
    return e;
}

/* Prints a note if --ensure-weight-tying is given but has no effect. */
static void note_tying(const tuning *t)
{
    const model_config *c = &t->model.config;
    char table[MODEL_NAME];
    model_join(table, c->family->embeddings, ".weight");
    if (!o.tied || o.modules_to_save == NULL || t->adapters.options.method != ADAPTERS_LORA)
        return;
    const int both = model_is_in_modules(c, o.modules_to_save, table) ||
                     model_is_in_modules(c, o.modules_to_save, "lm_head.weight");
    if (!both || !c->tied)
        fprintf(session.out, "note   --ensure-weight-tying has no effect: %s%s\n",
                both ? "the model's head is a separate matrix"
                     : "--modules-to-save names neither lm_head nor ",
                both ? "" : c->family->embeddings);
}

/* Loads a model and an adapter. If `adapter` is NULL, creates a new adapter of the method. */
/* Returns the options of a method's adapters. */
static adapters_options adapter_options_of(adapters_method method)
{
    const int lora = method == ADAPTERS_LORA;
    return (adapters_options){ .method = method,
                               .layers = o.layers,
                               .size = o.size,
                               .hidden = o.hidden,
                               .alpha = o.alpha,
                               .rslora = (int)o.rslora,
                               .dropout = o.lora_dropout,
                               .targets = o.targets,
                               .rank_pattern = o.rank_pattern,
                               .alpha_pattern = o.alpha_pattern,
                               .bias = (adapters_bias)o.bias,
                               .dora = lora && o.dora,
                               .modules_to_save = lora ? o.modules_to_save : NULL,
                               .tied = (int)o.tied,
                               .layers_to_transform = lora ? o.layers_to_transform : NULL };
}

static int load_model(tuning *t, adapters_method method, const char *model, const char *adapter)
{
    /* module names of the embedding table when it is also the LM head */
    static const char words[] = ",embed_tokens,wte";
    const int for_reference = run.refers && o.reference != NULL;
    char floats[1024];
    if (o.modules_to_save != NULL && snprintf(floats, sizeof floats, "%s%s", o.modules_to_save,
                                              o.tied ? words : "") >= (int)sizeof floats)
        return session_fail(2, "--modules-to-save: allowed is a list of at most 1,000 characters");
    const gckpt_store_desc desc = { .seed = (uint64_t)lm.seed };
    const int calibrates = is_calibrated(o.store, model); /* loads int8, which becomes int4 below */
    const model_source source = { .storage = calibrates              ? GCKPT_STORAGE_I8
                                            : quantised_by_option() ? (gckpt_storage)o.store
                                                                    : GCKPT_STORAGE_F32,
                                  .map = (int)o.map,
                                  .floats = method == ADAPTERS_HEAD     ? "lm_head"
                                            : o.modules_to_save != NULL ? floats
                                                                        : NULL,
                                  .as_file = as_file(model, method) };
    const adapters_options adapter_options = adapter_options_of(method);
    t->run.store = gckpt_store_new(&desc);
    t->notes = gckpt_store_new(NULL);
    if (t->run.store == NULL || t->notes == NULL)
        return session_fail(1, "out of memory");
    if (model_load(&t->model, t->run.store, model, &source) != 0)
        return session_fail(1, "%s: %s",
                            for_reference && model == o.reference ? "--reference" : "--model",
                            t->model.error);
    if (t->model.note[0] != 0)
        fprintf(session.out, "note   %s\n", t->model.note);
    /* a reference that does not fit the data is rejected later */
    if (calibrates && t->model.config.vocabulary == run.vocabulary &&
        t->model.config.context >= run.first.T &&
        choose_int4(&t->model, t->run.store, model, source.floats) != 0)
        return 1;
    int failed = adapter != NULL
                     ? adapters_load(&t->adapters, &t->model, t->run.store, adapter)
                     : adapters_begin(&t->adapters, &t->model, t->run.store, &adapter_options);
    const int quantised = strstr(t->model.error, "quantised, and so frozen") != NULL;
    if (failed)
        return session_fail(1, "%s%s%s",
                            adapter == NULL ? ""
                            : for_reference      ? "--reference: "
                                            : "--adapter: ",
                            t->model.error,
                            !quantised ? ""
                            : o.map ? " (omit --map)"
                                    : " (--store f32)");
    if (t->adapters.options.method != method && !for_reference)
        failed = model_fail(&t->model, "--adapter %s: it was trained by --method %s; add that "
                                       "option",
                            adapter, adapters_names[t->adapters.options.method]);
    /* checks now whether GGUF can hold the result, because a training exports only at its end */
    const gguf_export exported = whole_model(t);
    if (!failed && exports_model() && !for_reference)
        failed = gguf_export_check(&exported) != 0;
    else if (!failed && o.gguf != NULL && method == ADAPTERS_LORA && !for_reference)
        failed = gguf_adapter_check(&t->adapters, gguf_architecture_of(&t->model.config)) < 0;
    t->options.hooks = &t->adapters.hooks;
    t->options.dropout = lm.dropout;
    t->run.lr = learning_rate(method);
    if (failed)
        return session_fail(1, "%s", t->model.error);
    return o.objective == OBJECTIVE_DISTILL && !o.eval && !answers() && lm.data != NULL
               ? load_teacher(t)
               : 0;
}

/* Returns `name` for trained parameters and NULL for others, which training.safetensors does not
 * store; a rename function of gckpt_file_desc. */
static const char *trained_only(void *user, const char *name)
{
    gckpt_parameter p;
    const gckpt_store *store = (const gckpt_store *)user;
    int i = gckpt_store_find(store, name);
    return i >= 0 && gckpt_store_peek(store, i, &p) == GCKPT_OK && !p.frozen ? name : NULL;
}

static int make_plans(tuning *t)
{
    gckpt_plan_desc desc = lm_plan_desc(&t->run, LM_EVALUATION);
    lm_run *r = &t->run;
    lm_stage *m;
    desc.batch = 1; /* one row per step, because the mean of the rows' means is computed too */
    r->classes = run.classes > 0 ? run.classes - 1 : 0;
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++) {
        const int training = lm_purpose(i) == LM_TRAINING, evaluates = o.eval || run.refers;
        if (lm_purpose(i) == LM_SAMPLING ||
            (training ? evaluates : lm.eval_every == 0 && !evaluates))
            continue;
        m->user = t;
        t->training = training;
        desc.fetch.specs = &m->logits;
        desc.fetch.count = o.objective == OBJECTIVE_DPO;
        m->T = i < LM_PURPOSES ? r->T : run.lengths[(i - LM_PURPOSES) / LM_SAMPLING];
        if (training ? lm_plan_training(r, m, build_loss, NULL) != 0
                     : lm_plan(r, m, LM_EVALUATION, build_loss, 1, &desc) != 0)
            return 1;
    }
    return 0;
}

/* Prints the row lengths that were planned, and the share of padding. */
static void report_classes(tuning *t)
{
    const lm_run *r = &t->run;
    if (!run.grouped)
        return;
    fprintf(session.out, "rows   in batches of similar length, %d plan%s: T", run.classes,
            session_plural(run.classes));
    for (int i = 0; i < run.classes; i++)
        fprintf(session.out, " %lld", (long long)run.lengths[i]);
    fprintf(session.out, "\n       %.3f computed tokens per real token (%.3f with one length)\n",
            run.padding, run.unsorted);
    session_event(",\"classes\":%d,\"tokens_computed_per_real\":%.9g,\"tokens_computed_per_real_unsorted\":%.9g",
                  r->classes + 1, run.padding, run.unsorted);
}

/* Prints an estimate of the memory that the operating system will count for the process: the plan's
 * bytes, the tokens of the data, and 30 MB for program, tokenizer and threads (12 to 27 MB were
 * measured). */
static void report_process(tuning *t)
{
    size_t arena;
    const dataset *const all[] = { &run.data, &run.validation, &run.retention };
    double bytes = (double)lm_total_bytes(&t->run, &arena) + 30e6;
    for (int i = 0; i < 3; i++)
        bytes += (double)all[i]->tokens.capacity * sizeof(int32_t) + (double)all[i]->targets.capacity +
                 (double)all[i]->capacity * sizeof(dataset_example);
    if (t->run.device == NULL)
        fprintf(session.out,
                "       process or container: %.0f MB, with data and up to 30 MB for the "
                "program%s\n",
                bytes / 1e6, o.map ? "; plus mapped weights" : "");
}

static void report_plan(tuning *t, const char *method)
{
    const gckpt_plan *p = t->run.stages[LM_TRAINING].plan;
    const int64_t all = lm_param_count(t->run.store) - t->teacher_params;
    outcome *r = &t->result;
    r->parameters = adapters_trainable(t->run.store);
    r->bytes = lm_plan_bytes(&t->run);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        r->kinds[i] = gckpt_plan_kind_bytes(p, i);
    fprintf(session.out, "method %s: trains %lld of %lld parameters (%.3g %%), lr %g\n", method,
            (long long)r->parameters, (long long)all, 100 * (double)r->parameters / (double)all,
            t->run.lr);
    lm_report_plan(&t->run);
    report_process(t);
    report_classes(t);
    session_event(",\"method\":\"%s\",\"trained\":%lld}\n", method, (long long)r->parameters);
}

static void free_tuning(tuning *t)
{
    lm_free(&t->run);
    adapters_end(&t->adapters);
    gckpt_store_free(t->run.store);
    gckpt_store_free(t->notes);
    model_close(&t->model);
    model_close(&t->teacher);
}

/* ---- samples --------------------------------------------------------------------------------- */
static void show_token(talk_printer *to, int32_t token)
{
    size_t size;
    const char *bytes = bpe_bytes(&run.tokenizer, token, &size);
    talk_print(to, bytes, size);
}

static void show(const int32_t *tokens, int64_t n)
{
    talk_printer to = { .out = session.out };
    for (int64_t i = 0; i < n && !generator_is_stop(run.stops, tokens[i]); i++)
        show_token(&to, tokens[i]);
    talk_print_end(&to);
    fputc('\n', session.out);
}

/* Shows a token of --generate; returns 1 after an interrupt, to stop generating. */
static int stop(void *user, int64_t at, const int32_t *tokens)
{
    (void)at;
    if (o.generate && lm.samples == 1 && !generator_is_stop(run.stops, tokens[0])) {
        show_token((talk_printer *)user, tokens[0]);
        fflush(session.out);
    }
    return session.interrupted != 0;
}

/* Encodes the text that samples continue: --prompt (in a chat, as a turn of the user), or by
 * default the end-of-text token. */
static int encode_prompt(bpe_tokens *prompt)
{
    int failed;
    const char *text = lm.prompt != NULL ? lm.prompt : "";
    if (run.chats && *text != 0) {
        const size_t n = o.system != NULL ? strlen(o.system) : 0;
        const chat_turn turns[] = { { CHAT_SYSTEM, o.system, n },
                                    { CHAT_USER, text, strlen(text) } };
        const int first = n == 0;
        failed = chat_encode(&run.chat, &run.tokenizer, turns + first, (size_t)(2 - first), 1, 0,
                             prompt, NULL) != 0;
        return failed ? session_fail(1, "--prompt: %s", run.chat.error) : 0;
    }
    if (o.system != NULL)
        return session_fail(2, "--system needs --prompt and a chat template; " TEMPLATE_REMEDY);
    failed = bpe_reserve(prompt, BPE_TEMPLATE_SIZE) != 0;
    for (int i = 0; i < run.tokenizer.prefix_count && !failed; i++)
        prompt->ids[prompt->count++] = run.tokenizer.prefix[i];
    if (*text != 0)
        failed = failed || bpe_encode(&run.tokenizer, text, strlen(text), 0, prompt) != 0;
    else if (prompt->count == 0)
        failed = failed || dataset_push(prompt, run.end >= 0 ? run.end : 0) != 0;
    return failed ? session_fail(1, "--prompt: %s", prompt->error) : 0;
}

/* Prints --samples samples. The training's plan is not in memory at that time. `when` is for the
 * heading. */
static int sample(tuning *t, const char *when)
{
    generator_desc desc = { .samples = lm.samples,
                            .threads = (int)lm.threads,
                            .backend = run.first.device,
                            .hooks = &t->adapters.hooks,
                            /* for new adapters, which have initial values; values from files were
                             * checked when they were loaded */
                            .allow_initial = 1 };
    const sample_options how = { lm.temperature, lm.top_k, lm.top_p, (uint64_t)lm.seed };
    generator g;
    talk_printer to = { .out = session.out };
    bpe_tokens prompt = { 0 };
    int32_t *out = malloc((size_t)(lm.samples * lm.sample) * sizeof *out);
    int failed = out == NULL ? session_fail(1, "out of memory for samples") : 0;
    failed = failed || encode_prompt(&prompt) != 0;
    desc.capacity = desc.hooks->prefix + desc.hooks->prompt + (int64_t)prompt.count + lm.sample;
    /* a text never has more positions than the context */
    if (desc.capacity > t->model.config.context)
        desc.capacity = t->model.config.context;
    desc.chunk = prompt.count < 64 ? (int64_t)prompt.count : 64;
    if (!failed && generator_new(&g, &t->model, t->run.store, &desc) != 0)
        failed = session_fail(1, "sampling: %s", t->model.error);
    else if (!failed) {
        const size_t needs = g.bytes;
        if (!o.generate)
            fprintf(session.out, "cache  %lld tokens, %zu bytes with the model\n",
                    (long long)g.capacity, needs);
        if (lm.budget > 0 && needs > (size_t)lm.budget)
            failed = session_fail(1,
                                  "--budget %lld: sampling needs %zu bytes; give fewer "
                                  "--samples, or --sample 0",
                                  (long long)lm.budget, needs);
        if (!failed && o.generate && lm.samples == 1 && !run.chats && lm.prompt != NULL)
            fputs(lm.prompt, session.out);
        int64_t n = failed ? 0
                           : generator_text(&g, prompt.ids, (int64_t)prompt.count, &how, lm.sample,
                                            run.stops, out, stop, &to);
        failed = n < 0 ? session_fail(1, "sampling: %s", t->model.error) : failed;
        talk_print_end(&to);
        if (o.generate && lm.samples == 1)
            fputc('\n', session.out);
        for (int64_t i = 0; i < lm.samples && !failed && !(o.generate && lm.samples == 1); i++) {
            fprintf(session.out, "sample%s\n%s%s", when, lm.prompt != NULL ? lm.prompt : "",
                    run.chats && lm.prompt != NULL ? "\n" : "");
            show(out + i * lm.sample, n);
        }
        generator_free(&g);
    }
    bpe_tokens_free(&prompt);
    free(out);
    return failed;
}

/* ---- evaluation and saving ------------------------------------------------------------------- */
/* Copies the reference's log-probabilities of a row to position `at` of the feed for a batch. */
static void put_reference(const dataset *d, uint64_t row, int64_t at)
{
    if (run.references[d == &run.validation] != NULL)
        memcpy(run.reference + 2 * at, run.references[d == &run.validation] + 2 * row,
               2 * sizeof(float));
}

/* Runs the evaluation on one row. Sets *m to the plan that was used, the shortest that holds the
 * row. */
static gckpt_result forward_row(tuning *t, const split *p, uint64_t row, lm_stage **m,
                                gckpt_report *report)
{
    lm_run *r = &t->run;
    gckpt_feed feeds[LM_FEEDS];
    *m = lm_stage_for(r, LM_EVALUATION, dataset_length(p->data, row, r->T));
    dataset_row(p->data, row, (*m)->T, r->tokens, r->targets);
    if (p->data->pairs)
        put_reference(p->data, row, 0);
    return gckpt_forward((*m)->exec, feeds, lm_fill_feeds(r, *m, feeds), 1, report);
}

/* Sets *mean to the mean loss per target, or to 0 after an interrupt, and *of_means to the mean of
 * the rows' mean losses. */
static int evaluate_split(tuning *t, const split *p, double *mean, double *of_means)
{
    const uint64_t used = split_used(p);
    double sum = 0, means = 0;
    int64_t count = 0, rows = 0;
    for (uint64_t i = 0; i < used && !session.interrupted; i++) {
        lm_stage *m;
        gckpt_report report;
        const gckpt_result result = forward_row(t, p, split_row(p, i), &m, &report);
        if (result == GCKPT_CANCELLED)
            break;
        if (result != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        sum += report.loss * (double)report.count;
        means += report.loss;
        count += report.count;
        rows += report.count > 0;
    }
    *mean = count > 0 && !session.interrupted ? sum / (double)count : 0;
    *of_means = rows > 0 ? means / (double)rows : 0;
    return 0;
}

/* Returns the perplexity exp(loss) of a mean loss per token. */
static double perplexity(double loss) { return loss < 700 ? 1 / sample_exp(-loss) : 1e304; }

/* Computes and prints the loss of pairs of answers, and the rewards of the answers. */
static int evaluate_pairs(tuning *t, uint64_t step, double *loss)
{
    const split *p = &run.valid;
    preference_stats s = { 0 };
    char suffix[320], text[160];
    for (uint64_t i = 0; i < split_used(p) && !session.interrupted; i++) {
        lm_stage *m;
        gckpt_report report;
        const gckpt_result result = forward_row(t, p, split_row(p, i), &m, &report);
        if (result == GCKPT_CANCELLED)
            break;
        if (result != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        preference_add(&s, gckpt_fetch(m->exec, gckpt_id(m->logits.tensor), 0), run.reference,
                       o.beta, report.loss);
    }
    preference_mean(&s);
    *loss = session.interrupted ? 0 : s.loss;
    if (*loss == 0)
        return 0;
    snprintf(text, sizeof text,
             "loss %.4f per pair, accuracy %.3f, rewards %.4f chosen, %.4f rejected, margin %.4f",
             s.loss, s.accuracy, s.chosen, s.rejected, s.margin);
    if (o.eval)
        fprintf(session.out, "eval   %lld pair%s: %s\n", (long long)s.count, session_plural(s.count),
                text);
    else
        session_print_line("step %llu: validation %s", (unsigned long long)step, text);
    snprintf(suffix, sizeof suffix,
             ",\"rewards/chosen\":%.9g,\"rewards/rejected\":%.9g,\"rewards/accuracies\":%.9g,"
             "\"rewards/margins\":%.9g,\"logps/chosen\":%.9g,\"logps/rejected\":%.9g",
             s.chosen, s.rejected, s.accuracy, s.margin, s.logps[0], s.logps[1]);
    lm_report_eval(step, *loss, suffix);
    return 0;
}

static int evaluate(tuning *t, uint64_t step, double *loss)
{
    double of_means;
    char suffix[96];
    if (o.objective == OBJECTIVE_DPO)
        return evaluate_pairs(t, step, loss);
    if (evaluate_split(t, &run.valid, loss, &of_means) != 0)
        return 1;
    if (*loss == 0)
        return 0;
    if (*loss - *loss != 0 && lm_find_nonfinite(t->run.store, 0) != NULL)
        return session_fail(1, lm_nonfinite_text, lm_find_nonfinite(t->run.store, 0));
    if (o.eval)
        fprintf(session.out,
                "eval   %llu row%s: loss %.4f per token, mean of rows' means %.4f, perplexity "
                "%.4g\n",
                (unsigned long long)split_used(&run.valid),
                session_plural((int64_t)split_used(&run.valid)), *loss, of_means, perplexity(*loss));
    else if (run.valid.data->examples != NULL)
        session_print_line(
            "step %llu: validation loss %.4f per token, mean of rows' means %.4f, perplexity %.4g",
            (unsigned long long)step, *loss, of_means, perplexity(*loss));
    else
        session_print_line("step %llu: validation loss %.4f, perplexity %.4g", (unsigned long long)step,
                    *loss, perplexity(*loss));
    snprintf(suffix, sizeof suffix, ",\"mean_of_means\":%.9g,\"perplexity\":%.9g", of_means,
             perplexity(*loss));
    lm_report_eval(step, *loss, suffix);
    return 0;
}

static int evaluate_retention(tuning *t, uint64_t step, double *loss)
{
    double of_means;
    if (run.other.count == 0)
        return 0;
    if (evaluate_split(t, &run.other, loss, &of_means) != 0)
        return 1;
    if (*loss == 0)
        return 0;
    session_print_line("step %llu: retention loss %.4f", (unsigned long long)step, *loss);
    session_event("{\"event\":\"retention\",\"step\":%llu,\"loss\":%.9g}\n", (unsigned long long)step,
                  *loss);
    return 0;
}

static size_t file_bytes(const char *folder, const char *name)
{
    char path[MODEL_PATH];
    struct stat info;
    return stat(join(path, sizeof path, folder, name), &info) == 0 ? (size_t)info.st_size : 0;
}

static const char *saved_name(const tuning *t)
{
    return t->adapters.options.method == ADAPTERS_FULL ? "model.safetensors"
                                                       : "adapter_model.safetensors";
}

/* Copies tokenizer files and other files that programs need in addition to the weights. */
static int copy_files(model_any *m, const char *folder)
{
    return model_copy_files(m, o.model, folder) != 0 ? session_fail(1, "--save: %s", m->error) : 0;
}

/* Writes the adapter or, after it was merged, the whole model as a GGUF file, --export-gguf. */
static int export_gguf(tuning *t)
{
    add_chat_end();
    gguf_export e = whole_model(t);
    run.exported = 1;
    return (exports_model() ? gguf_export_model(&e, o.gguf)
                            : gguf_adapter_save(&t->adapters, o.gguf)) == 0
               ? 0
               : session_fail(1, "--export-gguf: %s", t->model.error);
}

static void print_exported(void)
{
    struct stat info;
    if (run.exported && stat(o.gguf, &info) == 0)
        fprintf(session.out, "exported %s: %s%s, %zu bytes\n", o.gguf,
                exports_model() ? "a whole model as " : "LoRA for llama.cpp's --lora",
                exports_model() ? gguf_type_names[o.gguf_type] : "", (size_t)info.st_size);
}

/* Saves the model, or the adapter that the method trained, in the format of other programs. */
static int save_model(tuning *t, const char *folder)
{
    const int full = t->adapters.options.method == ADAPTERS_FULL;
    int failed = full ? model_save(&t->model, t->run.store, folder, export_types[o.export_as])
                      : adapters_save(&t->adapters, folder, gckpt_store_note(t->notes, "base"));
    if (failed)
        return session_fail(1, "--save %s: %s", folder, t->model.error);
    if (o.gguf != NULL && !exports_model() && folder == t->save && export_gguf(t) != 0)
        return 1;
    return full ? copy_files(&t->model, folder) : 0;
}

/* Merges the adapter into the model and writes the whole model to --merge. */
static int merge(tuning *t)
{
    if ((!is_plain_model(t->adapters.options.method) && adapters_merge(&t->adapters) != 0) ||
        model_save(&t->model, t->run.store, o.merge, export_types[o.export_as]) != 0)
        return session_fail(1, "--merge %s: %s", o.merge, t->model.error);
    if (copy_files(&t->model, o.merge) != 0)
        return 1;
    fprintf(session.out, "merged %s: a whole model, %zu bytes\n", o.merge,
            file_bytes(o.merge, "model.safetensors"));
    return 0;
}

static int note_real(tuning *t, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    if (gckpt_store_set_note(t->notes, key, text) == GCKPT_OK)
        return 0;
    return session_fail(1, "%s", gckpt_error_text(t->notes));
}

static double read_real_note(const tuning *t, const char *key)
{
    const char *text = gckpt_store_note(t->notes, key);
    return text != NULL ? strtod(text, NULL) : 0;
}

/* Saves training.safetensors, which has everything that --resume needs. */
static int save_training(tuning *t)
{
    char path[MODEL_PATH];
    const gckpt_file_desc desc = { .rename = trained_only, .user = t->run.store };
    join(path, sizeof path, t->save, "training.safetensors");
    if (lm_record_save(&t->run, path) != 0) /* a saved step has a record */
        return 1;
    if (session_note_number(t->notes, "skipped", t->run.skipped) != 0 ||
        session_note_number(t->notes, "position", t->run.position) != 0 ||
        session_note_number(t->notes, "stale", t->result.stale) != 0 ||
        session_note_number(t->notes, "cut.step", run.cut_step) != 0 ||
        session_note_number(t->notes, "cut.row", run.cut_row) != 0 ||
        note_real(t, "best", t->result.best) != 0 ||
        note_real(t, "before", t->result.before) != 0 ||
        note_real(t, "retention", t->result.retention_before) != 0)
        return 1;
    int failed = session_copy_notes(t->run.store, t->notes, &options, other_notes);
    if (!failed && gckpt_store_save(t->run.store, path, &desc) != GCKPT_OK)
        failed = session_fail(1, "--save: %s: %s", path, gckpt_error_text(t->run.store));
    return session_copy_notes(t->run.store, NULL, &options, other_notes) || failed;
}

/* Saves after an evaluation with this `loss`, or at the end with loss 0. Weights that are worse
 * than the best, or that were not compared with the best of a resumed run, go to
 * training.safetensors only; the best ones (with --keep last, all) are also saved for other
 * programs. */
static int save(tuning *t, double loss)
{
    const double best = t->result.best;
    const int waits = t->save != NULL && lm.resume != NULL && lm.eval_every > 0 &&
                      file_bytes(t->save, saved_name(t)) > 0;
    const int better = loss > 0 ? best == 0 || loss < best : best == 0 && !waits;
    char last[MODEL_PATH];
    if (better)
        t->result.best = loss;
    if (loss > 0)
        t->result.stale = better ? 0 : t->result.stale + 1;
    if (t->save == NULL)
        return 0;
    if (better || o.keep == KEEP_LAST) {
        if (save_model(t, t->save) != 0)
            return 1;
        t->saved = 1;
    }
    if (o.keep == KEEP_BOTH && save_model(t, join(last, sizeof last, t->save, "last")) != 0)
        return 1;
    return save_training(t);
}

/* ---- training -------------------------------------------------------------------------------- */
/* Copies a training row to position i of a batch whose rows have T tokens. */
static void put_row(lm_run *r, uint64_t row, int64_t i, int64_t T)
{
    const int64_t at = i * row_width() * T;
    dataset_row(run.train.data, row, T, r->tokens + at, r->targets + at);
    if (run.train.data->pairs)
        put_reference(run.train.data, row, i);
}

static void put_batch(lm_run *r, uint64_t step)
{
    (void)step; /* the step number is not used, because rows of a skipped step are not repeated */
    ((tuning *)r->user)->result.after = 0;
    ((tuning *)r->user)->saved = 0;
    if (run.grouped) {
        r->step_rows = (int64_t)dataset_batch(&run.batches, r->position);
        r->length = lm_stage_for(r, LM_TRAINING, dataset_batch_length(&run.batches, (uint64_t)r->step_rows))->T;
        r->real_tokens = 0;
        for (int64_t i = 0; i < r->step_rows; i++) {
            const uint64_t row = run.batches.current[i];
            r->real_tokens += dataset_real_tokens(run.train.data, row, r->length);
            put_row(r, row, i, r->length);
        }
        return;
    }
    r->real_tokens = 0;
    for (int64_t i = 0; i < lm.batch; i++) {
        const uint64_t n = run.train.count, at = r->position + (uint64_t)i;
        const uint64_t row = o.no_shuffle ? at % n : dataset_shuffled((uint64_t)lm.seed, at, n);
        r->real_tokens += dataset_real_tokens(run.train.data, run.train.first + row, r->T);
        put_row(r, run.train.first + row, i, r->T);
    }
}

static int save_now(lm_run *r)
{
    r->saved = 1;
    return save((tuning *)r->user, 0);
}

/* Returns whether --patience ends the training. */
static int is_stale(const tuning *t)
{
    return o.patience > 0 && t->result.stale >= (uint64_t)o.patience;
}

static int evaluate_now(lm_run *r, uint64_t step)
{
    tuning *t = (tuning *)r->user;
    if (evaluate(t, step, &t->result.after) != 0)
        return 1;
    r->saved = t->result.after > 0;
    if (r->saved && save(t, t->result.after) != 0)
        return 1;
    if (r->saved && is_stale(t)) {
        session_print_line("early stop after step %llu: %lld evaluation%s without a loss below %.4f",
                           (unsigned long long)step, (long long)t->result.stale,
                           session_plural((int64_t)t->result.stale), t->result.best);
        session_event("{\"event\":\"early_stop\",\"step\":%llu,\"best\":%.9g}\n",
                      (unsigned long long)step, t->result.best);
        r->enough = 1;
    }
    return 0;
}

/* ---- the reference of pairs ------------------------------------------------------------------ */
/* Computes the log-probabilities that the reference model gives to the rows of a split. */
static int fill_references(tuning *t, const split *p, int evaluated, uint64_t *pairs)
{
    float *to = run.references[p->data == &run.validation];
    const uint64_t count = evaluated ? split_used(p) : p->count;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t row = evaluated ? split_row(p, i) : p->first + i;
        lm_stage *m;
        gckpt_report report;
        const gckpt_result result = forward_row(t, p, row, &m, &report);
        if (result == GCKPT_CANCELLED || session.interrupted)
            return fail_interrupted();
        if (result != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        memcpy(to + 2 * row, gckpt_fetch(m->exec, gckpt_id(m->logits.tensor), 0),
               2 * sizeof(float));
        ++*pairs;
    }
    return 0;
}

/* Returns whether --reference names an adapter. */
static int is_adapter_reference(void)
{
    char path[MODEL_PATH];
    return o.reference != NULL &&
           (access(join(path, sizeof path, o.reference, "adapter_config.json"), F_OK) == 0 ||
            gguf_is_adapter(o.reference));
}

/* Loads the reference model for DPO: the model or adapter of --reference or, by default, the model
 * with the adapter from which training starts. A new adapter is not part of the reference, and
 * neither is the one that --eval evaluates. */
static int load_reference(tuning *t, adapters_method of)
{
    const int adapted = is_adapter_reference();
    const char *model = o.reference != NULL && !adapted ? o.reference : o.model;
    const char *adapter = adapted ? o.reference : o.reference == NULL && !o.eval ? o.adapter : NULL;
    const int quantised = quantised_by_option() || o.map || as_file(model, ADAPTERS_LORA);
    const adapters_method method = adapter != NULL ? of : quantised ? ADAPTERS_LORA : ADAPTERS_FULL;
    if (load_model(t, method, model, adapter) != 0)
        return 1;
    if (o.reference != NULL && model == o.reference && check_tokens("reference", model) != 0)
        return 1;
    if (t->model.config.vocabulary != run.vocabulary || t->model.config.context < run.first.T)
        return session_fail(2,
                            "--reference %s has a vocabulary of %lld tokens and %lld positions; "
                            "--model's vocabulary is %lld, and rows have %lld",
                            model, (long long)t->model.config.vocabulary,
                            (long long)t->model.config.context, (long long)run.vocabulary,
                            (long long)run.first.T);
    return 0;
}

/* Plans the training, to check its budget before log-probabilities are computed, which may take
 * long. Sets *least to the bytes that training needs if it does not fit, else to 0. */
static int find_training_bytes(adapters_method method, size_t *least)
{
    tuning t = { .run = run.first };
    lm_stage *m = &t.run.stages[LM_TRAINING];
    const int64_t plan = lm.plan;
    lm.plan = 1; /* only bytes matter, not the numbers of int4 */
    int failed = load_model(&t, method, o.model, o.adapter);
    lm.plan = plan;
    *least = 0;
    m->user = &t;
    m->T = t.run.T;
    t.training = 1;
    fit_error error = { GCKPT_OK, "" };
    if (!failed)
        lm_try_training(&t.run, m, build_loss, NULL, &error);
    if (error.result != GCKPT_OK) {
        const char *named = strstr(error.text, "at least ");
        if (error.result == GCKPT_E_BUDGET && named != NULL)
            *least = (size_t)strtoull(named + strlen("at least "), NULL, 10);
        else
            failed = session_fail(1, "%s", error.text);
    }
    free_tuning(&t);
    return failed;
}

/* Checks that --budget suffices for the reference model and for the training after it. Only one of
 * the two is in memory at a time. */
static int check_budget(lm_run *r, size_t training)
{
    size_t arena;
    const size_t reference = lm_total_bytes(r, &arena), budget = (size_t)lm.budget;
    if (budget == 0 || (training == 0 && reference <= budget))
        return 0;
    const char *hint =
        lm.micro_batch > 1 ? "; --micro-batch auto looks for a micro-batch that needs fewer" : "";
    if (training == 0)
        return session_fail(1,
                            "--budget %zu is too small: the reference needs at least %zu bytes%s",
                            budget, reference, o.eval ? "" : "; training would fit");
    return session_fail(1,
                        "--budget %zu is too small: give at least %zu bytes; training needs %zu, "
                        "%s%zu%s",
                        budget, training > reference ? training : reference, training,
                        o.reference != NULL ? "the reference " : "its reference ", reference, hint);
}

/* Computes the reference's log-probabilities of all answers. This precedes loading the trained
 * model, so that only one model is in memory at a time. With --plan, only prints the bytes
 * needed. */
static int compute_references(adapters_method method)
{
    tuning t = { .run = run.first };
    const double begin = session_now();
    uint64_t pairs = 0;
    size_t training = 0, arena;
    if (o.objective != OBJECTIVE_DPO || run.references[0] != NULL)
        return 0;
    run.references[0] = calloc((size_t)dataset_rows(&run.data, 1) + 1, 2 * sizeof(float));
    run.references[1] = calloc((size_t)dataset_rows(&run.validation, 1) + 1, 2 * sizeof(float));
    if (run.references[0] == NULL || run.references[1] == NULL)
        return session_fail(1, "out of memory for the reference's log-probabilities");
    if (lm.budget > 0 && !o.eval && find_training_bytes(method, &training) != 0)
        return 1;
    run.refers = 1;
    int failed = load_reference(&t, method) || make_plans(&t) || check_budget(&t.run, training);
    if (!failed)
        fprintf(session.out, "reference %s: computes the log-probabilities of all answers first",
                o.reference != NULL ? o.reference : o.model);
    if (!failed && lm.plan)
        fprintf(session.out, ", %zu bytes", lm_total_bytes(&t.run, &arena));
    if (!failed)
        fputc('\n', session.out);
    fflush(session.out);
    if (!failed && !lm.plan)
        failed = lm_new_execs(&t.run) || (!o.eval && fill_references(&t, &run.train, 0, &pairs)) ||
                 ((lm.eval_every > 0 || o.eval) && fill_references(&t, &run.valid, 1, &pairs));
    run.refers = 0;
    if (!failed && !lm.plan)
        fprintf(session.out, "reference %llu pair%s, %.1f s\n", (unsigned long long)pairs,
                session_plural((int64_t)pairs), session_now() - begin);
    free_tuning(&t);
    return failed;
}

/* ---- a method from beginning to end ---------------------------------------------------------- */
/* Returns whether the data that a stored loss belongs to has changed: its hash was noted under
 * `key` and is `hash` now. Files of an older version have no such note; then returns whether one of
 * `options_too` is on the command line. */
static int has_changed(tuning *t, const char *key, uint64_t hash, const char *options_too, int argc,
                    char **argv)
{
    char text[24];
    const char *note = gckpt_store_note(t->notes, key);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    int other = note != NULL && strcmp(note, text) != 0;
    for (int i = 0; i < options_count(&options) && note == NULL; i++)
        other |= session_is_in(options_too, options_at(&options, i)->name) &&
                 options_given(&options, argc, argv, options_at(&options, i)->name) != NULL;
    return other;
}

/* Returns the bits of element i of a parameter: the bits of the float or, if it is quantised as
 * int8 or int4, the stored byte. */
static uint32_t stored_bits(const gckpt_parameter *p, int64_t i)
{
    const uint16_t *halves = (const uint16_t *)p->quantised;
    uint32_t bits = 0;
    float x;
    if (p->values != NULL) {
        x = p->values[i];
    } else if (p->storage == GCKPT_STORAGE_F16) {
        const unsigned char half[] = { (unsigned char)(halves[i] & 255),
                                       (unsigned char)(halves[i] >> 8) };
        x = gguf_from_f16(half);
    } else if (p->storage == GCKPT_STORAGE_BF16) {
        x = gguf_from_bits((uint32_t)halves[i] << 16);
    } else {
        return ((const unsigned char *)p->quantised)[p->storage == GCKPT_STORAGE_I4 ? i / 2 : i];
    }
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Writes a digest of the model's frozen parameters to `text`: a hash of how they are stored, then a
 * hash of 64 values of each. Digests can be compared only if the first hashes are equal. */
static const char *model_digest(const tuning *t, char *text, size_t size)
{
    uint64_t how = 14695981039346656037u, values = how;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(t->run.store, i, &p) == GCKPT_OK; i++) {
        if (!p.frozen || strncmp(p.name, TEACHER_PREFIX, strlen(TEACHER_PREFIX)) == 0)
            continue;
        const int stored = p.storage == GCKPT_STORAGE_I8 || p.storage == GCKPT_STORAGE_I4
                               ? (int)p.storage
                               : (int)GCKPT_STORAGE_F32;
        how = session_hash(how, &stored, sizeof stored);
        for (int64_t k = 0; k < 64 && (p.values != NULL || p.quantised != NULL); k++) {
            const uint32_t bits = stored_bits(&p, k * p.elements / 64);
            values = session_hash(values, &bits, sizeof bits);
        }
    }
    snprintf(text, size, "%016llx%016llx", (unsigned long long)how, (unsigned long long)values);
    return text;
}

/* Compares the model with the one with which a resumed run began. Returns 0 if they are equal or
 * the run is new, 1 if they differ and --model was given again, and -1 after an error message if
 * they differ and --model was not given. */
static int has_model_changed(const tuning *t, int argc, char **argv)
{
    char now[40];
    const char *note = gckpt_store_note(t->notes, "model");
    model_digest(t, now, sizeof now);
    if (note == NULL || strncmp(note, now, 16) != 0 || strcmp(note, now) == 0)
        return 0;
    if (options_given(&options, argc, argv, "model") != NULL)
        return 1;
    session_fail(
        1,
        "--resume %s: %s no longer has the weights that the run began with%s; to continue "
        "with the present ones, give --model %s",
        lm.resume, o.model,
        is_calibrated(o.store, o.model)
            ? ", or other rows choose its int4 numbers, by --data, --validation or --eval-every"
            : "",
        o.model);
    return -1;
}

/* Restores the losses of a resumed run, if they are still comparable with new ones. */
static int restore_losses(tuning *t, int argc, char **argv)
{
    outcome *r = &t->result;
    const int other = has_model_changed(t, argc, argv);
    if (other < 0)
        return 1;
    /* without a saved model or adapter in this folder, the best weights are in another folder, and
     * their loss does not count */
    if (t->save != NULL && file_bytes(t->save, saved_name(t)) > 0)
        r->best = read_real_note(t, "best");
    if (r->best > 0)
        r->stale = session_read_note(t->notes, "stale", 0);
    r->before = read_real_note(t, "before");
    r->retention_before = read_real_note(t, "retention");
    if (other || has_changed(t, "rows.retention", split_hash(&run.other),
                          "retention-data context eval-iters batch bf16", argc, argv))
        r->retention_before = 0;
    if (!other && !has_changed(t, "rows.validation", split_hash(&run.valid),
                            "data validation context eval-iters batch bf16", argc, argv))
        return 0;
    if (r->best > 0)
        fprintf(session.out,
                "note   %s has changed, so the best loss so far, %.4f, no longer counts\n",
                other ? "--model" : "the validation data", r->best);
    r->best = r->before = 0;
    r->stale = 0;
    return 0;
}

static int resume(tuning *t, int argc, char **argv)
{
    const gckpt_file_desc desc = { .partial = 1 };
    gckpt_result result = gckpt_store_load(t->run.store, lm.resume, &desc);
    if (result == GCKPT_OTHER_CONTRACT)
        fprintf(session.out, "note   %s\n", gckpt_error_text(t->run.store));
    else if (result != GCKPT_OK)
        return session_fail(1, "--resume %s: %s", lm.resume, gckpt_error_text(t->run.store));
    if (session_copy_notes(t->notes, t->run.store, &options, other_notes) != 0 ||
        session_copy_notes(t->run.store, NULL, &options, other_notes) != 0)
        return 1;
    t->run.skipped = session_read_note(t->notes, "skipped", 0);
    t->run.position = session_read_note(t->notes, "position", 0);
    return restore_losses(t, argc, argv);
}

/* Evaluates a new run before its first step. */
static int begin(tuning *t)
{
    outcome *r = &t->result;
    if (lm.resume != NULL || lm.eval_every == 0 || lm.audit != NULL)
        return 0;
    if (evaluate(t, 0, &r->before) != 0)
        return 1;
    if (run.int8_loss > 0 && r->before > 0)
        fprintf(session.out, "store  int4 costs %+.4f per token of this data (int8: %.4f)\n",
                r->before - run.int8_loss, run.int8_loss);
    return evaluate_retention(t, 0, &r->retention_before);
}

/* Prints the loss before training, if it is known, and the loss after training. */
static void print_losses(const char *of, double before, double after)
{
    if (after > 0 && before > 0)
        fprintf(session.out, "%s %.4f before, %.4f after (%+.4f)\n", of, before, after,
                after - before);
    else if (after > 0)
        fprintf(session.out, "%s %.4f after\n", of, after);
}

/* Adds the objective and the training data to the text of a ledger's run. */
static void describe(ledger_text *t)
{
    ledger_put(t, "loss ");
    ledger_put(t, objective_names[o.objective]);
    ledger_put(t, ", mean over the targets\n");
    lm_ledger_put_file(t, "data", lm.data);
    ledger_put(t, "context ");
    ledger_put_number(t, (uint64_t)run.first.T);
    ledger_put(t, "\n");
}

static int train(tuning *t)
{
    t->run.user = t;
    t->run.fill_batch = put_batch;
    t->run.options = &options;
    t->run.describe = describe;
    t->run.varies = run.grouped || run.cut_step > 0;
    o.context = run.first.T; /* a ledger states the one that a resumed run states as well */
    t->run.evaluate = evaluate_now;
    t->run.save = save_now;
    if (is_stale(t)) {
        fprintf(session.out,
                "note   the training has ended: %lld evaluation%s without a better loss; to continue, give "
                "--patience %lld or more, or 0 for no limit\n",
                (long long)t->result.stale, session_plural((int64_t)t->result.stale),
                (long long)t->result.stale + 1);
        t->run.enough = 1;
    }
    return lm_train(&t->run);
}

static int end(tuning *t, const char *method)
{
    outcome *r = &t->result;
    const uint64_t step = gckpt_store_step(t->run.store);
    const int evaluates = lm.eval_every > 0 && lm.audit == NULL && !session.interrupted;
    r->seconds = t->run.seconds;
    if (evaluates && r->after == 0 && evaluate(t, step, &r->after) != 0)
        return 1;
    if (evaluates && evaluate_retention(t, step, &r->retention_after) != 0)
        return 1;
    r->file = t->save != NULL ? file_bytes(t->save, saved_name(t)) : 0;
    lm_report_end(&t->run);
    print_losses("loss  ", r->before, r->after);
    print_losses("retention", r->retention_before, r->retention_after);
    if (t->save != NULL && r->best > 0 && o.keep != KEEP_LAST)
        fprintf(session.out, "saved  %s: best evaluated weights, loss %.4f, %zu bytes\n", t->save,
                r->best, r->file);
    else if (t->save != NULL && t->saved)
        fprintf(session.out, "saved  %s: weights of the last step, %zu bytes\n", t->save, r->file);
    if (t->save != NULL && o.keep == KEEP_BOTH)
        fprintf(session.out, "saved  %s/last: weights of the last step\n", t->save);
    session_event(",\"method\":\"%s\",\"seconds_per_step\":%.9g,\"file_bytes\":%zu,"
                  "\"before\":%.9g,\"after\":%.9g,\"retention_before\":%.9g,"
                  "\"retention_after\":%.9g}\n",
                  method, r->seconds, r->file, r->before, r->after, r->retention_before,
                  r->retention_after);
    return 0;
}

/* Stores notes for --resume: the model's path as given first (peft finds the model by it); method
 * and context, which --method all does not take from options; hashes of the evaluated rows. */
static int note_base(tuning *t, const char *method)
{
    char model[40];
    if ((gckpt_store_note(t->notes, "base") != NULL ||
         gckpt_store_set_note(t->notes, "base", o.model) == GCKPT_OK) &&
        gckpt_store_set_note(t->notes, "model", model_digest(t, model, sizeof model)) == GCKPT_OK &&
        gckpt_store_set_note(t->notes, "option.method", method) == GCKPT_OK)
        return session_note_number(t->notes, "option.context", (uint64_t)run.first.T) ||
               session_check_data(t->notes, "rows.validation", NULL, split_hash(&run.valid), 1) ||
               session_check_data(t->notes, "rows.retention", NULL, split_hash(&run.other), 1);
    return session_fail(1, "%s", gckpt_error_text(t->notes));
}

/* For --store int4, loads the model as int8 and measures the validation loss with it: the difference
 * is what int4 costs on this data. Only one model is in memory at a time. Skipped if the budget is
 * too small, and for DPO, whose loss depends on the reference. */
static int measure_int8(adapters_method method)
{
    tuning t = { .run = run.first };
    double of_means;
    const int64_t budget = lm.budget;
    size_t arena;
    if (o.store != GCKPT_STORAGE_I4 || lm.plan || o.objective == OBJECTIVE_DPO || o.eval ||
        lm.eval_every == 0 || lm.resume != NULL || lm.audit != NULL || run.int8_loss > 0)
        return 0;
    o.store = GCKPT_STORAGE_I8, o.eval = 1, lm.budget = 0;
    int failed = load_model(&t, method, o.model, o.adapter) || make_plans(&t);
    if (!failed && (budget == 0 || lm_total_bytes(&t.run, &arena) <= (size_t)budget))
        failed = lm_new_execs(&t.run) || evaluate_split(&t, &run.valid, &run.int8_loss, &of_means);
    o.store = GCKPT_STORAGE_I4, o.eval = 0, lm.budget = budget;
    lm_free_execs(&t.run);
    free_tuning(&t);
    return failed;
}

/* Loads the best weights, which were saved, if they are not those of the last step. */
static int load_saved(tuning *t)
{
    const char *folder = t->save;
    const adapters_method method = t->adapters.options.method;
    const int full = method == ADAPTERS_FULL;
    if (t->saved || folder == NULL || file_bytes(folder, saved_name(t)) == 0)
        return 0;
    const tuning fresh = { .run = run.first };
    free_tuning(t);
    *t = fresh;
    fprintf(session.out, "note   %s made from the saved weights, not from the last step\n",
            lm.sample > 0     ? "the samples are"
            : o.merge != NULL ? "the merged model is"
                              : "the GGUF is");
    return load_model(t, method, full ? folder : o.model, full ? NULL : folder);
}

static int tune(adapters_method method, const char *folder, int argc, char **argv, outcome *result)
{
    tuning t = { .save = folder, .run = run.first };
    int failed = compute_references(method) || measure_int8(method) ||
                 load_model(&t, method, o.model, o.adapter) ||
                 (lm.resume != NULL && resume(&t, argc, argv));
    if (!failed)
        failed = session_note_options(t.notes, &options, not_kept, argc, argv) ||
                 gckpt_store_set_note(t.notes, o.epochs > 0 ? "option.steps" : "option.epochs",
                                      NULL) != GCKPT_OK ||
                 note_base(&t, adapters_names[method]) ||
                 session_check_data(t.notes, "data", lm.data, data_hash(),
                                   options_given(&options, argc, argv, "data") != NULL);
    if (!failed)
        note_tying(&t);
    failed = failed || make_plans(&t);
    if (!failed)
        report_plan(&t, adapters_names[t.adapters.options.method]);
    if (!failed && !lm.plan && lm.resume != NULL && (int64_t)run.resumed_at >= lm.steps)
        fprintf(
            session.out,
            "note   %lld steps are done and %lld were requested; give more --steps or --epochs\n",
            (long long)run.resumed_at, (long long)lm.steps);
    if (!failed && !lm.plan && folder == NULL && o.merge == NULL && lm.audit == NULL)
        fprintf(session.out,
                "note   the trained weights will be lost; to keep them, give --save DIR\n");
    if (!failed && lm.timeline != NULL)
        failed = lm_draw_plan(t.run.stages[LM_TRAINING].plan);
    if (!failed && !lm.plan) {
        failed = (folder != NULL && model_make_folder(&t.model, folder) != 0)
                     ? session_fail(1, "--save: %s", t.model.error)
                     : 0;
        failed = failed || (lm.sample > 0 && lm.resume == NULL && sample(&t, " before"));
        failed = failed || lm_new_execs(&t.run) || begin(&t) || train(&t) ||
                 end(&t, adapters_names[t.adapters.options.method]);
        lm_free_execs(&t.run);
    }
    *result = t.result;
    /* nonzero if --export-gguf is given and no save has exported yet, because a resumed run did
     * not improve */
    const int exports_now = o.gguf != NULL && !run.exported;
    if (!failed && !lm.plan && (lm.sample > 0 || o.merge != NULL || exports_now) &&
        !session.interrupted)
        failed = load_saved(&t) || (lm.sample > 0 && sample(&t, " after")) ||
                 (o.merge != NULL && merge(&t)) || (exports_now && export_gguf(&t));
    if (!failed && !lm.plan)
        print_exported();
    free_tuning(&t);
    return failed;
}

/* Loads the model for a run without training. Without an adapter it is the plain model. If its
 * matrices are to be quantised, it gets a LoRA adapter that has no effect, because only frozen
 * matrices can be quantised. */
static int load_untrained(tuning *t)
{
    const int quantised = quantised_by_option() || o.map || as_file(o.model, ADAPTERS_LORA);
    const adapters_method method = o.adapter != NULL ? (adapters_method)o.method
                                   : quantised          ? ADAPTERS_LORA
                                                     : ADAPTERS_FULL;
    session.start = session_now();
    return load_model(t, method, o.model, o.adapter);
}

static int generate(void)
{
    tuning t = { .run = run.first };
    model_any m;
    int status = open_model(&m);
    if (status == 0 && run.chat.name[0] != 0)
        print_chats();
    if (status == 0)
        note_unknown_template("--prompt is continued, not answered");
    if (status == 0)
        status = load_untrained(&t) || sample(&t, "");
    free_tuning(&t);
    return status;
}

enum { CHAT_CONTEXT = 4096 };

/* Returns the number of tokens of a chat: --context, or by default those of the model, at most
 * CHAT_CONTEXT. */
static int64_t chat_context(const model_config *c)
{
    const int64_t most = o.context > 0 ? o.context : CHAT_CONTEXT;
    return most < c->context ? most : c->context;
}

/* Writes the JSON event of an answer. */
static void report_answer(void *user, const talk_answer *a)
{
    (void)user;
    session_event("{\"event\":\"answer\",\"tokens\":%lld,\"computed\":%lld,\"generated\":%lld,"
                  "\"forgotten\":%lld,\"end\":\"%s\"}\n",
                  (long long)a->tokens, (long long)a->computed, (long long)a->generated,
                  (long long)a->forgotten, talk_ends[a->end]);
    session_check_output();
}

static void on_interrupt(int number)
{
    (void)number;
    session.interrupted = 1;
}

/* Makes Ctrl-C stop an answer, and end the program only between answers; a wait for a message ends at
 * once. */
static void catch_interrupts(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, NULL);
    signal(SIGTERM, SIG_DFL);
}

/* Chats with the loaded model. */
static int chat_with(tuning *t, FILE *out)
{
    generator g;
    const generator_desc desc = { .threads = (int)lm.threads,
                                  .backend = run.first.device,
                                  .hooks = &t->adapters.hooks,
                                  .allow_initial = 1,
                                  .progress = session_cancelled,
                                  .capacity = chat_context(&t->model.config) };
    const int terminal = isatty(STDIN_FILENO);
    talk c = { .g = &g,
               .tokenizer = &run.tokenizer,
               .format = &run.chat,
               .in = stdin,
               .out = out,
               .notes = stderr,
               .how = { lm.temperature, lm.top_k, lm.top_p, (uint64_t)lm.seed },
               .most = lm.sample,
               .stops = run.stops,
               .prompt = terminal ? "> " : NULL,
               .interrupted = &session.interrupted,
               .on_answer = report_answer };
    if (generator_new(&g, &t->model, t->run.store, &desc) != 0)
        return session_fail(1, "--interactive: %s", t->model.error);
    int status = lm.budget > 0 && g.bytes > (size_t)lm.budget
                     ? session_fail(1,
                                    "--budget %lld: a chat of %lld tokens needs %zu bytes; give a "
                                    "smaller --context",
                                    (long long)lm.budget, (long long)g.capacity, g.bytes)
                     : 0;
    if (status == 0 && o.system != NULL && talk_set_system(&c, o.system, strlen(o.system)) != 0)
        status = session_fail(2, "--system: %s", c.error);
    if (status == 0) {
        fprintf(session.out, "cache  %lld tokens, %zu bytes with the model\n",
                (long long)g.capacity, g.bytes);
        if (terminal)
            fputs(
                "note   /reset begins a new chat, /system TEXT one with this message of the system,\n"
                "       /exit ends; Ctrl-C stops an answer; a line that ends with \\ goes on\n",
                session.out);
        catch_interrupts();
        status = talk_run(&c) != 0 ? session_fail(1, "--interactive: %s", c.error) : 0;
    }
    talk_free(&c);
    generator_free(&g);
    return status;
}

/* Runs --interactive. Answers go to the output for people, and everything else to standard error, so
 * that a pipe gets answers only. */
static int interact(void)
{
    tuning t = { .run = run.first };
    model_any m;
    FILE *out = session.out;
    session.out = stderr;
    int status = open_model(&m);
    if (status == 0 && run.chat.name[0] == 0)
        status = o.chat != NULL && strcmp(o.chat, "none") == 0
                     ? session_fail(2, "--interactive needs a chat template; omit --chat none")
                     : session_fail(
                           2, "--interactive: %s has no chat template that is known; " TEMPLATE_REMEDY,
                           o.model);
    if (status == 0)
        print_chats();
    if (status == 0)
        status = load_untrained(&t);
    if (status == 0)
        status = chat_with(&t, out);
    session.out = out;
    free_tuning(&t);
    return status;
}

/* ---- accuracy -------------------------------------------------------------------------------- */
/* Writes the JSON event of a question. */
static void report_choices(int64_t line, int64_t answer, const evaluate_choice *all, int64_t count)
{
    session_event("{\"event\":\"choices\",\"line\":%lld,\"answer\":%lld,\"logps\":[",
                  (long long)line, (long long)answer);
    for (int64_t i = 0; i < count; i++)
        session_event("%s%.9g", i > 0 ? "," : "", all[i].logp);
    session_event("],\"tokens\":[");
    for (int64_t i = 0; i < count; i++)
        session_event("%s%lld", i > 0 ? "," : "", (long long)all[i].tokens);
    session_event("]}\n");
}

static void report_match(int64_t line, int right)
{
    session_event("{\"event\":\"match\",\"line\":%lld,\"right\":%d}\n", (long long)line, right);
}

static int is_interrupted(void) { return session.interrupted != 0; }

/* Prints the result of an evaluation. */
static void report_accuracy(const evaluation *e, int choices)
{
    const double n = e->count > 0 ? (double)e->count : 1, acc = (double)e->right[EVALUATE_SUM] / n;
    const double error = e->count > 1 ? model_sqrt(acc * (1 - acc) / (n - 1)) : 0;
    fprintf(session.out, "accuracy %lld %s%s: %s %.4f (standard error %.4f)", (long long)e->count,
            choices ? "question" : "answer", session_plural(e->count),
            choices ? "acc" : "exact match", acc, error);
    if (choices)
        fprintf(session.out, ", acc_norm %.4f, by the mean of tokens %.4f",
                (double)e->right[EVALUATE_CHARACTER] / n, (double)e->right[EVALUATE_TOKEN] / n);
    fputc('\n', session.out);
    if (e->cut > 0)
        fprintf(session.out, "note   %lld prompt%s too long and lost the beginning; a larger --context "
                             "may hold all\n",
                (long long)e->cut, e->cut == 1 ? " was" : "s were");
    session_event("{\"event\":\"accuracy\",\"count\":%lld,\"%s\":%.9g", (long long)e->count,
                  choices ? "acc" : "exact_match", acc);
    if (choices)
        session_event(",\"acc_norm\":%.9g,\"acc_token\":%.9g",
                      (double)e->right[EVALUATE_CHARACTER] / n, (double)e->right[EVALUATE_TOKEN] / n);
    session_event("}\n");
}

/* Evaluates --accuracy with the loaded model. */
static int measure_accuracy(tuning *t, int choices)
{
    generator g;
    const generator_desc desc = { .threads = (int)lm.threads,
                                  .backend = run.first.device,
                                  .hooks = &t->adapters.hooks,
                                  .allow_initial = 1,
                                  .progress = session_cancelled,
                                  .capacity = chat_context(&t->model.config) };
    evaluation e = { .g = &g,
                     .tokenizer = &run.tokenizer,
                     .format = run.chat.name[0] != 0 ? &run.chat : NULL,
                     .stops = run.stops,
                     .most = lm.sample > 0 ? lm.sample : 256,
                     .stopped = is_interrupted,
                     .on_choices = report_choices,
                     .on_answer = report_match };
    if (generator_new(&g, &t->model, t->run.store, &desc) != 0)
        return session_fail(1, "--accuracy: %s", t->model.error);
    int status = lm.budget > 0 && g.bytes > (size_t)lm.budget
                     ? session_fail(1, "--budget %lld: needs %zu bytes; give a smaller --context",
                                    (long long)lm.budget, g.bytes)
                     : 0;
    if (status == 0 && (choices ? evaluate_choices(&e, o.accuracy) : evaluate_answers(&e, &run.data)) != 0)
        status = session_fail(1, "--accuracy: %s", e.error);
    if (status == 0)
        report_accuracy(&e, choices);
    evaluate_free(&e);
    generator_free(&g);
    return status;
}

/* Runs --accuracy. */
static int accuracy(void)
{
    tuning t = { .run = run.first };
    model_any m;
    const int choices = evaluate_has_choices(o.accuracy);
    int status = open_model(&m);
    if (status == 0 && !choices)
        status = open_data("accuracy", o.accuracy, &m, &run.data);
    if (status == 0 && run.chat.name[0] != 0 &&
        (choices || run.data.lines[DATASET_CHATS] + run.data.lines[DATASET_INSTRUCTIONS] > 0))
        print_chats();
    if (status == 0)
        status = load_untrained(&t) || measure_accuracy(&t, choices);
    free_tuning(&t);
    return status;
}

/* Runs --merge and --export-gguf when no --data is given. */
static int write_only(void)
{
    tuning t = { .run = run.first };
    model_any m;
    int failed = exports_model() ? open_model(&m) : 0;
    failed = failed || load_untrained(&t) || (o.merge != NULL && merge(&t)) ||
             (o.gguf != NULL && export_gguf(&t));
    if (!failed)
        print_exported();
    free_tuning(&t);
    return failed;
}

/* Runs --eval: evaluates and does not train. */
static int evaluate_only(void)
{
    tuning t = { .run = run.first };
    double loss = 0, retention = 0;
    const int failed = compute_references((adapters_method)o.method) || load_untrained(&t) ||
                       make_plans(&t) || lm_new_execs(&t.run) || evaluate(&t, 0, &loss) ||
                       evaluate_retention(&t, 0, &retention);
    free_tuning(&t);
    return failed;
}

/* ---- all methods ----------------------------------------------------------------------------- */
/* Draws a bar for each method: its memory by kind of bytes (--memory-svg). */
static int draw_methods(const outcome *all)
{
    static const char *const kinds[] = { "frozen weights", "trained weights", "optimiser state",
                                         "gradients",      "activations",     "workspace" };
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    size_t bytes[ADAPTERS_METHODS * KINDS];
    for (int i = 0; i < ADAPTERS_METHODS; i++) {
        const size_t *k = all[i].kinds, trained = 4 * (size_t)all[i].parameters;
        size_t *to = bytes + KINDS * i;
        to[0] = k[GCKPT_BYTES_PARAMETERS] > trained ? k[GCKPT_BYTES_PARAMETERS] - trained : 0;
        to[1] = trained;
        to[2] = k[GCKPT_BYTES_STATE];
        to[3] = k[GCKPT_BYTES_GRADIENTS];
        to[4] = k[GCKPT_BYTES_ACTIVATIONS];
        to[5] = k[GCKPT_BYTES_WORKSPACE];
    }
    FILE *f = fopen(o.memory_svg, "w");
    int bad = f == NULL ||
              pictures_bars("What each method keeps in memory, by its plan", adapters_names,
                            ADAPTERS_METHODS, kinds, KINDS, bytes, session_write, f) != GCKPT_OK;
    if ((f != NULL && fclose(f) != 0) || bad)
        return session_fail(1, "--memory-svg %s: %s", o.memory_svg, strerror(errno));
    return 0;
}

static int compare(int argc, char **argv)
{
    outcome all[ADAPTERS_METHODS];
    int failed = 0;
    memset(all, 0, sizeof all);
    if (mkdir(lm.save, 0777) != 0 && errno != EEXIST)
        return session_fail(1, "--save %s: %s", lm.save, strerror(errno));
    for (int i = 0; i < ADAPTERS_METHODS && !failed && !session.interrupted; i++) {
        char folder[MODEL_PATH];
        if (i == ADAPTERS_BIAS && !run.biases) {
            fprintf(session.out, "note   --method bias is skipped: the model has no biases\n");
            continue;
        }
        failed = tune((adapters_method)i, join(folder, sizeof folder, lm.save, adapters_names[i]),
                      argc, argv, &all[i]);
    }
    if (failed || session.interrupted)
        return failed;
    const int ran = !lm.plan, evaluated = ran && lm.eval_every > 0,
              retention = evaluated && run.other.count > 0;
    fprintf(session.out, "\n| method | trained parameters | bytes |%s%s%s\n|---|--:|--:|%s%s%s\n",
            ran ? " a step | file |" : "", evaluated ? " loss before | after |" : "",
            retention ? " retention before | after |" : "", ran ? "--:|--:|" : "",
            evaluated ? "--:|--:|" : "", retention ? "--:|--:|" : "");
    for (int i = 0; i < ADAPTERS_METHODS; i++) {
        const outcome *r = &all[i];
        if (i == ADAPTERS_BIAS && !run.biases)
            continue;
        fprintf(session.out, "| %s | %lld | %zu |", adapters_names[i], (long long)r->parameters,
                r->bytes);
        if (ran)
            fprintf(session.out, " %.3f s | %zu |", r->seconds, r->file);
        if (evaluated)
            fprintf(session.out, " %.4f | %.4f |", r->before, r->after);
        if (retention)
            fprintf(session.out, " %.4f | %.4f |", r->retention_before, r->retention_after);
        fputc('\n', session.out);
    }
    return o.memory_svg != NULL ? draw_methods(all) : 0;
}

/* ---- the program ----------------------------------------------------------------------------- */
/* A rename function of gckpt_file_desc that skips all tensors: only the options in the notes are
 * read here. */
static const char *skip_all(void *user, const char *name)
{
    (void)name;
    return (const char *)user;
}

/* Restores the step and the row at which --batch last changed; epochs are counted from there. */
static void restore_cut(const gckpt_store *store, int argc, char **argv)
{
    const char *given = options_given(&options, argc, argv, "batch");
    const char *old = gckpt_store_note(store, "option.batch");
    for (int i = 0; i < options_count(&options) && old == NULL; i++)
        if (strcmp(options_at(&options, i)->name, "batch") == 0)
            old = options_default(&options, options_at(&options, i));
    run.cut_step = session_read_note(store, "cut.step", 0);
    run.cut_row = session_read_note(store, "cut.row", 0);
    if (given == NULL || old == NULL || strtoll(old, NULL, 10) == strtoll(given, NULL, 10))
        return;
    run.cut_was = strtoll(old, NULL, 10);
    run.cut_step = run.resumed_at;
    run.cut_row = session_read_note(store, "position", 0);
}

static int restore_options(int argc, char **argv)
{
    static char folder[MODEL_PATH], path[MODEL_PATH];
    struct stat info;
    if (stat(lm.resume, &info) == 0 && S_ISDIR(info.st_mode))
        lm.resume = join(path, sizeof path, lm.resume, "training.safetensors");
    const gckpt_file_desc notes = { .rename = skip_all };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_result result = gckpt_store_load(store, lm.resume, &notes);
    int status = 0;
    if (result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT)
        status = session_fail(1, "--resume %s: %s", lm.resume, gckpt_error_text(store));
    else if (lm.audit == NULL) /* an audit takes its options from the ledger only */
        status = session_restore_options(store, lm.resume, &options, fixed, not_kept, argc, argv);
    if (status == 0 && gckpt_store_note(store, "option.model") == NULL && o.model == NULL)
        status = session_fail(1,
                              "--resume %s: the file was not written by a training; give the "
                              "training.safetensors of a folder written by --save",
                              lm.resume);
    if (status == 0 && gckpt_store_note(store, "option.adapter") == NULL &&
        options_given(&options, argc, argv, "adapter") != NULL)
        status = session_fail(2,
                              "--adapter %s: %s was made without --adapter; omit the option",
                              o.adapter, lm.resume);
    run.resumed_at = gckpt_store_step(store);
    restore_cut(store, argc, argv);
    gckpt_store_free(store);
    snprintf(folder, sizeof folder, "%s", lm.resume);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = 0;
    if (lm.save == NULL && lm.audit == NULL)
        lm.save = slash != NULL ? folder : ".";
    return status;
}

/* Checks that no output file is also an input or another output, and that the folder of --save can
 * be written to. */
static int check_outputs(void)
{
    char path[MODEL_PATH];
    const char *saved = lm.save != NULL && !lm.plan
                            ? join(path, sizeof path, lm.save, "training.safetensors")
                            : NULL;
    const session_file own[] = {
        { "retention-data", o.retention_data, SESSION_READS, -1 },
        { "model", gguf_is_file(o.model) ? o.model : NULL, SESSION_READS, -1 },
        { "adapter", o.adapter != NULL && gguf_is_file(o.adapter) ? o.adapter : NULL, SESSION_READS,
          -1 },
        { "teacher", o.teacher != NULL && gguf_is_file(o.teacher) ? o.teacher : NULL, SESSION_READS,
          -1 },
        { "reference", o.reference != NULL && gguf_is_file(o.reference) ? o.reference : NULL,
          SESSION_READS, -1 },
        { "accuracy", o.accuracy, SESSION_READS, -1 },
        { "save", saved, SESSION_SAVES, LM_RESUME_FILE },
        { "memory-svg", o.memory_svg, SESSION_WRITES, -1 },
        { "export-gguf", o.gguf, SESSION_SAVES, -1 }
    };
    struct stat model, info;
    if (o.merge != NULL && stat(o.model, &model) == 0 && stat(o.merge, &info) == 0 &&
        model.st_dev == info.st_dev && model.st_ino == info.st_ino)
        return session_fail(2, "--merge %s: it is also --model; give another folder", o.merge);
    if (lm.save != NULL && !lm.plan) {
        if (mkdir(lm.save, 0777) != 0 && errno != EEXIST)
            return session_fail(1, "--save %s: %s", lm.save, strerror(errno));
        for (int i = 0; i < 3; i++) {
            const char *const from[] = { o.model, o.teacher, o.reference };
            static const char *const names[] = { "model", "teacher", "reference" };
            if (from[i] != NULL && stat(from[i], &model) == 0 && stat(lm.save, &info) == 0 &&
                model.st_dev == info.st_dev && model.st_ino == info.st_ino)
                return session_fail(2, "--save %s: it is also --%s; give another folder", lm.save,
                                    names[i]);
        }
    }
    return lm_check_outputs(lm.data, own, (int)(sizeof own / sizeof own[0]));
}

/* Prints the table of --will-it-fit: the bytes of each method, or only of those that are given. */
static int print_bytes(int argc, char **argv)
{
    enum { LENGTHS = 3 };
    static const int64_t lengths[LENGTHS] = { 512, 2048, 8192 };
    const int one = options_given(&options, argc, argv, "method") != NULL &&
                    o.method != ADAPTERS_METHODS;
    int64_t wanted[LENGTHS];
    int n = 0;
    model_any m;
    if (model_read_config(&m, o.will_it_fit) != 0)
        return session_fail(1, "--will-it-fit: %s", m.error);
    const model_config *c = &m.config;
    if (o.context > c->context) {
        model_close(&m);
        return session_fail(2, "--context %lld: allowed is 1 to %lld, the model's context",
                            (long long)o.context, (long long)c->context);
    }
    for (int i = 0; i < LENGTHS && o.context == 0; i++)
        if (i == 0 || lengths[i] <= c->context)
            wanted[n++] = lengths[i] < c->context ? lengths[i] : c->context;
    if (o.context > 0)
        wanted[n++] = o.context;
    const adapters_options adapter = adapter_options_of((adapters_method)o.method);
    lm.threads = lm.threads > 0 ? lm.threads : gckpt_threads(); /* as in a training */
    will_it_fit_case of = { adapter, (gckpt_storage)(o.store == STORE_AUTO ? 0 : o.store), 0,
                            lm_plan_desc(&run.first, LM_TRAINING) };
    double parameters = 0;
    for (int64_t i = 0; i < model_param_count(c); i++) {
        const gckpt_shape s = model_get_param(c, i).shape;
        parameters += (double)s.d[0] * (double)(s.n > 1 ? s.d[1] : 1);
    }
    fprintf(session.out, "model  %s: %lld layers of width %lld, %.0f parameters, context %lld\n",
            c->type, (long long)c->layers, (long long)c->width, parameters, (long long)c->context);
    const will_it_fit_table table = { session.out, wanted, n, parameters < 1e7 ? 1000 : 1000000 };
    const int failed = will_it_fit_print(&table, &m, &of, one, o.store != STORE_AUTO);
    model_close(&m);
    return failed ? session_fail(1, "--will-it-fit: %s", m.error) : 0;
}

int main(int argc, char **argv)
{
    int status = lm_start("finetune");
    if (status == 0)
        status = options_parse(&options, argc, argv);
    if (status == 0 && lm.help)
        return lm_print_help(&options, title, groups);
    if (status == 0 && lm.resume != NULL)
        status = restore_options(argc, argv);
    if (status == 0)
        status = check_steps(argc, argv);
    if (status == 0 && o.will_it_fit != NULL) {
        session.out = stdout;
        return session_end(print_bytes(argc, argv));
    }
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = check_objective(argc, argv);
    if (status == 0)
        status = check_rates();
    if (status == 0)
        status = lm_open_device(&run.first);
    if (status == 0)
        status = check_outputs();
    if (status == 0)
        status = session_open(lm.json, &options, run.resumed_at);
    if (status == 0 && !lm.plan)
        status = lm_log_open(run.resumed_at);
    if (status == 0)
        note_storage();
    if (status == 0 && o.new_model != NULL)
        status = make_model();
    if (status == 0 && (lm.data != NULL || o.eval))
        status = load_data();
    if (status == 0 && o.accuracy != NULL) {
        status = accuracy();
    } else if (status == 0 && o.interactive) {
        status = interact();
    } else if (status == 0 && o.generate) {
        status = generate();
    } else if (status == 0 && o.eval) {
        status = evaluate_only();
    } else if (status == 0 && lm.data != NULL) {
        outcome result;
        status = o.method == ADAPTERS_METHODS
                     ? compare(argc, argv)
                     : tune((adapters_method)o.method, lm.save, argc, argv, &result);
    } else if (status == 0 && (o.merge != NULL || o.gguf != NULL)) {
        status = write_only();
    }
    dataset_batches_free(&run.batches);
    dataset_free(&run.data);
    dataset_free(&run.validation);
    dataset_free(&run.retention);
    bpe_free(&run.tokenizer);
    chat_free(&run.chat);
    free(run.first.tokens);
    free(run.first.targets);
    free(run.references[0]);
    free(run.references[1]);
    free(run.reference);
    free(run.label);
    return session_end(run.cancelled ? 130 : status);
}
