#!/usr/bin/env python3
"""Attention alone, every system beside every other: runs `burst`, writes docs/experiments.md, its pictures and the raw JSON.

Every figure comes from `burst ... --json` of this run. Systems that are compared take turns in one process, or (emulated
hosts) in runs that follow each other at once. Times are of this machine; what was published stands beside ours as a ratio
between systems, never as a time.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "burst", "svg.fonttype": "none", "font.size": 9, "axes.grid": True,
                            "grid.alpha": 0.3, "figure.autolayout": True})
from matplotlib import pyplot  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BURST = ROOT / "build/release/burst"
ALL = ["flash", "rsa", "ring", "ring-zigzag", "ring-striped", "burst", "burst-q", "burst-o", "burst-gao", "burst-serial",
       "gather", "ulysses"]
DISTRIBUTED = [s for s in ALL if s != "flash"]
STYLES = {name: (matplotlib.colormaps["tab20"](2 * n if n < 10 else 2 * n - 19), "osv^D*<>pPXh"[n]) for n, name in enumerate(ALL)}
raw, started, shrink = [], time.time(), 1


def short(tokens):
    """Lengths as they are, or divided: --quick shows that it works, not how fast."""
    return max(tokens // shrink, 128)


# ---- running --------------------------------------------------------------------------------------------------------


def run(*arguments, hosts=None):
    """JSON objects that `burst ARGUMENTS --json` prints; hosts: (how many, Mbit/s)."""
    words = [str(x) for x in arguments]
    command = [str(BURST), *words, "--json"]
    if hosts:
        command = ["bash", str(ROOT / "tests/hosts.sh"), str(BURST), "run", str(hosts[1]), str(hosts[0]), *words, "--json"]
    print(f"[{time.time() - started:5.0f} s] burst {' '.join(words)}{f' on {hosts[0]} hosts, {hosts[1]} Mbit/s' if hosts else ''}",
          file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1500, check=False)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for one in found:
        raw.append({**one, "arguments": " ".join(words), **({"hosts": hosts[0], "mbit": hosts[1]} if hosts else {})})
    if not found:
        raise RuntimeError(f"{' '.join(command)}: nothing came\n{done.stderr}")
    return found


def bench(word, systems, ranks=None, hosts=None, **options):
    """{system: {"forward": object, "backward": object} or {"refused": why}}"""
    extra = [x for name, value in options.items() for x in ([f"--{name.replace('_', '-')}"] + ([value] if value is not True else []))]
    if ranks:
        extra += ["--ranks", ranks]
    table = {}
    for one in run("bench", word, "--system", ",".join(systems), *extra, hosts=hosts):
        table.setdefault(one["system"], {})["refused" if "refused" in one else one["pass"]] = one
    return table


def both(entry):
    """Seconds of forward + backward, best of each; None if it did not run."""
    if "refused" in entry:
        return None
    return sum(entry[p]["seconds_best"] for p in ("forward", "backward") if p in entry)


def stopped(why):
    """"out: 537 MiB" of "out of memory: needs 537 MiB a rank, limit 256 MiB"."""
    return re.sub(r"out of memory: needs (.*) a rank.*", r"out: \1", why)


# ---- writing --------------------------------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows]) + "\n"


def save(figure, name):
    path = ROOT / ("docs" if shrink == 1 else "build") / "experiments" / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return f"![{name}](experiments/{name}.svg)\n"


def lines(name, title, x, curves, xlabel, ylabel, log=True, hline=None):
    """Curves over lengths that double; log: the values double too."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
    for label, ys in curves.items():
        points = [(a, b) for a, b in zip(x, ys) if b is not None]
        colour, marker = STYLES.get(label, (None, "o"))
        axes.plot([a for a, _ in points], [b for _, b in points], marker=marker, color=colour, label=label, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [str(v) for v in x])
    axes.minorticks_off()
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    if hline:
        axes.axhline(hline[0], color="grey", linestyle="--")
        axes.text(x[0], hline[0], hline[1], va="bottom", fontsize=8)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize=7, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(figure, name)


def bars(name, title, labels, groups, ylabel):
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6))
    width = 0.8 / len(groups)
    for n, (label, ys) in enumerate(groups.items()):
        at = [i + (n - (len(groups) - 1) / 2) * width for i in range(len(labels))]
        axes.bar(at, [0 if y is None else y for y in ys], width, label=label)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set(title=title, ylabel=ylabel)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(figure, name)


def figure_of(value, digits=3):
    return "-" if value is None else f"{value:.{digits}g}"


