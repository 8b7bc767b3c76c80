#!/usr/bin/env python3
"""Times Burst beside PyTorch: same buffers, same run, turn by turn, equal threads.

The tensors are [batch][heads][tokens][dim], PyTorch's own layout, or with --layout bnhd views of [batch][tokens][heads]
[dim]; Burst reads and writes them by strides. Every result is compared before anything is timed. A row's ratio is the
time of the fastest peer that counts over the time of Burst, best of all turns; PyTorch's backward is autograd.grad on a
kept graph, without its forward. Writes peers.md and peers.json.
"""
import argparse
import ctypes
import fnmatch
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

# PyTorch reads this when it is loaded. On some virtual machines its tile kernels (AMX) die of an illegal instruction.
LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
PROBE = "import torch; x = torch.ones(512, 512, dtype=torch.bfloat16); x @ x"
LIMITED = LIMIT[0] not in os.environ and subprocess.run([sys.executable, "-c", PROBE], check=False).returncode < 0
if LIMITED:
    os.environ[LIMIT[0]] = LIMIT[1]

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from binding import I64, PTR, BackwardArgs, ForwardArgs, Library, MaskSpec, Options, Problem, view

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f32": (0, torch.float32), "bf16": (1, torch.bfloat16), "f16": (2, torch.float16)}
# Largest difference, relative to the largest value: both sides' rounding, PyTorch's 16-bit gradients included.
TOLERANCE = {"f32": 5e-5, "bf16": 5e-2, "f16": 1e-2}

class Burst:
    """One row's problem made ready: a plan, outputs, and the two calls."""

    def __init__(self, library, row, data, threads):
        self.library, c = library, library.c
        mask, self.plan = PTR(), PTR()
        self.keep = [data]
        spec = MaskSpec(ctypes.sizeof(MaskSpec), row.nq, row.nk, 0, row.causal, row.window, -1, 0, row.prefix, 0)
        if row.docs:
            offsets = (I64 * (len(row.docs) + 1))(*[sum(row.docs[:i]) for i in range(len(row.docs) + 1)])
            spec.documents, spec.q_offsets = len(row.docs), ctypes.addressof(offsets)
            spec.k_offsets = spec.q_offsets
            self.keep.append(offsets)
        library("burst_mask_create", ctypes.byref(spec), ctypes.byref(mask))
        problem = Problem(ctypes.sizeof(Problem), DTYPES[row.dtype][0], 1, row.h, row.g, row.nq, row.nk, row.d, row.d)
        problem.softcap, problem.mask, problem.sink = row.softcap, mask, int(row.sink)
        if row.alibi:
            problem.alibi = data.slopes.data_ptr()
        options = Options(ctypes.sizeof(Options), threads, passes=0 if "backward" in row.passes else 1)
        library("burst_plan_create", ctypes.byref(problem), None, ctypes.byref(options), ctypes.byref(self.plan))
        c.burst_mask_free(mask)
        self.pairs = c.burst_plan_pairs(self.plan)
        self.isa = c.burst_isa_name(c.burst_plan_isa(self.plan)).decode()

        self.o = torch.empty_like(data.q)
        self.stats = torch.empty(c.burst_plan_stats_bytes(self.plan), dtype=torch.uint8)
        self.gradients = [torch.empty_like(x) for x in (data.q, data.k, data.v)]
        inputs = [view(x) for x in (data.q, data.k, data.v)]
        sink = data.sink.data_ptr() if row.sink else None
        stats, gradients = self.stats.data_ptr(), [view(x) for x in self.gradients]
        # statistics are for a backward to come: without one, as in inference, there are none
        wanted = stats if "backward" in row.passes else None
        self.forward_args = ForwardArgs(ctypes.sizeof(ForwardArgs), *inputs, sink, view(self.o), None, wanted)
        self.backward_args = BackwardArgs(ctypes.sizeof(BackwardArgs), *inputs, view(self.o), view(data.d_o), sink,
                                          None, stats, *gradients, None, 0)

    def forward(self):
        self.library("burst_forward", self.plan, ctypes.byref(self.forward_args))
        return [self.o]

    def backward(self):
        self.library("burst_backward", self.plan, ctypes.byref(self.backward_args))
        return self.gradients

    def free(self):
        self.library.c.burst_plan_free(self.plan)


