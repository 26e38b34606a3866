# shellcheck shell=bash
# Sourced by the scripts that run outside of the cluster.
#
# A cluster is one process, the holder, with a network, mount and pid namespace of its own: the control plane is there,
# and each node is a further network, mount and pid namespace inside. When the holder ends, however it ends, all of it
# ends: processes, networks, mounts. What is left then are directories, which the next "up" or "down" removes: the run
# directory and the cgroups.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
BED=$E2E/cluster
RUN=${PODVIRT_CLUSTER:-$CACHE/cluster}
ID=$(sha256sum <<<"$RUN" | cut -c1-6)
NODES=(1 2)

# The holder and everything in it keep a lock: the cluster is up exactly as long as somebody has it.
is_up() { [ -e "$RUN.lock" ] && ! flock -n -s "$RUN.lock" true; }
need_up() { is_up || die "the cluster is not up; run: make cluster-up"; [ -e "$RUN/ready" ] || die "the cluster is just coming up"; }
owner() { cat "$RUN/owner" 2>/dev/null || echo unknown; }
# Whoever names the cluster means it, whoever's it is.
mine() { [ -n "${PODVIRT_CLUSTER:-}" ] || [ "$(owner)" = "$TOP" ] || [ ! -d "$(owner)" ]; }

# The first process inside, as it is numbered here.
first() { local holder; holder=$(cat "$RUN/pid"); set -- $(cat "/proc/$holder/task/$holder/children"); echo "$1"; }
# on_network CMD...: CMD here, but on the control plane's network. inside CMD...: CMD in the control plane.
on_network() { nsenter --net="/proc/$(first)/ns/net" "$@"; }
inside() { nsenter -t "$(first)" -m -n -p -i -u env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 ID="$ID" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/kubernetes "$@"; }
# in_node N CMD...
in_node() { local i=$1; shift; inside /scripts/enter "$i" "$@"; }
kubectl() { KUBECONFIG=$RUN/kubeconfig on_network "$(artefact kubernetes)/hyperkube" kubectl "$@"; }

# cgroups_clean [NODE]: cgroups of containers that were killed, deepest first.
cgroups_clean() { local dir try
  for try in {1..50}; do
    for dir in /sys/fs/cgroup/*/"podvirt-$ID-node${1:-}"*; do
      [ ! -d "$dir" ] || find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    compgen -G "/sys/fs/cgroup/*/podvirt-$ID-node${1:-}*" >/dev/null || return 0
    sleep 0.1
  done
  say "cgroups podvirt-$ID-node${1:-} are still in use"; }