# ---- 1. time and memory ---------------------------------------------------------------------------------------------


def by_length(full):
    lengths = [short(n) for n in [1024, 2048, 4096, 8192, 16384] + ([32768, 65536] if full else [32768])]
    lengths = sorted(set(lengths))
    limit = "256m"
    results = {}
    for n in lengths:
        systems = ALL if n <= 16384 or shrink > 1 else [s for s in ALL if s not in ("ring-striped", "burst-o", "burst-q")]
        results[n] = bench(f"b1h4n{n}d64:causal", systems, ranks=4, memory=limit, unchecked=True,
                           repeat=5 if n <= 4096 else 2 if n <= 8192 else 1)
    rows, times, memories = [], {s: [] for s in ALL}, {s: [] for s in ALL}
    for s in ALL:
        cells = []
        for n in lengths:
            entry = results[n].get(s, {"refused": {"refused": "not run"}})
            seconds = both(entry)
            times[s].append(None if seconds is None else 1e3 * seconds)
            held = entry["forward"]["memory_bytes"] / 2**20 if seconds else None
            memories[s].append(held)
            why = entry.get("refused", {}).get("refused", "")
            cells.append(f"{1e3 * seconds:.4g} ({held:.0f})" if seconds else stopped(why))
        rows.append([f"`{s}`", *cells])
    text = ("## 1. Time and memory\n\n### By length\n\n"
            "`b1h4nNd64:causal`, 4 ranks that are threads on 2 cores, one thread each; forward + backward, ms (MiB that the fullest "
            f"rank holds, tensors too); 256 MiB a rank at most, and who needs more says so.\n\n"
            + table(["system", *[str(n) for n in lengths]], rows) + "\n"
            + lines("time-by-length", "forward + backward, 4 ranks, 256 MiB a rank", lengths, times, "tokens", "ms")
            + lines("time-over-burst", "time over that of burst", lengths,
                    {s: [None if a is None else a / b for a, b in zip(times[s], times["burst"])] for s in ALL}, "tokens", "ratio",
                    log=False)
            + lines("memory-by-length", "memory of the fullest rank", lengths, memories, "tokens", "MiB",
                    hline=(256, "limit")))
    last = lengths[min(3, len(lengths) - 1)]
    ours = both(results[last]["burst"])
    shown = [s for s in ("rsa", "burst-gao", "ring") if both(results[last].get(s, {"refused": 1}))]
    text += ("\nPublished (8 A100, LLaMA-7B, first token, time of a system over `burst` with GAO and LAO): 16K TP + Flash 1.54, "
             "RSA 1.19, GAO only 1.07; 32K 1.61, 1.57, 1.19; 64K 1.79, out, 1.66; 128K 1.72, out, out. Ours at "
             f"{last} tokens: " + ", ".join(f"`{s}` {both(results[last][s]) / ours:.2f}" for s in shown) +
             ". The order in which systems stop is the published one: stored rows of scores first (`rsa`), then the scores of a "
             "round (`burst-gao`), then one rank that holds all. Ratios differ: theirs are whole models, where attention is a part "
             "of the time, and 4 ranks share 2 cores here, so a rank that waits (`ring`, contiguous) gives its core to one that "
             "works and loses nothing.\n")
    return text


def by_batch_and_ranks():
    batches, systems = [1, 2, 4, 8], ["rsa", "ring", "burst", "burst-gao", "gather", "ulysses"]
    batch = {b: bench(f"b{b}h4n{short(2048)}d64:causal", systems, ranks=4, memory="128m", unchecked=True, repeat=3) for b in batches}
    ranks = [1, 2, 4, 8]
    some = ["flash", "ring", "ring-zigzag", "burst", "gather", "ulysses"]
    many = {p: bench(f"b1h8n{short(8192)}d64:causal", some, ranks=p, unchecked=True, repeat=2) for p in ranks}

    def cell(entry, base):
        seconds = both(entry)
        if seconds is None:
            return stopped(entry["refused"]["refused"])
        return f"{1e3 * seconds:.4g} ({base / seconds:.2f})"

    return ("### By batch\n\n`bBh4n2048d64:causal`, 4 ranks, 128 MiB a rank; ms (speed against `burst`). Published, Burst against RSA: "
            "1.41 at batch 1, 1.34 at 2, out at 4 and 8.\n\n"
            + table(["system", *[f"b = {b}" for b in batches]],
                    [[f"`{s}`", *[cell(batch[b][s], both(batch[b]["burst"])) for b in batches]] for s in systems])
            + "\n### By number of ranks\n\n`b1h8n8192d64:causal`; ms (speed against `burst` at the same number of ranks). Two cores: "
              "ranks beyond two share them, so only ratios between systems at equal ranks mean something; `flash` has the cores "
              "of one rank.\n\n"
            + table(["system", *[f"P = {p}" for p in ranks]],
                    [[f"`{s}`", *[cell(many[p][s], both(many[p]["burst"])) for p in ranks]] for s in some]))