# ---- rows -----------------------------------------------------------------------------------------------------------


class Row:
    def __init__(self, name, passes, floor, h=8, g=None, n=0, k=None, d=128, dtype="f32", causal=0, window=-1,
                 prefix=-1, docs=(), softcap=0.0, alibi=False, sink=False):
        self.name, self.passes, self.floor = name, passes, floor
        self.h, self.g, self.nq, self.nk, self.d, self.dtype = h, g or h, n, k or n, d, dtype
        self.causal, self.window, self.prefix, self.docs = causal, window, prefix, docs
        self.softcap, self.alibi, self.sink = softcap, alibi, sink

    def masked(self):
        return self.window >= 0 or self.prefix >= 0 or bool(self.docs)

    def plain(self):
        return not (self.masked() or self.softcap or self.alibi or self.sink)


def rows(shrink):
    """The table, with lengths divided by `shrink`. Floors are per pass, None where PyTorch is only measured against."""
    def n(tokens):
        return max(tokens // shrink, 16)

    both = ("forward", "backward")
    table = []
    for d in (128, 64):
        for causal in (0, 1):
            name = f"f32 N={n(8192)} d={d} {'causal' if causal else 'full'}"
            table.append(Row(name, both, (1.2, 1.2), n=n(8192), d=d, causal=causal))
    for d in (128, 64):
        table.append(Row(f"f32 N={n(2048)} d={d} causal", both, (1.3, 1.3), n=n(2048), d=d, causal=1))
    for dtype, floor in (("f16", (1.8, 12.0)), ("bf16", (None, 12.0))):
        table.append(Row(f"{dtype} N={n(4096)} d=128 causal", both, floor, n=n(4096), dtype=dtype, causal=1))
    table.append(Row(f"decode {n(131072)} keys f32 8/8 heads", ("forward",), (2.5,), n=1, k=n(131072)))
    table.append(Row(f"decode {n(131072)} keys bf16 32/4 heads", ("forward",), (15.0,), h=32, g=4, n=1, k=n(131072),
                     dtype="bf16"))
    for d in (128, 64):
        table.append(Row(f"causal window {n(512)} in {n(4096)} d={d}", both, (2.0, None), n=n(4096), d=d, causal=1,
                         window=n(512)))
    docs = tuple(n(x) for x in (120, 1128, 2848))
    table.append(Row(f"documents {'/'.join(map(str, docs))} causal", both, (None, None), n=sum(docs), d=64, docs=docs,
                     causal=1))
    table.append(Row(f"prefix-LM {n(1024)} in {n(4096)}", both, (None, None), n=n(4096), d=64, prefix=n(1024)))
    for name, extra in (("softcap 30", {"softcap": 30.0}), ("ALiBi", {"alibi": True}),
                        ("learnable sink", {"sink": True})):
        table.append(Row(f"{name} N={n(2048)} causal", both, (None, None), n=n(2048), d=64, causal=1, **extra))
    return table


class Data:
    def __init__(self, row, layout):
        torch.manual_seed(1)
        kind = DTYPES[row.dtype][1]

        def normal(heads, tokens):
            if layout == "bnhd":
                return torch.randn(1, tokens, heads, row.d).to(kind).transpose(1, 2)
            return torch.randn(1, heads, tokens, row.d).to(kind)

        self.q, self.d_o = normal(row.h, row.nq), normal(row.h, row.nq)
        self.k, self.v = normal(row.g, row.nk), normal(row.g, row.nk)
        self.slopes = torch.tensor([2.0 ** (-8 * (h + 1) / row.h) for h in range(row.h)])
        self.sink = torch.randn(row.h)


# ---- what PyTorch offers --------------------------------------------------------------------------------------------


def dense_mask(row):
    """[N_q][N_k], True where a query may see a key."""
    t = torch.arange(row.nk)[None, :] - torch.arange(row.nq)[:, None] - (row.nk - row.nq)
    seen = torch.ones_like(t, dtype=torch.bool)
    if row.causal:
        seen &= t <= 0
    if row.window >= 0:
        seen &= t >= -row.window
    if row.prefix >= 0:
        seen &= (torch.arange(row.nk)[None, :] < row.prefix) | (t <= 0)
    if row.docs:
        label = torch.repeat_interleave(torch.arange(len(row.docs)), torch.tensor(row.docs))
        seen &= label[:, None] == label[None, :]
    return seen


def sdpa_peers(row, data):
    """(name, counts, function of q, k, v): the ways to say a row with scaled_dot_product_attention."""
    if row.plain():
        gqa = row.g != row.h
        yield "sdpa", True, lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=bool(row.causal), enable_gqa=gqa)
        if gqa and row.nq == 1:
            # A trick, not what the interface offers: the query heads of a group become queries of one head.
            yield "sdpa, heads folded by hand", False, lambda q, k, v: F.scaled_dot_product_attention(
                q.reshape(1, row.g, row.h // row.g, row.d), k, v).reshape(1, row.h, 1, row.d)
        return
    seen = dense_mask(row)
    if row.masked():
        yield "sdpa, boolean mask", True, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    if row.docs:
        def per_document(q, k, v):
            parts = [x.split(row.docs, dim=2) for x in (q, k, v)]
            return torch.cat([F.scaled_dot_product_attention(*x, is_causal=True) for x in zip(*parts)], dim=2)
        yield "sdpa, a call per document", True, per_document
    hidden = torch.zeros(row.nq, row.nk).masked_fill(~seen, -math.inf)
    if row.alibi:
        distance = (torch.arange(row.nk)[None, :] - torch.arange(row.nq)[:, None]).abs()
        bias = (hidden - data.slopes[:, None, None] * distance)[None]
        yield "sdpa, additive mask", True, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    if row.sink:
        # One key more, of zeros, whose score is the sink's logit by the mask and whose value is nothing.
        column = data.sink[:, None, None].expand(-1, row.nq, 1)
        bias = torch.cat([column, hidden.expand(row.h, -1, -1)], dim=2)[None]
        yield "sdpa, a key more", True, lambda q, k, v: F.scaled_dot_product_attention(
            q, F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0)), attn_mask=bias)
    if row.softcap:
        def eager(q, k, v):
            s = row.softcap * torch.tanh(q @ k.transpose(2, 3) / (math.sqrt(row.d) * row.softcap))
            return torch.softmax(s + hidden, dim=3) @ v
        yield "eager, score matrix", True, eager


