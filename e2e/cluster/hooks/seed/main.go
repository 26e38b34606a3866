// Seed is what upstream's shim runs for PreCloudInitIso in the tests: the guest's user data gets another text in the place of
// one that stands in it.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"
)

func main() {
	given := flag.String("cloud-init", "", "what cloud-init is given, as JSON")
	flag.String("vmi", "", "the VirtualMachineInstance, as JSON")
	flag.Parse()
	var data map[string]any
	if err := json.Unmarshal([]byte(*given), &data); err != nil {
		log.Fatalf("cloud-init: %v", err)
	}
	text, _ := data["UserData"].(string)
	data["UserData"] = strings.ReplaceAll(text, "before-the-hook", "after-the-hook")
	if err := json.NewEncoder(os.Stdout).Encode(data); err != nil {
		log.Fatal(err)
	}
}
