#!/usr/bin/env python3
"""Writes preference.h: DPO and distillation for the models of gpt2/ and llama/, by PyTorch in float64.

    python3 tests/golden/preference.py          writes the file
    python3 tests/golden/preference.py --trl    compares with TRL's DPOTrainer (1.16) in float32; writes nothing

"rewards" are those of the initial model: chosen, rejected, accuracies, margins, as TRL logs them. DPO
is TRL's sigmoid loss. l of an answer is the sum of the log-probabilities of its tokens, x = beta
((l_chosen - l'_chosen) - (l_rejected - l'_rejected)), and the loss is the mean over pairs of -(1 - e)
log sigmoid(x) - e log sigmoid(-x). The reference l' is the initial model; for an adapter whose initial
values are not neutral, it is the model without the adapter. Distillation is alpha times the mean
cross-entropy of the targets plus (1 - alpha) tau^2 times the mean of KL(teacher || student) over the
same tokens, by torch.nn.functional.kl_div of logits / tau. Both divide once, over all rows."""
import contextlib
import math
import os
import sys

import torch
import torch.nn.functional as F

import gpt2
import llama
from gpt2 import CLIP, DECAY, STEPS, print_array

PAIRS, LENGTH, MICRO = 5, 16, 2
BETA, SMOOTHED_BETA, SMOOTHING = 0.1, 0.5, 0.1
TAU, ALPHA = 2.0, 0.3
CASES = {  # name: (load, load of the reference, lr, beta, smoothing)
    "gpt2": (lambda: gpt2.load_model("model"), lambda: gpt2.load_model("model"), 5e-4, BETA, 0.0),
    "gpt2_lora": (lambda: gpt2.load_adapter(gpt2.folder("lora")),
                  lambda: gpt2.load_model("model"), 5e-3, BETA, 0.0),
    "llama": (lambda: llama.load_model(llama.folder("gqa")), lambda: llama.load_model(llama.folder("gqa")), 5e-4, BETA, 0.0),
    "llama_lora": (lambda: llama.load_adapter(llama.folder("lora"), "gqa"), lambda: llama.load_model(llama.folder("gqa")), 5e-3,
                   SMOOTHED_BETA, SMOOTHING),
}
TAUGHT = {  # name: (student, teacher, lr)
    "gpt2": (lambda: gpt2.load_model("model"), lambda: llama.load_model(llama.folder("mqa")), 2e-3),
    "gpt2_lora": (lambda: gpt2.load_adapter(gpt2.folder("lora")), lambda: llama.load_model(llama.folder("mqa")), 5e-3),
    "llama": (lambda: llama.load_model(llama.folder("gqa")), lambda: gpt2.load_model("model"), 2e-3),
}


def inputs():
    """Returns tokens and targets (PAIRS,2,LENGTH): prompts and answers of various lengths."""
    numbers = torch.Generator().manual_seed(20261123)
    tokens = torch.zeros(PAIRS, 2, LENGTH, dtype=torch.long)
    targets = torch.full((PAIRS, 2, LENGTH), -1)
    for pair in range(PAIRS):
        prompt = torch.randint(0, gpt2.VOCABULARY - 1, (2 + pair,), generator=numbers)
        for k in range(2):
            size = [(9, 4), (1, 8), (7, 7), (12, 2), (3, 5)][pair][k]
            answer = torch.randint(0, gpt2.VOCABULARY - 1, (size,), generator=numbers)
            row = torch.cat([prompt, answer])
            tokens[pair, k, :len(row) - 1] = row[:-1]
            targets[pair, k, len(prompt) - 1:len(row) - 1] = answer
    return tokens, targets


def logps(model, tokens, targets):
    """Returns the log-probabilities of answers: (B,2,T) -> (B,2)."""
    flat, want = tokens.flatten(0, 1), targets.flatten(0, 1)
    all = F.log_softmax(gpt2.logits_of(model, flat), -1)
    taken = all.gather(2, want.clamp(min=0)[..., None])[..., 0]
    return (taken * (want >= 0)).sum(1).view(-1, 2)


