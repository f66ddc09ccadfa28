#!/bin/bash
# Two "hosts" on this machine: network namespaces with names of their own, joined by a link
# of limited rate. A job of two ranks on each, under mpirun over TCP, must compute what the
# same ranks compute on one host, bit for bit; and a rank that is killed ends it.
#
#   check-hosts.sh ANGEL
set -euo pipefail
angel=$(realpath "$1")
cd "$(dirname "$0")/../.."

skip() {
    echo "check-hosts: skipped, $1"
    [ -z "${CHECK_RESULTS:-}" ] || echo "0 0 1" >>"$CHECK_RESULTS"
    exit 0
}

command -v mpirun >/dev/null || skip "there is no mpirun (apt-get install openmpi-bin)"
command -v ip >/dev/null && command -v tc >/dev/null ||
    skip "there is no ip or tc (apt-get install iproute2)"
[ "$(id -u)" = 0 ] || skip "making network namespaces takes root"
a=angel-$$-a b=angel-$$-b
ip netns add "$a" 2>/dev/null || skip "network namespaces are not permitted here"

dir=$(mktemp -d)
clean() {
    for host in "$a" "$b"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$host" 2>/dev/null || true
        rm -rf "/etc/netns/$host"
    done
    rm -rf "$dir"
}
trap clean EXIT

make_hosts() {
    ip netns add "$b" &&
        ip link add "v$$a" netns "$a" type veth peer name "v$$b" netns "$b" || return 1
    local host end address
    for host in "$a" "$b"; do
        end=v$$${host: -1}
        [ "$host" = "$a" ] && address=10.77.0.1 || address=10.77.0.2
        ip -n "$host" address add "$address/24" dev "$end"
        ip -n "$host" link set "$end" up
        ip -n "$host" link set lo up
        tc -n "$host" qdisc add dev "$end" root tbf rate 2gbit burst 4mb latency 50ms || return 1
        mkdir -p "/etc/netns/$host"
        printf '127.0.0.1 localhost\n10.77.0.1 %s\n10.77.0.2 %s\n' "$a" "$b" \
            >"/etc/netns/$host/hosts"
    done
}
make_hosts || skip "links between namespaces cannot be made here"

# What mpirun starts its daemon on the other host with, in place of ssh.
cat >"$dir/agent" <<'AGENT'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
AGENT
chmod +x "$dir/agent"
printf '%s slots=2\n%s slots=2\n' "$a" "$b" >"$dir/hosts"

common=('model={vocab: 257, layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}'
    data.train=core/ data.seq_len=32 train.global_batch=8 train.micro_batch=1
    train.steps=5 train.threads=1 checkpoint.every=5 checkpoint.resume=never log.every=1
    parallel.dp=2 parallel.pp=2 parallel.zero=1)

across() { # KEYS...
    timeout -k 5 120 ip netns exec "$a" unshare -u sh -c 'hostname "$0"; exec "$@"' "$a" \
        mpirun --allow-run-as-root --mca plm_rsh_agent "$dir/agent" \
        --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --hostfile "$dir/hosts" -np 4 \
        "$angel" pretrain "${common[@]}" "$@" </dev/null
}

figures() {
    jq -c 'select(.kind == "train") | [.step, .loss, .grad_norm]' "$1/metrics.jsonl"
}

failed=0
check() { # WHAT STATUS
    [ "$2" = 0 ] && echo "ok      $1" || { echo "failed  $1" && failed=$((failed + 1)); }
}

"$angel" pretrain "${common[@]}" checkpoint.dir="$dir/one" --threads-ranks 4 --quiet
status=0
across checkpoint.dir="$dir/two" --quiet >"$dir/log" 2>&1 || status=$?
[ "$status" = 0 ] || tail -20 "$dir/log"
check "dp 2 x pp 2 over two hosts ends well" "$status"
sent=$(ip netns exec "$a" cat "/sys/class/net/v$$a/statistics/tx_bytes")
echo "        $sent bytes went from one host to the other"
status=0
[ "$sent" -gt 100000 ] || status=1
check "the ranks talked over the link" "$status"
status=0
diff <(figures "$dir/one") <(figures "$dir/two") &&
    "$angel" ckpt diff "$dir/one" "$dir/two" >/dev/null 2>&1 || status=1
check "the same bits as on one host" "$status"

# Kill the last rank of a long run: the others end, and say why.
{
    code=0
    across train.steps=1000000 checkpoint.every=0 checkpoint.dir="$dir/long" \
        >"$dir/log" 2>&1 || code=$?
    echo "$code" >"$dir/status"
} &
job=$!
for _ in $(seq 200); do
    grep -q '^step ' "$dir/log" 2>/dev/null && break
    sleep 0.1
done
victim=$(ip netns pids "$b" | while read -r pid; do
    grep -qz '^pretrain$' "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
done | tail -n 1) || true
begin=$SECONDS
[ -n "$victim" ] && kill -9 "$victim"
wait "$job"
status=0
[ -n "$victim" ] && [ "$(cat "$dir/status")" != 0 ] && [ $((SECONDS - begin)) -le 10 ] ||
    status=1
[ "$status" = 0 ] || tail -20 "$dir/log"
grep '^angel: ' "$dir/log" | tail -n 2 | sed 's/^/        /'
check "a killed rank ends the job within 10 s (took $((SECONDS - begin)) s)" "$status"

echo "$((4 - failed)) passed, $failed failed"
[ -z "${CHECK_RESULTS:-}" ] || echo "$((4 - failed)) $failed 0" >>"$CHECK_RESULTS"
[ "$failed" = 0 ]
