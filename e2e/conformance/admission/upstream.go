package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	admissionv1 "k8s.io/api/admission/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubecli"
	netadmitter "kubevirt.io/kubevirt/pkg/network/admitter"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/mutating-webhook/mutators"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/validating-webhook/admitters"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

// installed is the namespace of both sides' daemons.
const installed = "kubevirt"

type admitter interface {
	Admit(context.Context, *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse
}

// upstream are the webhooks of the project whose API podvirt has.
type upstream struct {
	machines  *mutators.VMsMutator
	instances *mutators.VMIsMutator
	vms       admitter
	created   admitter
	updated   admitter
}

func informer(of runtime.Object) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{}, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// newUpstream makes upstream's webhooks with this configuration of the KubeVirt object, in a cluster that has nothing else.
func newUpstream(configuration *v1.KubeVirtConfiguration) (*upstream, error) {
	kubevirts, definitions := informer(&v1.KubeVirt{}), informer(&extv1.CustomResourceDefinition{})
	err := kubevirts.GetStore().Add(&v1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: installed, ResourceVersion: "1"},
		Spec:       v1.KubeVirtSpec{Configuration: *configuration},
		Status:     v1.KubeVirtStatus{Phase: v1.KubeVirtPhaseDeployed, DefaultArchitecture: "amd64"},
	})
	if err != nil {
		return nil, err
	}
	cluster, err := virtconfig.NewClusterConfigWithCPUArch(definitions, kubevirts, installed, "amd64")
	if err != nil {
		return nil, err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: r.URL.Path + " not found",
		})
	}))
	client, err := kubecli.GetKubevirtClientFromRESTConfig(&rest.Config{Host: server.URL})
	if err != nil {
		return nil, err
	}
	accounts := webhooks.KubeVirtServiceAccounts(installed)
	return &upstream{
		machines: mutators.NewVMsMutator(cluster, client),
		instances: &mutators.VMIsMutator{
			ClusterConfig: cluster, VMIPresetInformer: informer(&v1.VirtualMachineInstancePreset{}), KubeVirtServiceAccounts: accounts,
		},
		vms: admitters.NewVMsAdmitter(cluster, client, &webhooks.Informers{}, accounts),
		created: &admitters.VMICreateAdmitter{
			ClusterConfig: cluster, KubeVirtServiceAccounts: accounts, SpecValidators: []admitters.SpecValidator{networks},
		},
		updated: admitters.NewVMIUpdateAdmitter(cluster, accounts),
	}, nil
}

func (u *upstream) Mutate(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	review := &admissionv1.AdmissionReview{Request: request}
	if request.Kind.Kind == "VirtualMachine" {
		return u.machines.Mutate(review), nil
	}
	return u.instances.Mutate(review), nil
}

func (u *upstream) Validate(request *admissionv1.AdmissionRequest) (response *admissionv1.AdmissionResponse, _ error) {
	// The server of a real virt-api answers nothing then, and the API server refuses the request.
	defer func() {
		if panicked := recover(); panicked != nil {
			response = &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: fmt.Sprint("upstream's webhook panics: ", panicked)}}
		}
	}()
	judge := u.vms
	if request.Kind.Kind == "VirtualMachineInstance" {
		judge = u.created
		if request.Operation == admissionv1.Update {
			judge = u.updated
		}
	}
	return judge.Admit(context.Background(), &admissionv1.AdmissionReview{Request: request}), nil
}

// networks is the validator that upstream's virt-api adds to those of instances.
func networks(path *field.Path, spec *v1.VirtualMachineInstanceSpec, cluster *virtconfig.ClusterConfig) []metav1.StatusCause {
	return netadmitter.Validate(path, spec, cluster)
}

func upstreamDefinitions() ([]*extv1.CustomResourceDefinition, error) {
	var list []*extv1.CustomResourceDefinition
	for _, make := range []func() (*extv1.CustomResourceDefinition, error){
		components.NewVirtualMachineCrd, components.NewVirtualMachineInstanceCrd,
	} {
		definition, err := make()
		if err != nil {
			return nil, err
		}
		list = append(list, definition)
	}
	return list, nil
}
