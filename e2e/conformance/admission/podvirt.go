package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	admissionv1 "k8s.io/api/admission/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// podvirt are this project's webhooks: a process that answers a line for each line.
type podvirt struct {
	process *exec.Cmd
	to      io.WriteCloser
	from    *bufio.Reader
}

// newPodvirt starts the program `reviews` with the configuration of the KubeVirt object.
func newPodvirt(program, configuration string) (*podvirt, error) {
	process := exec.Command(program, configuration)
	process.Stderr = os.Stderr
	to, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	return &podvirt{process: process, to: to, from: bufio.NewReaderSize(from, 1<<20)}, nil
}

func (p *podvirt) close() error {
	if err := p.to.Close(); err != nil {
		return err
	}
	return p.process.Wait()
}

func (p *podvirt) Mutate(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	return p.ask("mutate", request)
}

func (p *podvirt) Validate(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	return p.ask("validate", request)
}

func (p *podvirt) ask(what string, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	review := admissionv1.AdmissionReview{Request: request}
	review.APIVersion, review.Kind = "admission.k8s.io/v1", "AdmissionReview"
	line, err := json.Marshal(map[string]any{"task": what, "review": review})
	if err != nil {
		return nil, err
	}
	if _, err := p.to.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("podvirt's webhooks do not listen: %w", err)
	}
	answer, err := p.from.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("podvirt's webhooks do not answer: %w", err)
	}
	var told admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &told); err != nil {
		return nil, fmt.Errorf("podvirt's webhooks answer %q: %w", answer, err)
	}
	if told.Response == nil {
		return nil, fmt.Errorf("podvirt's webhooks answer %q", answer)
	}
	return told.Response, nil
}

// podvirtDefinitions reads the CustomResourceDefinitions that podvirt installs.
func podvirtDefinitions(directory string) ([]*extv1.CustomResourceDefinition, error) {
	var list []*extv1.CustomResourceDefinition
	for _, name := range []string{"virtualmachines.yaml", "virtualmachineinstances.yaml"} {
		text, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return nil, err
		}
		definition := &extv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, definition); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, definition)
	}
	return list, nil
}
