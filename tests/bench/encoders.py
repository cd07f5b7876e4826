#!/usr/bin/env python3
"""encoders.py - rounding errors of classifiers: examples/classify.c and transformers, both in float32,
compared with transformers in float64.

    make build/classify
    python3 tests/bench/encoders.py > build/encoders.md
    sh tests/bench/record.sh accuracy build/encoders.md classifiers

Makes random models of each family (matrices of standard deviation 0.3) and a tokenizer of whole words.
Each model computes numbers of 12 texts (--task score), and trains as a classifier for 20 steps of all
texts (AdamW, linear decay, weight decay 0.1, clipping at 1). The error of the outputs is the root of the
mean squared difference from float64, divided by that of the outputs; the error of a training is the
largest relative difference of a loss. Prints the mean errors over the models, and the largest ones.
Needs torch, transformers and tokenizers."""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "golden")]
import encoders as golden

FAMILIES = {"BERT": "bert", "RoBERTa": "roberta", "XLM-RoBERTa": "xlm_roberta", "DistilBERT": "distilbert",
            "MPNet": "mpnet", "ModernBERT": "modernbert", "GPT-2": "gpt2_score", "Llama": "llama_score",
            "Gemma 3": "gemma3_score"}
STD = 0.3
LABELS = [str(i) for i in range(golden.LABELS)]


def write_tokenizer(folder):
    """A tokenizer of whole words, whose texts begin and end with a token."""
    import tokenizers
    words = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]"] +
                                              ["w%d" % i for i in range(4, golden.VOCABULARY)])}
    t = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    t.add_special_tokens(["[UNK]", "[PAD]", "[CLS]", "[SEP]"])
    t.normalizer = tokenizers.normalizers.BertNormalizer()
    t.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    t.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = tokenizers.decoders.WordPiece()
    t.save(os.path.join(folder, "tokenizer.json"))


def make(family, labels, seed, folder):
    """Saves a random model; the same seed gives the same weights, except those of the head."""
    task, kind, differs = golden.MODELS[FAMILIES[family]]
    config = transformers.AutoConfig.for_model(kind, **{**differs, "num_labels": labels})
    config.id2label = dict(enumerate(LABELS[:labels]))
    model, random = task.from_config(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_gain = p.dim() == 1 and name.endswith("weight") and kind != "gemma3_text"
            p.copy_((1.0 if is_gain else 0.0) +
                    torch.randn(*p.shape, generator=random) * (STD if p.dim() > 1 else 0.1))
    model.save_pretrained(folder)
    write_tokenizer(folder)


def run(*arguments):
    return subprocess.run([os.path.join(ROOT, "build", "classify"), *arguments], check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def models(family, folder):
    """The model in float64 and in float32, each with the context in which to run it."""
    task = golden.MODELS[FAMILIES[family]][0]
    single = task.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return (golden.load_model(folder, task), golden.wide), (single, contextlib.nullcontext)


def apart(have, want):
    return float(((have.double() - want) ** 2).mean().sqrt() / (want ** 2).mean().sqrt())


def errors(family, seed, rows, files):
    """Errors of outputs, ours and transformers'; errors of losses, ours and transformers'."""
    name = FAMILIES[family]
    with tempfile.TemporaryDirectory() as folder:
        make(family, 1, seed, folder)
        lines = run("--model", folder, "--task", "score", "--threads", "1", "--predict", files["lines"])
        want, have = [], torch.tensor([json.loads(line)["score"] for line in lines.splitlines()])
        for model, context in models(family, folder):
            with torch.no_grad(), context():
                want.append(model(**{k: v for k, v in golden.batch_of(name, rows, slice(None)).items()
                                     if k != "labels"}).logits.flatten())
    outputs = [apart(have, want[0]), apart(want[1], want[0])]
    with tempfile.TemporaryDirectory() as folder:
        make(family, golden.LABELS, seed, folder)
        log = os.path.join(folder, "log.csv")
        run("--model", folder, "--data", files["data"], "--validation", files["data"], "--batch",
            str(golden.ROWS), "--epochs", str(golden.STEPS), "--lr", str(golden.LR), "--weight-decay",
            str(golden.DECAY), "--threads", "1", "--log", log)
        with open(log) as file:
            losses = [[float(line.split(",")[3]) for line in file.read().splitlines()[1:]]]
        for model, context in models(family, folder):
            golden.wide, wide = context, golden.wide
            losses.append(golden.train(name, model, rows))
            golden.wide = wide
    off = [max(abs(a / b - 1) for a, b in zip(x, losses[1])) for x in (losses[0], losses[2])]
    return outputs + off


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=10)
    o = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    golden.BATCH = golden.ROWS
    rows = golden.make_rows()
    rows["token_type_ids"] = torch.zeros_like(rows["token_type_ids"])
    lengths = rows["attention_mask"].sum(1)
    for i, n in enumerate(lengths):
        rows["input_ids"][i, n - 1] = 3
    texts = [" ".join("w%d" % t for t in rows["input_ids"][i, 1:n - 1]) for i, n in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: os.path.join(folder, name) for name in ("lines", "data")}
        with open(files["lines"], "w") as file:
            file.writelines(text + "\n" for text in texts)
        with open(files["data"], "w") as file:
            file.writelines(json.dumps({"text": text, "label": LABELS[label]}) + "\n"
                            for text, label in zip(texts, rows["labels"].tolist()))
        print("## %d random models of each family: relative error\n\n"
              "| family | outputs | outputs, transformers | largest | largest, transformers | losses | "
              "losses, transformers | largest of losses | largest of losses, transformers |\n"
              "|---|--:|--:|--:|--:|--:|--:|--:|--:|" % o.models)
        for family in FAMILIES:
            with contextlib.redirect_stdout(sys.stderr):
                all = [errors(family, seed, rows, files) for seed in range(o.models)]
            cells = []
            for part in (0, 2):
                cells += [sum(x[part + i] for x in all) / len(all) for i in range(2)]
                cells += [max(x[part + i] for x in all) for i in range(2)]
            print("| %s | %s |" % (family, " | ".join("%.2g" % x for x in cells)), flush=True)


if __name__ == "__main__":
    main()
