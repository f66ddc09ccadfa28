#!/usr/bin/env python3
"""Make the reference fixtures (*.gold) for the model and optimizer tests.

Rerun:
    python3 -m venv venv && venv/bin/pip install torch numpy   (a CPU build is enough)
    venv/bin/python make_gold.py                 # all variants, into this folder
    venv/bin/python make_gold.py --out DIR gpt2  # one variant, into DIR
    venv/bin/python make_gold.py --check         # also finite differences (float64)
    venv/bin/python check_gold.py *.gold         # independent numpy check

Truth: every model is evaluated in float64 from parameters that are exactly
representable in float32. The loss and the gradients in the file are the
float64 results rounded to float32 (`loss64` keeps the loss in full). The same
model is also run in float32 to show how far a correct float32 implementation
may be from the truth; that distance is printed, not stored:

    d(a, b) = ||a - b|| / max(||b||, 1e-3 * ||G|| * sqrt(n / N))

with b the true gradient of one tensor of n elements, ||G|| the norm of all
gradients together and N their element count. The floor matters for gradients
that are zero in exact arithmetic, such as that of the key bias without rope
(the softmax does not change when all scores of a row move together).

File format, little endian, no padding:
    8 bytes "ANGELGLD", u32 version = 1, u32 n_entries, then per entry
    u32 name_len, name, u32 dtype (0 f32, 1 i32, 2 f64, 3 text bytes),
    u32 ndim, i64 dims[ndim], raw data in row-major order.

Entries of a fixture:
    config              text  YAML lines `key: value` of the model description
    batch, seq          i32 [1]
    tokens, labels      i32 [B*T]  label -1: no loss at this position
    positions           i32 [B*T]  restarts at 0 at each document
    doc_start           i32 [B*T]  index within the sequence where the
                                   document of this token begins
    NAME                f32   parameter NAME (logical parameter names)
    loss, loss64        f32 [1], f64 [1]
    grad:NAME           f32   gradient of the loss for parameter NAME
Only in gpt2.gold and llama.gold, five AdamW steps from the parameters above:
    adamw.lr            f64 [5]  learning rate of each step
    adamw.beta1, adamw.beta2, adamw.eps, adamw.decay   f64 [1]
    adamw.param:NAME, adamw.m:NAME, adamw.v:NAME       f32 after step 5
The gradients of these steps do not come from the model. For every tensor, step
s = 0..4 and flat row-major element index i within that tensor:
    g[s][i] = (float)(sin(0.37 * (s + 1) + 0.011 * i) * 0.05)
with the right side evaluated in double. Weight decay acts on matrices only (not
on norms, biases, embed, pos_embed). No clipping. These results come from
torch.optim.AdamW in float32 and are checked here against a float64 formula.
"""

import argparse
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

MAGIC = b"ANGELGLD"
VERSION = 1
DTYPES = {0: np.dtype("<f4"), 1: np.dtype("<i4"), 2: np.dtype("<f8")}

BATCH = 2
SEQ = 24
SEED = 20240607

# ---------------------------------------------------------------- file format


def write_gold(path, entries):
    """Write a dict name -> str or numpy array (f32, i32, f64) to path."""
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<II", VERSION, len(entries)))
        for name, value in entries.items():
            if isinstance(value, str):
                raw = value.encode()
                code, dims = 3, [len(raw)]
            else:
                value = np.asarray(value)
                code = {"f4": 0, "i4": 1, "f8": 2}[value.dtype.str[1:]]
                dims = list(value.shape)
                raw = np.ascontiguousarray(value, DTYPES[code]).tobytes()
            key = name.encode()
            f.write(struct.pack("<I", len(key)) + key)
            f.write(struct.pack("<II", code, len(dims)))
            f.write(struct.pack("<%dq" % len(dims), *dims) + raw)


