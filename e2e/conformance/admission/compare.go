package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed differences.yaml
var differencesText []byte

// Difference is a deliberate one: a cause of one side for which the other side has none.
type Difference struct {
	// Refuses is the side that refuses: podvirt or upstream.
	Refuses string `json:"refuses"`
	// Asks limits it to requests `by users`, `by daemons`, or for `nothing`: that leave the accepting side's object as it is.
	Asks string `json:"asks,omitempty"`
	// Cause is a regular expression that the cause matches, written `field: reason: message`.
	Cause string `json:"cause"`
	// Because is why the sides differ.
	Because string `json:"because"`

	pattern *regexp.Regexp
	met     int
}

func readDifferences() ([]*Difference, error) {
	var list []*Difference
	if err := yaml.UnmarshalStrict(differencesText, &list); err != nil {
		return nil, fmt.Errorf("differences.yaml: %w", err)
	}
	for _, one := range list {
		pattern, err := regexp.Compile(one.Cause)
		if err != nil {
			return nil, fmt.Errorf("differences.yaml: %w", err)
		}
		if one.Because == "" || one.Refuses != "podvirt" && one.Refuses != "upstream" {
			return nil, fmt.Errorf("differences.yaml: %q: 'refuses' is podvirt or upstream, and 'because' is required", one.Cause)
		}
		one.pattern = pattern
	}
	return list, nil
}

// Class is how two answers stand to each other.
type Class string

const (
	bothAccept    Class = "both accept"
	bothRefuse    Class = "both refuse"
	notCarriedOut Class = "upstream accepts, podvirt does not carry it out"
	deliberate    Class = "deliberate differences"
	undecided     Class = "undecided"
)

// Comparison counts.
type Comparison struct {
	differences []*Difference
	count       map[Class]int
	samePath    int
	enclosing   int
	notCarried  map[string]int
	// undecided causes, with the first request that has each.
	open map[string]*Open
}

// Open is an undecided cause.
type Open struct {
	Cause   string  `json:"cause"`
	Refuses string  `json:"refuses"`
	Count   int     `json:"count"`
	Request Request `json:"request"`
}

var (
	index     = regexp.MustCompile(`\[\d+\]`)
	unable    = "not supported by podvirt"
	noChanges = "cannot be changed: change the VirtualMachine"
)

// normal is a path without numbers and without what a VirtualMachine adds in front.
func normal(path string) string {
	return strings.TrimPrefix(index.ReplaceAllString(path, "[]"), "spec.template.")
}

// isUnable tells a cause that says that a part of the API is not carried out.
func isUnable(cause Cause) bool {
	return cause.Reason == "FieldValueNotSupported" && strings.Contains(cause.Message, unable) && !strings.HasPrefix(cause.Message, "'' ")
}

// note classes a pair of answers.
func (c *Comparison) note(request Request, podvirt, upstream Answer) Class {
	class := c.class(request, podvirt, upstream)
	c.count[class]++
	return class
}

func (c *Comparison) class(request Request, podvirt, upstream Answer) Class {
	switch {
	case podvirt.allowed() && upstream.allowed():
		return bothAccept
	case !podvirt.allowed() && !upstream.allowed():
		same, around := paths(podvirt.Causes, upstream.Causes)
		if same {
			c.samePath++
		}
		if same || around {
			c.enclosing++
		}
		return bothRefuse
	case upstream.allowed():
		return c.oneSided(request, "podvirt", podvirt.Causes, asks(request, upstream))
	default:
		return c.oneSided(request, "upstream", upstream.Causes, asks(request, podvirt))
	}
}

// asks tells what kind of request it is to the side that accepts it.
func asks(request Request, accepting Answer) string {
	switch {
	case accepting.Unchanged:
		return "nothing"
	case strings.HasPrefix(request.User, "system:serviceaccount:"+installed):
		return "by daemons"
	}
	return "by users"
}

func (c *Comparison) oneSided(request Request, refuses string, causes []Cause, asks string) Class {
	class, isOpen := notCarriedOut, false
	for _, cause := range causes {
		if refuses == "podvirt" && isUnable(cause) {
			continue
		}
		class = deliberate
		if !c.isListed(refuses, cause, asks) {
			isOpen = true
			key := refuses + " refuses " + normal(cause.Field) + ": " + cause.Reason + ": " + generic(cause.Message)
			if c.open[key] == nil {
				c.open[key] = &Open{Cause: cause.String(), Refuses: refuses, Request: request}
			}
			c.open[key].Count++
		}
	}
	if isOpen {
		return undecided
	}
	if class == notCarriedOut {
		for _, cause := range causes {
			c.notCarried[normal(cause.Field)]++
		}
	}
	return class
}

func (c *Comparison) isListed(refuses string, cause Cause, asks string) bool {
	text := index.ReplaceAllString(cause.String(), "[]")
	for _, one := range c.differences {
		if one.Refuses == refuses && (one.Asks == "" || one.Asks == asks) && one.pattern.MatchString(text) {
			one.met++
			return true
		}
	}
	return false
}

var quoted = regexp.MustCompile(`'[^']*'|"[^"]*"|\d+`)

// generic is a message without its values.
func generic(message string) string { return quoted.ReplaceAllString(message, "…") }

// paths tells whether some cause of each side names the same field, or one that is around the other's.
func paths(a, b []Cause) (same, around bool) {
	for _, one := range a {
		for _, other := range b {
			left, right := normal(one.Field), normal(other.Field)
			if left == right {
				return true, true
			}
			if strings.HasPrefix(left, right) || strings.HasPrefix(right, left) {
				around = true
			}
		}
	}
	return false, around
}

// report is the result for people.
func (c *Comparison) report(total int) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	refused := max(c.count[bothRefuse], 1)
	line("%d documents", total)
	line("%6d %s", c.count[bothAccept], bothAccept)
	line("%6d %s; %d %% name the same path, %d %% the same or an enclosing one", c.count[bothRefuse], bothRefuse, c.samePath*100/refused, c.enclosing*100/refused)
	line("%6d %s (%d field paths)", c.count[notCarriedOut], notCarriedOut, len(c.notCarried))
	met := 0
	for _, one := range c.differences {
		if one.met > 0 {
			met++
		}
	}
	line("%6d %s (%d of %d on the list)", c.count[deliberate], deliberate, met, len(c.differences))
	line("%6d %s (%d causes)", c.count[undecided], undecided, len(c.open))
	for _, open := range c.opened() {
		line("  %d × %s refuses %s", open.Count, open.Refuses, open.Cause)
		line("      %s %s %s by %s: %v", open.Request.Operation, open.Request.Kind, open.Request.Base, open.Request.User, open.Request.Edits)
	}
	return out.String()
}

func (c *Comparison) opened() []*Open {
	var list []*Open
	for _, open := range c.open {
		list = append(list, open)
	}
	sort.Slice(list, func(a, b int) bool {
		if list[a].Count != list[b].Count {
			return list[a].Count > list[b].Count
		}
		return list[a].Cause < list[b].Cause
	})
	return list
}
