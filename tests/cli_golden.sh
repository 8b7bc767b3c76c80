#!/usr/bin/env bash
# The command as a user meets it: exit codes, sentences of refusal, help, JSON. What does not depend on the machine is
# compared word for word with tests/golden/.
# Usage: cli_golden.sh BURST [--update]
set -uo pipefail
burst=$1
update=${2:-}
golden=$(cd "$(dirname "$0")/golden" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

complain() {
    echo "FAILED: $*"
    failed=1
}

# code NUMBER ARGUMENTS...: runs the command, keeps stdout and stderr, compares the exit code.
code() {
    local expected=$1 actual=0
    shift
    "$burst" "$@" >"$work/out" 2>"$work/err" </dev/null || actual=$?
    [ "$actual" = "$expected" ] || {
        complain "burst $*: exit code $actual, expected $expected"
        cat "$work/out" "$work/err"
    }
}
says() { # TEXT: stderr holds it
    grep -qF -- "$1" "$work/err" || {
        complain "stderr lacks: $1"
        cat "$work/err"
    }
}
prints() { # TEXT: stdout holds it
    grep -qF -- "$1" "$work/out" || {
        complain "stdout lacks: $1"
        cat "$work/out"
    }
}
quiet() { [ ! -s "$work/err" ] || { complain "stderr is not empty"; cat "$work/err"; }; }
same() { # NAME: stdout, then stderr, as in golden/NAME
    cat "$work/out" "$work/err" >"$work/both"
    if [ "$update" = --update ]; then
        cp "$work/both" "$golden/$1"
    else
        diff -u "$golden/$1" "$work/both" || complain "differs from golden/$1"
    fi
}

# ---- usage ------------------------------------------------------------------------------------------------------

code 0 --help && same help.txt
code 0 check -h && same help.txt
code 0 --version && prints "burst 0."
code 2 && same no_command.txt
code 2 fly && same unknown_command.txt
code 2 check --fast b1h1n1d1 && same unknown_option.txt
code 2 check b1h1n1d1 --threads && same missing_value.txt
code 2 check --threads=0 b1h1n1d1 && same bad_threads.txt
code 2 check --threads two b1h1n1d1 && says 'not "two"'
code 2 check --json=1 b1h1n1d1 && says "--json takes no value"
code 2 check --isa mmx b1h1n1d1 && same bad_isa.txt
code 2 check --dtype f8 b1h1n1d1 && same bad_dtype.txt
code 0 check --q-tile 48 --k-tile 96 b1h2n500d32:causal && prints "ok"
BURST_ISA=scalar code 0 check b1h1n8d4 && prints "ok, scalar"
BURST_ISA=mmx code 2 check b1h1n8d4 && says 'BURST_ISA'
BURST_ISA=mmx code 0 check --isa scalar b1h1n8d4 && prints "ok, scalar"
for command in check bench plan; do
    code 2 $command --json b1h8 && prints '"word":"b1h8","ok":false'
    code 2 $command --json b1h3g2n9d4 && prints '"status":"BURST_INVALID"'
done
code 2 check --repeat 3 b1h1n1d1 && says "--repeat is for burst bench"
code 0 plan b1h8n20000000d128:causal && prints "workspace  " # half a terabyte, which nobody takes
code 0 plan b1h1n9d4:f64 --json && prints '"isa":"scalar"'
code 0 check b1h1n9d4:f64 && prints "ok, scalar"
code 0 check --forward-only b64h8n1k100000d1:bf16 && prints "64 rows"
code 0 check --threads 2 b1h8n8192d16:sink:bf16 && prints "d_sink is not compared"
code 2 check b1h1n8d8:scale=1e-38 && says 'scale is 1e-38'
code 2 bench b1h8g9n4d4 && says BURST_INVALID
code 2 check --seed -1 b1h1n1d1 && says "--seed expects a whole number"
code 2 check && says "check needs a word or --list FILE"
code 2 bench && says "bench needs a word"
code 2 plan && says "plan needs a word"
code 2 info b1h1n1d1 && says "info takes no word"
code 2 check --list "$work/none" && says "cannot read"

# ---- ranks ------------------------------------------------------------------------------------------------------

code 2 check --ranks 0 b1h1n1d1 && says "--ranks expects a whole number from 1"
code 2 check --ranks 2,3 b1h1n1d1 && says "several numbers of --ranks are for burst bench"
code 2 check --ranks 1000 b1h1n1d1 && says "there are 256 threads at most"
code 2 check --transport pigeon b1h1n1d1 && says 'auto, threads or mpi, not "pigeon"'
code 2 check --partition rings b1h1n1d1 && says 'contiguous, zigzag or striped, not "rings"'
code 2 check --side-forward v b1h1n1d1 && says '--side-forward expects auto, q or k, not "v"'
code 2 check --side-backward 1 b1h1n1d1 && says '--side-backward expects auto, q or k, not "1"'
code 2 check --timeout soon b1h1n1d1 && says '--timeout expects seconds'
code 2 check --ranks 2 --narrow-gradients b1h1n8d4 && says "bf16 and f16 problems only"
for way in contiguous zigzag striped; do
    for side in q k; do
        code 0 check --ranks 3 --partition $way --side-forward $side --side-backward $side b1h2n50d8:causal
        prints "3 ranks of 1 thread"
    done
done
code 0 check --ranks 2 --no-overlap --narrow-gradients --timeout 30 b1h2n50d8:causal:bf16 --json && prints '"ranks":2'
code 0 plan --ranks 64 b1h8n1000000d128:causal
for line in "ranks      64, zigzag, busiest / mean 1.000" "rank 63    queries 492187-507811" "Q side travels" "K side travels" \
    "round 64 "; do
    prints "$line"
done
code 0 plan --ranks 5 b1h2n3d8 && prints "queries none"
code 0 plan --ranks 4 --json b1h8n4096d128:bf16 && prints '"chosen":'
code 0 bench --ranks 1,2 --repeat 2 b1h2n64d8 && prints "times the speed of 1 rank"

# ---- refused words ----------------------------------------------------------------------------------------------

for word in b1h8 b1h8n4d4:causal=1 b1h1n9d4:docs=4/4 b1h1n9d4:slices=0-9x0-9:causal b1h1n9d4:f8 \
    b1h1n99999999999999999999d1; do
    code 2 check "$word"
    echo "$word" >>"$work/refusals"
    cat "$work/err" >>"$work/refusals"
done
mv "$work/refusals" "$work/out" && : >"$work/err" && same refused_words.txt
code 2 check b1h8g3n4d4 && says BURST_INVALID
code 2 bench b1h8g3n4d4 && says BURST_INVALID
code 2 plan b1h1n4d513 && says '"b1h1n4d513": BURST_'
code 2 check b1h1n9d4:slices=0-9x0-9,0-1x0-1 && says BURST_INVALID
code 2 check b1h1n64d64 --memory 1 && says BURST_MEMORY

# ---- work -------------------------------------------------------------------------------------------------------

code 0 check b1h2n40d16:causal --threads 1 && quiet && prints "d_v " && prints "threshold" && prints "ok"
code 0 check --forward-only b1h2n40d16 && prints "lse "
grep -q d_q "$work/out" && complain "--forward-only still has gradients"
code 0 check b1h2n40d16 --dtype bf16 && prints "b1h2n40d16:bf16"
code 0 check b1h2n40d16 --from-lse --seed 3
code 0 check b1h1n0k5d4 && code 0 check b1h1n5k0d4:sink
printf '# words\nb1h2n40d16 # one\n\n  b1h2n30k50d8:causal\n' >"$work/list"
code 0 check --list "$work/list" && prints "2 passed, 0 failed"
printf 'b1h2n40d16\nb1h2\n' >"$work/list"
code 2 check --list "$work/list" && prints "1 passed, 1 failed" && says "at the end: expected 'n'"
code 0 plan b1h2n40d16:causal && prints "b1h2n40d16:causal" && quiet
code 0 plan b1h8n1k131072d128 --forward-only && prints "504 tasks; without statistics 63, of up to 8 kv heads each"
code 0 info && prints "cores" && prints "scalar"
code 0 bench b1h1n64d32 --threads 1 --repeat 2 && quiet && prints "2 rounds" && prints "% of peak"
code 0 demo b1h2n300d16:causal --threads 1 && prints "score matrix would have taken" && prints "% of peak"

# ---- JSON -------------------------------------------------------------------------------------------------------

valid() { # EXPRESSION over `lines`, the list of objects on stdout
    python3 -c "
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert lines and ($1), lines
" "$work/out" || complain "JSON: $1"
}
code 0 check b1h2n40d16:sink b1h1n9d4 --json
valid 'len(lines) == 2 and lines[0]["word"] == "b1h2n40d16:sink" and lines[0]["ok"] is True'
valid 'all(e["error"] <= e["threshold"] for line in lines for e in line["errors"].values())'
valid 'set(lines[0]["errors"]) == {"o", "lse", "d_q", "d_k", "d_v", "d_sink"} and len(lines[1]["errors"]) == 5'
code 2 check b1h8g3n4d4 --json
valid 'lines[0]["ok"] is False and lines[0]["status"] == "BURST_INVALID" and lines[0]["message"]'
code 0 bench b1h1n64d32 --threads 1 --repeat 2 --json
valid '[line["pass"] for line in lines] == ["forward", "backward"]'
valid 'all(line["threads"] == 1 and line["ranks"] == 1 and line["isa"] for line in lines)'
valid 'all(line["word"] == "b1h1n64d32" for line in lines)'
valid 'all(0 < line["seconds_best"] <= line["seconds_median"] for line in lines)'
valid 'all(abs(line["percent_of_peak"] - 100 * line["gflops"] / line["peak_gflops"]) < 1e-6 for line in lines)'
valid 'all(line["achieved_gbps"] is None and line["read_gbps"] is None for line in lines)'
code 0 bench b1h1n1k64d32 --threads 1 --repeat 2 --json --forward-only
valid 'len(lines) == 1 and lines[0]["achieved_gbps"] > 0 and lines[0]["read_gbps"] > 0'
code 0 info --json
valid 'lines[0]["version"] and lines[0]["cores"] >= 1 and "scalar" in lines[0]["isas"]'

# ---- what cannot be written or read ------------------------------------------------------------------------------

for arguments in "check b1h1n8d8" "check b1h1n8d8 --json" "info --json" "plan b1h1n8d8 --json"; do
    # shellcheck disable=SC2086
    "$burst" $arguments >/dev/full 2>/dev/null && complain "$arguments: a full disk went unnoticed"
done
code 2 check --list /
code 2 check --list /dev/null
code 2 check b1h1n4d4:amp=1e300
code 2 bench --from-lse b1h1n4d4
code 0 check -- b1h1n4d4

# ---- the man page says what --help says -------------------------------------------------------------------------

page=$(cd "$(dirname "$0")/.." && pwd)/docs/burst.1
for option in $("$burst" --help | grep -oE -- '--[a-z-]+' | sort -u); do
    grep -qF -- "${option//-/\\-}" "$page" || complain "docs/burst.1 does not mention $option"
done
for part in causal window= prefix= sinktokens= align= docs= kdocs= blocks= lengths= klengths= shared= slices= softcap= \
    alibi sink scale= amp= layout=; do
    grep -qF -- "$part" "$page" || complain "docs/burst.1 does not mention $part"
done

[ $failed = 0 ] && echo "the command behaves"
exit $failed