compiled_flex = None


def flex_peer(row, data):
    """flex_attention: masks and score changes as functions; on CPUs it must be compiled and has no backward."""
    global compiled_flex
    label = torch.repeat_interleave(torch.arange(len(row.docs)), torch.tensor(row.docs)) if row.docs else None

    first = int(row.sink)  # with a sink, key 0 is a key more, as above: on CPUs there is no return_lse to correct by

    def mask_mod(b, h, q, k):
        if row.sink:
            return k <= q + first
        seen = k >= 0
        if row.causal:
            seen = seen & (k <= q)
        if row.window >= 0:
            seen = seen & (k >= q - row.window)
        if row.prefix >= 0:
            seen = seen & ((k < row.prefix) | (k <= q))
        if row.docs:
            seen = seen & (label[q] == label[k])
        return seen

    def softcap_mod(score, b, h, q, k):
        return row.softcap * torch.tanh(score / row.softcap)

    def alibi_mod(score, b, h, q, k):
        return score - data.slopes[h] * (q - k).abs()

    def sink_mod(score, b, h, q, k):
        return torch.where(k == 0, data.sink[h], score)

    score_mod = softcap_mod if row.softcap else alibi_mod if row.alibi else sink_mod if row.sink else None
    blocks = create_block_mask(mask_mod, None, None, row.nq, row.nk + first, device="cpu")
    if compiled_flex is None:
        compiled_flex = torch.compile(flex_attention, dynamic=False)

    def call(q, k, v):
        if row.sink:
            k, v = F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
        return compiled_flex(q, k, v, score_mod=score_mod, block_mask=blocks)

    return "flex_attention, compiled", True, call


