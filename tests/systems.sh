#!/usr/bin/env bash
# Every system against the oracle, over threads and over MPI, for 1 to 5 ranks; counted bytes, messages and memory against the
# formulas; what a system cannot take is refused with the reason.
# Usage: systems.sh BURST HAS_RIVALS [LAUNCHER...]
set -euo pipefail
burst=$1
rivals=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
systems=flash,ring,ring-zigzag,ring-striped,burst,burst-q,burst-o,burst-serial,gather,ulysses
[ "$rivals" = 1 ] && systems=$systems,rsa,burst-gao

# Of every run: all systems are there (bench compares each with the oracle before it runs it), and what was sent and held is
# what the formulas say.
judge() { # FILE, what was run
    python3 - "$1" "$systems" <<'PYTHON' || {
import json
import sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
names = sys.argv[2].split(",")
assert [line["system"] for line in lines] == [name for name in names for _ in range(2)], lines
for line in lines:
    assert line["bytes_sent_all"] == line["bytes_formula_all"], line
    assert line["messages_sent_all"] == line["messages_formula_all"], line
    # the allocator gives a little more than is asked for, and every block has a line before it
    held, formula = line["memory_bytes"], line["memory_formula"]
    assert 0.97 * formula <= held <= 1.03 * formula + 20000, (line["system"], held, formula)
    assert (line["bytes_sent_all"] > 0) == (line["ranks"] > 1), line
by_name = {(line["system"], line["pass"]): line for line in lines}
if by_name["burst-o", "backward"]["ranks"] > 1:
    assert by_name["burst-o", "backward"]["bytes_sent_all"] > by_name["burst-q", "backward"]["bytes_sent_all"]
PYTHON
        echo "FAILED: $2"
        exit 1
    }
}

word() { # ranks: heads that they divide
    case $1 in
    5) echo b2h10g5n133k91d16v24:causal ;;
    *) echo b2h12g12n133k91d16v24:causal ;;
    esac
}
for ranks in 1 2 3 4 5; do
    for extra in "" ":window=40/7"; do
        timeout 120 "$burst" bench "$(word $ranks)$extra" --ranks $ranks --system $systems --repeat 1 --threads 1 --json \
            >"$work/out" </dev/null
        judge "$work/out" "$ranks threads$extra"
    done
    if [ $# -gt 0 ]; then
        timeout 120 "$@" -n $ranks "$burst" bench "$(word $ranks)" --system $systems --repeat 1 --threads 1 --json \
            >"$work/out" </dev/null
        judge "$work/out" "$ranks processes"
    fi
done
# the same members in teams of different sizes, one after another
if [ "$rivals" = 1 ]; then
    timeout 60 "$burst" bench b1h4n64d16 --ranks 2,4,3 --system rsa,burst-gao --repeat 2 --threads 1 --json >"$work/out" </dev/null
    [ "$(grep -c '"bytes_sent_all"' "$work/out")" -eq 12 ]
fi
# forward alone, a few queries, more keys than queries, many slices
for word in "b1h4n64d16 --forward-only" b1h4g4n3k50d16v8:causal; do
    # shellcheck disable=SC2086
    timeout 120 "$burst" bench $word --ranks 4 --system $systems --repeat 1 --threads 1 --json >"$work/out" </dev/null
    python3 -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) >= 10 and all(line["bytes_sent_all"] == line["bytes_formula_all"] for line in lines), lines
' "$work/out"
done
for word in b1h4n64k112d512 b1h4n1000k2000d64:window=30/9; do
    timeout 120 "$burst" bench $word --ranks 4 --system $systems --repeat 1 --threads 1 --json >"$work/out" </dev/null
    judge "$work/out" "$word"
done
# grouped heads: kv heads are fewer than the ranks; and 16 bits, which the rivals do not take
systems=ring,burst,burst-q,burst-o,gather,ulysses
for word in b1h8g2n128d16:causal b1h8n600d16:blocks=4/0.5 b1h8g2n130d16:bf16:sink b2h8g8n64d16:docs=20/44:causal:f16:alibi; do
    timeout 120 "$burst" bench $word --ranks 4 --system $systems --repeat 1 --threads 2 --json >"$work/out" </dev/null
    judge "$work/out" "$word"
done

fails() { # CODE TEXT ARGUMENTS...
    local code=$1 text=$2 actual=0
    shift 2
    "$burst" "$@" >"$work/out" 2>&1 </dev/null || actual=$?
    if [ $actual != "$code" ] || ! grep -qF -- "$text" "$work/out"; then
        echo "FAILED: burst $*: exit code $actual, expected $code and: $text"
        cat "$work/out"
        exit 1
    fi
}
fails 2 "6 query heads are not a multiple of 4 ranks" check b1h6n30d8 --ranks 4 --system ulysses
fails 2 "6 query heads are not a multiple of 4 ranks" bench b1h6n30d8 --ranks 4 --system ulysses
fails 0 "6 query heads are not a multiple of 4 ranks" bench b1h6n30d8 --ranks 4 --system ulysses,burst --repeat 1
fails 2 'is none of flash, rsa' check b1h6n30d8 --ranks 4 --system ringo
fails 2 "names burst twice" bench b1h6n30d8 --ranks 4 --system burst,burst
fails 2 "takes none of their options" bench b1h6n30d8 --ranks 4 --system burst --partition zigzag
fails 2 "several systems are for burst bench" check b1h6n30d8 --ranks 4 --system burst,ring
fails 2 "--unchecked is for burst bench --system" bench b1h6n30d8 --unchecked
fails 2 "out of memory: needs" bench b1h4n512d64 --ranks 2 --system burst --memory 1m
fails 0 "K and V gathered" plan b1h4n512d64 --ranks 2 --system gather
fails 2 "it has no plan to print" plan b1h4n512d64 --ranks 2 --system rsa
if [ "$rivals" = 1 ]; then
    fails 2 "f32 words only" check b1h2n30d8:bf16 --ranks 2 --system rsa
    fails 2 "masks are full, causal and windows only" check b1h2n30d8:docs=10/20 --ranks 2 --system burst-gao
    fails 2 "no softcap, ALiBi or sinks" check b1h2n30d8:sink --ranks 2 --system rsa
else
    fails 2 "built without OpenBLAS" check b1h2n30d8 --ranks 2 --system rsa
fi
# A limit between two systems: one stops, the other runs.
"$burst" bench b1h4n2048d32:causal --ranks 4 --system rsa,burst --memory 12m --repeat 1 --json >"$work/out" || true
if [ "$rivals" = 1 ]; then
    python3 - "$work/out" <<'PYTHON'
import json
import sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert lines[0]["refused"].startswith("out of memory: needs ") and lines[0]["memory_formula"] > 12 << 20, lines[0]
assert [line.get("pass") for line in lines[1:]] == ["forward", "backward"], lines
assert all(line["memory_bytes"] < 12 << 20 for line in lines[1:]), lines
PYTHON
fi
echo "systems agree with the oracle and with their formulas"
