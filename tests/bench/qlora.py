#!/usr/bin/env python3
"""qlora.py - LoRA on frozen weights in 8 and 4 bits: examples/finetune.c and bitsandbytes' NF4.

    make build/finetune
    python3 tests/bench/qlora.py --model SmolLM2-135M-Instruct.Q4_1.gguf > build/qlora.md
    sh tests/bench/record.sh finetuning build/qlora.md QLoRA
    ... --steps 30 --batch 1 --context 64 --rows 16 --threads 1 --seed 2      a training of the log

All begin with the values of the same GGUF file (rescale.py writes one off every grid of 4 bits) and the
same adapter, and train on the same windows of a text in the same order; a seed chooses adapter and
windows. NF4 (with and without double quantisation; Dettmers et al. 2023) stores the dense layers of the
blocks, as peft's QLoRA does: the embeddings, which are also the head, stay floats. --store int8 and int4
store these as int8, which keeps the values of a file that has them as Q8_0. Prints the loss on the
last windows of the text before and after the training. Each run is a process of its own, which --runs
selects; their losses are added to --json.
Needs torch, transformers, gguf, peft and bitsandbytes; the vocabulary must have at most 65,536 tokens."""
import argparse
import array
import json
import os
import sys

from finetune import wait_for

RUNS = ("f32", "int8", "int4", "torch:f32", "torch:nf4", "torch:nf4 double")
LR, RANK, ALPHA = 2e-3, 8, 16


def load(o):
    """The model of the GGUF file, as floats."""
    import torch
    import transformers
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    transformers.utils.logging.disable_progress_bar()
    folder, name = os.path.split(os.path.abspath(o.model))
    return transformers, transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name,
                                                                           dtype=torch.float32)


def windows(o, name):
    """Token windows of a file, of context + 1 tokens each; the next begins with the last token."""
    tokens = array.array("H")
    with open(os.path.join(o.folder, name), "rb") as file:
        tokens.frombytes(file.read())
    return [tokens[i:i + o.context + 1] for i in range(0, len(tokens) - o.context, o.context)]


# ---- functions that run in a separate process ------------------------------------------------------
def make(o):
    """The adapter and the tokens."""
    import peft
    transformers, model = load(o)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA,
                           target_modules=["q_proj", "v_proj"])
    peft.get_peft_model(model, lora).save_pretrained(os.path.join(o.folder, "adapter"))
    folder, name = os.path.split(os.path.abspath(o.model))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with open(o.data, encoding="utf-8") as file:
        tokens = tokenizer(file.read(), add_special_tokens=False).input_ids
    train, held = o.steps * o.batch * o.context + 1, o.rows * o.context + 1
    if len(tokens) < train + held:
        sys.exit("%s has %d tokens; these steps and rows need %d" % (o.data, len(tokens), train + held))
    start = (o.seed - 1) * train % (len(tokens) - train - held + 1)
    for name, some in (("train.bin", tokens[start:start + train]), ("held.bin", tokens[-held:])):
        with open(os.path.join(o.folder, name), "wb") as file:
            array.array("H", some).tofile(file)


def quantise(module, double):
    """Replaces the dense layers of the blocks by NF4 ones."""
    import bitsandbytes
    import torch
    for name, child in module.named_children():
        if not isinstance(child, torch.nn.Linear):
            quantise(child, double)
        elif name != "lm_head":
            layer = bitsandbytes.nn.Linear4bit(child.in_features, child.out_features, False, torch.float32,
                                               compress_statistics=double, quant_type="nf4")
            layer.weight = bitsandbytes.nn.Params4bit(child.weight.data, requires_grad=False,
                                                      compress_statistics=double, quant_type="nf4")
            setattr(module, name, layer.to("cpu")) # which quantises


