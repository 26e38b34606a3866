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
# The name of its store of volumes, as the script storage makes one: podvirt-ID, as of its cgroups.
STORE=podvirt-$ID
# The registry, as pods call it.
REGISTRY=registry.kube-system.svc.cluster.local:5000

# The holder and everything in it keep a lock: the cluster is up exactly as long as a process has it.
is_up() { [ -e "$RUN.lock" ] && ! flock -n -s "$RUN.lock" true; }
need_up() { is_up || die "the cluster is not up; run: make cluster-up"; [ -e "$RUN/ready" ] || die "the cluster is just coming up"; }
owner() { cat "$RUN/owner" 2>/dev/null || echo unknown; }
# A user who names the cluster (PODVIRT_CLUSTER) means it, whichever clone it belongs to.
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

# loops_of STORE: loop devices of volumes in this store, and those by which a kubelet holds them: such a one's file is the node
# in /dev of one of the former.
loops_of() { local name file node backing mine=()
  while read -r name file; do case $file in */"$1"/*) mine+=("$name"); echo "$name" ;; esac; done < <(losetup -nl -O NAME,BACK-FILE)
  for file in "${mine[@]}"; do
    node=$(stat -c '%i %Hd:%Ld' "$file")
    while read -r name backing; do [ "$backing" != "$node" ] || echo "$name"; done < <(losetup -nl -O NAME,BACK-INO,BACK-MAJ:MIN | tr -s ' ')
  done; }
# loops_free STORE: frees them. What is left of a store goes with the last one.
loops_free() { local device; for device in $(loops_of "$1"); do losetup -d "$device" || true; done; }
