#!/usr/bin/env python3
"""Train a model in PyTorch from files in the gold format (CPU reference runs).

    python3 torch_train.py --init init.gold --batches batches.gold --steps 100 \\
        --lr 3e-3 --min-lr 3e-4 --warmup 10 --schedule cosine --clip 1.0

init.gold:     `config` (text, model keys) and every parameter (f32). Other
               entries are ignored, so a fixture of make_gold.py works as well.
batches.gold:  `tokens`, `labels`, `positions`, `doc_start`, each i32 [N, B, T];
               optionally the same with the prefix `valid_` for evaluation.
               Step s trains on batch s modulo N.

The model code is that of make_gold.py, with fused attention: a boolean mask
when documents are packed or a window applies, plain causal attention otherwise.
(Models with attn_softcap use the explicit form; the fused one has no cap.)

Optimizer: AdamW; decay on matrices only (not norms, biases, embed, pos_embed).
Clipping: scale = min(1, clip / norm) with the global norm of all gradients and
no epsilon; --clip 0 turns it off. The norm printed is that before clipping.

Learning rate of step s = 0 .. steps-1:
    s < warmup    lr * (s + 1) / warmup
    otherwise     t = (s + 1 - warmup) / (steps - warmup), and
      cosine      min_lr + (lr - min_lr) * (1 + cos(pi * t)) / 2
      linear      lr + (min_lr - lr) * t
      constant    lr
      wsd         lr until the last D steps, then linear to min_lr:
                  lr + (min_lr - lr) * (s + 1 - (steps - D)) / D
                  D is --decay-steps, by default a fifth of the steps.

Output, one JSON object per line: {"step", "loss", "grad_norm", "lr", "s"} for a
step (s: its seconds), {"kind": "eval", "step", "loss"} for an evaluation after
`step` steps, and at the end {"kind": "summary", "tokens_per_s_median", ...}.
"""

import argparse
import json
import math
import statistics
import sys
import time
from contextlib import nullcontext

import torch

from make_gold import (
    attention_inputs,
    logits_of,
    loss_sum,
    param_specs,
    parse_config,
    read_gold,
    write_gold,
)

KEYS = ("tokens", "labels", "positions", "doc_start")


def learning_rate(s, args):
    if s < args.warmup:
        return args.lr * (s + 1) / args.warmup
    t = (s + 1 - args.warmup) / (args.steps - args.warmup)
    if args.schedule == "cosine":
        return args.min_lr + (args.lr - args.min_lr) * 0.5 * (1 + math.cos(math.pi * t))
    if args.schedule == "linear":
        return args.lr + (args.min_lr - args.lr) * t
    if args.schedule == "wsd":
        u = (s + 1 - (args.steps - args.decay_steps)) / args.decay_steps
        return args.lr + (args.min_lr - args.lr) * max(u, 0.0)
    return args.lr


def load_params(cfg, data):
    params = {}
    for name, shape, _ in param_specs(cfg):
        if name not in data:
            sys.exit("init: no entry %s" % name)
        if data[name].shape != shape:
            sys.exit("init: %s is %s, not %s" % (name, data[name].shape, shape))
        params[name] = torch.nn.Parameter(torch.from_numpy(data[name]))
    return params


def load_batches(data, prefix=""):
    if prefix + "tokens" not in data:
        return None
    out = {k: torch.from_numpy(data[prefix + k]).long() for k in KEYS}
    for key, value in out.items():
        if value.dim() != 3 or value.shape != out["tokens"].shape:
            sys.exit("batches: %s%s must be [N, B, T] like tokens" % (prefix, key))
    return out


