#!/bin/bash
# Two "hosts" on this machine: network namespaces with names of their own, joined by a link
# of limited rate. A job of two ranks on each, under mpirun over TCP, must compute what the
# same ranks compute on one host, bit for bit; and ranks that are killed or stopped, and a
# link that is cut, end it.
#
#   check-hosts.sh ANGEL [quick]
set -euo pipefail
name=check-hosts
angel=$(realpath "$1")
quick=${2:-}
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tool/ranks-lib.bash
. tests/tool/ranks-lib.bash

command -v mpirun >/dev/null || skip "there is no mpirun (apt-get install openmpi-bin)"
command -v jq >/dev/null || skip "there is no jq (apt-get install jq)"
{ command -v ip && command -v tc; } >/dev/null ||
    skip "there is no ip or tc (apt-get install iproute2)"
[ "$(id -u)" = 0 ] || skip "making network namespaces takes root"
unshare -u true 2>/dev/null || skip "names of hosts are not permitted here"

a=angel-$$-a b=angel-$$-b
link_a=v$$a link_b=v$$b
dir=$(mktemp -d)
clean() {
    kill_all "$dir"
    local host
    for host in "$a" "$b"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$host" 2>/dev/null || true
        rm -rf "/etc/netns/$host"
    done
    rmdir /etc/netns 2>/dev/null || true
    rm -rf "$dir" "${shm:-}"
    # Also segments that were made elsewhere than asked for: the names of hosts are ours.
    rm -f /dev/shm/*_segment."$a".* /dev/shm/*_segment."$b".*
}
trap clean EXIT
shm=$(mktemp -d -p /dev/shm angel-check-$$-XXXXXX 2>/dev/null || mktemp -d)

make_host() { # NAME LINK ADDRESS
    ip -n "$1" address add "$3/24" dev "$2" &&
        ip -n "$1" link set "$2" up &&
        ip -n "$1" link set lo up &&
        tc -n "$1" qdisc add dev "$2" root tbf rate 2gbit burst 4mb latency 50ms &&
        mkdir -p "/etc/netns/$1" &&
        printf '127.0.0.1 localhost\n10.77.0.1 %s\n10.77.0.2 %s\n' "$a" "$b" \
            >"/etc/netns/$1/hosts"
}
{ ip netns add "$a" && ip netns add "$b"; } 2>/dev/null ||
    skip "network namespaces are not permitted here"
{ ip link add "$link_a" netns "$a" type veth peer name "$link_b" netns "$b" &&
    make_host "$a" "$link_a" 10.77.0.1 && make_host "$b" "$link_b" 10.77.0.2; } ||
    skip "links between namespaces cannot be made here"

# What mpirun starts its daemon on the other host with, in place of ssh.
cat >"$dir/agent" <<'AGENT'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
AGENT
chmod +x "$dir/agent"

# Ranks over both hosts, half of them on each.
launch() { # RANKS ARGUMENTS...
    printf "%s slots=$(($1 / 2))\n" "$a" "$b" >"$dir/hosts"
    TMPDIR=$dir timeout -k 5 "${TIMEOUT_S:-120}" ip netns exec "$a" unshare -u \
        sh -c 'hostname "$0"; exec "$@"' "$a" \
        mpirun --allow-run-as-root --mca plm_rsh_agent "$dir/agent" \
        --mca btl tcp,self,vader --mca btl_vader_backing_directory "$shm" \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
        --hostfile "$dir/hosts" -np "$1" "$angel" pretrain "${@:2}" </dev/null
}

sent_bytes() {
    ip netns exec "$a" cat "/sys/class/net/$link_a/statistics/tx_bytes"
}

# ---- the bits of one host ----

layouts=("parallel.dp=2 parallel.pp=2 parallel.zero=1"
    "parallel.dp=2 parallel.pp=2 parallel.zero=3 parallel.schedule=zb train.precision=bf16"
    "parallel.tp=2 parallel.dp=2 parallel.zero=2"
    "parallel.tp=4 train.precision=bf16")
[ -z "$quick" ] || layouts=("${layouts[0]}")
for keys in "${layouts[@]}"; do
    read -ra words <<<"$keys"
    rm -rf "$dir/one" "$dir/two"
    "$angel" pretrain --threads-ranks 4 "${five[@]}" "${words[@]}" \
        checkpoint.dir="$dir/one" --quiet
    before=$(sent_bytes)
    launch 4 "${five[@]}" "${words[@]}" checkpoint.dir="$dir/two" --quiet \
        >"$dir/log" 2>&1 || tail -n 20 "$dir/log"
    sent=$(($(sent_bytes) - before))
    compare "$dir/one" "$dir/two"
    check "over two hosts as on one: $keys: ${difference:-equal}" \
        "$(holds [ -z "$difference" ])"
    check "the ranks talked over the link: $sent bytes" "$(holds [ "$sent" -gt 100000 ])"
done

# ---- sums of the MPI library ----

keys=(parallel.tp=4)
rm -rf "$dir/one" "$dir/two"
"$angel" pretrain --threads-ranks 4 "${five[@]}" "${keys[@]}" checkpoint.dir="$dir/one" \
    --quiet
launch 4 "${five[@]}" "${keys[@]}" parallel.reductions=fast checkpoint.dir="$dir/two" \
    >"$dir/log" 2>&1 || tail -n 20 "$dir/log"
compare "$dir/one" "$dir/two"
distance=$(loss_distance "$dir/one" "$dir/two" 0)
check "parallel.reductions=fast: other bits in${difference:- nothing}, loss $distance" \
    "$(awk -v d="$distance" -v w="$difference" 'BEGIN { print !(w && d <= 1e-5) }')"
check "the banner says so" "$(holds grep -q '^reductions  fast: ' "$dir/log")"

# ---- ranks killed and stopped, a link that is cut ----

# Who is on the other host learns of a death by its rank's words, or the launcher's.
died() { # RANK
    echo "rank $1 died|noticed that process rank $1 "
}
grid=(parallel.dp=2 parallel.pp=2 parallel.zero=1)
trouble "rank 3 killed, on the other host" 4 3 kill_it "$(died 3)" "${grid[@]}"
trouble "rank 3 stopped, deadline 2 s" 4 3 stop_it 'ranks? ([0-2], )*3 did not arrive within 2 s' \
    "${grid[@]}" parallel.deadline_s=2
if [ -z "$quick" ]; then
    trouble "rank 0 killed, on the launcher's host" 4 0 kill_it "$(died 0)" "${grid[@]}"
    trouble "rank 1 killed, alone on its host" 2 1 kill_it "$(died 1)" parallel.dp=2
    trouble "rank 1 stopped, alone on its host" 2 1 stop_it \
        'rank 1 did not arrive within 2 s' parallel.dp=2 parallel.deadline_s=2
    cut_link() { ip -n "$b" link set "$link_b" down; }
    # Open MPI's launcher waits for its daemon behind the link; the ranks do not.
    LAUNCHER_STAYS=1 trouble "the link cut, deadline 2 s" 4 3 cut_link \
        'ranks? [0-3](, [0-3])* did not arrive within 2 s' "${grid[@]}" parallel.deadline_s=2
fi
left=$(find "$shm" /dev/shm -type f \( -path "$shm/*" -o -name "*.$a.*" -o -name "*.$b.*" \) |
    sort -u | wc -l)
check "segments of shared memory left behind: $left" "$(holds [ "$left" = 0 ])"

finish