def read_gold(path):
    """Read a file into a dict name -> str or numpy array."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:8] != MAGIC or struct.unpack_from("<I", data, 8)[0] != VERSION:
        raise ValueError("%s: not a version %d gold file" % (path, VERSION))
    out, at = {}, 16
    for _ in range(struct.unpack_from("<I", data, 12)[0]):
        (n,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + n].decode()
        code, ndim = struct.unpack_from("<II", data, at + 4 + n)
        at += 12 + n
        dims = struct.unpack_from("<%dq" % ndim, data, at)
        at += 8 * ndim
        count = math.prod(dims)
        if code == 3:
            out[name] = data[at : at + count].decode()
            at += count
        else:
            dt = DTYPES[code]
            a = np.frombuffer(data, dt, count, at)
            out[name] = a.reshape(dims).copy()
            at += count * dt.itemsize
    if at != len(data):
        raise ValueError("%s: bytes after the last entry" % path)
    return out


# --------------------------------------------------------- model description

DEFAULTS = {
    "act": "swiglu",
    "norm": "rmsnorm",
    "norm_eps": 1e-5,
    "norm_plus_one": False,
    "norm_order": "pre",
    "position": "rope",
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "none"},
    "qk_norm": "none",
    "bias": "none",
    "tied": False,
    "window": 0,
    "window_every": 1,
    "attn_softcap": 0.0,
    "final_softcap": 0.0,
    "embed_scale": 1.0,
    "attn_scale": 0.0,
    "init_std": 0.02,
}
REQUIRED = ("vocab", "layers", "hidden", "heads", "ffn")
OPTIONAL = ("kv_heads", "head_dim", "max_positions")


def parse_scalar(text):
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse_config(text, seq=SEQ):
    """Parse `key: value` lines (a value may be a flow mapping) and add defaults."""
    given = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        key, value = (part.strip() for part in line.split(":", 1))
        if value.startswith("{"):
            pairs = (item.split(":") for item in value.strip("{} ").split(","))
            given[key] = {k.strip(): parse_scalar(v.strip()) for k, v in pairs}
        else:
            given[key] = parse_scalar(value)
    for key in given:
        if key not in DEFAULTS and key not in REQUIRED + OPTIONAL:
            raise ValueError("unknown model key %s" % key)
    cfg = dict(DEFAULTS)
    cfg.update(given)
    cfg.setdefault("kv_heads", cfg["heads"])
    cfg.setdefault("head_dim", cfg["hidden"] // cfg["heads"])
    cfg.setdefault("max_positions", seq)
    return cfg


def format_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        items = ("%s: %s" % (k, format_value(v)) for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, float):
        # No exponent form: YAML 1.1 readers take "1e-05" for a string.
        text = np.format_float_positional(value)
        return text + "0" if text.endswith(".") else text
    return str(value)


def param_specs(cfg):
    """List of (name, shape, kind); kind is embed, matrix, norm or bias."""
    h, d, f = cfg["hidden"], cfg["head_dim"], cfg["ffn"]
    qdim, kvdim = cfg["heads"] * d, cfg["kv_heads"] * d
    qkv_bias, all_bias = cfg["bias"] in ("qkv", "all"), cfg["bias"] == "all"
    order = cfg["norm_order"]
    specs = []

    def linear(name, rows, cols, bias):
        specs.append((name + ".weight", (rows, cols), "matrix"))
        if bias:
            specs.append((name + ".bias", (rows,), "bias"))

    def norm(name):
        specs.append((name + ".weight", (h,), "norm"))
        if cfg["norm"] == "layernorm":
            specs.append((name + ".bias", (h,), "bias"))

    specs.append(("embed.weight", (cfg["vocab"], h), "embed"))
    if cfg["position"] == "learned":
        specs.append(("pos_embed.weight", (cfg["max_positions"], h), "embed"))
    for i in range(cfg["layers"]):
        p = "layers.%d." % i
        if order in ("pre", "sandwich"):
            norm(p + "attn_norm")
        linear(p + "attn.q", qdim, h, qkv_bias)
        linear(p + "attn.k", kvdim, h, qkv_bias)
        linear(p + "attn.v", kvdim, h, qkv_bias)
        if cfg["qk_norm"] != "none":
            head = cfg["qk_norm"] == "head"
            specs.append((p + "attn.q_norm.weight", (d if head else qdim,), "norm"))
            specs.append((p + "attn.k_norm.weight", (d if head else kvdim,), "norm"))
        linear(p + "attn.o", h, qdim, all_bias)
        if order != "pre":
            norm(p + "attn_post_norm")
        if order in ("pre", "sandwich"):
            norm(p + "ffn_norm")
        if cfg["act"] in ("swiglu", "geglu"):
            linear(p + "ffn.gate", f, h, all_bias)
        linear(p + "ffn.up", f, h, all_bias)
        linear(p + "ffn.down", h, f, all_bias)
        if order != "pre":
            norm(p + "ffn_post_norm")
    norm("final_norm")
    if not cfg["tied"]:
        linear("head", cfg["vocab"], h, False)
    return specs


# --------------------------------------------------------------------- model


def rope_frequencies(cfg):
    """Return (inverse frequencies as f64 [head_dim/2], factor on cos and sin)."""
    d, theta, sc = cfg["head_dim"], cfg["rope_theta"], cfg["rope_scaling"]
    inv = torch.tensor(
        [theta ** (-2.0 * i / d) for i in range(d // 2)], dtype=torch.float64
    )
    kind = sc.get("type", "none")
    if kind == "none":
        return inv, 1.0
    factor = float(sc["factor"])
    if kind == "linear":
        return inv / factor, 1.0
    original = float(sc["original_max_positions"])
    if kind == "llama3":
        low, high = float(sc["low_freq_factor"]), float(sc["high_freq_factor"])
        # Number of turns that a pair makes over the original context.
        turns = original * inv / (2.0 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return inv * keep + inv / factor * (1.0 - keep), 1.0
    if kind == "yarn":
        fast, slow = float(sc.get("beta_fast", 32.0)), float(sc.get("beta_slow", 1.0))

        def pair_with_turns(turns):
            return (
                d
                * math.log(original / (turns * 2.0 * math.pi))
                / (2.0 * math.log(theta))
            )

        first = max(math.floor(pair_with_turns(fast)), 0)
        last = min(math.ceil(pair_with_turns(slow)), d - 1)
        span = last - first if last != first else 0.001
        index = torch.arange(d // 2, dtype=torch.float64)
        ramp = ((index - first) / span).clamp(0.0, 1.0)
        inv = inv / factor * ramp + inv * (1.0 - ramp)
        default = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
        return inv, float(sc.get("attention_factor", default))
    raise ValueError("unknown rope scaling %s" % kind)


def rope_tables(cfg, positions, dtype):
    """cos and sin [B, 1, T, head_dim/2] in dtype; the angles are taken in f64."""
    inv, factor = rope_frequencies(cfg)
    angle = positions.to(torch.float64)[:, None, :, None] * inv.to(positions.device)
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


def rotate(x, cos, sin):
    """Half-split rope: pairs (i, i + head_dim/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rms(x, weight, cfg):
    if cfg["norm_plus_one"]:
        weight = 1.0 + weight
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, cfg["norm_eps"])


