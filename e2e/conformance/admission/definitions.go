package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"sigs.k8s.io/yaml"
)

// makers make the CustomResourceDefinitions that upstream's operator installs.
var makers = []func() (*extv1.CustomResourceDefinition, error){
	components.NewKubeVirtCrd, components.NewMigrationPolicyCrd, components.NewPresetCrd, components.NewReplicaSetCrd,
	components.NewVirtualMachineBackupCrd, components.NewVirtualMachineBackupTrackerCrd, components.NewVirtualMachineCloneCrd,
	components.NewVirtualMachineClusterInstancetypeCrd, components.NewVirtualMachineClusterPreferenceCrd, components.NewVirtualMachineCrd,
	components.NewVirtualMachineExportCrd, components.NewVirtualMachineInstanceCrd, components.NewVirtualMachineInstanceMigrationCrd,
	components.NewVirtualMachineInstancetypeCrd, components.NewVirtualMachinePoolCrd, components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineRestoreCrd, components.NewVirtualMachineSnapshotContentCrd, components.NewVirtualMachineSnapshotCrd,
}

//go:embed definitions.yaml
var deliberateText []byte

// Deliberate is a kind of difference between the definitions that is meant.
type Deliberate struct {
	// Is is a regular expression that the whole difference matches.
	Is string `json:"is"`
	// Because is why the definitions differ.
	Because string `json:"because"`

	pattern *regexp.Regexp
	met     int
}

// compareDefinitions tells where the CustomResourceDefinitions and the roles for users of the two sides differ, and what an API
// server refuses of podvirt's. What is said for people is left aside.
func compareDefinitions(directory, roles string) (failed bool, err error) {
	ours, err := readDefinitions(directory)
	if err != nil {
		return false, err
	}
	var deliberate []*Deliberate
	if err := yaml.UnmarshalStrict(deliberateText, &deliberate); err != nil {
		return false, fmt.Errorf("definitions.yaml: %w", err)
	}
	for _, one := range deliberate {
		if one.pattern, err = regexp.Compile("^(?:" + one.Is + ")$"); err != nil || one.Because == "" {
			return false, fmt.Errorf("definitions.yaml: %q: 'because' is required: %w", one.Is, err)
		}
	}
	count := 0
	note := func(difference string) {
		meant := false
		for _, one := range deliberate {
			if one.pattern.MatchString(difference) {
				one.met++
				meant = true
			}
		}
		if meant {
			count++
			return
		}
		failed = true
		fmt.Println("definitions:", difference)
	}
	for _, make := range makers {
		theirs, err := make()
		if err != nil {
			return false, err
		}
		own, found := ours[theirs.Name]
		if !found {
			note(theirs.Name + ": podvirt has none")
			continue
		}
		for _, problem := range validate(own) {
			note(theirs.Name + ": " + problem)
		}
		left, err := comparable(theirs)
		if err != nil {
			return false, err
		}
		right, err := comparable(own)
		if err != nil {
			return false, err
		}
		differ(theirs.Name, left, right, note)
	}
	compared, err := compareRoles(roles, note)
	if err != nil {
		return false, err
	}
	for _, one := range deliberate {
		if one.met == 0 {
			failed = true
			fmt.Printf("definitions: definitions.yaml has %q, and there is no such difference\n", one.Is)
		}
	}
	fmt.Printf("definitions: %d kinds and %d roles, %d deliberate differences\n", len(makers), compared, count)
	return failed, nil
}

func readDefinitions(directory string) (map[string]*extv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return nil, err
	}
	found := map[string]*extv1.CustomResourceDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		definition := &extv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, definition); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if definition.Kind == "CustomResourceDefinition" {
			found[definition.Name] = definition
		}
	}
	return found, nil
}

// validate is what an API server has against the schemas of a definition.
func validate(definition *extv1.CustomResourceDefinition) []string {
	var problems []string
	for _, version := range definition.Spec.Versions {
		internal := &apiextensions.CustomResourceValidation{}
		if err := extv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
			problems = append(problems, err.Error())
			continue
		}
		shape, err := schema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		for _, problem := range schema.ValidateStructural(nil, shape) {
			problems = append(problems, version.Name+": "+problem.Error())
		}
	}
	return problems
}

// comparable is a definition as JSON with the API server's defaults.
func comparable(definition *extv1.CustomResourceDefinition) (any, error) {
	definition = definition.DeepCopy()
	extv1.SetDefaults_CustomResourceDefinition(definition)
	extv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
	text, err := json.Marshal(definition.Spec)
	if err != nil {
		return nil, err
	}
	var spec any
	return spec, json.Unmarshal(text, &spec)
}

// differ notes each place where upstream's part of a definition and podvirt's do not say the same.
func differ(path string, theirs, ours any, note func(string)) {
	left, leftIs := theirs.(map[string]any)
	right, rightIs := ours.(map[string]any)
	if !leftIs || !rightIs {
		if !reflect.DeepEqual(theirs, ours) {
			note(fmt.Sprintf("%s: upstream %s, podvirt %s", path, short(theirs), short(ours)))
		}
		return
	}
	keys := slices.Collect(maps.Keys(left))
	for key := range right {
		if _, both := left[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if key == "description" || key == "deprecationWarning" {
			if isText(left[key]) && isText(right[key]) {
				continue
			}
		}
		differ(step(path, key), unordered(key, left[key]), unordered(key, right[key]), note)
	}
}

// isText tells a text for people, or none, from a property that is called so.
func isText(value any) bool {
	_, is := value.(string)
	return is || value == nil
}

// step is the place of a key, written as users write the paths of fields.
func step(path, key string) string {
	switch key {
	case "schema", "openAPIV3Schema", "properties", "versions":
		return path
	case "items":
		return path + "[]"
	case "additionalProperties":
		return path + "{}"
	}
	return path + "." + key
}

// unordered is a value of which the order says nothing: lists of named objects by their names, lists of words sorted.
func unordered(key string, value any) any {
	list, is := value.([]any)
	if !is {
		return value
	}
	switch key {
	case "versions", "additionalPrinterColumns":
		byName := map[string]any{}
		for _, item := range list {
			if object, is := item.(map[string]any); is {
				name, _ := object["name"].(string)
				byName[name] = object
			}
		}
		return byName
	case "required", "enum", "shortNames", "x-kubernetes-list-map-keys":
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b any) int {
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
		return list
	}
	return value
}

// short is a value in a line.
func short(value any) string {
	const most = 120
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	if len(text) > most {
		return string(text[:most]) + "..."
	}
	return string(text)
}