# ---- 2. communication -----------------------------------------------------------------------------------------------


def paper_arithmetic():
    """LLaMA-7B, 128K tokens, 8 GPUs, 16 bits: bytes a GPU sends for a layer, forward and backward."""
    p, tokens, hidden, params, e = 8, 131072, 4096, 4 * 4096**2 + 3 * 4096 * 11008, 2
    n, heads = tokens / p, 32
    tensor = 10 * tokens * hidden * e * (p - 1) / p
    ring = ((p - 1) * 2 + (p - 1) * 2 + p * 2) * n * hidden * e
    burst = ((p - 1) * 2 + (p - 1) * 2 + p) * n * hidden * e + (p - 1) * n * 8 * heads
    weights = 2 * (p - 1) / p * params * e
    rows = [["tensor parallel + sequence parallel, whole layer", f"{tensor / 1e9:.2f}", "-"],
            ["RingAttention + gradients of the weights", f"{(ring + weights) / 1e9:.2f}",
             f"{100 * (1 - (ring + weights) / tensor):.0f} %"],
            ["BurstAttention (Q side backward) + gradients of the weights", f"{(burst + weights) / 1e9:.2f}",
             f"{100 * (1 - (burst + weights) / tensor):.0f} %"],
            ["RingAttention, backward alone", f"{((p - 1) * 2 + p * 2) * n * hidden * e / 1e9:.2f}", "-"],
            ["BurstAttention, backward alone",
             f"{(((p - 1) * 2 + p) * n * hidden * e + (p - 1) * n * 8 * heads) / 1e9:.2f}",
             f"{100 * (1 - (((p - 1) * 2 + p) * n * hidden * e + (p - 1) * n * 8 * heads) / (((p - 1) * 2 + p * 2) * n * hidden * e)):.0f} % less than the ring's"]]
    return (f"**The paper's \"40 % less\"** in its own setting: LLaMA-7B, 128K tokens, 8 GPUs, 16 bits, GB that a GPU sends for a layer, "
            "with the formulas as published (p hops for gradients). Tensor parallelism sends "
            "10 N hidden e (p-1)/p; the ring 2 (p-1) forward and 2 (p-1) + 2 p backward, Burst 2 (p-1) and 2 (p-1) + p, in units of "
            "n hidden e, and 8 H bytes a token and hop for lse and D; sequence parallelism also sums the gradients of the "
            "weights, 2 (p-1)/p params e.\n\n"
            + table(["", "GB", "less than tensor parallel"], rows)
            + "\nSo it holds against tensor parallelism at this length. Against RingAttention Burst saves a quarter of the backward. "
              "(Our plans keep a rank's own contribution at home, so gradients make p - 1 hops, not p, on either side.)\n")


def bytes_by_system():
    groups = {"MHA": 8, "GQA 4:1": 2, "GQA 8:1": 1}
    systems = [s for s in DISTRIBUTED if s not in ("rsa", "burst-gao", "ring-striped", "ring-zigzag", "burst-serial")]
    ours = {}
    for name, g in groups.items():
        ours[name] = bench(f"b1h8g{g}n1024d128:bf16", systems, ranks=8, unchecked=True, repeat=1)
    rows, picture = [], {name: [] for name in groups}
    for s in systems:
        row = [f"`{s}`"]
        for name in groups:
            entry = ours[name][s]
            sent = [entry[p]["bytes_sent_all"] for p in ("forward", "backward")]
            assert sent == [entry[p]["bytes_formula_all"] for p in ("forward", "backward")], (s, name)
            row.append(f"{sent[0] / 1024 / 1024:.2f} / {sent[1] / 1024 / 1024:.2f}")
            picture[name].append(sum(sent) / 1024 / 1024)
        rows.append(row)
    return ("## 2. Communication\n\n### Bytes\n\nKiB that all 8 ranks send for a token, forward / backward; bf16, 8 heads, d = 128, gradients in "
            "f32 where they are sums; counted, and equal to the formulas.\n\n"
            + table(["system", *groups], rows) + "\n"
            + bars("bytes", "KiB sent for a token by 8 ranks, forward + backward", systems, picture, "KiB") + "\n"
            + paper_arithmetic())