def dpo_loss(values, reference, beta, smoothing):
    """Returns the sum of the loss over pairs."""
    ratio = values - reference
    x = beta * (ratio[:, 0] - ratio[:, 1])
    return (-(1 - smoothing) * F.logsigmoid(x) - smoothing * F.logsigmoid(-x)).sum()


def signed(p):
    """Returns a sum of squares, and a sum with signs + - - + - - .."""
    flat = p.flatten()
    signs = torch.where(torch.arange(len(flat)) % 3 == 0, 1.0, -1.0).double()
    return float((flat ** 2).sum()), float((flat * signs).sum())


def name_of(name):
    for part in ("base_model.model.", "transformer.", "model.", ".default"):
        name = name.replace(part, "." if part == ".default" else "", 1) if part in name else name
    return name.replace("..", ".")


def train(model, rows, count, loss_of, lr):
    """Trains as gpt2.train does; also returns the gradients of the first step, by name."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW([
        {"params": [p for p in weights if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}], lr=lr, eps=1e-8)
    losses, norms, gradients = [], [], []
    for step in range(STEPS):
        optimiser.zero_grad()
        total = 0.0
        for row in range(0, rows, MICRO):
            loss = loss_of(model, slice(row, row + MICRO))
            loss.backward()
            total += loss.item()
        for p in weights:
            p.grad /= count
        if step == 0:
            gradients = [(name_of(name), *signed(p.grad)) for name, p in model.named_parameters()
                         if p.requires_grad]
        norm = math.sqrt(sum(float((p.grad ** 2).sum()) for p in weights))
        for p in weights:
            p.grad *= min(1.0, CLIP / norm)
        optimiser.step()
        losses.append(total / count)
        norms.append(norm)
    return losses, norms, gradients


def print_gradients(out, name, gradients):
    out.write(f"static const preference_sums {name}[{len(gradients)}] = {{\n")
    for parameter, squares, total in gradients:
        out.write(f'    {{ "{parameter}", {squares:.12g}, {total:.12g} }},\n')
    out.write("};\n")


def dpo(out, name):
    load, refer, lr, beta, smoothing = CASES[name]
    tokens, targets = inputs()
    with torch.no_grad():
        reference = logps(refer(), tokens, targets)
    model = load()
    with torch.no_grad():
        rewards = beta * (logps(model, tokens, targets) - reference)
    said = [*rewards.mean(0).tolist(), float((rewards[:, 0] > rewards[:, 1]).double().mean()),
            float((rewards[:, 0] - rewards[:, 1]).mean())]
    losses, norms, gradients = train(
        model, PAIRS, PAIRS,
        lambda m, rows: dpo_loss(logps(m, tokens[rows], targets[rows]), reference[rows], beta, smoothing), lr)
    with torch.no_grad():
        after = logps(model, tokens, targets)
    for what, values in (("reference", reference.flatten().tolist()), ("rewards", said), ("losses", losses),
                         ("norms", norms), ("after", after.flatten().tolist())):
        print_array(out, "double", f"dpo_{what}_{name}", values)
    print_gradients(out, f"dpo_gradients_{name}", gradients)


def distill(out, name):
    load, teach, lr = TAUGHT[name]
    tokens, targets = gpt2.inputs()[1:3]
    count = int((targets >= 0).sum())
    with torch.no_grad():
        taught = F.log_softmax(gpt2.logits_of(teach(), tokens) / TAU, -1)

    def loss_of(model, rows):
        logits, want = gpt2.logits_of(model, tokens[rows]), targets[rows]
        hard = F.cross_entropy(logits.flatten(0, 1), want.flatten(), ignore_index=-1, reduction="sum")
        valid = want >= 0
        soft = F.kl_div(F.log_softmax(logits / TAU, -1)[valid], taught[rows][valid], log_target=True,
                        reduction="sum")
        return ALPHA * hard + (1 - ALPHA) * TAU ** 2 * soft
    losses, norms, gradients = train(load(), tokens.shape[0], count, loss_of, lr)
    print_array(out, "double", f"distill_losses_{name}", losses)
    print_array(out, "double", f"distill_norms_{name}", norms)
    print_gradients(out, f"distill_gradients_{name}", gradients)


# ---- TRL itself ----------------------------------------------------------------------------------
def beside_trl(name):
    """Returns losses of TRL's trainer in float32, with its collator and loss; it precomputes the
    reference."""
    import tempfile

    import datasets
    import trl
    load, _, lr, beta, smoothing = CASES[name]
    tokens, targets = inputs()
    rows = []
    for pair in range(PAIRS):
        begin = [int((targets[pair, k] >= 0).nonzero()[0]) + 1 for k in range(2)]
        answers = [targets[pair, k][targets[pair, k] >= 0].tolist() for k in range(2)]
        rows.append({"prompt_ids": tokens[pair, 0, :begin[0]].tolist(), "chosen_ids": answers[0],
                     "rejected_ids": answers[1]})
    model = load().float()
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(
        {str(i): i for i in range(gpt2.VOCABULARY)}, unk_token="0")), pad_token="127", eos_token="127")
    with tempfile.TemporaryDirectory() as folder:
        args = trl.DPOConfig(output_dir=folder, beta=beta, label_smoothing=smoothing, max_length=None,
                             per_device_train_batch_size=PAIRS, report_to=[], use_cpu=True, bf16=False,
                             precompute_ref_log_probs=False, gradient_checkpointing=False,
                             loss_type=["sigmoid"])
        trl.DPOTrainer._prepare_dataset = lambda self, dataset, *rest, **more: dataset
        trainer = trl.DPOTrainer(model=model, args=args, processing_class=tokenizer,
                                 ref_model=CASES[name][1]().float(),
                                 train_dataset=datasets.Dataset(
                                     datasets.table.InMemoryTable.from_pylist(rows),
                                     fingerprint="pairs"))
        model = trainer.model.eval()
        batch = trainer.data_collator([dict(row) for row in rows])
        weights = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW([
            {"params": [p for p in weights if p.dim() >= 2], "weight_decay": DECAY},
            {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}], lr=lr, eps=1e-8)
        losses = []
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = trainer._compute_loss(model, batch, False)
            loss.backward()
            norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in weights))
            for p in weights:
                p.grad *= min(1.0, CLIP / norm)
            optimiser.step()
            losses.append(loss.item())
        metrics = {key: values[0] for key, values in trainer._metrics["eval"].items()
                   if key.startswith("rewards/")}
    return losses, metrics


def main():
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        if "--trl" in sys.argv:
            for name in CASES:
                if CASES[name][4] > 0:      # TRL 1.16 smooths only in "robust", a different loss
                    continue
                print(name, *beside_trl(name), sep="\n   ")
            return
        stack.enter_context(llama.wide())
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preference.h")
        tokens, targets = inputs()
        with open(path, "w") as out:
            out.write("/* preference.h - written by preference.py with PyTorch in float64; do not edit. */\n"
                      "#ifndef GOLDEN_PREFERENCE_H\n#define GOLDEN_PREFERENCE_H\n#include \"gpt2.h\"\n\n"
                      f"enum {{ PREFERENCE_PAIRS = {PAIRS}, PREFERENCE_LENGTH = {LENGTH} }};\n"
                      f"static const double dpo_beta = {BETA}, dpo_smoothed_beta = {SMOOTHED_BETA}, "
                      f"dpo_smoothing = {SMOOTHING};\n"
                      f"static const double distill_tau = {TAU}, distill_alpha = {ALPHA};\n"
                      "typedef struct {\n    const char *name;\n    double squares, sum;\n"
                      "} preference_sums; /* of a gradient; signs of the sum: + - - + - - .. */\n")
            print_array(out, "int32_t", "dpo_tokens", tokens.flatten().tolist())
            print_array(out, "int32_t", "dpo_targets", targets.flatten().tolist())
            for name in CASES:
                dpo(out, name)
            for name in TAUGHT:
                distill(out, name)
            out.write("#endif\n")


if __name__ == "__main__":
    main()