def torch_loss(model, window):
    """The sum of a window's losses."""
    import torch
    window = torch.tensor(window, dtype=torch.long)[None]
    logits = model(input_ids=window[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum")


def train(o):
    """PyTorch's side."""
    import peft
    import torch
    _, model = load(o)
    if o.child != "f32":
        quantise(model, "double" in o.child)
    model = peft.PeftModel.from_pretrained(model, os.path.join(o.folder, "adapter"), is_trainable=True)
    model.eval() # the adapter has no dropout
    adamw = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, weight_decay=0)
    rows, held, losses = windows(o, "train.bin"), windows(o, "held.bin"), []

    def validate():
        with torch.no_grad():
            return sum(torch_loss(model, w).item() for w in held) / (len(held) * o.context)
    before = validate()
    for step in range(o.steps):
        adamw.zero_grad(set_to_none=True)
        losses.append(0.0)
        for window in rows[step * o.batch:(step + 1) * o.batch]:
            loss = torch_loss(model, window) / (o.batch * o.context)
            loss.backward()
            losses[-1] += loss.item()
        adamw.step()
    print(json.dumps({"losses": losses, "before": before, "after": validate()}))


# ---- the measured programs -------------------------------------------------------------------------
def run_torch(o, method):
    lines, _ = wait_for([sys.executable, os.path.abspath(__file__), "--child", method] + arguments(o),
                        dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(o.threads)))
    return json.loads(lines[-1])


def run_ours(o, store):
    lines, _ = wait_for([
        o.binary, "--model", o.model, "--store", store, "--adapter", os.path.join(o.folder, "adapter"),
        "--data", os.path.join(o.folder, "train.bin"), "--validation", os.path.join(o.folder, "held.bin"),
        "--no-shuffle", "--context", str(o.context), "--batch", str(o.batch), "--steps", str(o.steps),
        "--lr", str(LR), "--warmup", "0", "--clip", "0", "--weight-decay", "0", "--eval-every",
        str(o.steps), "--threads", str(o.threads), "--json", "-"])
    events = [json.loads(line) for line in lines]
    evals = [e["val_loss"] for e in events if e["event"] == "eval"]
    return {"losses": [e["loss"] for e in events if e["event"] == "step"],
            "before": evals[0], "after": evals[-1]}


def arguments(o):
    return [a for k in ("model", "folder", "data", "steps", "batch", "context", "rows", "threads", "seed")
            for a in ("--" + k, str(getattr(o, k)))]


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--model", required=True, help="a GGUF file of a Llama-like model")
    a.add_argument("--folder", default=os.path.join("build", "qlora"), help="for adapter and tokens")
    a.add_argument("--binary", default=os.path.join("build", "finetune"))
    a.add_argument("--data", default=os.path.join("examples", "shakespeare.txt"), help="a text")
    a.add_argument("--runs", nargs="*", choices=RUNS, default=RUNS)
    a.add_argument("--json", help="file for the results, to which those of --runs are added")
    a.add_argument("--child", choices=("make", "f32", "nf4", "nf4 double"), help=argparse.SUPPRESS)
    for name, value in (("steps", 50), ("batch", 4), ("context", 256), ("rows", 32),
                        ("threads", os.cpu_count()), ("seed", 1)):
        a.add_argument("--" + name, type=int, default=value)
    o = a.parse_args()
    if o.child:
        return make(o) if o.child == "make" else train(o)
    if not os.path.exists(o.binary):
        sys.exit("no %s: make build/finetune" % o.binary)
    os.makedirs(o.folder, exist_ok=True)
    wait_for([sys.executable, os.path.abspath(__file__), "--child", "make"] + arguments(o),
             dict(os.environ, HF_HUB_OFFLINE="1"))
    results = {}
    if o.json and os.path.exists(o.json):
        with open(o.json, encoding="utf-8") as file:
            results = json.load(file)
    for name in o.runs:
        results[name] = (run_torch(o, name[6:]) if name.startswith("torch:") else run_ours(o, name))
        print("%-18s %.4f %.4f" % (name, results[name]["before"], results[name]["after"]),
              file=sys.stderr, flush=True)
        if o.json:
            with open(o.json, "w", encoding="utf-8") as file:
                json.dump(results, file)
    print("| weights | loss before, nats | loss after, nats |\n|---|--:|--:|")
    for name, r in results.items():
        name = name.replace("torch:", "bitsandbytes ").replace("nf4", "NF4")
        print("| %s | %.4f | %.4f |" % (name.replace("bitsandbytes f32", "PyTorch f32"), r["before"], r["after"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
