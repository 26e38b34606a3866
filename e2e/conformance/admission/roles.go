package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
	"sigs.k8s.io/yaml"
)

// compareRoles notes each right of users that one side's roles give and the other's do not, and labels that differ.
func compareRoles(manifest string, note func(string)) (count int, err error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return 0, err
	}
	ours := map[string]*rbacv1.ClusterRole{}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		role := &rbacv1.ClusterRole{}
		if err := yaml.Unmarshal(document, role); err != nil {
			return 0, fmt.Errorf("%s: %w", manifest, err)
		}
		if role.Kind == "ClusterRole" {
			ours[role.Name] = role
		}
	}
	for _, object := range rbac.GetAllCluster() {
		theirs, is := object.(*rbacv1.ClusterRole)
		if !is {
			continue
		}
		count++
		own, found := ours[theirs.Name]
		if !found {
			note("role " + theirs.Name + ": podvirt has none")
			continue
		}
		differ("role "+theirs.Name, anyOf(theirs.Labels), anyOf(own.Labels), note)
		left, right := rights(theirs), rights(own)
		for _, one := range slices.Sorted(maps.Keys(left)) {
			if !right[one] {
				note("role " + theirs.Name + ": upstream alone lets " + one)
			}
		}
		for _, one := range slices.Sorted(maps.Keys(right)) {
			if !left[one] {
				note("role " + theirs.Name + ": podvirt alone lets " + one)
			}
		}
	}
	return count, nil
}

// rights are a role's rules, one by one.
func rights(role *rbacv1.ClusterRole) map[string]bool {
	all := map[string]bool{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	return all
}

func anyOf(labels map[string]string) any {
	all := map[string]any{}
	for key, value := range labels {
		all[key] = value
	}
	return all
}
