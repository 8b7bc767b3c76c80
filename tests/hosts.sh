#!/usr/bin/env bash
# Emulated hosts: network namespaces on a bridge, joined by cables of a chosen rate; MPI ranks run across them.
#   hosts.sh BURST            checks words over 2 and 4 hosts
#   hosts.sh BURST measure    also measures what a link that takes half as long as the computation costs, with and
#                             without overlap, against the same plan unshaped
#   hosts.sh BURST run MBIT HOSTS ARGUMENT...   runs `burst ARGUMENT...`, a rank on each host, over links of so many Mbit/s
# Where namespaces are not allowed it says so and exits with 77 (skipped).
set -euo pipefail
burst=$(realpath "$1")
mode=${2:-check}
prefix=burst$$
work=$(mktemp -d)

skip() {
    echo "skipped: $*"
    exit 77
}
cleanup() {
    for name in $(ip netns list 2>/dev/null | awk -v p="$prefix" 'index($1, p) == 1 { print $1 }'); do
        ip netns delete "$name" || true
        rm -rf "/etc/netns/$name"
    done
    rm -rf "$work"
}
trap cleanup EXIT
[ "$(id -u)" -eq 0 ] || skip "emulated hosts need root"
for tool in ip tc unshare mpirun.openmpi; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
ip netns add "${prefix}_sw" 2>/dev/null || skip "network namespaces are not allowed here"
ip -n "${prefix}_sw" link add br0 type bridge 2>/dev/null || skip "bridges are not allowed here"
ip -n "${prefix}_sw" link set br0 up

in_host() { # index, command...: with a host name and a TMPDIR of its own, or ranks would be taken for one node's
    local host=$1
    shift
    unshare --uts sh -c 'hostname "$1"; shift; TMPDIR=$1; export TMPDIR; shift; exec "$@"' sh "h$host" "$work/tmp$host" \
        ip netns exec "${prefix}_h$host" "$@"
}

make_host() { # index
    local ns=${prefix}_h$1 port=p$1
    ip netns add "$ns"
    mkdir -p "/etc/netns/$ns" "$work/tmp$1"
    for i in 0 1 2 3; do echo "10.77.0.$((10 + i)) h$i"; done >"/etc/netns/$ns/hosts"
    echo "127.0.0.1 localhost" >>"/etc/netns/$ns/hosts"
    ip -n "${prefix}_sw" link add "$port" type veth peer name e0 netns "$ns"
    ip -n "${prefix}_sw" link set "$port" master br0 up
    ip -n "$ns" addr add "10.77.0.$((10 + $1))/24" dev e0
    ip -n "$ns" link set e0 up
    ip -n "$ns" link set lo up
}
for host in 0 1 2 3; do make_host "$host"; done

shape() { # rate in Mbit/s, or "none"
    for host in 0 1 2 3; do
        tc -n "${prefix}_sw" qdisc del dev "p$host" root 2>/dev/null || true
        tc -n "${prefix}_h$host" qdisc del dev e0 root 2>/dev/null || true
        [ "$1" = none ] && continue
        # a faster link needs a larger bucket, or it never reaches its rate
        local bucket="burst 128kb limit 1mb"
        [ "${1%.*}" -gt 2000 ] && bucket="burst 256kb limit 2mb"
        tc -n "${prefix}_sw" qdisc add dev "p$host" root tbf rate "${1}mbit" $bucket
        tc -n "${prefix}_h$host" qdisc add dev e0 root tbf rate "${1}mbit" $bucket
    done
}

# mpirun's way to another host: skips options, takes the host, runs the rest there.
cat >"$work/agent" <<AGENT
#!/usr/bin/env bash
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\${1#h}
shift
exec unshare --uts sh -c 'hostname "\$1"; TMPDIR=\$2; export TMPDIR; exec ip netns exec "\$3" sh -c "\$4"' sh \
    "h\$host" "$work/tmp\$host" "${prefix}_h\$host" "\$*"
AGENT
chmod +x "$work/agent"

on_hosts() { # how many (x ranks on each, 1), command...
    local count=${1%x*} each=1 list
    [ "$1" = "$count" ] || each=${1#*x}
    shift
    list=h0:$each
    for ((i = 1; i < count; i++)); do list=$list,h$i:$each; done
    in_host 0 mpirun.openmpi --allow-run-as-root --mca plm rsh --mca plm_rsh_agent "$work/agent" \
        --mca plm_rsh_no_tree_spawn 1 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_flags 1 --bind-to none --host "$list" "$@"
}

if [ "$mode" = run ]; then
    shape "$3"
    hosts=$4
    shift 4
    on_hosts "$hosts" "$burst" "$@" </dev/null
    exit
fi
shape 1000
for hosts in 2 4 2x2; do # 2x2: some links lend, some copy
    for word in b1h4n900d64:causal b1h4g2n701k1003d48:bf16:sink:window=100/20 b2h2n333d32:docs=100/0/233:causal:alibi; do
        timeout 60 bash -c "$(declare -f on_hosts in_host); work=$work prefix=$prefix; on_hosts $hosts '$burst' check $word --threads 1 --timeout 30" \
            </dev/null | head -n 1
    done
done
[ "$mode" = measure ] || exit 0

# ---- what overlap is worth ----------------------------------------------------------------------------------------
# Each pass has its own rate, because it has its own bytes and its own computation.
word=${3:-b1h2n32768d128:causal}
rounds=${4:-3}
run() { # options...: prints "pass seconds bytes" lines
    on_hosts 2 "$burst" bench "$word" --threads 1 --repeat 1 --json "$@" </dev/null |
        python3 -c 'import json, sys
for line in sys.stdin:
    if line.startswith("{"):
        r = json.loads(line)
        print(r["pass"], r["seconds_best"], int(r["bytes_sent"]), r["hidden"])'
}
value() { awk -v pass="$1" -v field="$2" '$1 == pass { print $field }'; }
best() { sort -g | head -n 1; }

# The rate comes from the best of several unshaped runs: from one slow run it would be too low.
shape none
for ((n = 0; n < rounds; n++)); do run; done >"$work/first"
for pass in forward backward; do
    bytes=$(value $pass 3 <"$work/first" | head -n 1)
    rate=$(awk -v s="$(value $pass 2 <"$work/first" | best)" -v b="$bytes" 'BEGIN { printf "%.1f", 2 * 8e-6 * b / s }')
    : >"$work/plain" >"$work/shaped" >"$work/serial"
    for ((n = 0; n < rounds; n++)); do
        shape none
        run | value $pass 2 >>"$work/plain"
        shape "$rate"
        run >"$work/last"
        value $pass 2 <"$work/last" >>"$work/shaped"
        value $pass 4 <"$work/last" >"$work/hidden"
        run --no-overlap | value $pass 2 >>"$work/serial"
    done
    awk -v pass=$pass -v rate="$rate" -v p="$(best <"$work/plain")" -v s="$(best <"$work/shaped")" \
        -v n="$(best <"$work/serial")" -v h="$(cat "$work/hidden")" -v b="$bytes" 'BEGIN {
        printf "%s at %s Mbit/s, %.2f of the computation: unshaped %.2f s, shaped %.2f s (%.3f), without overlap %.2f s (%.3f), %.0f %% hidden\n",
            pass, rate, 8e-6 * b / rate / p, p, s, s / p, n, n / p, 100 * h }'
done
