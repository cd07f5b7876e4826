#!/usr/bin/env python3
"""Writes encoders/ and encoders.h: small classifiers and embedding models as transformers saves them, with
the results that PyTorch computes.

    python3 tests/golden/encoders.py

The models have random weights, but real names and files. expected.safetensors has logits, or sums of
tokens' vectors, before and after the training, and of the model with matrices times 1.5; encoders.h has
the inputs and the losses of 20 steps of transformers' Trainer (AdamW, linear decay, weight decay,
clipping), for embeddings with sentence-transformers' MultipleNegativesRankingLoss. Everything is computed
in float64 (llama.wide), except the rounding errors of transformers in float32, also in encoders.h.
Versions: torch 2.15, transformers 5.24, sentence-transformers 6.2."""
import contextlib
import os
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers.losses import MultipleNegativesRankingLoss

import llama
from gpt2 import keep_only, print_array

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "encoders")
ROWS, T, BATCH, STEPS, LABELS, VOCABULARY = 12, 24, 4, 20, 3, 48
LR, EMBED_LR, DECAY, CLIP, SCALE = 2e-3, 3e-4, 0.1, 1.0, 20.0
PAD = 1
BERT = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=24, max_position_embeddings=T + 2, pad_token_id=PAD,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DISTIL = dict(vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4, hidden_dim=24, pad_token_id=PAD,
              max_position_embeddings=T, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
MODERN = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=4, num_attention_heads=4,
              intermediate_size=24, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=2,
              eos_token_id=3, cls_token_id=2, sep_token_id=3, local_attention=8,
              global_attn_every_n_layers=2)
DECODER = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, intermediate_size=24, max_position_embeddings=64,
               bos_token_id=2, eos_token_id=3, pad_token_id=PAD)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=2,
            eos_token_id=3, pad_token_id=PAD, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
CLASSIFY = transformers.AutoModelForSequenceClassification
TAGS = transformers.AutoModelForTokenClassification
MODELS = {  # name: (task, model_type, config)
    "bert": (CLASSIFY, "bert", dict(BERT, layer_norm_eps=1e-3)),
    "roberta": (CLASSIFY, "roberta", dict(BERT, type_vocab_size=1)),
    "distilbert": (CLASSIFY, "distilbert", DISTIL),
    "mpnet": (CLASSIFY, "mpnet", BERT),
    "modernbert": (CLASSIFY, "modernbert", MODERN),
    "modernbert_mean": (CLASSIFY, "modernbert", dict(MODERN, classifier_pooling="mean",
                                                     attention_bias=True, mlp_bias=True)),
    "bert_tags": (TAGS, "bert", dict(BERT, hidden_act="gelu_new")),
    "modernbert_tags": (TAGS, "modernbert", MODERN),
    "bert_embed": (transformers.AutoModel, "bert", BERT),
    "mpnet_embed": (transformers.AutoModel, "mpnet", BERT),
    "gpt2_score": (CLASSIFY, "gpt2", GPT2),
    "llama_score": (CLASSIFY, "llama", dict(DECODER, tie_word_embeddings=False)),
    "gemma3_score": (CLASSIFY, "gemma3_text", dict(DECODER, head_dim=8, sliding_window=4)),
    "xlm_roberta": (CLASSIFY, "xlm-roberta", dict(BERT, type_vocab_size=1)),
    "bert_number": (CLASSIFY, "bert", dict(BERT, num_labels=1)),
    "qwen35_score": (CLASSIFY, "qwen3_5_text", dict(
        DECODER, head_dim=8, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                  "partial_rotary_factor": 0.5})),
}
QWEN35 = {"conv1d": 2.5, "out_proj": 0.1, "embed_tokens": 1.0, "in_proj_qkv": 0.5}  # sizes of weights
random = torch.Generator().manual_seed(20261130)


def normal(shape, scale):
    return (torch.randn(*shape, generator=random) * scale).float()


def folder(name):
    return os.path.join(FOLDER, name)


def make_model(name):
    """Random weights, large enough that logits differ; also for biases and gains."""
    task, kind, differs = MODELS[name]
    labels = {} if task is transformers.AutoModel else dict(num_labels=LABELS)
    model = task.from_config(transformers.AutoConfig.for_model(kind, **{**labels, **differs}))
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            # norms of Gemma 3 and Qwen 3.5 multiply by 1 + weight
            is_gain = p.dim() == 1 and parameter.endswith("weight") and kind != "gemma3_text" and (
                kind != "qwen3_5_text" or "linear_attn" in parameter)
            scale = 0.2 if p.dim() > 1 else 0.1
            if kind == "qwen3_5_text" and p.dim() > 1:  # queries and keys are not near 0 (decoders.py)
                scale = next((s for part, s in QWEN35.items() if part in parameter), 0.15)
            p.copy_((1.0 if is_gain else 0.0) + normal(p.shape, scale))
    return model


