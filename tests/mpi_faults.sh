#!/usr/bin/env bash
# Under mpirun: a rank that is stopped is named by the others in time; a rank that is killed ends the job with a message;
# neither leaves a process behind (and memory that ranks show each other has no name, so none can be left).
# Usage: mpi_faults.sh BURST LAUNCHER...
set -euo pipefail
burst=$1
shift
work=$(mktemp -d)
seed=$((RANDOM * 32768 + RANDOM)) # in the command line: finds our processes and no others
trap 'kill -9 $(ours) 2>/dev/null || true; rm -rf "$work"' EXIT
ours() { pgrep -f "burst check .*--seed $seed" | while read -r pid; do
    case $(cat "/proc/$pid/comm" 2>/dev/null) in burst) echo "$pid" ;; esac
done; }
fail() {
    echo "FAILED: $*"
    cat "$work/out"
    exit 1
}

start() { # a job of 3 ranks that computes for a while
    "$@" -n 3 "$burst" check b1h8n16384d128:causal --threads 1 --timeout 6 --seed "$seed" >"$work/out" 2>&1 &
    job=$!
    for ((n = 0; n < 100; n++)); do
        sleep 0.1
        [ "$(ours | wc -l)" -eq 3 ] && break
    done
    [ "$(ours | wc -l)" -eq 3 ] || fail "3 ranks were to start"
    sleep 4 # data are made, the ring turns
}
finish() { # within so many seconds, not with 0, and nothing is left
    local code=0
    for ((n = 0; n < 10 * $1; n++)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    kill -0 "$job" 2>/dev/null && fail "the job goes on"
    wait "$job" || code=$?
    [ "$code" -ne 0 ] || fail "the job ended as if all were well"
    for ((n = 0; n < 30; n++)); do
        [ -z "$(ours)" ] && break
        sleep 0.1
    done
    [ -z "$(ours)" ] || fail "processes are left: $(ours)"
}
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -nE 's/^(OMPI_COMM_WORLD_RANK|PMI_RANK)=//p' | head -n 1; }
victim() { for pid in $(ours); do [ "$(rank_of "$pid")" = "$1" ] && echo "$pid"; done; }

start "$@"
kill -STOP "$(victim 1)"
for ((n = 0; n < 250; n++)); do
    grep -q 'rank 1 has stalled' "$work/out" && break
    sleep 0.1
done
grep -q 'rank 1 has stalled' "$work/out" || fail "a stopped rank was to be named"
kill -CONT "$(victim 1)" 2>/dev/null || true # or the launcher cannot end it
finish 20
grep -q 'rank 1 has stalled.*channel' "$work/out" || fail "the channel was to be named"
grep 'has stalled' "$work/out" | head -n 1

start "$@"
kill -KILL "$(victim 2)"
finish 20
grep -qiE 'rank 2|signal 9|killed' "$work/out" || fail "a message was to say why the job ended"
grep -iE 'rank 2|signal 9|killed' "$work/out" | head -n 1
echo "a killed rank ended the job"
