# Results of sets of upstream's specs as a page of docs/. Input: sets.json; $results: the results in the same order.
def cell: gsub("\\|"; "\\|");
def passed: map(select(.result == "passed")) | length;
def spec: "| \(.name | cell) | \(.result) | \(.why // .message // "" | cell) |";
# Where specs ran with other commits than the result's own, that is said.
def ran: .commit as $last | .specs | map(.commit // $last) | group_by(.) | sort_by(-length)
  | if length > 1 then ["By podvirt's commit: " + (map("\(length) specs with \(.[0])") | join(", ")) + "."] else [] end;
def told: [.how | select(. != null and . != "")]
  + (if .stubs == [] then [] else ["What podvirt had not when these specs ran, and what stood in for it: \(.stubs | join(", "))."] end)
  + ran | join("\n");

"# Upstream's own tests

KubeVirt's functional tests (\($results[0].release)) are a Go module. `make conformance` builds them and runs them against podvirt on the
cluster of two nodes of this repository, as they are. Nothing stands in for a part of podvirt, except where that is said below.
The guests are not upstream's, which no package registry has: they are small Linux systems with the names, users, prompts and programs that
the tests look for (`e2e/conformance/guests`). In place of BusyBox's `nc` and of Python they have scripts around socat.

| tests | passed | of | podvirt | when |
|---|---|---|---|---|",
(to_entries[] | $results[.key] as $r | "| [\(.value.title)](#\(.value.title | ascii_downcase | gsub("[^a-z0-9 -]"; "") | gsub(" "; "-"))) | \($r.specs | passed) | \($r.specs | length) | \($r.commit) | \($r.date) |"),
(to_entries[] | $results[.key] as $r | .value |
  "
## \(.title)

\(.about) `make conformance FILTER='\(.filter)'`

**\($r.specs | passed) of \($r.specs | length)** pass (\($r.date), podvirt at \($r.commit); \($r.machine)).
\($r | told)
",
  if .every then
    "| spec | result | why |
|---|---|---|",
    ($r.specs | sort_by(.result != "passed" | not)[] | spec)
  else
    "| file | passed | of |
|---|---|---|",
    ($r.specs | group_by(.file)[] | "| `\(.[0].file)` | \(passed) | \(length) |"),
    "
These do not pass:

| spec | result | why |
|---|---|---|",
    ($r.specs[] | select(.result != "passed") | spec)
  end),
"
Written by `e2e/conformance/results page`; the results beside it have every spec, and its time."
