# shellcheck shell=bash
# Sourced by every script in this directory.
#
# Everything that is built here is an artefact: a directory $CACHE/<name>-<key>, where the key is the hash of what
# it is made from. An artefact appears whole (built aside, then renamed) and is never changed afterwards, so any
# number of tests may use it at once, and a change of a recipe makes a new one.
set -euo pipefail
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
TOP=$(dirname "$E2E")
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/podvirt
SUITE=trixie

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
need() { local c; for c; do command -v "$c" >/dev/null || die "missing command $c; run: make setup"; done; }
need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root (name spaces, a Debian tree)"; }

# key FILE-OR-DIR...: the first 12 digits of the hash of their contents and of $SUITE.
key() { { echo "$SUITE"; find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat; } | sha256sum | cut -c1-12; }

# artefact NAME: where the artefact is, built or not. A recipe that uses another artefact has its key in its own.
artefact() { local root
  root=$(key "$E2E/mk-root")
  case $1 in
    root) echo "$CACHE/root-$root" ;;
    uml) echo "$CACHE/uml-$(key "$E2E/mk-uml")" ;;
    umlwake) echo "$CACHE/umlwake-$(key "$E2E/mk-umlwake" "$E2E/guest/uml")" ;;
    tiny) echo "$CACHE/tiny-$(key "$E2E/mk-tiny" "$E2E/guest/tiny" "$E2E/mk-uml" "$E2E/mk-root")" ;;
    testpmd) echo "$CACHE/testpmd-$(key "$E2E/mk-testpmd" "$E2E/mk-root")" ;;
    debian) echo "$CACHE/debian-$(key "$E2E/mk-debian" "$E2E/guest/debian" "$E2E/mk-root")" ;;
    node) echo "$CACHE/node-$(key "$E2E/cluster/mk-node")" ;;
    kubernetes) echo "$CACHE/kubernetes-$(key "$E2E/cluster/mk-kubernetes" "$E2E/cluster/go")" ;;
    bedimages) echo "$CACHE/bedimages-$(key "$E2E/cluster/mk-bedimages" "$E2E/cluster/oci.sh" "$E2E/cluster/mk-kubernetes" "$E2E/cluster/go" "$E2E/mk-root")" ;;
    layers) echo "$CACHE/layers-$(key "$E2E/cluster/mk-layers" "$E2E/cluster/oci.sh" "$E2E/mk-root")" ;;
    firmware) echo "$CACHE/firmware-$(key "$E2E/cluster/mk-firmware" "$E2E/cluster/oci.sh" "$E2E/mk-root")" ;;
    disks) echo "$CACHE/disks-$(key "$E2E/cluster/mk-disks" "$E2E/cluster/oci.sh" "$E2E/cluster/mk-node" "$E2E/mk-tiny" "$E2E/guest/tiny" "$E2E/mk-uml" "$E2E/mk-root")" ;;
    diskefi) echo "$CACHE/diskefi-$(key "$E2E/cluster/mk-diskefi" "$E2E/cluster/oci.sh" "$E2E/cluster/mk-node" "$E2E/mk-tiny" "$E2E/guest/tiny" "$E2E/mk-uml" "$E2E/mk-root")" ;;
    kernelcards) echo "$CACHE/kernelcards-$(key "$E2E/cluster/mk-kernelcards" "$E2E/cluster/oci.sh" "$E2E/mk-tiny" "$E2E/guest/tiny" "$E2E/mk-uml" "$E2E/mk-root")" ;;
    diskdebian) echo "$CACHE/diskdebian-$(key "$E2E/cluster/mk-diskdebian" "$E2E/cluster/oci.sh" "$E2E/mk-debian" "$E2E/guest/debian" "$E2E/mk-root")" ;;
    traps) echo "$CACHE/traps-$(key "$E2E/cluster/mk-traps" "$E2E/cluster/oci.sh" "$E2E/mk-root")" ;;
    policies) echo "$CACHE/policies-$(key "$E2E/cluster/mk-policies" "$E2E/cluster/oci.sh" "$E2E/cluster/policies")" ;;
    multus) echo "$CACHE/multus-$(key "$E2E/cluster/mk-multus" "$E2E/cluster/oci.sh" "$E2E/cluster/multus")" ;;
    csi) echo "$CACHE/csi-$(key "$E2E/cluster/mk-csi" "$E2E/cluster/oci.sh" "$E2E/cluster/csi")" ;;
    cdi) echo "$CACHE/cdi-$(key "$E2E/cluster/mk-cdi" "$E2E/cluster/oci.sh" "$E2E/cluster/mk-layers" "$E2E/cluster/cdi" "$E2E/mk-root")" ;;
    registry) echo "$CACHE/registry-$(key "$E2E/cluster/mk-registry" "$E2E/cluster/oci.sh" "$E2E/cluster/registry")" ;;
    hooks) echo "$CACHE/hooks-$(key "$E2E/cluster/mk-hooks" "$E2E/cluster/oci.sh" "$E2E/cluster/hooks")" ;;
    sidecars) echo "$CACHE/sidecars-$(key "$E2E/cluster/mk-sidecars" "$E2E/cluster/oci.sh" "$E2E/cluster/hooks" "$E2E/cluster/mk-layers" "$E2E/mk-root")" ;;
    istio) echo "$CACHE/istio-$(key "$E2E/cluster/mk-istio" "$E2E/cluster/istio")" ;;
    envoy) echo "$CACHE/envoy-$(key "$E2E/mk-envoy")" ;;
    conformance) echo "$CACHE/conformance-$(key "$E2E/mk-conformance" "$E2E/conformance/go.mod" "$E2E/conformance/go.sum" "$E2E/conformance/tools.go")" ;;
    admission) echo "$CACHE/admission-$(key "$E2E/mk-admission" "$E2E/conformance/admission")" ;;
    standins) echo "$CACHE/standins-$(key "$E2E/cluster/mk-standins" "$E2E/conformance/guests" "$E2E/cluster/oci.sh" "$E2E/cluster/mk-node" "$E2E/mk-debian" "$E2E/guest/debian/init" "$E2E/mk-tiny" "$E2E/guest/tiny" "$E2E/mk-uml" "$E2E/mk-root")" ;;
    upstream-virtctl) echo "$CACHE/upstream-virtctl-$(key "$E2E/mk-upstream-virtctl" "$E2E/upstream-virtctl")" ;;
    *) die "no artefact is called $1" ;;
  esac; }