def over_hosts(full):
    word, count = f"b1h8n{short(16384 if full else 8192)}d128:causal", 4
    rates = [1000, 2500, 10000]
    systems = ["ring", "ring-zigzag", "burst", "burst-q", "burst-o", "burst-serial", "gather", "ulysses"]
    plain = [s for s in systems if s != "burst-serial"]
    with_overlap = {r: bench(word, systems, hosts=(count, r), threads=1, unchecked=True, repeat=2) for r in rates}
    without = {r: bench(word, ["ring-zigzag", "burst", "gather", "ulysses"], hosts=(count, r), threads=1, unchecked=True,
                        repeat=2, no_overlap=True) for r in rates}
    rows = []
    for s in systems:
        row = [f"`{s}`"]
        for r in rates:
            seconds, serial = both(with_overlap[r][s]), both(without[r][s]) if s in without[r] else None
            hidden = statistics.mean(with_overlap[r][s][p]["hidden_mean"] for p in ("forward", "backward"))
            row.append(f"{seconds:.3g} / {figure_of(serial)} ({100 * hidden:.0f} %)")
        rows.append(row)
    rate_word = f"b1h8n{short(16384)}d128:window=15/0"
    collectives = {s: bench(rate_word, [s], hosts=(count, 1000), threads=1, unchecked=True, repeat=3, forward_only=True)[s]["forward"]
                   for s in ("gather", "ulysses")}
    speed = {s: 8e-6 * c["bytes_sent_all"] / count / c["seconds_transfer"] for s, c in collectives.items()}
    return (f"### Over emulated hosts\n\n`{word}`, {count} hosts (network namespaces) of 1 rank and 1 thread; seconds of forward + backward "
            "with overlap / without (share of the communication hidden). All hosts share two cores, and a byte over TCP costs CPU "
            "time here, which no overlap hides.\n\n"
            + table(["system", *[f"{r / 1000:g} Gbit/s" for r in rates]], rows) + "\n"
            + bars("hosts", f"{word} on {count} hosts, forward + backward", plain,
                   {f"{r / 1000:g} Gbit/s": [both(with_overlap[r][s]) for s in plain] for r in rates}, "seconds")
            + "\nThe collectives by themselves (a window of 16, so next to nothing is computed), at 1 Gbit/s, Mbit/s a rank: "
            + ", ".join(f"`{s}` {v:.0f}" for s, v in speed.items()) + ".\n")


# ---- 3. local attention ---------------------------------------------------------------------------------------------


def local_tiles():
    sizes_q, sizes_k = [48, 96, 192, 384, 768, 1536], [48, 96, 192, 384]
    best = {}
    for q in sizes_q:
        for k in sizes_k:
            one = run("bench", f"b1h8n{short(4096)}d128", "--forward-only", "--q-tile", q, "--k-tile", k, "--repeat", 3)[0]
            best[q, k] = one["percent_of_peak"]
    lengths = sorted({short(n) for n in (512, 1024, 2048, 4096, 8192)})
    tiles = {n: bench(f"b1h4n{n}d64:causal", ["burst-q", "burst-gao"], ranks=2, unchecked=True, repeat=5) for n in lengths}
    held = {n: bench(f"b1h4n{n}d64:causal", ["rsa", "burst-gao"], ranks=2, unchecked=True, repeat=5) for n in sorted({short(n) for n in (1024, 2048, 4096)})}
    ratio = [both(tiles[n]["burst-gao"]) / both(tiles[n]["burst-q"]) for n in lengths]
    text = ("## 3. Local attention\n\n### Tile sizes\n\n`b1h8n4096d128` forward, % of the FMA peak, queries (down) by keys (across) of a tile. "
            "Keys hardly matter; small query tiles pay for packing queries and keys again and again.\n\n"
            + table(["", *[str(k) for k in sizes_k]], [[q, *[f"{best[q, k]:.0f}" for k in sizes_k]] for q in sizes_q])
            + "\n### With and without tiles\n\n`b1h4nNd64:causal`, 2 ranks: `burst-q` against `burst-gao`, whose products are OpenBLAS's; "
              "ms (MiB).\n\n"
            + table(["tokens", "`burst-q`", "`burst-gao`", "ratio"],
                    [[n, *[f"{1e3 * both(tiles[n][s]):.4g} ({tiles[n][s]['forward']['memory_bytes'] / 2**20:.0f})"
                           for s in ("burst-q", "burst-gao")], f"{r:.2f}"] for n, r in zip(lengths, ratio)])
            + lines("lao", "without local tiles: time over burst-q", lengths, {"burst-gao": ratio}, "tokens", "ratio", log=False)
            + "\nPublished: GAO alone against GAO + LAO 1.05 at 4K, 1.19 at 32K, 1.66 at 64K (first token); it goes up with the length "
              "there as here, until memory ends it.\n"
              "\n### Store or recompute\n\nBackward of `rsa`, which keeps the probabilities from forward, against `burst-gao`, which "
              "makes them again; both on OpenBLAS, causal, 2 ranks; ms (MiB).\n\n"
            + table(["tokens", "stored", "recomputed"],
                    [[n, *[f"{1e3 * held[n][s]['backward']['seconds_best']:.4g} ({held[n][s]['forward']['memory_bytes'] / 2**20:.0f})"
                           for s in ("rsa", "burst-gao")]] for n in held])
            + "\nOne product of five is saved and N / n times the memory is held, which has to be read again: there is little in it. "
              "`rsa` also computes with contiguous blocks, so its last rank has half as much again to do as the mean.\n")
    return text