def norm(x, params, name, cfg):
    weight = params[name + ".weight"]
    if cfg["norm"] == "rmsnorm":
        return rms(x, weight, cfg)
    if cfg["norm_plus_one"]:
        weight = 1.0 + weight
    bias = params[name + ".bias"]
    return F.layer_norm(x, weight.shape, weight, bias, cfg["norm_eps"])


def linear(x, params, name):
    return F.linear(x, params[name + ".weight"], params.get(name + ".bias"))


def layer_window(cfg, layer):
    """Window of a layer, 0 for full attention."""
    every = cfg["window_every"]
    if every > 1 and layer % every == every - 1:
        return 0
    return cfg["window"]


def visible(doc_start, window):
    """Boolean [B, 1, T, T]: may query i (row) see key j (column)?"""
    t = doc_start.shape[1]
    i = torch.arange(t, device=doc_start.device)[:, None]
    j = torch.arange(t, device=doc_start.device)[None, :]
    mask = (j <= i)[None] & (j[None] >= doc_start[:, :, None])
    if window:
        mask = mask & (j > i - window)[None]
    return mask[:, None]


def attention_inputs(cfg, doc_start, fast):
    """Masks by window size; None stands for plain causal attention (fast only)."""
    packed = bool((doc_start != 0).any())
    masks = {}
    for layer in range(cfg["layers"]):
        w = layer_window(cfg, layer)
        if w in masks:
            continue
        plain = not packed and (w == 0 or w >= doc_start.shape[1])
        if fast and plain and cfg["attn_softcap"] == 0:
            masks[w] = None
        else:
            masks[w] = visible(doc_start, w)
    return masks


