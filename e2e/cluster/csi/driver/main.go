// driver: the test bed's storage as a CSI driver. All of it is one XFS file system in a sparse image file that both nodes see,
// since they are name spaces of one machine. A volume is a file in it, and reaches a node as a loop device: a Block volume by
// one of each node's own, a Filesystem volume by one for all nodes, whose file system they share, since their kernel is one.
// So every access mode is what it says, and snapshots and clones are the file system's: they cost nothing.
//
// One program is the controller beside the sidecars, and the node's part, which announces itself to the kubelet.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "csi.podvirt.test"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	node  string
	store *store
}

func main() {
	image := flag.String("image", "", "the image file with all volumes; its name without .img is that of the directory in it")
	mount := flag.String("mount", "/store", "where this process has its file system")
	node := flag.String("node", "", "the node's name")
	socket := flag.String("socket", "/csi/csi.sock", "where the driver listens")
	announce := flag.String("announce", "", "a socket in the kubelet's directory of plugins that register")
	flag.Parse()
	store, err := openStore(*image, *mount)
	if err != nil {
		log.Fatalf("the store %s: %v", *image, err)
	}
	d := &driver{node: *node, store: store}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	if *announce != "" {
		kubelet := grpc.NewServer()
		registration.RegisterRegistrationServer(kubelet, &announcer{socket: *socket})
		go serve(kubelet, *announce)
	}
	serve(server, *socket)
}

func serve(server *grpc.Server, socket string) {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err == nil {
		err = server.Serve(listener)
	}
	log.Fatalf("%s: %v", socket, err)
}

func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	if method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]; err != nil {
		log.Printf("%s %v: %v", method, request, err)
	} else if !strings.Contains(method, "Get") && method != "Probe" {
		log.Printf("%s %v: %v", method, request, answer)
	}
	return answer, err
}

// announcer is what the kubelet asks of a plugin that it finds.
type announcer struct {
	registration.UnimplementedRegistrationServer
	socket string
}

func (a *announcer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: a.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (a *announcer) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}