def sides(full):
    # heads are whole: 1.25 is 5 queries to 4 keys, whose bytes are the same
    ratios = {"1": (8, 1), "1.25": (8, 1.25), "2": (4, 1), "4": (2, 1), "8": (1, 1)}
    rows = []
    for g, (kv, longer) in ratios.items():
        cells = [g]
        for dtype in ("bf16", "f32"):
            plan = run("plan", f"b1h8g{kv}n{int(8192 * longer)}k8192d128:{dtype}", "--ranks", 8)[0]["backward_bytes"]
            cells.append(f"{plan['q_side'] / plan['k_side']:.3f}")
            chosen = "Q" if plan["chosen"] == plan["q_side"] else "K"
            cells.append(chosen)
        keys = short(8192 if full else 4096)
        word = f"b1h8g{kv}n{int(keys * longer)}k{keys}d128"
        seconds = {s: run("bench", word, "--side-backward", s, "--threads", 1, "--repeat", 3, hosts=(2, 1000))[1]["seconds_best"]
                   for s in ("q", "k")}
        cells.append(f"{1e3 * seconds['q']:.4g} / {1e3 * seconds['k']:.4g}")
        rows.append(cells)
    # Q iff g [(e + f) d + e d + 12] < 2 d (e + f), f = 4
    crossing = {e: 2 * 128 * (e + 4) / ((e + 4) * 128 + e * 128 + 12) for e in (2, 4)}
    return ("### Q side or K side\n\nBackward bytes of the Q side over those of the K side by query heads a kv head (1.25: by the lengths, "
            "5 queries to 4 keys), and what the plan chooses; ms of backward on 2 hosts at 1 Gbit/s, Q / K (f32, full). Predicted crossing: "
            f"g = {crossing[2]:.2f} in 16 bits with f32 gradients, {crossing[4]:.2f} in f32.\n\n"
            + table(["g", "bf16 Q / K", "chosen", "f32 Q / K", "chosen", "ms, Q / K"], rows))


# ---- 4. balance, 5. accuracy ----------------------------------------------------------------------------------------


def balance():
    docs = "docs=300/2100/150/900/2400/600/1442/300"
    words = {"causal": "b1h4n8192d64:causal", "8 packed documents, causal": f"b1h4n8192d64:{docs}:causal",
             "window of 512": "b1h4n8192d64:causal:window=511/0"}
    rows = []
    for name, word in words.items():
        for p in (2, 4, 8):
            row = [name, p]
            for kind in ("contiguous", "zigzag", "striped", "auto"):
                text = run("plan", word, "--ranks", p, "--partition", kind)[0]["description"]
                found = re.search(r"ranks +\d+, (\w+), busiest / mean ([\d.]+)", text)
                row.append(found[2] if kind != "auto" else f"{found[1]} {found[2]}")
            rows.append(row)
    timed = bench("b1h4n8192d64:causal", ["ring", "ring-zigzag", "ring-striped"], ranks=2, threads=1, unchecked=True, repeat=3)
    base = both(timed["ring"])
    packed = bench(words["8 packed documents, causal"], ["ring", "ring-zigzag", "ring-striped"], ranks=2, threads=1, unchecked=True,
                   repeat=3)
    return ("## 4. Load balance\n\nThe ring's time over that of equal shares, by the pairs of each round (busiest rank of a round, summed, over the "
            "mean).\n\n" + table(["mask", "P", "contiguous", "zigzag", "striped", "auto takes"], rows)
            + "\nTimed with 2 ranks on 2 cores, forward + backward, speed against `ring` (contiguous): causal "
            + ", ".join(f"`{s}` {base / both(timed[s]):.2f}" for s in ("ring-zigzag", "ring-striped")) + "; documents "
            + ", ".join(f"`{s}` {both(packed['ring']) / both(packed[s]):.2f}" for s in ("ring-zigzag", "ring-striped"))
            + ". Published (ring-flash-attention, 8 GPUs, causal, share of ideal): contiguous 53 %, striped 83 %, zigzag 90 %, so "
              "zigzag over contiguous 1.70; with 2 ranks the best there can be is 1.50.\n")


