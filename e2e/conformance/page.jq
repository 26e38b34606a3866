# A result as a page of docs/.
def cell: gsub("\\|"; "\\|");
def passed: map(select(.result == "passed")) | length;
(.specs | group_by(.file)) as $files
| "# Upstream's own tests of networks

KubeVirt's functional tests (\(.release)) are a Go module. `make conformance` builds them and runs them against podvirt on the
cluster of two nodes of this repository, as they are. This page is about those that are labelled `sig-network` and need no
hardware: neither SR-IOV nor macvtap. **\(.specs | passed) of \(.specs | length)** pass (\(.date), podvirt at \(.commit); \(.machine)).

\(if .stubs == [] then "Nothing stands in for a part of podvirt." else "What podvirt had not when these specs ran, and what stood in for it: \(.stubs | join(", "))." end)
The guests are not upstream's, which no package registry has: they are small Linux systems with the names, users, prompts and programs that
the tests look for (`e2e/conformance/guests`). In place of BusyBox's `nc` and of Python they have scripts around socat. The
tests of Istio and of NetworkPolicies run with the real ones in the cluster (`e2e/cluster/mesh up`, `e2e/cluster/policies.yaml`).

\(.how)

| file | passed | of |
|---|---|---|",
  ($files[] | "| `\(.[0].file)` | \(passed) | \(length) |"),
  "
## Those that do not pass

| spec | result | why |
|---|---|---|",
  (.specs[] | select(.result != "passed") | "| \(.name | cell) | \(.result) | \(.why // .message | cell) |"),
  "
Written by `e2e/conformance/results page e2e/conformance/network.json`; the result has every spec, and its time."
