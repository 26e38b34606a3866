package main

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"sigs.k8s.io/yaml"
)

//go:embed bases.yaml
var basesText []byte

// Request is one question to both sides.
type Request struct {
	Base      string `json:"base"`
	Kind      string `json:"kind"`
	Operation string `json:"operation"`
	User      string `json:"user"`
	Edits     []Edit `json:"edits"`
}

// Edit is one change of a document. A value of nothing takes the field away.
type Edit struct {
	Path  []string `json:"path"`
	Value any      `json:"value,omitempty"`
	Take  bool     `json:"take,omitempty"`
}

func (e Edit) String() string {
	if e.Take {
		return strings.Join(e.Path, ".") + " taken away"
	}
	return fmt.Sprintf("%s = %v", strings.Join(e.Path, "."), e.Value)
}

// Generator makes requests: the same seed makes the same ones.
type Generator struct {
	random *rand.Rand
	bases  map[string]Object
	names  []string
	shapes map[string]*schema.Structural
}

func newGenerator(seed uint64, resources map[string]*Resource) (*Generator, error) {
	g := &Generator{random: rand.New(rand.NewPCG(seed, 0)), bases: map[string]Object{}, shapes: map[string]*schema.Structural{}}
	if err := yaml.Unmarshal(basesText, &g.bases); err != nil {
		return nil, err
	}
	for name := range g.bases {
		g.names = append(g.names, name)
	}
	sort.Strings(g.names)
	for kind, resource := range resources {
		g.shapes[kind] = resource.shape
	}
	return g, nil
}

// document makes the whole document of a base.
func (g *Generator) document(base, kind string) Object {
	meta := Object{"name": "vm-" + base, "namespace": "shop"}
	document := Object{"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": meta}
	spec := numbers(clone(plain(g.bases[base]).(Object)))
	if kind == "VirtualMachine" {
		document["spec"] = Object{
			"runStrategy": "Halted",
			"template":    Object{"metadata": Object{"labels": Object{"app": base}}, "spec": spec},
		}
	} else {
		meta["labels"] = Object{"app": base}
		document["spec"] = spec
	}
	return document
}

// plain makes what a YAML library gives into what JSON gives.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name := range value {
			value[name] = plain(value[name])
		}
	case []any:
		for n := range value {
			value[n] = plain(value[n])
		}
	case float64:
		return int64(value)
	}
	return value
}

func numbers(object Object) Object { return plain(object).(Object) }

// next makes a request.
func (g *Generator) next(update bool) Request {
	request := Request{Base: g.pick(g.names), Kind: "VirtualMachineInstance", Operation: "CREATE", User: "jane"}
	if g.random.IntN(2) == 0 {
		request.Kind = "VirtualMachine"
	}
	if update {
		request.Operation = "UPDATE"
		if request.Kind == "VirtualMachineInstance" && g.random.IntN(4) == 0 {
			request.User = "system:serviceaccount:kubevirt:kubevirt-controller"
		}
	}
	document := g.document(request.Base, request.Kind)
	for range 1 + g.random.IntN(2)*g.random.IntN(2) {
		edit, ok := g.edit(request.Kind, document, update)
		if !ok {
			continue
		}
		request.Edits = append(request.Edits, edit)
		edit.apply(document)
	}
	return request
}

func (g *Generator) pick(from []string) string { return from[g.random.IntN(len(from))] }

// edit picks a place of the document by the schema, and a new value for it.
func (g *Generator) edit(kind string, document Object, update bool) (Edit, bool) {
	path, shape, value := []string{"spec"}, g.shapes[kind].Properties["spec"], document["spec"]
	if roll := g.random.IntN(100); roll < 3 || update && roll < 15 {
		return g.label(kind), true
	}
	if kind == "VirtualMachine" && g.random.IntN(100) < 90 {
		path = []string{"spec", "template", "spec"}
		shape = shape.Properties["template"].Properties["spec"]
		value = document["spec"].(Object)["template"].(Object)["spec"]
	}
	for {
		switch here := value.(type) {
		case map[string]any:
			child, there := g.child(path, here, &shape)
			if child == "" {
				return Edit{}, false
			}
			path, value = append(path, child), here[child]
			if shape.AdditionalProperties != nil && shape.AdditionalProperties.Structural != nil && len(shape.Properties) == 0 {
				shape = *shape.AdditionalProperties.Structural
			} else {
				shape = shape.Properties[child]
			}
			if !there {
				return Edit{Path: path, Value: g.value(path, &shape, 0)}, true
			}
			if _, isObject := value.(map[string]any); isObject && len(shape.Properties) > 0 {
				if g.random.IntN(8) == 0 {
					return g.change(path, &shape, value), true
				}
				continue
			}
			if list, isList := value.([]any); isList && len(list) > 0 && shape.Items != nil {
				if g.random.IntN(6) == 0 {
					return g.changeList(path, &shape, list), true
				}
				n := g.random.IntN(len(list))
				path, value, shape = append(path, strconv.Itoa(n)), list[n], *shape.Items
				if _, deeper := value.(map[string]any); deeper && g.random.IntN(10) != 0 {
					continue
				}
			}
			return g.change(path, &shape, value), true
		default:
			return g.change(path, &shape, value), true
		}
	}
}