def accuracy():
    ranks = list(range(1, 9))
    rows, curves = [], {}
    for dtype in ("f32", "bf16"):
        for narrow in ([False, True] if dtype == "bf16" else [False]):
            errors = {"o": [], "d_q": [], "d_k": [], "d_v": []}
            for p in ranks:
                extra = ["--narrow-gradients"] if narrow and p > 1 else []
                for side in ("q", "k"):
                    one = run("check", f"b1h2n1024d64:causal:{dtype}", "--ranks", p, "--side-backward", side, *extra)[0]["errors"]
                    for name in errors:
                        if side == "q" or name in ("d_k", "d_v"):
                            errors[name] = errors[name][:p - 1] + [one[name]["rms"]]
            kind = dtype + (", 16-bit sums on the wire" if narrow else "")
            for name, values in errors.items():
                if narrow and name == "o":
                    continue
                rows.append([kind, name, *[f"{v:.2e}" for v in values]])
            for name in ("d_q", "d_k"):
                if dtype == "bf16":
                    curves[f"{name}, {'16-bit sums' if narrow else 'f32 sums (ours)'}"] = errors[name]
    figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
    for label, values in curves.items():
        axes.plot(ranks, values, marker="o", markersize=4, label=label)
    axes.set(title="bf16, root mean square error against f64", xlabel="ranks", ylabel="error", ylim=(0, None))
    axes.legend(fontsize=8)
    return ("## 5. Accuracy\n\nRoot mean square error against the f64 oracle by number of ranks, `b1h2n1024d64:causal`; of each gradient, "
            "from the journey in which it travels. With f32 sums on the wire it does not depend on the number of ranks; with sums in 16 "
            "bits, as others keep them, it grows with every hop.\n\n"
            + table(["inputs", "", *[f"P = {p}" for p in ranks]], rows) + "\n" + save(figure, "accuracy"))


# ---- all ------------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="longer sequences")
    parser.add_argument("--only", default="", help="parts whose name contains this, written to build/ (length, batch, bytes, "
                        "hosts, local, sides, balance, accuracy)")
    parser.add_argument("--quick", action="store_true", help="lengths / 16, written to build/: shows that it works, not how fast")
    options = parser.parse_args()
    global shrink
    shrink = 16 if options.quick else 1
    checked = bench("b1h4n1024d64:causal", ALL, ranks=4, repeat=1)
    assert all(both(entry) for entry in checked.values())
    parts = {"length": lambda: by_length(options.full), "batch": by_batch_and_ranks, "bytes": bytes_by_system,
             "hosts": lambda: over_hosts(options.full), "local": local_tiles, "sides": lambda: sides(options.full),
             "balance": balance, "accuracy": accuracy}
    info = run("info")[0]
    text = ["# Experiments: attention alone\n\n"
            f"Made by `make experiments` with Burst {info['version']} ({info['isa']}) on {info['cpu']}, {info['cores']} cores. Each system was "
            "compared with the f64 oracle first; all run on the same kernels (but for `rsa` and `burst-gao`, whose products are "
            "OpenBLAS's), with the same types on the wire. Best of a few turns in one run; raw figures are in `experiments.json`.\n"]
    for name, part in parts.items():
        if options.only in name:
            text.append(part())
    text.append(f"\nThe whole took {(time.time() - started) / 60:.0f} minutes.\n")
    out = ROOT / ("build" if options.only or options.quick else "docs")
    (out / "experiments.md").write_text("\n".join(text))
    (out / "experiments.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in raw) + "\n]\n")
    print(out / "experiments.md")


if __name__ == "__main__":
    main()
