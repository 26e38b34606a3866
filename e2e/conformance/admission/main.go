// Admission asks upstream's admission webhooks and podvirt's the same questions and tells where they differ.
//
// Each side is an API server in small: its CustomResourceDefinitions, its mutating and its validating webhooks, in the order of
// a real API server. Upstream's webhooks are linked in, podvirt's are a process (apiserver/examples/reviews.rs). The requests
// are documents of bases.yaml with changes that a seed chooses. Differences that are meant stand in differences.yaml, each with
// its reason; any other one fails the program. Before that it compares all CustomResourceDefinitions of the two; what is meant of
// their differences stands in definitions.yaml.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/log"
)

// configuration is what the KubeVirt object of both sides says. podvirt needs no feature gates.
const configuration = `{"developerConfiguration": {"featureGates": [
	"AlignCPUs", "CPUManager", "ContainerPathVolumes", "DeclarativeHotplugVolumes", "DownwardMetrics", "EnableVirtioFsStorageVolumes",
	"ExpandDisks", "ExperimentalIgnitionSupport", "GPUsWithDRA", "HostDevices", "HostDevicesWithDRA", "HostDisk", "IncrementalBackup",
	"PanicDevices", "PasstBinding", "PersistentReservation", "RebootPolicy", "ReservedOverheadMemlock", "Sidecar", "Snapshot",
	"UtilityVolumes", "VMExport", "VSOCK", "VideoConfig", "WorkloadEncryptionSEV"]}}`

func main() {
	reviews := flag.String("reviews", "", "podvirt's program `reviews`")
	crds := flag.String("crds", "", "directory of podvirt's CustomResourceDefinitions")
	roles := flag.String("roles", "", "manifest with podvirt's roles for users")
	seed := flag.Uint64("seed", 1, "seed of the documents")
	count := flag.Int("documents", 5000, "how many documents")
	updates := flag.Bool("updates", true, "a third of the requests are changes of stored documents")
	records := flag.String("records", "", "file for each request with both answers, a line of JSON each")
	only := flag.Int("only", -1, "print this request and both answers alone")
	flag.Parse()
	differ, err := compareDefinitions(*crds, *roles)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	failed, err := run(*reviews, *crds, *seed, *count, *updates, *records, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	if failed || differ {
		os.Exit(1)
	}
}

func newSide(name string, definitions []*extv1.CustomResourceDefinition, hooks Webhooks) (*Side, error) {
	side := &Side{name: name, resources: map[string]*Resource{}, hooks: hooks}
	for _, definition := range definitions {
		resource, err := newResource(definition)
		if err != nil {
			return nil, fmt.Errorf("%s's %s: %w", name, definition.Name, err)
		}
		side.resources[definition.Spec.Names.Kind] = resource
	}
	return side, nil
}

func sides(reviews, crds string) (ours, theirs *Side, end func() error, err error) {
	log.InitializeLogging("admission")
	log.Log.SetIOWriter(discard{})
	config := &v1.KubeVirtConfiguration{}
	if err = json.Unmarshal([]byte(configuration), config); err != nil {
		return nil, nil, nil, err
	}
	linked, err := newUpstream(config)
	if err != nil {
		return nil, nil, nil, err
	}
	definitions, err := upstreamDefinitions()
	if err != nil {
		return nil, nil, nil, err
	}
	if theirs, err = newSide("upstream", definitions, linked); err != nil {
		return nil, nil, nil, err
	}
	if definitions, err = podvirtDefinitions(crds); err != nil {
		return nil, nil, nil, err
	}
	process, err := newPodvirt(reviews, configuration)
	if err != nil {
		return nil, nil, nil, err
	}
	ours, err = newSide("podvirt", definitions, process)
	return ours, theirs, process.close, err
}

type discard struct{}

func (discard) Write(text []byte) (int, error) { return len(text), nil }

// Record is a line of the file of records.
type Record struct {
	Number   int     `json:"number"`
	Class    Class   `json:"class"`
	Request  Request `json:"request"`
	Podvirt  Answer  `json:"podvirt"`
	Upstream Answer  `json:"upstream"`
}

func run(reviews, crds string, seed uint64, count int, updates bool, records string, only int) (bool, error) {
	ours, theirs, end, err := sides(reviews, crds)
	if err != nil {
		return false, err
	}
	differences, err := readDifferences()
	if err != nil {
		return false, err
	}
	generator, err := newGenerator(seed, theirs.resources)
	if err != nil {
		return false, err
	}
	stored, err := accepted(generator, ours, theirs)
	if err != nil {
		return false, err
	}
	comparison := &Comparison{
		differences: differences, count: map[Class]int{}, notCarried: map[string]int{}, open: map[string]*Open{},
	}
	out := json.NewEncoder(discard{})
	if records != "" {
		file, err := os.Create(records)
		if err != nil {
			return false, err
		}
		defer file.Close()
		out = json.NewEncoder(file)
	}
	for number := range count {
		request := generator.next(updates && number%3 == 2)
		if only >= 0 && number != only {
			continue
		}
		podvirt, err := ask(generator, ours, request, stored[ours.name])
		if err != nil {
			return false, err
		}
		upstream, err := ask(generator, theirs, request, stored[theirs.name])
		if err != nil {
			return false, err
		}
		record := Record{Number: number, Class: comparison.note(request, podvirt, upstream), Request: request, Podvirt: podvirt, Upstream: upstream}
		if err := out.Encode(record); err != nil {
			return false, err
		}
		if only >= 0 {
			text, _ := json.MarshalIndent(record, "", " ")
			fmt.Println(string(text))
		}
	}
	fmt.Print(comparison.report(count))
	return comparison.count[undecided] > 0, end()
}

// accepted is every base as each side stores it. Both sides must take all of them.
func accepted(generator *Generator, sides ...*Side) (map[string]map[string]Object, error) {
	stored := map[string]map[string]Object{}
	for _, side := range sides {
		stored[side.name] = map[string]Object{}
		for _, base := range generator.names {
			for _, kind := range []string{"VirtualMachine", "VirtualMachineInstance"} {
				answer, err := side.Review(admissionv1.Create, "jane", generator.document(base, kind), nil)
				if err != nil {
					return nil, err
				}
				if !answer.allowed() {
					return nil, fmt.Errorf("%s refuses the %s %s of bases.yaml: %v", side.name, kind, base, answer.Causes)
				}
				stored[side.name][kind+" "+base] = answer.Stored
			}
		}
	}
	return stored, nil
}

// ask takes a request to a side: a new document, or a change of the one that this side has stored.
func ask(generator *Generator, side *Side, request Request, stored map[string]Object) (Answer, error) {
	var old Object
	document := generator.document(request.Base, request.Kind)
	if request.Operation == "UPDATE" {
		old = stored[request.Kind+" "+request.Base]
		document = clone(old)
	}
	for _, edit := range request.Edits {
		edit.apply(document)
	}
	answer, err := side.Review(admissionv1.Operation(request.Operation), request.User, document, old)
	answer.Unchanged = old != nil && reflect.DeepEqual(old["spec"], document["spec"])
	return answer, err
}