def make_rows():
    """Rows of tokens and classes. Tokens are never the padding's, so that its place is known."""
    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=random)
    lengths = integers(5, T + 1, ROWS)
    lengths[0] = T
    tokens = integers(4, VOCABULARY, ROWS, T)
    tokens[:, 0] = 2
    types = (torch.arange(T)[None] >= lengths[:, None] // 2).long()
    tags = integers(0, LABELS, ROWS, T)
    mask = torch.arange(T)[None] < lengths[:, None]
    tokens[~mask] = PAD
    types[~mask] = 0
    tags[~mask] = -100
    tags[:, 0] = -100
    return dict(input_ids=tokens, attention_mask=mask.long(), token_type_ids=types,
                labels=integers(0, LABELS, ROWS), tags=tags,
                numbers=(torch.arange(ROWS) * 7 % ROWS).double() / 4)


def wide():
    """float64 where transformers requests float32, also in the modules that llama.wide does not know."""
    llama.MODELS = dict(llama.MODELS, **{kind: (kind, {}) for kind in ("modernbert", "gemma3", "qwen3_5")})
    return llama.wide()


def load_model(path, task):
    model = task.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


def roughen(model):
    """Scales the matrices by 1.5, in float32."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.copy_(p.float() * 1.5)
    return model


def rounding(name, rows, want):
    """The error of transformers in float32: root of the mean square, relative to that of `want`."""
    model = MODELS[name][0].from_pretrained(folder(name), dtype=torch.float32, attn_implementation="eager")
    have = results(name, roughen(model.eval()), rows, contextlib.nullcontext)
    return float(((have.double() - want) ** 2).mean().sqrt() / (want ** 2).mean().sqrt())


def batch_of(name, rows, at):
    """The arguments of a model for rows `at`."""
    task, kind, differs = MODELS[name]
    batch = {key: rows[key][at] for key in ("input_ids", "attention_mask")}
    if kind in ("bert",):
        batch["token_type_ids"] = rows["token_type_ids"][at]
    if task is not transformers.AutoModel:
        batch["labels"] = rows["tags" if task is TAGS else
                               "numbers" if differs.get("num_labels") == 1 else "labels"][at]
    return batch


def mean_of(model, batch):
    """sentence-transformers' Pooling: the mean over tokens that are not padding."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1)


def results(name, model, rows, precision=None):
    """Logits, 0 for tags of padding; or vectors of length 1."""
    batch = batch_of(name, rows, slice(None))
    with torch.no_grad(), (precision or wide)():
        if MODELS[name][0] is transformers.AutoModel:
            return torch.nn.functional.normalize(mean_of(model, batch))
        logits = model(**batch).logits
    return logits * batch["attention_mask"][..., None] if logits.dim() == 3 else logits


class Rows(torch.utils.data.Dataset):
    def __init__(self, name, rows):
        self.name, self.rows = name, rows

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return batch_of(self.name, self.rows, i)


class Trainer(transformers.Trainer):
    """Keeps each loss. In a batch for embeddings, the first half are anchors."""
    losses = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if "labels" in inputs:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        else:
            pair = [{k: v[i::2] for k, v in inputs.items()} for i in range(2)]
            embed = torch.nn.Module()
            embed.forward = lambda features: {"sentence_embedding": mean_of(model, features)}
            loss = MultipleNegativesRankingLoss(embed, scale=SCALE)(pair, None)
        self.losses.append(float(loss.detach()))
        return loss


def train(name, model, rows):
    """Returns the losses of STEPS steps; rows come in their order."""
    with tempfile.TemporaryDirectory() as out, wide():
        args = transformers.TrainingArguments(
            out, learning_rate=EMBED_LR if "embed" in name or "qwen35" in name else LR,
            lr_scheduler_type="linear",
            weight_decay=DECAY, max_grad_norm=CLIP,
            per_device_train_batch_size=BATCH, max_steps=STEPS, report_to=[], use_cpu=True,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            train_sampling_strategy="sequential", optim="adamw_torch")
        trainer = Trainer(model, args, train_dataset=Rows(name, rows),
                          data_collator=transformers.default_data_collator)
        trainer.losses = []
        trainer.train()
    model.eval()
    return trainer.losses


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    rows = make_rows()
    expected, losses, errors = {}, {}, {}
    for name, (task, _, _) in MODELS.items():
        make_model(name).save_pretrained(folder(name))
        keep_only(folder(name), ("config.json", ".safetensors"))
        model = load_model(folder(name), task)
        expected[name] = results(name, model, rows)
        rough = results(name, roughen(load_model(folder(name), task)), rows)
        expected[name + ".rough"], errors[name] = rough, rounding(name, rows, rough)
        losses[name] = train(name, model, rows)
        expected[name + ".trained"] = results(name, model, rows)
        print(name, losses[name][0], losses[name][-1], flush=True)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    with open(FOLDER + ".h", "w") as out:
        out.write("/* encoders.h - written by encoders.py with PyTorch, transformers and "
                  "sentence-transformers in\n * float64; do not edit. */\n#ifndef GOLDEN_ENCODERS_H\n"
                  "#define GOLDEN_ENCODERS_H\n#include <stdint.h>\n\n"
                  f"enum {{\n    ENCODERS_ROWS = {ROWS},\n    ENCODERS_T = {T},\n"
                  f"    ENCODERS_BATCH = {BATCH},\n    ENCODERS_STEPS = {STEPS},\n"
                  f"    ENCODERS_LABELS = {LABELS}\n}};\n"
                  f"static const float encoders_lr = {LR}f, encoders_embed_lr = {EMBED_LR}f;\n"
                  f"static const float encoders_decay = {DECAY}f, "
                  f"encoders_clip = {CLIP}f, encoders_scale = {SCALE}f;\n")
        for key in ("input_ids", "token_type_ids", "labels", "tags"):
            print_array(out, "int32_t", "encoders_" + key, rows[key].flatten().tolist())
        print_array(out, "float", "encoders_numbers", rows["numbers"].tolist())
        print_array(out, "int32_t", "encoders_lengths", rows["attention_mask"].sum(1).tolist())
        for name, value in losses.items():
            print_array(out, "double", "encoders_losses_" + name, value)
        out.write("static const struct {\n    const char *name;\n    const double *losses;\n"
                  "    double error; /* of transformers in float32, for matrices times 1.5 */\n"
                  "} golden_encoders[] = {\n")
        for name in losses:
            out.write(f"    {{ \"{name}\", encoders_losses_{name}, {errors[name]:.3g} }},\n")
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