# recipe NAME: the script that makes the artefact.
recipe() { local d; for d in "$E2E" "$E2E/cluster"; do [ ! -x "$d/mk-$1" ] || { echo "$d/mk-$1"; return; }; done; die "there is no mk-$1"; }

# needs NAME: the artefacts that its recipe reads, by the recipe's own words.
needs() { { grep -oE '\$\(artefact [a-z-]+\)|\bin_root\b' "$(recipe "$1")" || true; } | sed 's/^in_root$/root/; s/.*artefact //; s/)$//' | sort -u; }

# build NAME...: builds the artefacts that are not there yet by mk-<name> OUT, and first what they need. One builder at a
# time. What takes long shows the last line of its log now and then.
build() { local name dir tmp t0 ticker
  for name; do
    dir=$(artefact "$name"); [ -d "$dir" ] && continue
    build $(needs "$name")
    mkdir -p "$CACHE"; exec 8>"$CACHE/.$name.lock"; flock 8
    if [ ! -d "$dir" ]; then
      say "building $name"; t0=$SECONDS
      tmp=$(mktemp -d "$CACHE/.$name.XXXXXX"); chmod 755 "$tmp"
      while sleep 1 && kill -0 $$ 2>/dev/null; do
        [ $(((SECONDS - t0) % 30)) != 0 ] || say "building $name, $((SECONDS - t0)) s: $(tail -n 1 "$tmp/log")"
      done & ticker=$!
      if ! nice "$(recipe "$name")" "$tmp/out" >"$tmp/log" 2>&1; then tail -n 30 "$tmp/log" >&2; kill $ticker; rm -rf "$tmp"; die "mk-$name failed"; fi
      kill $ticker
      mv "$tmp/log" "$CACHE/$name.log"; mv -T "$tmp/out" "$dir"; rm -rf "$tmp"
      say "$name is ready after $((SECONDS - t0)) s: $dir"
    fi
    exec 8>&-
  done; }

# bin NAME: a program of this project, from $PODVIRT_BIN or from where cargo puts a release build.
bin() { local dir=${PODVIRT_BIN:-${CARGO_TARGET_DIR:-$TOP/target}/release}
  [ -x "$dir/$1" ] || die "$dir/$1 is not built; run: make build"; echo "$dir/$1"; }

# in_root DIR CMD...: runs a command of the Debian tree that sees DIR as /mnt; for building artefacts.
in_root() { unshare -m --propagation private sh -ec 'mount --bind "$1" "$0/mnt"; shift; exec chroot "$0" "$@"' "$(artefact root)" "$@"; }

# apt_sources SUITE: sources.list lines for another suite of the distribution the machine itself is set up for, from
# the same place. apt_options: the machine's own apt settings about fetching, for --aptopt.
apt_sources() { local release base security
  release=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || die "this machine is not a Debian"
  base=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | awk -v r="$release" '$2 == r && $3 == "main" {print $1; exit}')
  [ -n "$base" ] || die "apt has no source for $release main"
  echo "deb $base $1 main"; [ "$1" = sid ] && return
  echo "deb $base $1-updates main"
  security=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | awk -v r="$release-security" '$2 == r {print $1; exit}')
  [ -z "$security" ] || echo "deb $security $1-security main"; }
apt_options() { apt-config dump | grep -E '^Acquire::(http|https|ftp|Check|Retries|ForceIPv)[^ ]* "[^"]+";' || true; }
