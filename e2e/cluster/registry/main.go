// The registry of the test bed: keeps what is pushed to it as long as it runs, on port 5000, without TLS and for anyone.
package main

import (
	"log"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	blobs := os.Args[1]
	server := &http.Server{
		Addr:              ":5000",
		Handler:           registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))),
		ReadHeaderTimeout: time.Minute,
	}
	log.Fatal(server.ListenAndServe())
}