// outside are parts of the API that other tests compare.
var outside = map[string]bool{"instancetype": true, "preference": true, "dataVolumeTemplates": true, "template": true}

// child picks a field of an object: one that is there, or one that the schema has.
func (g *Generator) child(path []string, here Object, shape *schema.Structural) (string, bool) {
	var there, absent []string
	for name := range here {
		if !outside[name] || len(path) > 1 {
			there = append(there, name)
		}
	}
	for name := range shape.Properties {
		if _, ok := here[name]; !ok && !(outside[name] && len(path) == 1) {
			absent = append(absent, name)
		}
	}
	sort.Strings(there)
	sort.Strings(absent)
	if shape.AdditionalProperties != nil && len(absent) == 0 && len(path) > 2 && g.random.IntN(3) == 0 {
		return g.pick(mapKeys), false
	}
	if len(there) > 0 && (len(absent) == 0 || g.random.IntN(100) < 72) {
		return g.pick(there), true
	}
	if len(absent) > 0 {
		return g.pick(absent), false
	}
	return "", false
}

func (g *Generator) change(path []string, shape *schema.Structural, value any) Edit {
	if g.random.IntN(5) == 0 {
		return Edit{Path: path, Take: true}
	}
	return Edit{Path: path, Value: g.value(path, shape, 0)}
}

// changeList empties a list, says an item twice, or adds one.
func (g *Generator) changeList(path []string, shape *schema.Structural, list []any) Edit {
	switch g.random.IntN(4) {
	case 0:
		return Edit{Path: path, Value: []any{}}
	case 1:
		return Edit{Path: path, Value: append(append([]any{}, list...), g.value(path, shape.Items, 1))}
	case 2:
		return Edit{Path: path, Value: append([]any{}, list[1:]...)}
	default:
		return Edit{Path: path, Value: append(append([]any{}, list...), list[g.random.IntN(len(list))])}
	}
}

// label changes a label or an annotation.
func (g *Generator) label(kind string) Edit {
	at := []string{"metadata"}
	if kind == "VirtualMachine" && g.random.IntN(4) != 0 {
		at = []string{"spec", "template", "metadata"}
	}
	if g.random.IntN(2) == 0 {
		return Edit{Path: append(at, "labels", g.pick(labels)), Value: g.pick([]string{"a", "node01", "true"})}
	}
	return Edit{Path: append(at, "annotations", g.pick(annotations)), Value: g.pick([]string{"", "true", "false", "v3"})}
}

// apply changes a document.
func (e Edit) apply(document Object) bool {
	var set func(value any, path []string) (any, bool)
	set = func(value any, path []string) (any, bool) {
		if len(path) == 0 {
			return copied(e.Value), true
		}
		switch here := value.(type) {
		case nil:
			if e.Take {
				return nil, false
			}
			inner, ok := set(nil, path[1:])
			return Object{path[0]: inner}, ok
		case map[string]any:
			if len(path) == 1 && e.Take {
				delete(here, path[0])
				return here, true
			}
			inner, ok := set(here[path[0]], path[1:])
			if ok {
				here[path[0]] = inner
			}
			return here, ok
		case []any:
			n, err := strconv.Atoi(path[0])
			if err != nil || n >= len(here) {
				return here, false
			}
			if len(path) == 1 && e.Take {
				return append(append([]any{}, here[:n]...), here[n+1:]...), true
			}
			inner, ok := set(here[n], path[1:])
			if ok {
				here[n] = inner
			}
			return here, ok
		}
		return value, false
	}
	_, ok := set(document, e.Path)
	return ok
}

func copied(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return clone(value)
	case []any:
		list := make([]any, len(value))
		for n := range value {
			list[n] = copied(value[n])
		}
		return list
	}
	return value
}
