# shellcheck shell=bash disable=SC2034,SC2154  # whoever sources it sets and reads these
# SPDX-License-Identifier: Apache-2.0
# Hosts of one machine, for scripts that source it: network namespaces on a bridge, each with a name of its own, host1, host2, ...
# at 10.77.0.1, 10.77.0.2, ... Needs `stoch`, the program; sets `work`, a folder that is gone at the end with all processes of the hosts, `source`, and `switch`.

# skip WHY: exit code 77, or 1 where hosts are required. Continuous integration requires MPI, and may have no root.
required=STOCH_REQUIRE_HOSTS
skip() {
  if [ "${!required:-}" = 1 ]; then
    echo "$test_name: $required=1: $1" >&2
    exit 1
  fi
  echo "$test_name: skipped: $1"
  exit 77
}
need() { command -v "$1" >/dev/null || skip "no $1 ($2)"; }

test_name=ranks/$(basename "$0")
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
need ip iproute2
required=STOCH_REQUIRE_MPI need mpirun openmpi-bin
[ -f "$(dirname "$stoch")/libstoch_mpi.so" ] || required=STOCH_REQUIRE_MPI skip "libstoch_mpi.so is not built"

work=$(mktemp -d)
switch="st$$s"
host_of() { echo "st$$h$1"; }
pids_on() { ip netns pids "$(host_of "$1")" 2>/dev/null || true; }
kill_hosts() {
  local i
  for i in $(seq "$hosts"); do pids_on "$i" | xargs -r kill -9 2>/dev/null || true; done
}
# at_end: what a script adds to it.
at_end() { :; }
cleanup() {
  local name
  at_end
  kill_hosts
  for name in $(seq -f "st$$h%g" "$hosts") "$switch"; do ip netns delete "$name" 2>/dev/null || true; done
  rm -rf "$work"
}

# join_host I: what it has as eth0 is up, with its address.
join_host() {
  ip -n "$switch" link set "port$1" master bridge up
  ip -n "$(host_of "$1")" addr add "10.77.0.$1/24" dev eth0
  ip -n "$(host_of "$1")" link set eth0 up
}
# slow_host I MS PERCENT: from now on its frames take so long each way, and so many are lost.
slow_host() {
  ip -n "$(host_of "$1")" link delete eth0
  ip -n "$switch" tuntap add dev "port$1" mode tap
  ip -n "$(host_of "$1")" tuntap add dev eth0 mode tap
  "$source/tests/tools/ranks/relay.py" "$switch" "port$1" "$(host_of "$1")" eth0 "$2" "$3" >"$work/relay" 2>&1 &
  for _ in $(seq 100); do
    grep -q ready "$work/relay" && break
    sleep 0.1
  done
  join_host "$1"
}
# make_hosts COUNT
make_hosts() {
  local i
  hosts=$1
  trap cleanup EXIT
  ip netns add "$switch" 2>/dev/null || skip "no network namespace can be made here"
  ip -n "$switch" link add bridge type bridge 2>/dev/null || skip "the kernel has no bridge"
  ip -n "$switch" link set bridge up
  for i in $(seq "$hosts"); do
    ip netns add "$(host_of "$i")"
    ip -n "$switch" link add "port$i" type veth peer name eth0 netns "$(host_of "$i")"
    join_host "$i"
    ip -n "$(host_of "$i")" link set lo up
  done
}
# on_host I WORD...: there. The mounts are those of this machine: `ip netns exec` has another /sys, without control groups.
on_host() {
  local i=$1
  shift
  nsenter "--net=/run/netns/$(host_of "$i")" unshare -u sh -c "hostname host$i; exec \"\$@\"" sh "$@"
}

failed=0
# fail WHY: says it, and what the last command wrote to $work/err.
fail() {
  echo "FAILED $1" >&2
  sed 's/^/    /' "$work/err" >&2 || true
  failed=1
}