class Trainer:
    def __init__(self, cfg, params, args):
        self.cfg, self.params, self.args = cfg, params, args
        kinds = {name: kind for name, _, kind in param_specs(cfg)}
        groups = [
            {
                "params": [
                    p for n, p in params.items() if (kinds[n] == "matrix") == dec
                ],
                "weight_decay": args.weight_decay if dec else 0.0,
            }
            for dec in (True, False)
        ]
        self.opt = torch.optim.AdamW(
            groups, lr=args.lr, betas=args.betas, eps=args.eps, fused=True
        )
        self.logits = torch.compile(logits_of) if args.compile else logits_of

    def autocast(self):
        if self.args.precision == "bf16":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return nullcontext()

    def loss(self, batches, n):
        """Sum of the token losses of batch n, and how many there are."""
        tokens, labels, positions, starts = (batches[k][n] for k in KEYS)
        masks = attention_inputs(self.cfg, starts, fast=True)
        with self.autocast():
            out = self.logits(self.cfg, self.params, tokens, positions, masks, True)
        return loss_sum(out.float(), labels), int((labels != -1).sum())

    def step(self, s, batches):
        lr = learning_rate(s, self.args)
        for group in self.opt.param_groups:
            group["lr"] = lr
        total, count = self.loss(batches, s % len(batches["tokens"]))
        loss = total / max(count, 1)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        norm = float(torch.stack(torch._foreach_norm(grads)).double().norm())
        if self.args.clip > 0 and norm > self.args.clip:
            torch._foreach_mul_(grads, self.args.clip / norm)
        self.opt.step()
        return float(loss.detach()), norm, lr

    @torch.no_grad()
    def evaluate(self, batches):
        total = count = 0
        for n in range(len(batches["tokens"])):
            part, labels = self.loss(batches, n)
            total, count = total + float(part), count + labels
        return total / max(count, 1)


def parse_args():
    p = argparse.ArgumentParser(description="train from gold files with PyTorch")
    p.add_argument("--init", default="init.gold")
    p.add_argument("--batches", default="batches.gold")
    p.add_argument("--save", help="write the final parameters to this gold file")
    p.add_argument("--steps", type=int, help="default: the number of batches")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=0.0)
    p.add_argument("--warmup", type=int, default=0)
    p.add_argument(
        "--schedule", default="cosine", choices=("cosine", "linear", "constant", "wsd")
    )
    p.add_argument("--decay-steps", type=int, help="length of the decay of wsd")
    p.add_argument(
        "--betas",
        type=lambda t: tuple(map(float, t.split(","))),
        default=(0.9, 0.95),
        help="two numbers, as in 0.9,0.95",
    )
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0, help="0: no clipping")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument(
        "--eval-every",
        type=int,
        default=0,
        help="steps between evaluations (0: only at the end)",
    )
    p.add_argument(
        "--precision",
        default="fp32",
        choices=("fp32", "bf16"),
        help="bf16: autocast with float32 parameters and optimizer",
    )
    p.add_argument("--compile", action="store_true", help="use torch.compile")
    return p.parse_args()


def report(**values):
    print(json.dumps(values), flush=True)


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    init = read_gold(args.init)
    data = read_gold(args.batches)
    train, valid = load_batches(data), load_batches(data, "valid_")
    if train is None:
        sys.exit("batches: no entry tokens")
    count, b, t = train["tokens"].shape
    args.steps = args.steps or count
    args.decay_steps = args.decay_steps or max(args.steps // 5, 1)
    cfg = parse_config(init["config"], t)
    params = load_params(cfg, init)
    trainer = Trainer(cfg, params, args)
    times = []
    for s in range(args.steps):
        began = time.perf_counter()
        loss, norm, lr = trainer.step(s, train)
        times.append(time.perf_counter() - began)
        report(step=s, loss=loss, grad_norm=norm, lr=lr, s=round(times[-1], 6))
        due = args.eval_every and (s + 1) % args.eval_every == 0
        if valid and (due or s + 1 == args.steps):
            report(kind="eval", step=s + 1, loss=trainer.evaluate(valid))
    if args.save:
        final = {k: v.detach().numpy() for k, v in params.items()}
        write_gold(args.save, {"config": init["config"], **final})
    report(
        kind="summary",
        tokens_per_s_median=round(b * t / statistics.median(times), 1),
        parameters=sum(p.numel() for p in params.values()),
        threads=args.threads,
        precision=args.precision,
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
