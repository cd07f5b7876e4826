#!/usr/bin/env python3
"""finetune.py - fine-tuning by examples/finetune.c and by PyTorch + peft, taking turns.

    make build/finetune
    python3 tests/bench/finetune.py             GPT-2 124M, context 1,024, 20 steps, two rounds
    python3 tests/bench/finetune.py --shape smollm2-135m --context 512
    python3 tests/bench/finetune.py --least     models of several shapes: least bytes, peaks
    python3 tests/bench/finetune.py --steps 2 --context 64 --rounds 1 --runs torch:lora lora:1e9

Both begin with the same weights (random ones of the real shapes), the same adapter and the same
tokens: windows of a .bin file (uint16), one after the other. PyTorch runs fp32 with gradient
checkpointing, at its own peak; ours runs inside each budget. Each run is a process of its own. What
is compared: the loss of every step, the median time of a step (the first one left out) and the peak
of resident memory, which for PyTorch is also given without what it has after its imports. There is
no clipping, which updates in the backward could not do. Needs torch, transformers and peft."""
import argparse
import array
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import peer_torch

LR, DECAY, RANK, ALPHA = 1e-4, 0.1, 8, 16
# the kinds of runs: torch:METHOD, METHOD:BUDGET, METHOD+STORE:BUDGET (frozen matrices stored as bf16 or int8)
RUNS = {"gpt2": ("torch:full", "full:2e9", "full:1.81e9", "torch:lora", "lora:2e9", "lora:1e9",
                 "lora:0.75e9"),
        "smollm2-135m": ("torch:lora", "lora:1e9", "lora+int8:0.4e9"),
        "smollm2-360m": ("torch:lora", "lora:2e9", "lora+int8:0.8e9"),
        "qwen2.5-0.5b": ("torch:lora", "lora:2.5e9", "lora+int8:1e9"),
        "llama-3.2-1b": ("torch:lora", "lora+int8:1.4e9")}
