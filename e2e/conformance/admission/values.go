package main

import (
	"sort"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

var (
	mapKeys     = []string{"memory", "cpu", "app", "disk", "ephemeral-storage", "kubevirt.io/x", "-bad", ""}
	labels      = []string{"app", "kubevirt.io/created-by", "kubevirt.io/nodeName", "kubevirt.io/migrationJobUID", "kubevirt.io/schedulable", "kubevirt.io/vm", "kubevirt.io/migrationTargetNodeName"}
	annotations = []string{"team", "kubevirt.io/memfd", "kubevirt.io/ignitiondata", "kubevirt.io/nonroot", "kubevirt.io/pci-topology-version", "kubevirt.io/libvirt-log-filters"}
	quantities  = []any{"0", "-1", "1", "1Mi", "64Mi", "128Mi", "256Mi", "1Gi", "1M", "999k", "1.5Gi", "500m", "2", "4", "16", "600", "12e6", "1e30", "9Ei", "100Ti", " 1Gi", "1 Gi", "", "abc", "1Kib", "1Ki", int64(1), int64(0)}
	integers    = []any{int64(0), int64(-1), int64(1), int64(2), int64(3), int64(16), int64(60), int64(224), int64(240), int64(255), int64(256), int64(513), int64(16383), int64(16384), int64(65535), int64(65536), int64(2147483647)}
	names       = []string{"a", "root", "default", "blue", "seed", "", "UPPER", "under_score", "dot.ted", "-dash", "dash-", strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("n", 253), strings.Repeat("n.", 100) + "n", "white space", "slash/ed", "ünicode"}
	lines       = []string{"", "text", "two\nlines", "tab\there", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("x", 2047), "a&b<c>"}
)

// words are values of fields by the field's name: right ones, other fields' ones, wrong ones.
var words = map[string][]string{
	"bus":                    {"virtio", "sata", "scsi", "usb", "ide", "VIRTIO", ""},
	"cache":                  {"none", "writethrough", "writeback", "unsafe", ""},
	"io":                     {"native", "threads", "default", "fast", ""},
	"errorPolicy":            {"stop", "ignore", "report", "enospace", "retry", ""},
	"tray":                   {"open", "closed", "shut", ""},
	"model":                  {"virtio", "e1000", "e1000e", "ne2k_pci", "pcnet", "rtl8139", "virtio-non-transitional", "host-model", "host-passthrough", "Haswell", "pvpanic", "hyperv", "isa", "weird", ""},
	"type":                   {"q35", "pc-q35-9.2", "pc-q35-rhel9.6.0", "pc", "i440fx", "tablet", "keyboard", "mouse", "vga", "virtio", "bochs", "cirrus", "ramfb", "Disk", ""},
	"policy":                 {"require", "optional", "disable", "forbid", "force", "never", ""},
	"tickPolicy":             {"delay", "catchup", "merge", "discard", "drop", ""},
	"track":                  {"guest", "wall", "host", ""},
	"action":                 {"poweroff", "reset", "shutdown", "none", ""},
	"state":                  {"up", "down", "absent", "half", ""},
	"protocol":               {"TCP", "UDP", "tcp", "SCTP", ""},
	"dnsPolicy":              {"None", "Default", "ClusterFirst", "ClusterFirstWithHostNet", "Some", ""},
	"evictionStrategy":       {"None", "LiveMigrate", "LiveMigrateIfPossible", "External", "Never", ""},
	"startStrategy":          {"Paused", "Running", ""},
	"architecture":           {"amd64", "arm64", "s390x", "ppc64le", "riscv", ""},
	"runStrategy":            {"Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver", "Sometimes", ""},
	"rebootPolicy":           {"Reboot", "Terminate", "Never", ""},
	"imagePullPolicy":        {"Always", "IfNotPresent", "Never", "Sometimes", ""},
	"operator":               {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "Like", ""},
	"effect":                 {"NoSchedule", "PreferNoSchedule", "NoExecute", "NoWay", ""},
	"whenUnsatisfiable":      {"DoNotSchedule", "ScheduleAnyway", "Wait", ""},
	"nodeAffinityPolicy":     {"Honor", "Ignore", "Other", ""},
	"nodeTaintsPolicy":       {"Honor", "Ignore", "Other", ""},
	"scheme":                 {"HTTP", "HTTPS", "http", ""},
	"topologyKey":            {"zone", "kubernetes.io/hostname", "bad key", "", "a/b/c"},
	"key":                    {"zone", "metadata.name", "a/b", "bad key", "", "a/b/c"},
	"macAddress":             {"52:54:00:12:34:57", "52-54-00-12-34-57", "5254.0012.3457", "525400123457", "00:00:00:00:00:00", "01:00:5e:00:00:01", "52:54:00:12:34", "zz:54:00:12:34:57", ""},
	"pciAddress":             {"0000:02:00.0", "0000:1F:1f.7", "0000:02:20.0", "02:00.0", "0000:02:00.8", ""},
	"uuid":                   {"5d307ca9-b3ef-428c-8861-06e72d69f224", "5d307ca9b3ef428c886106e72d69f224", "5D307CA9-B3EF-428C-8861-06E72D69F224", "not-a-uuid", ""},
	"serial":                 {"S-1", "with space", "e4686d2c-6e8d-4335-b8fd-81bee22f4815", strings.Repeat("s", 256), strings.Repeat("s", 257), "a/b", ""},
	"path":                   {"/disk.img", "disk.img", "/", "/a//b", "/a/./b", "/a/../b", "/a/", "relative/", ""},
	"kernelPath":             {"/boot/vmlinuz", "boot", "/", "/a//b", "/a/./b", "/a/../b", ""},
	"initrdPath":             {"/boot/initrd", "boot", "/", "/a//b", "/a/../b", ""},
	"vmNetworkCIDR":          {"10.11.0.0/24", "10.11.0.5/24", "10.11.0.0/31", "10.11.0.0", "fd00::/64", ""},
	"vmIPv6NetworkCIDR":      {"fd11::/120", "fd11::5/120", "fd11::/127", "10.0.0.0/24", "x", ""},
	"networkName":            {"blue", "shop/blue", "a/b/c", "/blue", "Blue", ""},
	"userDataBase64":         {"I2Nsb3VkLWNvbmZpZwo=", "not base64!", ""},
	"networkDataBase64":      {"dmVyc2lvbjogMgo=", "%%%", ""},
	"userData":               {"#cloud-config\n", "", strings.Repeat("#", 2048), strings.Repeat("#", 2049)},
	"networkData":            {"version: 2\n", "", strings.Repeat("#", 2049)},
	"timezone":               {"Europe/Berlin", "UTC", "No Where", ""},
	"volumeLabel":            {"cfgdata", "", "a label with blanks", strings.Repeat("l", 33)},
	"image":                  {"disk", "disk:latest", "disk@sha256:0000", "registry:5000/disk:v1", ""},
	"updateVolumesStrategy":  {"Replacement", "Migration", "Other", ""},
	"ioThreadsPolicy":        {"shared", "auto", "supplementalPool", "own", ""},
	"pageSize":               {"2Mi", "1Gi", "3Mi", ""},
	"schedulerName":          {"default-scheduler", ""},
	"bootFileName":           {"boot", "", strings.Repeat("b", 255), strings.Repeat("b", 256)},
	"value":                  {"web", "3", "x y", "", strings.Repeat("v", 64)},
	"volumeName":             {"root", ""},
	"claimName":              {"data", "UPPER", "", "dot.ted"},
	"secretName":             {"keys", "UPPER", ""},
	"dedicatedIOThread":      {"true"},
	"nameservers":            {"192.0.2.53", "2001:db8::53", "01.1.1.1", "127.0.0.1", "name", ""},
	"ntpServers":             {"192.0.2.1", "2001:db8::1", "ntp.example", ""},
	"searches":               {"shop.example", "shop.example.", "UPPER", "-x", ""},
	"namespaces":             {"shop", "UPPER", ""},
	"users":                  {"root", ""},
	"values":                 {"a", "3", "x y", ""},
	"accessModes":            {"ReadWriteOnce", "Sometimes"},
	"cpuModel":               {"host-model"},
	"labelSelector":          {""},
	"tag":                    {"tag"},
	"resourceClaimName":      {"claim"},
	"labelSelectorNamespace": {""},
}

// value makes a value of the schema's type, often one at a boundary.
func (g *Generator) value(path []string, shape *schema.Structural, depth int) any {
	name := path[len(path)-1]
	if shape.XIntOrString {
		if name == "port" {
			return []any{int64(80), int64(0), int64(65536), "http", "", "80"}[g.random.IntN(6)]
		}
		return quantities[g.random.IntN(len(quantities))]
	}
	// Lists of texts are known by the list's name.
	if len(path) > 1 && name >= "0" && name <= "9" {
		name = path[len(path)-2]
	}
	switch shape.Type {
	case "boolean":
		return g.random.IntN(2) == 0
	case "integer":
		return integers[g.random.IntN(len(integers))]
	case "number":
		return integers[g.random.IntN(len(integers))]
	case "string":
		if known := words[name]; known != nil && g.random.IntN(12) != 0 {
			return g.pick(known)
		}
		if strings.HasSuffix(strings.ToLower(name), "name") || g.random.IntN(2) == 0 {
			return g.pick(names)
		}
		return g.pick(lines)
	case "array":
		list := []any{}
		for range g.random.IntN(3) {
			list = append(list, g.value(path, shape.Items, depth+1))
		}
		return list
	case "object":
		return g.object(path, shape, depth)
	}
	return "x"
}

func (g *Generator) object(path []string, shape *schema.Structural, depth int) any {
	object := Object{}
	if shape.AdditionalProperties != nil && shape.AdditionalProperties.Structural != nil {
		for range g.random.IntN(3) {
			key := g.pick(mapKeys)
			object[key] = g.value(append(append([]string{}, path...), key), shape.AdditionalProperties.Structural, depth+1)
		}
		return object
	}
	var fields []string
	for field := range shape.Properties {
		fields = append(fields, field)
	}
	sort.Strings(fields)
	required := map[string]bool{}
	if shape.ValueValidation != nil {
		for _, field := range shape.ValueValidation.Required {
			required[field] = true
		}
	}
	for _, field := range fields {
		inner := shape.Properties[field]
		if required[field] && g.random.IntN(12) != 0 || depth < 3 && g.random.IntN(max(len(fields), 3)) == 0 {
			object[field] = g.value(append(append([]string{}, path...), field), &inner, depth+1)
		}
	}
	return object
}