def attend(q, k, v, mask, cfg, fast):
    """q, k, v [B, heads or kv_heads, T, head_dim] -> [B, heads, T, head_dim]."""
    scale = cfg["attn_scale"] or cfg["head_dim"] ** -0.5
    group = cfg["heads"] // cfg["kv_heads"]
    if group > 1:  # query head h uses key head h / group
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
    cap = cfg["attn_softcap"]
    if fast and cap == 0:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
        )
    scores = q @ k.transpose(-1, -2) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def attention(x, params, p, cos_sin, mask, cfg, fast):
    b, t, _ = x.shape
    d = cfg["head_dim"]
    q, k, v = (linear(x, params, p + n) for n in ("q", "k", "v"))
    if cfg["qk_norm"] == "full":
        q = rms(q, params[p + "q_norm.weight"], cfg)
        k = rms(k, params[p + "k_norm.weight"], cfg)
    q, k, v = (z.view(b, t, -1, d) for z in (q, k, v))
    if cfg["qk_norm"] == "head":
        q = rms(q, params[p + "q_norm.weight"], cfg)
        k = rms(k, params[p + "k_norm.weight"], cfg)
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))
    if cos_sin is not None:
        q, k = rotate(q, *cos_sin), rotate(k, *cos_sin)
    y = attend(q.to(v.dtype), k.to(v.dtype), v, mask, cfg, fast)
    return linear(y.transpose(1, 2).reshape(b, t, -1), params, p + "o")


def feed_forward(x, params, p, cfg):
    act = cfg["act"]
    up = linear(x, params, p + "up")
    if act == "swiglu":
        up = F.silu(linear(x, params, p + "gate")) * up
    elif act == "geglu":
        up = F.gelu(linear(x, params, p + "gate"), approximate="tanh") * up
    elif act == "gelu":
        up = F.gelu(up)
    elif act == "gelu_tanh":
        up = F.gelu(up, approximate="tanh")
    else:
        raise ValueError("unknown act %s" % act)
    return linear(up, params, p + "down")


def sublayer(x, f, params, pre, post, cfg):
    order = cfg["norm_order"]
    if order == "pre":
        return x + f(norm(x, params, pre, cfg))
    if order == "post":
        return x + norm(f(x), params, post, cfg)
    if order == "sandwich":
        return x + norm(f(norm(x, params, pre, cfg)), params, post, cfg)
    if order == "residual":
        return norm(x + f(x), params, post, cfg)
    raise ValueError("unknown norm_order %s" % order)


def logits_of(cfg, params, tokens, positions, masks, fast=False):
    """Logits [B, T, vocab] for int64 tokens and positions [B, T]."""
    x = F.embedding(tokens, params["embed.weight"])
    if cfg["embed_scale"] != 1.0:
        x = x * cfg["embed_scale"]
    if cfg["position"] == "learned":
        x = x + F.embedding(positions, params["pos_embed.weight"])
    cos_sin = (
        rope_tables(cfg, positions, x.dtype) if cfg["position"] == "rope" else None
    )
    for i in range(cfg["layers"]):
        p = "layers.%d." % i
        mask = masks[layer_window(cfg, i)]
        x = sublayer(
            x,
            lambda z: attention(z, params, p + "attn.", cos_sin, mask, cfg, fast),
            params,
            p + "attn_norm",
            p + "attn_post_norm",
            cfg,
        )
        x = sublayer(
            x,
            lambda z: feed_forward(z, params, p + "ffn.", cfg),
            params,
            p + "ffn_norm",
            p + "ffn_post_norm",
            cfg,
        )
    x = norm(x, params, "final_norm", cfg)
    out = F.linear(x, params["embed.weight" if cfg["tied"] else "head.weight"])
    cap = cfg["final_softcap"]
    return cap * torch.tanh(out / cap) if cap else out


