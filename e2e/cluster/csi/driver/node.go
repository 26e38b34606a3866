package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, can := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: can}}})
	}
	return answer, nil
}

// NodeStageVolume has a Filesystem volume mounted at the staging path, or a Block volume attached.
func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	target := r.GetStagingTargetPath()
	if target == "" {
		return nil, missing("staging target path")
	} else if r.GetVolumeCapability() == nil {
		return nil, missing("capability")
	}
	o, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	data := d.store.data(volumes, o.ID)
	unlock, err := lock(data)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if r.GetVolumeCapability().GetBlock() != nil {
		device, err := attach(data, d.store.loop(d.node, o.ID), 0)
		if err != nil {
			return nil, err
		}
		return &csi.NodeStageVolumeResponse{}, device.Close()
	}
	if is, err := mounted(target); is || err != nil {
		return &csi.NodeStageVolumeResponse{}, err
	}
	if err := mountFile(data, d.store.loop(allNodes, o.ID), target); err != nil {
		return nil, err
	}
	// A copy may be larger than what it was made from.
	return &csi.NodeStageVolumeResponse{}, d.store.grow(o.ID, target)
}

func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume")
	} else if r.GetStagingTargetPath() == "" {
		return nil, missing("staging target path")
	}
	if err := unmount(r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	// By name: the volume itself may be deleted already.
	return &csi.NodeUnstageVolumeResponse{}, detach(d.store.loop(d.node, r.GetVolumeId()))
}

// NodePublishVolume binds the file system, or the device, to where the kubelet wants it.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	target, from := r.GetTargetPath(), r.GetStagingTargetPath()
	if target == "" {
		return nil, missing("target path")
	} else if from == "" {
		return nil, missing("staging target path")
	} else if r.GetVolumeCapability() == nil {
		return nil, missing("capability")
	}
	o, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if is, err := mounted(target); is || err != nil {
		return &csi.NodePublishVolumeResponse{}, err
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		found, err := loops(exactly(d.store.loop(d.node, o.ID)))
		defer closeAll(found)
		if err != nil {
			return nil, err
		} else if len(found) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume %s is not attached", o.ID)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return nil, err
		}
		if file, err := os.OpenFile(target, os.O_CREATE, 0o600); err != nil {
			return nil, err
		} else {
			file.Close()
		}
		from = found[0].Name()
	} else if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	if r.GetReadonly() {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return nil, errors.Join(err, unmount(target))
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume")
	} else if r.GetTargetPath() == "" {
		return nil, missing("target path")
	}
	if err := flush(r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := unmount(r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	path := r.GetVolumePath()
	if path == "" {
		return nil, missing("volume path")
	}
	o, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	stat, err := os.Stat(path)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "the volume is not at %s: %v", path, err)
	}
	if !stat.IsDir() {
		path = ""
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: o.Bytes}, d.store.grow(o.ID, path)
}

// flush writes what this node has of a device, and forgets it: the pod of another node, which may come before the kubelet has
// the volume unstaged here, reads it, and what that writes is read here.
func flush(path string) error {
	stat, err := os.Stat(path)
	if err != nil || stat.Mode()&os.ModeDevice == 0 {
		return nil
	}
	device, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	return unix.IoctlSetInt(int(device.Fd()), unix.BLKFLSBUF, 0)
}

// mounted tells whether something is mounted at the path.
func mounted(path string) (bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}

func unmount(path string) error {
	if is, err := mounted(path); !is || err != nil {
		return err
	}
	return unix.Unmount(path, 0)
}
