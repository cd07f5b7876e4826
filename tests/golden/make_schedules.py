"""Writes schedules.h: learning rates of PyTorch's and transformers' schedulers, step by step, for
examples/schedule.h.

    python3 tests/golden/make_schedules.py > tests/golden/schedules.h
"""
import torch
import transformers
from torch.optim import lr_scheduler as torchs
from transformers import optimization as theirs

STEPS, WARMUP, LR, LEAST = 40, 6, 5e-3, 1e-4


def rates(make, steps=STEPS):
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule, out = make(optimiser), []
    for _ in range(steps):
        out.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return out


def one_cycle(steps, **options):
    return rates(lambda o: torchs.OneCycleLR(o, LR, steps, cycle_momentum=False, **options), steps)


def write(name, values):
    print(f"static const double golden_{name}[{len(values)}] = {{")
    for i in range(0, len(values), 4):
        print("    " + " ".join(f"{v:.17g}," for v in values[i:i + 4]))
    print("};")


print(f"/* Written by make_schedules.py with PyTorch {torch.__version__}, transformers {transformers.__version__}. */")
write("constant", rates(lambda o: theirs.get_constant_schedule_with_warmup(o, WARMUP)))
write("linear", rates(lambda o: theirs.get_linear_schedule_with_warmup(o, WARMUP, STEPS)))
write("linear_least", rates(lambda o: theirs.get_polynomial_decay_schedule_with_warmup(o, WARMUP, STEPS, LEAST, 1.0)))
write("linear_torch", rates(lambda o: torchs.LinearLR(o, 1.0, LEAST / LR, STEPS)))
write("cosine", rates(lambda o: theirs.get_cosine_schedule_with_warmup(o, WARMUP, STEPS)))
write("cosine_least", rates(lambda o: theirs.get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr=LEAST)))
write("cosine_torch", rates(lambda o: torchs.CosineAnnealingLR(o, STEPS, LEAST)))
write("one_cycle", one_cycle(STEPS))
write("one_cycle_27", one_cycle(27))
write("one_cycle_warmup", one_cycle(STEPS, pct_start=WARMUP / STEPS, final_div_factor=LR / 25 / LEAST))
