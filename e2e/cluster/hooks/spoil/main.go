// Spoil is what upstream's shim runs for OnDefineDomain in the tests of what goes wrong: a domain that libvirt refuses.
package main

import (
	"flag"
	"fmt"
	"strings"
)

func main() {
	domain := flag.String("domain", "", "the domain's XML")
	flag.String("vmi", "", "the VirtualMachineInstance, as JSON")
	flag.Parse()
	fmt.Print(strings.ReplaceAll(*domain, ">hvm<", ">spoilt<"))
}