def calls_of(row, data, which):
    """(name, counts, call without arguments that returns the results of this pass)"""
    peers = list(sdpa_peers(row, data))
    if which == "forward":
        if not row.plain():
            peers.append(flex_peer(row, data))
        for name, counts, function in peers:
            def forward(function=function):
                with torch.no_grad():
                    return [function(data.q, data.k, data.v)]
            yield name, counts, forward
        return
    for name, counts, function in peers:
        leaves = [x.detach().requires_grad_() for x in (data.q, data.k, data.v)]
        out = function(*leaves)
        yield name, counts, lambda out=out, leaves=leaves: torch.autograd.grad(out, leaves, data.d_o, retain_graph=True)


# ---- measuring ------------------------------------------------------------------------------------------------------


def difference(ours, theirs):
    return max(((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)).item()
               for a, b in zip(ours, theirs))


def turn(call, times):
    """One or more timed calls; short ones are repeated, so that the first of them pays for waking threads up."""
    time.sleep(0.02)  # the other side's idle threads stop spinning
    spent = 0.0
    while spent < 0.2:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        spent += times[-1]


def measure(library, row, which, floor, threads, arguments):
    data = Data(row, arguments.layout)
    burst = Burst(library, row, data, threads)
    burst.forward()  # also gives backward its o and statistics
    ours = getattr(burst, which)
    expected, calls, notes, agree = ours(), [], [], True
    for name, counts, call in calls_of(row, data, which):
        try:
            error = difference(expected, call())
        except Exception as reason:  # no compiler, no support: a line of the table, not the end of the run
            notes.append(f"{name}: does not run ({type(reason).__name__})")
            print(f"  {name}: {str(reason).strip().splitlines()[:1]}", file=sys.stderr)
            continue
        if not error <= TOLERANCE[row.dtype]:
            agree = False
            notes.append(f"{name}: DISAGREES, {error:.1e}")
        calls.append((name, counts, call, error, []))
    mine, start, turns = [], time.perf_counter(), 0
    while calls and turns < arguments.alternations and (turns < 3 or time.perf_counter() - start < arguments.budget):
        turn(ours, mine)
        for _, _, call, _, times in calls:
            turn(call, times)
        turns += 1
    burst.free()

    flop = 2 * burst.pairs * row.h * (2 * row.d if which == "forward" else 5 * row.d)
    peers = [{"name": name, "counts": counts, "difference": error, "seconds_best": min(times),
              "seconds_median": statistics.median(times)} for name, counts, _, error, times in calls]
    result = {"row": row.name, "pass": which, "threads": threads, "floor": floor, "agree": agree, "turns": turns,
              "isa": burst.isa, "notes": notes, "peers": peers}
    counting = [peer for peer in peers if peer["counts"]]
    if counting:
        best = min(peer["seconds_best"] for peer in counting)
        result.update(seconds_best=min(mine), seconds_median=statistics.median(mine), gflops=flop / min(mine) / 1e9,
                      peer_gflops=flop / best / 1e9, ratio=best / min(mine),
                      ratio_median=min(peer["seconds_median"] for peer in counting) / statistics.median(mine),
                      peer=min(counting, key=lambda peer: peer["seconds_best"])["name"])
    result["verdict"] = verdict(result)
    return result


