//go:build tools

// Package multus pins Multus, whose program is built by its own path.
package multus

import _ "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"
