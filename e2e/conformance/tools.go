//go:build tools

// Package conformance names what e2e/mk-conformance builds: the tests of the upstream project, and what runs several of them side by side.
package conformance

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "kubevirt.io/kubevirt/tests"
)
