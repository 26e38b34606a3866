# shellcheck shell=bash
# Sourced by checks of storage. Everything is in the namespace $ns, which "begin" makes anew and which goes with the check.
k() { kubectl -n "$ns" "$@"; }
begin() { ns=$1; t0=$SECONDS
  kubectl delete namespace "$ns" --ignore-not-found --wait >/dev/null; kubectl create namespace "$ns" >/dev/null
  trap 'kubectl delete namespace "$ns" --wait=false >/dev/null' EXIT; }
# The namespace and all volumes of it are gone.
finish() { trap - EXIT; kubectl delete namespace "$ns" --wait >/dev/null
  until_is 60 "volumes that are left" 0 volumes_left; say "$1, after $((SECONDS - t0)) s"; }
volumes_left() { kubectl get pv -o json | jq --arg ns "$ns" '[.items[] | select(.spec.claimRef.namespace == $ns)] | length'; }
wrong() { k get pods,pvc -o wide >&2; k get events --sort-by=.lastTimestamp | tail -n 20 >&2; die "$*"; }

# claim NAME CLASS MODE ACCESS SIZE [SOURCE]: SOURCE is of a dataSource: KIND/NAME.
claim() { local source=''
  [ -z "${6:-}" ] || source=", dataSource: {kind: ${6%/*}, name: ${6#*/}$([ "${6%/*}" = PersistentVolumeClaim ] || echo ', apiGroup: snapshot.storage.k8s.io')}"
  echo "---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: $1}, spec: {storageClassName: $2, volumeMode: $3, accessModes: [$4], resources: {requests: {storage: $5}}$source}}"; }
# pod NAME NODE CLAIM[=MODE[=ro]]...: a pod with these claims, each at /NAME of the claim.
pod() { local name=$1 node=$2 item claim mode ro volumes='' mounts='' devices=''; shift 2
  for item; do
    IFS== read -r claim mode ro <<<"$item"
    volumes+="{name: $claim, persistentVolumeClaim: {claimName: $claim, readOnly: $([ -n "$ro" ] && echo true || echo false)}}, "
    if [ "${mode:-Filesystem}" = Block ]; then devices+="{name: $claim, devicePath: /$claim}, "; else mounts+="{name: $claim, mountPath: /$claim}, "; fi
  done
  echo "---
{apiVersion: v1, kind: Pod, metadata: {name: $name}, spec: {nodeSelector: {kubernetes.io/hostname: $node}, terminationGracePeriodSeconds: 1, volumes: [$volumes],
  containers: [{name: c, image: podvirt/tools:dev, imagePullPolicy: Never, command: [sleep, infinity], volumeMounts: [$mounts], volumeDevices: [$devices]}]}}"; }
ready() { k wait --for=condition=Ready --timeout=90s "${@/#/pod/}" >/dev/null || wrong "$* do not start"; }
in_pod() { local pod=$1; shift; k exec "$pod" -- sh -ec "$*" || wrong "in $pod: $*"; }
is() { [ "$1" = "$2" ] || wrong "$3: \"$1\" instead of \"$2\""; }
# until SECONDS WHAT WANTED CMD...
until_is() { local end=$((SECONDS + $1)) what=$2 wanted=$3 got; shift 3
  until got=$("$@" 2>/dev/null) && [ "$got" = "$wanted" ]; do [ $SECONDS -lt $end ] || wrong "$what: \"$got\" instead of \"$wanted\""; sleep 0.3; done; }
# What fills a block of a device, and reads it.
put='printf %-4096s' get='head -c 4096'

