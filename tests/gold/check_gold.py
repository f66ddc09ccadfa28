#!/usr/bin/env python3
"""Check fixtures made by make_gold.py with a second, independent model.

    python3 check_gold.py *.gold

The model here is written token by token with numpy in float64, straight from
the description of the model keys, and shares no code with make_gold.py except
the file reader and the config parser. It computes the loss and, by central
differences, a few elements of the gradient of every parameter, and compares
them with the stored values. The exit status is 1 when something differs.
"""

import math
import sys

import numpy as np

from make_gold import parse_config, read_gold

SAMPLES = 2


def normalize(x, w, b, cfg, kind):
    if kind == "layernorm":
        x = x - x.mean()
    y = x / math.sqrt((x * x).mean() + cfg["norm_eps"])
    y = y * (1 + w if cfg["norm_plus_one"] else w)
    return y if b is None else y + b


def gate_value(act, a):
    if act == "swiglu":
        return a / (1 + np.exp(-a))
    if act in ("geglu", "gelu_tanh"):
        return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in a])


def rope_angles(cfg):
    d, base, s = cfg["head_dim"], cfg["rope_theta"], cfg["rope_scaling"]
    out, gain = [], 1.0
    for i in range(d // 2):
        w = base ** (-2 * i / d)
        if s["type"] == "linear":
            w /= s["factor"]
        elif s["type"] == "llama3":
            length = 2 * math.pi / w
            if length > s["original_max_positions"] / s["low_freq_factor"]:
                w /= s["factor"]
            elif length >= s["original_max_positions"] / s["high_freq_factor"]:
                u = s["original_max_positions"] / length - s["low_freq_factor"]
                u /= s["high_freq_factor"] - s["low_freq_factor"]
                w = (1 - u) * w / s["factor"] + u * w
        elif s["type"] == "yarn":

            def dim(rot):
                period = s["original_max_positions"] / (rot * 2 * math.pi)
                return d * math.log(period) / (2 * math.log(base))

            low = max(math.floor(dim(s["beta_fast"])), 0)
            high = min(math.ceil(dim(s["beta_slow"])), d - 1)
            u = min(max((i - low) / (high - low), 0), 1)
            w = w / s["factor"] * u + w * (1 - u)
            gain = s["attention_factor"]
        out.append(w)
    return np.array(out), gain


def turn(x, pos, angles, gain):
    """Rotate the pairs (i, i + d/2) of one head vector."""
    y, half = np.empty_like(x), len(x) // 2
    for i in range(half):
        c, s = gain * math.cos(pos * angles[i]), gain * math.sin(pos * angles[i])
        y[i] = c * x[i] - s * x[i + half]
        y[i + half] = s * x[i] + c * x[i + half]
    return y


def model_loss(cfg, P, g):
    batch, seq = int(g["batch"][0]), int(g["seq"][0])
    d, heads, kv = cfg["head_dim"], cfg["heads"], cfg["kv_heads"]
    scale = cfg["attn_scale"] if cfg["attn_scale"] else 1 / math.sqrt(d)
    angles, gain = rope_angles(cfg)

    def fc(x, name):
        y = P[name + ".weight"] @ x
        return y + P[name + ".bias"] if name + ".bias" in P else y

    def nrm(x, name):
        return normalize(
            x, P[name + ".weight"], P.get(name + ".bias"), cfg, cfg["norm"]
        )

    def attn(xs, layer, pos, start):
        p = "layers.%d.attn." % layer
        windowed = cfg["window"] > 0 and (
            cfg["window_every"] == 1 or (layer + 1) % cfg["window_every"] != 0
        )
        q, k, v = ([fc(x, p + n) for x in xs] for n in "qkv")
        for rows, name, count in ((q, "q_norm", heads), (k, "k_norm", kv)):
            for t in range(len(rows)):
                if cfg["qk_norm"] == "full":
                    w = P[p + name + ".weight"]
                    rows[t] = normalize(rows[t], w, None, cfg, "rmsnorm")
                parts = rows[t].reshape(count, d)
                if cfg["qk_norm"] == "head":
                    w = P[p + name + ".weight"]
                    parts = [normalize(z, w, None, cfg, "rmsnorm") for z in parts]
                if cfg["position"] == "rope":
                    parts = [turn(z, pos[t], angles, gain) for z in parts]
                rows[t] = parts
        out = []
        for i in range(len(xs)):
            first = start[i]
            if windowed:
                first = max(first, i - cfg["window"] + 1)
            y = np.zeros(heads * d)
            for h in range(heads):
                c = h // (heads // kv)
                e = np.array([scale * (q[i][h] @ k[j][c]) for j in range(first, i + 1)])
                if cfg["attn_softcap"]:
                    e = cfg["attn_softcap"] * np.tanh(e / cfg["attn_softcap"])
                e = np.exp(e - e.max())
                e /= e.sum()
                for j in range(first, i + 1):
                    y[h * d : (h + 1) * d] += e[j - first] * v[j][c * d : (c + 1) * d]
            out.append(fc(y, p + "o"))
        return out

    def ffn(xs, layer, pos, start):
        p = "layers.%d.ffn." % layer
        gated = cfg["act"] in ("swiglu", "geglu")
        out = []
        for x in xs:
            if gated:
                a = gate_value(cfg["act"], fc(x, p + "gate")) * fc(x, p + "up")
            else:
                a = gate_value(cfg["act"], fc(x, p + "up"))
            out.append(fc(a, p + "down"))
        return out

    total, count = 0.0, 0
    for r in range(batch):
        part = slice(r * seq, (r + 1) * seq)
        tok, lab = g["tokens"][part], g["labels"][part]
        pos, start = g["positions"][part], g["doc_start"][part]
        xs = [P["embed.weight"][t] * cfg["embed_scale"] for t in tok]
        if cfg["position"] == "learned":
            xs = [x + P["pos_embed.weight"][i] for x, i in zip(xs, pos)]
        for layer in range(cfg["layers"]):
            for f, name in ((attn, "attn"), (ffn, "ffn")):
                pre = "layers.%d.%s_norm" % (layer, name)
                post = "layers.%d.%s_post_norm" % (layer, name)
                order = cfg["norm_order"]
                ins = xs
                if order in ("pre", "sandwich"):
                    ins = [nrm(x, pre) for x in xs]
                ys = f(ins, layer, pos, start)
                if order in ("post", "sandwich"):
                    ys = [nrm(y, post) for y in ys]
                xs = [x + y for x, y in zip(xs, ys)]
                if order == "residual":
                    xs = [nrm(x, post) for x in xs]
        head = P["embed.weight" if cfg["tied"] else "head.weight"]
        for x, label in zip(xs, lab):
            if label == -1:
                continue
            z = head @ nrm(x, "final_norm")
            if cfg["final_softcap"]:
                z = cfg["final_softcap"] * np.tanh(z / cfg["final_softcap"])
            total += z.max() + math.log(np.exp(z - z.max()).sum()) - z[label]
            count += 1
    return total / count


def check(path):
    g = read_gold(path)
    cfg = parse_config(g["config"], int(g["seq"][0]))
    names = [k[5:] for k in g if k.startswith("grad:")]
    P = {k: g[k].astype(np.float64) for k in names}
    err = abs(model_loss(cfg, P, g) - g["loss64"][0])
    rng = np.random.default_rng(1)
    worst, where, h = 0.0, "", 1e-5
    for name in names:
        flat, grad = P[name].reshape(-1), g["grad:" + name].reshape(-1)
        picks = list(rng.integers(0, flat.size, SAMPLES)) + [int(np.abs(grad).argmax())]
        for i in picks:
            keep = flat[i]
            flat[i] = keep + h
            up = model_loss(cfg, P, g)
            flat[i] = keep - h
            down = model_loss(cfg, P, g)
            flat[i] = keep
            e = abs((up - down) / (2 * h) - grad[i]) / max(abs(grad[i]), 1e-2)
            if e > worst:
                worst, where = e, "%s[%d]" % (name, i)
    good = err < 1e-10 and worst < 1e-6
    print(
        "%s: loss differs by %.1e, gradients by %.1e (%s) %s"
        % (path, err, worst, where, "ok" if good else "WRONG")
    )
    return good


if __name__ == "__main__":
    results = [check(path) for path in sys.argv[1:]]
    sys.exit(0 if results and all(results) else 1)