def loss_sum(logits, labels):
    """Sum of the token losses over labels that are not -1."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )


# ------------------------------------------------------------------ fixtures

# sets of documents: lengths of each row; both rows sum to SEQ
WHOLE = ((24,), (24,))
PACKED = ((7, 17), (10, 1, 13))
PACKED_SHORT = ((1, 4, 19), (24,))

BASE = {"vocab": 61, "layers": 2, "hidden": 32, "heads": 4, "ffn": 56}
VARIANTS = {
    "gpt2": (
        dict(
            BASE,
            hidden=36,
            ffn=52,
            act="gelu_tanh",
            norm="layernorm",
            bias="all",
            position="learned",
            max_positions=27,
            tied=True,
        ),
        WHOLE,
    ),
    "llama": (dict(BASE, kv_heads=2), PACKED),
    "llama3-scaling": (
        dict(
            BASE,
            kv_heads=2,
            ffn=44,
            rope_theta=100.0,
            rope_scaling={
                "type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_positions": 32,
            },
        ),
        WHOLE,
    ),
    "yarn": (
        dict(
            BASE,
            hidden=40,
            kv_heads=1,
            ffn=44,
            rope_theta=200.0,
            rope_scaling={
                "type": "yarn",
                "factor": 4.0,
                "original_max_positions": 32,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
                "attention_factor": 1.25,
            },
        ),
        WHOLE,
    ),
    "qwen2": (
        dict(
            BASE, kv_heads=2, bias="qkv", tied=True, norm_eps=1e-6, rope_theta=1000000.0
        ),
        PACKED_SHORT,
    ),
    "qwen3": (
        dict(
            BASE,
            kv_heads=2,
            head_dim=12,
            ffn=48,
            qk_norm="head",
            tied=True,
            norm_eps=1e-6,
        ),
        PACKED,
    ),
    "olmo2": (
        dict(
            BASE,
            kv_heads=2,
            norm_order="post",
            qk_norm="full",
            norm_eps=1e-6,
            rope_theta=500000.0,
        ),
        WHOLE,
    ),
    "gemma2": (
        dict(
            BASE,
            layers=3,
            kv_heads=2,
            ffn=44,
            act="geglu",
            norm_order="sandwich",
            norm_plus_one=True,
            norm_eps=1e-6,
            attn_softcap=3.0,
            final_softcap=4.0,
            embed_scale=5.65625,
            attn_scale=0.5,
            window=6,
            window_every=2,
            tied=True,
        ),
        PACKED,
    ),
    "original": (
        dict(
            BASE,
            norm_order="residual",
            norm="layernorm",
            act="gelu",
            bias="all",
            position="learned",
            max_positions=24,
            embed_scale=2.5,
        ),
        PACKED_SHORT,
    ),
    "mistral": (dict(BASE, kv_heads=2, window=7), PACKED),
}
WITH_ADAMW = ("gpt2", "llama")


def config_text(model):
    return "".join("%s: %s\n" % (k, format_value(v)) for k, v in model.items())


def query_gain(cfg):
    """Scale of the query projection.

    Without rope the key bias has a gradient of exactly zero, so what float32 computes
    there is rounding noise in proportion to dk, and dk is in proportion to q. Small
    queries keep that noise below the limit that all gradients share, while the
    gradients of the query and key matrices stay well above the floor of d(a, b).
    """
    return 0.03 if cfg["bias"] != "none" and cfg["position"] != "rope" else 1.4


def make_params(cfg, rng):
    """Random float32 parameters with every effect visible in the result."""
    out = {}
    for name, shape, kind in param_specs(cfg):
        z = rng.standard_normal(shape)
        if kind == "matrix":
            gain = 1.4 if ".attn.k." in name else 0.9
            if ".attn.q." in name:
                gain = query_gain(cfg)
            z = z * gain / math.sqrt(shape[1])
        elif kind == "embed":
            z = z * (0.3 if name.startswith("pos_embed") else 0.5)
        elif kind == "norm":
            z = 0.3 * z + (0.0 if cfg["norm_plus_one"] else 1.0)
        else:
            z = 0.15 * z
            if ".attn.q." in name:
                z = z * query_gain(cfg) / 1.4
        out[name] = z.astype(np.float32)
    return out


def make_batch(cfg, docs, rng):
    """tokens, labels, positions, doc_start as i32 [B*T]."""
    tokens = rng.integers(0, cfg["vocab"], (BATCH, SEQ))
    labels = np.roll(tokens, -1, axis=1)
    positions = np.zeros((BATCH, SEQ), np.int64)
    starts = np.zeros((BATCH, SEQ), np.int64)
    for row, lengths in enumerate(docs):
        assert sum(lengths) == SEQ
        at = 0
        for n in lengths:
            positions[row, at : at + n] = np.arange(n)
            starts[row, at : at + n] = at
            labels[row, at + n - 1] = -1  # nothing follows within the document
            at += n
    labels[rng.random((BATCH, SEQ)) < 0.1] = -1
    return {
        "tokens": tokens.astype(np.int32).ravel(),
        "labels": labels.astype(np.int32).ravel(),
        "positions": positions.astype(np.int32).ravel(),
        "doc_start": starts.astype(np.int32).ravel(),
    }


def loss_and_grads(cfg, params, batch, dtype, fast=False):
    """Loss (python float) and gradients (numpy, dtype) of the mean loss."""
    p = {k: torch.tensor(v, dtype=dtype, requires_grad=True) for k, v in params.items()}
    b = {k: torch.tensor(v).long().view(BATCH, SEQ) for k, v in batch.items()}
    masks = attention_inputs(cfg, b["doc_start"], fast)
    logits = logits_of(cfg, p, b["tokens"], b["positions"], masks, fast)
    loss = loss_sum(logits, b["labels"]) / (b["labels"] != -1).sum()
    loss.backward()
    return loss.item(), {k: v.grad.numpy() for k, v in p.items()}


def distances(got, want):
    """The metric of the head comment, per tensor."""
    total = sum(w.size for w in want.values())
    norm_all = math.sqrt(
        sum(float((w.astype(np.float64) ** 2).sum()) for w in want.values())
    )
    out = {}
    for name, w in want.items():
        w = w.astype(np.float64)
        floor = 1e-3 * norm_all * math.sqrt(w.size / total)
        diff = np.linalg.norm(got[name].astype(np.float64) - w)
        out[name] = float(diff / max(np.linalg.norm(w), floor))
    return out


# --------------------------------------------------------------------- AdamW

ADAMW_LR = (0.002, 0.004, 0.006, 0.005, 0.003)
ADAMW_BETAS = (0.9, 0.95)
ADAMW_EPS = 1e-8
ADAMW_DECAY = 0.1


def injected_gradient(step, shape):
    n = math.prod(shape)
    g = [math.sin(0.37 * (step + 1) + 0.011 * i) * 0.05 for i in range(n)]
    return np.array(g, np.float64).astype(np.float32).reshape(shape)


def adamw_entries(cfg, params):
    """Five steps with torch in float32, checked against the float64 formula."""
    specs = param_specs(cfg)
    tensors = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in params.items()}
    groups = [
        {
            "params": [
                tensors[n] for n, _, kind in specs if (kind == "matrix") == decays
            ],
            "weight_decay": ADAMW_DECAY if decays else 0.0,
        }
        for decays in (True, False)
    ]
    opt = torch.optim.AdamW(
        groups, lr=ADAMW_LR[0], betas=ADAMW_BETAS, eps=ADAMW_EPS, foreach=False
    )
    b1, b2 = ADAMW_BETAS
    want = {k: [v.astype(np.float64), 0.0, 0.0] for k, v in params.items()}
    for step, lr in enumerate(ADAMW_LR):
        for group in opt.param_groups:
            group["lr"] = lr
        for name, shape, kind in specs:
            g = injected_gradient(step, shape)
            tensors[name].grad = torch.tensor(g)
            g = g.astype(np.float64)
            p, m, v = want[name]
            p = p * (1.0 - lr * (ADAMW_DECAY if kind == "matrix" else 0.0))
            m = b1 * m + (1.0 - b1) * g
            v = b2 * v + (1.0 - b2) * g * g
            mhat = m / (1.0 - b1 ** (step + 1))
            vhat = v / (1.0 - b2 ** (step + 1))
            want[name] = [p - lr * mhat / (np.sqrt(vhat) + ADAMW_EPS), m, v]
        opt.step()
    out = {"adamw.lr": np.array(ADAMW_LR, np.float64)}
    for key, value in (
        ("beta1", b1),
        ("beta2", b2),
        ("eps", ADAMW_EPS),
        ("decay", ADAMW_DECAY),
    ):
        out["adamw." + key] = np.array([value], np.float64)
    worst = 0.0
    for name, _, _ in specs:
        state = opt.state[tensors[name]]
        got = (tensors[name].detach(), state["exp_avg"], state["exp_avg_sq"])
        for part, a, w in zip(("param", "m", "v"), got, want[name]):
            a = a.numpy()
            worst = max(worst, float(np.linalg.norm(a - w) / np.linalg.norm(w)))
            out["adamw.%s:%s" % (part, name)] = a
    if worst > 1e-6:
        raise SystemExit("AdamW: torch differs from the formula by %g" % worst)
    print("  adamw: largest relative distance of float32 from float64 %.1e" % worst)
    return out


# ----------------------------------------------------------------------- main


def finite_differences(cfg, params, batch, grads, rng):
    """Central differences in float64 on a few elements of every tensor."""
    wide = {k: v.astype(np.float64) for k, v in params.items()}
    b = {k: torch.tensor(v).long().view(BATCH, SEQ) for k, v in batch.items()}
    masks = attention_inputs(cfg, b["doc_start"], False)

    def loss_at():
        with torch.no_grad():
            p = {k: torch.from_numpy(v) for k, v in wide.items()}
            logits = logits_of(cfg, p, b["tokens"], b["positions"], masks)
            return loss_sum(logits, b["labels"]).item() / int((b["labels"] != -1).sum())

    worst, h = 0.0, 1e-5
    for name, value in wide.items():
        flat, g = value.reshape(-1), grads[name].reshape(-1)
        for i in rng.integers(0, flat.size, 3):
            keep = flat[i]
            flat[i] = keep + h
            up = loss_at()
            flat[i] = keep - h
            down = loss_at()
            flat[i] = keep
            worst = max(worst, abs((up - down) / (2 * h) - g[i]) / max(abs(g[i]), 1e-2))
    print("  finite differences: largest relative error %.1e" % worst)
    if worst > 1e-6:
        raise SystemExit("finite differences disagree with the gradients")


def make_variant(name, out_dir, check):
    model, docs = VARIANTS[name]
    rng = np.random.default_rng([SEED, list(VARIANTS).index(name)])
    text = config_text(model)
    cfg = parse_config(text)
    params = make_params(cfg, rng)
    batch = make_batch(cfg, docs, rng)
    loss64, grads64 = loss_and_grads(cfg, params, batch, torch.float64)
    truth = {k: g.astype(np.float32) for k, g in grads64.items()}
    print(
        "%s: loss %.6f, %d parameters, %d labels"
        % (
            name,
            loss64,
            sum(v.size for v in params.values()),
            int((batch["labels"] != -1).sum()),
        )
    )
    for label, fast in (("plain", False), ("sdpa", True)):
        loss32, grads32 = loss_and_grads(cfg, params, batch, torch.float32, fast)
        d = distances(grads32, truth)
        worst = max(d, key=d.get)
        print(
            "  float32 %-5s: loss off by %.1e, gradients median %.1e, worst %.1e (%s)"
            % (
                label,
                abs(loss32 - loss64),
                float(np.median(list(d.values()))),
                d[worst],
                worst,
            )
        )
        if check:
            for key, value in d.items():
                print(
                    "    %-32s %.2e  norm %.3e"
                    % (key, value, np.linalg.norm(truth[key]))
                )
    if check:
        finite_differences(cfg, params, batch, grads64, rng)

    entries = {
        "config": text,
        "batch": np.array([BATCH], np.int32),
        "seq": np.array([SEQ], np.int32),
        **batch,
        **params,
        "loss": np.array([loss64], np.float32),
        "loss64": np.array([loss64], np.float64),
        **{"grad:" + k: v for k, v in truth.items()},
    }
    if name in WITH_ADAMW:
        entries.update(adamw_entries(cfg, params))
    path = os.path.join(out_dir, name + ".gold")
    write_gold(path, entries)
    print("  %s: %d bytes" % (os.path.basename(path), os.path.getsize(path)))


def main():
    parser = argparse.ArgumentParser(description="make the reference fixtures")
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument(
        "--check",
        action="store_true",
        help="finite differences and the distance of every gradient",
    )
    parser.add_argument("variants", nargs="*", help="default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.variants or VARIANTS:
        if name not in VARIANTS:
            sys.exit("unknown variant %s; known: %s" % (name, " ".join(VARIANTS)))
        make_variant(name, args.out, args.check)


if __name__ == "__main__":
    main()
