//go:build tools

// Package conformance names what e2e/mk-conformance builds of the upstream project.
package conformance

import _ "kubevirt.io/kubevirt/tests"
