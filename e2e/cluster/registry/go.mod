// Builds the test bed's registry, which is here. Nothing of it is linked into podvirt.
module podvirt.test/registry

go 1.26.0

require github.com/google/go-containerregistry v0.22.1
