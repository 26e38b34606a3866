package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is a document as the API server holds it.
type Object = map[string]any

// Webhooks are the admission webhooks of one side.
type Webhooks interface {
	Mutate(*admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)
	Validate(*admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)
}

// Cause is one thing that is wrong with a document.
type Cause struct {
	Reason  string `json:"reason"`
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (c Cause) String() string { return c.Field + ": " + c.Reason + ": " + c.Message }

// Answer is what one side makes of a request.
type Answer struct {
	// Stored is the object as it would be stored; nil where it is refused.
	Stored Object `json:"stored,omitempty"`
	// Unchanged tells a request that leaves the specification as this side has stored it.
	Unchanged bool `json:"unchanged,omitempty"`
	// Causes are why it is refused.
	Causes []Cause `json:"causes,omitempty"`
}

func (a Answer) allowed() bool { return a.Stored != nil }

// Resource is a kind with the schema of one side's CustomResourceDefinition.
type Resource struct {
	gvk       metav1.GroupVersionKind
	gvr       metav1.GroupVersionResource
	hasStatus bool
	shape     *schema.Structural
	plain     validation.SchemaValidator
	rules     *cel.Validator
}

func newResource(crd *extv1.CustomResourceDefinition) (*Resource, error) {
	for _, version := range crd.Spec.Versions {
		if version.Name != "v1" {
			continue
		}
		internal := &apiextensions.CustomResourceValidation{}
		if err := extv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
			return nil, err
		}
		shape, err := schema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			return nil, err
		}
		plain, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
		if err != nil {
			return nil, err
		}
		return &Resource{
			gvk:       metav1.GroupVersionKind{Group: crd.Spec.Group, Version: "v1", Kind: crd.Spec.Names.Kind},
			gvr:       metav1.GroupVersionResource{Group: crd.Spec.Group, Version: "v1", Resource: crd.Spec.Names.Plural},
			hasStatus: version.Subresources != nil && version.Subresources.Status != nil,
			shape:     shape,
			plain:     plain,
			// As the API server budgets rules.
			rules: cel.NewValidator(shape, true, celPerCall),
		}, nil
	}
	return nil, fmt.Errorf("%s has no version v1", crd.Name)
}

// The API server's own limits of what a rule may cost.
const (
	celPerCall   = 1000000
	celPerObject = 10000000
)

// Side is an API server with the definitions and webhooks of one project.
type Side struct {
	name      string
	resources map[string]*Resource
	hooks     Webhooks
}

// normal does what the API server does with what it decodes: it drops what the schema does not know and sets its defaults.
func (r *Resource) normal(object Object) {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, r.shape)
	pruning.Prune(object, r.shape, true)
	defaulting.Default(object, r.shape)
}

func clone(object Object) Object {
	if object == nil {
		return nil
	}
	return runtime.DeepCopyJSON(object)
}

// Review takes a request through the chain of an API server: decoding, mutation, schema, validation.
func (s *Side) Review(operation admissionv1.Operation, user string, object, old Object) (Answer, error) {
	kind, _ := object["kind"].(string)
	resource := s.resources[kind]
	if resource == nil {
		return Answer{}, fmt.Errorf("%s has no kind %q", s.name, kind)
	}
	object = clone(object)
	resource.normal(object)
	if resource.hasStatus {
		delete(object, "status")
		if status, ok := old["status"]; ok {
			object["status"] = runtime.DeepCopyJSONValue(status)
		}
	}
	request := &admissionv1.AdmissionRequest{
		UID: "1", Kind: resource.gvk, Resource: resource.gvr, RequestKind: &resource.gvk, RequestResource: &resource.gvr,
		Operation: operation, UserInfo: authenticationv1.UserInfo{Username: user},
	}
	metadata, _ := object["metadata"].(map[string]any)
	request.Name, _ = metadata["name"].(string)
	request.Namespace, _ = metadata["namespace"].(string)
	if err := fill(request, object, old); err != nil {
		return Answer{}, err
	}
	response, err := s.hooks.Mutate(request)
	if err != nil {
		return Answer{}, err
	}
	if !response.Allowed {
		return Answer{Causes: causes(response)}, nil
	}
	if len(response.Patch) > 0 {
		patched, err := apply(request.Object.Raw, response.Patch)
		if err != nil {
			return Answer{}, fmt.Errorf("%s: the patch of %s: %w", s.name, request.Name, err)
		}
		object = patched
		resource.normal(object)
	}
	if wrong := resource.judge(object, old); len(wrong) > 0 {
		return Answer{Causes: wrong}, nil
	}
	if err := fill(request, object, old); err != nil {
		return Answer{}, err
	}
	response, err = s.hooks.Validate(request)
	if err != nil {
		return Answer{}, err
	}
	if !response.Allowed {
		return Answer{Causes: causes(response)}, nil
	}
	return Answer{Stored: object}, nil
}

func fill(request *admissionv1.AdmissionRequest, object, old Object) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	request.Object = runtime.RawExtension{Raw: raw}
	if old != nil {
		if raw, err = json.Marshal(old); err != nil {
			return err
		}
		request.OldObject = runtime.RawExtension{Raw: raw}
	}
	return nil
}

func apply(document, patch []byte) (Object, error) {
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	if document, err = decoded.Apply(document); err != nil {
		return nil, err
	}
	var object Object
	return object, utiljson.Unmarshal(document, &object)
}

// judge holds an object against the schema, as the API server does before it asks validating webhooks.
func (r *Resource) judge(object, old Object) []Cause {
	var wrong field.ErrorList
	if old == nil {
		wrong = validation.ValidateCustomResource(nil, object, r.plain)
	} else {
		wrong = validation.ValidateCustomResourceUpdate(nil, object, old, r.plain)
	}
	wrong = append(wrong, listtype.ValidateListSetsAndMaps(nil, r.shape, object)...)
	if len(wrong) == 0 && r.rules != nil {
		var before any
		if old != nil {
			before = old
		}
		found, _ := r.rules.Validate(context.Background(), nil, r.shape, object, before, celPerObject)
		wrong = append(wrong, found...)
	}
	var list []Cause
	for _, one := range wrong {
		list = append(list, Cause{Reason: string(one.Type), Field: one.Field, Message: one.ErrorBody()})
	}
	return list
}

// causes of a webhook's refusal.
func causes(response *admissionv1.AdmissionResponse) []Cause {
	var list []Cause
	if response.Result != nil && response.Result.Details != nil {
		for _, cause := range response.Result.Details.Causes {
			list = append(list, Cause{Reason: string(cause.Type), Field: strings.TrimPrefix(cause.Field, "."), Message: cause.Message})
		}
	}
	if len(list) == 0 && response.Result != nil {
		list = append(list, Cause{Reason: string(response.Result.Reason), Message: response.Result.Message})
	}
	return list
}