def verdict(result):
    if not result["agree"]:
        return "DISAGREE"
    if "ratio" not in result:
        return "no peer"
    if result["floor"] is None:
        return "-"
    return "pass" if result["ratio"] >= result["floor"] else "MISS"


# ---- the table ------------------------------------------------------------------------------------------------------


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def markdown(results, about):
    lines = ["# Burst beside PyTorch", "",
             f"Burst {about['burst']} ({about['isa']}), PyTorch {about['torch']}, {about['processor']}; "
             f"{about['layout']} buffers for both. ms and ratio from the best call of all turns, the ratio of medians "
             "in brackets; the peer is the fastest way PyTorch offers. A ratio above 1 means that Burst is faster; "
             "the floor is the ratio that we want at least."
             + (" PyTorch's own tile kernels (AMX) die here of an illegal instruction, in any product of bf16 matrices: it "
                f"runs with {LIMIT[0]}={LIMIT[1]}." if LIMITED else ""), "",
             "| row | pass | threads | Burst ms | PyTorch ms | ratio | floor | | peer |",
             "|---|---|---|---|---|---|---|---|---|"]
    for r in results:
        rest = [f"{p['name']} {p['seconds_best'] * 1e3:.4g} ms" for p in r["peers"] if p["name"] != r.get("peer")]
        peer = "; ".join([r.get("peer", "none")] + rest + r["notes"])
        floor = "" if r["floor"] is None else f"{r['floor']:.2f}"
        figures = "| | | "
        if "ratio" in r:
            mine, theirs = r["seconds_best"] * 1e3, r["seconds_best"] * r["ratio"] * 1e3
            figures = f"{mine:.4g} | {theirs:.4g} | **{r['ratio']:.2f}** ({r['ratio_median']:.2f})"
        lines.append(f"| {r['row']} | {r['pass']} | {r['threads']} | {figures} | {floor} | {r['verdict']} | {peer} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="lengths / 8, 3 turns: shows that it works, not how fast")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows whose 'name pass' matches: '*decode*'")
    parser.add_argument("--threads", default="1,2", help="thread counts, e.g. 1,2")
    parser.add_argument("--alternations", type=int, default=10, help="turns per row (default 10)")
    parser.add_argument("--budget", type=float, default=240, help="seconds after which a row stops at 3 turns or more")
    parser.add_argument("--layout", choices=("bhnd", "bnhd"), default="bhnd", help="order in memory (default bhnd)")
    parser.add_argument("--library", default=ROOT / "build/release/libburst.so", help="libburst.so to load")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the tables (default docs; build if partial)")
    arguments = parser.parse_args()
    partial = arguments.quick or arguments.only != "*"
    out = arguments.out or ROOT / ("build" if partial else "docs")
    if arguments.quick:
        arguments.alternations = min(arguments.alternations, 3)

    library = Library(arguments.library)
    results = []
    for threads in [int(x) for x in arguments.threads.split(",")]:
        torch.set_num_threads(threads)
        torch._dynamo.reset()  # compiled code keeps its number of threads
        for row in rows(8 if arguments.quick else 1):
            for which, floor in zip(row.passes, row.floor):
                if not fnmatch.fnmatch(f"{row.name} {which}", arguments.only):
                    continue
                result = measure(library, row, which, floor, threads, arguments)
                results.append(result)
                ratio = f"{result['ratio']:.2f}x of {result['peer']}" if "ratio" in result else "-"
                print(f"{row.name}, {which}, {threads} threads: {ratio}, {result['verdict']}", file=sys.stderr)
    if not results:
        parser.error(f"no row matches '{arguments.only}'")
    about = {"burst": library.c.burst_version().decode(), "isa": ", ".join(dict.fromkeys(r["isa"] for r in results)), "torch": torch.__version__,
             "processor": processor(), "layout": arguments.layout}
    text = markdown(results, about)
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.md").write_text(text)
    (out / "peers.json").write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    return 0 if all(r["agree"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