# Values from the config.json of these models; the values that all of them share are in shape_of.
SHAPES = {
    "smollm2-135m": ("llama", 30, 576, 1536, 9, 3, 49152, 1e5, {}),
    "smollm2-360m": ("llama", 32, 960, 2560, 15, 5, 49152, 1e5, {}),
    "qwen2.5-0.5b": ("qwen2", 24, 896, 4864, 14, 2, 151936, 1e6, {"rms_norm_eps": 1e-6}),
    "llama-3.2-1b": ("llama", 16, 2048, 8192, 32, 8, 128256, 5e5, {
        "head_dim": 64, "max_position_embeddings": 131072,
        "rope": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
}


def shape_of(name):
    """The configuration of a model of this name, by transformers."""
    import transformers
    kind, layers, width, inner, heads, key_heads, vocabulary, theta, more = SHAPES[name]
    more = dict(more)
    rope = dict({"rope_type": "default", "rope_theta": theta}, **more.pop("rope", {}))
    return transformers.AutoConfig.for_model(kind, **dict(dict(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=inner,
        num_attention_heads=heads, num_key_value_heads=key_heads, vocab_size=vocabulary,
        max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=rope), **more))


# ---- functions that run in a separate process ------------------------------------------------------
def make(o):
    """Weights, an adapter and tokens for both sides; the bytes of a text are its tokens."""
    import peft
    import torch
    import transformers
    torch.manual_seed(1)
    weights, adapter = os.path.join(o.folder, "model"), os.path.join(o.folder, "adapter")
    if not os.path.exists(os.path.join(weights, "config.json")):
        config = (shape_of(o.shape) if o.shape in SHAPES else
                  transformers.GPT2Config(n_layer=o.layers, n_head=o.heads, n_embd=o.dim,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(weights)
    make_tokenizer(weights)
    if not os.path.exists(os.path.join(adapter, "adapter_config.json")):
        model = transformers.AutoModelForCausalLM.from_pretrained(weights)
        llama = o.shape in SHAPES
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA,
                               fan_in_fan_out=not llama,
                               target_modules=["q_proj", "v_proj"] if llama else ["c_attn"])
        peft.get_peft_model(model, lora).save_pretrained(adapter)
    with open(o.data, "rb") as file:
        text = file.read(o.steps * o.batch * o.context + 1)
    if len(text) <= o.steps * o.batch * o.context:
        sys.exit("%s has %d bytes, too few for these steps" % (o.data, len(text)))
    with open(os.path.join(o.folder, "tokens.bin"), "wb") as file:
        array.array("H", list(text)).tofile(file)


def make_tokenizer(folder):
    """A token a byte: signs of GPT-2's vocabulary for each."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    signs = {chr(b if b in plain else 256 + others.index(b)): b for b in range(256)}
    with open(os.path.join(folder, "vocab.json"), "w") as file:
        json.dump(dict(signs, **{"<|endoftext|>": 256}), file)
    with open(os.path.join(folder, "merges.txt"), "w") as file:
        file.write("#version: 0.2\n")


def train(o):
    """PyTorch's side."""
    import torch
    import torch.nn.functional as F
    import transformers
    if o.child == "lora":
        import peft
    torch.set_num_threads(o.threads)
    torch.ones(256, 256) @ torch.ones(256, 256)
    base = peer_torch.status("VmHWM")
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(o.folder, "model"),
                                                              dtype=torch.float32)
    if o.child == "lora":
        model = peft.PeftModel.from_pretrained(model, os.path.join(o.folder, "adapter"),
                                               is_trainable=True)
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    model.train()
    weights = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW([
        {"params": [p for p in weights if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}], lr=LR, fused=True)
    tokens = array.array("H")
    with open(os.path.join(o.folder, "tokens.bin"), "rb") as file:
        tokens.frombytes(file.read())
    T, losses, times = o.context, [], []
    for step in range(o.steps):
        start = time.perf_counter()
        adamw.zero_grad(set_to_none=True)
        total = 0.0
        for first in range(step * o.batch * T, (step + 1) * o.batch * T, T):
            window = torch.tensor(tokens[first:first + T + 1], dtype=torch.long)[None]
            logits = model(input_ids=window[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits[0], window[0, 1:], reduction="sum") / (o.batch * T)
            del logits
            loss.backward()
            total += loss.item()
        adamw.step()
        losses.append(total)
        times.append(time.perf_counter() - start)
    print(json.dumps({"losses": losses, "times": times, "base": base,
                      "torch": torch.__version__}))


# ---- the measured programs, which run alternately --------------------------------------------------
def wait_for(command, env=None):
    """What it prints, and its peak of resident memory; this process must stay small, since a child
    inherits its peak."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        err.seek(0)
        if status != 0:
            sys.exit("%s\n%s" % (" ".join(command), err.read().decode()[-4000:]))
        return out.read().decode().splitlines(), usage.ru_maxrss * 1024


def run_torch(o, method, environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "OMP_", "MKL_"))}
    env.update(environment, OMP_NUM_THREADS=str(o.threads), HF_HUB_OFFLINE="1")
    arguments = [a for k in ("folder", "steps", "batch", "context", "threads")
                 for a in ("--" + k, str(getattr(o, k)))]
    lines, peak = wait_for([sys.executable, os.path.abspath(__file__), "--child", method]
                           + arguments, env)
    return dict(json.loads(lines[-1]), resident=peak)


def run_ours(o, method, budget):
    method, _, store = method.partition("+")
    command = [o.binary, "--model", os.path.join(o.folder, "model"), "--method", method,
               "--data", os.path.join(o.folder, "tokens.bin"), "--no-shuffle",
               "--context", str(o.context), "--batch", str(o.batch),
               "--steps", str(o.steps), "--lr", str(LR), "--warmup", "0", "--clip", "0",
               "--weight-decay", str(DECAY), "--eval-every", "0",
               "--threads", str(o.threads), "--budget", str(int(budget)), "--json", "-"]
    if store:
        command += ["--store", store]
    if method == "lora":
        command += ["--adapter", os.path.join(o.folder, "adapter")]
    lines, peak = wait_for(command, dict(os.environ, OMP_WAIT_POLICY="passive"))
    events = [json.loads(line) for line in lines]
    steps = [e for e in events if e["event"] == "step"]
    plan = next(e for e in events if e["event"] == "plan")
    return {"losses": [e["loss"] for e in steps], "bytes": plan["bytes"], "resident": peak,
            "times": [e["seconds"] for e in steps]}


def least(o, store):
    """The least budget, which a budget of 1 byte names."""
    command = [o.binary, "--model", os.path.join(o.folder, "model"), "--method", "lora",
               "--data", os.path.join(o.folder, "tokens.bin"), "--context", str(o.context),
               "--batch", "1", "--threads", str(o.threads), "--store", store, "--plan",
               "--eval-every", "0", "--targets", "q_proj,v_proj", "--budget", "1"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    if "at least" not in said:
        sys.exit("%s\n%s" % (" ".join(command), said))
    return int(said.split("at least ")[1].split(",")[0])


def print_least(o):
    """Each model (or the one of --shape) with 512 and 2,048 tokens: resident peaks of a step in the
    least budgets, and of one of PyTorch + peft."""
    print("| model | tokens | floats: plan | resident | int8: plan | resident | PyTorch + peft: "
          "resident |\n|---|--:|--:|--:|--:|--:|--:|")
    for o.shape in SHAPES if o.shape == "gpt2" else (o.shape,):
        for o.context in (512, 2048):
            o.folder, o.steps, o.batch = os.path.join("build", "finetune-" + o.shape), 1, 1
            os.makedirs(o.folder, exist_ok=True)
            wait_for([sys.executable, os.path.abspath(__file__), "--child", "make", "--shape",
                      o.shape, "--context", str(o.context), "--steps", "1"],
                     dict(os.environ, HF_HUB_OFFLINE="1"))
            cells = []
            for store in ("f32", "int8"):
                r = run_ours(o, "lora+" + store, least(o, store))
                cells += ["%.0f MB" % (n / 1e6) for n in (r["bytes"], r["resident"])]
            cells.append("%.0f MB" % (run_torch(o, "lora", {})["resident"] / 1e6))
            print("| %s | %d | %s |" % (o.shape, o.context, " | ".join(cells)), flush=True)


def print_table(o, results):
    print("\n| run | bytes of the plan | resident peak | of PyTorch's | beyond imports | s a "
          "step | of PyTorch's time | greatest difference of a loss |\n"
          "|---|---|---|---|---|---|---|---|")
    for name, runs in results.items():
        theirs = name.startswith("torch")
        method = name.split(":")[theirs].split("+")[0]
        peer = results.get("torch:" + method, [])
        seconds = statistics.median([t for r in runs for t in r["times"][1:]])
        apart = [abs(a - b) / b for r in runs for p in peer[:1]
                 for a, b in zip(r["losses"], p["losses"])]
        resident = max(r["resident"] for r in runs)
        print("| %s | %s | %.0f MB | %s | %.0f MB | %.3f | %s | %s |" % (
            name, "" if theirs else "%.0f MB" % (runs[0]["bytes"] / 1e6), resident / 1e6,
            "%.2f" % (resident / max(r["resident"] for r in peer)) if peer else "",
            max(r["resident"] - r.get("base", 0) for r in runs) / 1e6, seconds,
            "%.2f" % (seconds / statistics.median([t for r in peer for t in r["times"][1:]]))
            if peer else "", "%.1e" % max(apart) if apart else ""))
    for name, runs in results.items():
        print("\n%s, losses: %s" % (name, " ".join("%.5f" % x for x in runs[0]["losses"])))


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--shape", choices=RUNS, default="gpt2")
    a.add_argument("--least", action="store_true", help="only resident peaks in least budgets")
    a.add_argument("--folder", help="made if missing; build/finetune-SHAPE")
    a.add_argument("--binary", default=os.path.join("build", "finetune"))
    a.add_argument("--data", default="gradckpt.h", help="a text")
    a.add_argument("--runs", nargs="*", help="torch:METHOD, METHOD:BUDGET, METHOD+STORE:BUDGET")
    a.add_argument("--json", help="all that was measured, into a file")
    a.add_argument("--child", choices=("make", "full", "lora"), help=argparse.SUPPRESS)
    for name, value in (("layers", 12), ("heads", 12), ("dim", 768), ("context", 1024),
                        ("batch", 1), ("steps", 20), ("rounds", 2), ("threads", os.cpu_count())):
        a.add_argument("--" + name, type=int, default=value)
    o = a.parse_args()
    o.runs = o.runs or RUNS[o.shape]
    o.folder = o.folder or os.path.join("build", "finetune-" + o.shape)
    if o.child:
        return make(o) if o.child == "make" else train(o)
    if not os.path.exists(o.binary):
        sys.exit("no %s: make build/finetune" % o.binary)
    if o.least:
        return print_least(o)
    os.makedirs(o.folder, exist_ok=True)
    wait_for([sys.executable, os.path.abspath(__file__), "--child", "make"] + sys.argv[1:],
             dict(os.environ, HF_HUB_OFFLINE="1"))
    results = {name: [] for name in o.runs}
    with tempfile.TemporaryDirectory() as folder:
        shim = peer_torch.intel_shim(folder)    # MKL's fast kernels on other processors, too
        environment = {"LD_PRELOAD": shim} if shim else {}
        for turn in range(o.rounds):
            for name in o.runs:
                first, second = name.split(":")
                r = (run_torch(o, second, environment) if first == "torch"
                     else run_ours(o, first, float(second)))
                results[name].append(r)
                print("round %d, %-12s %.3f s a step, %.0f MB resident" % (
                    turn + 1, name, statistics.median(r["times"][1:]), r["resident"] / 1e6),
                    flush=True)
    print_table(o, results)
    if o.json:
        with open(o.json, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
