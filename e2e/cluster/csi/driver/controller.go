package main

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	smallest = 1 << 20
	usual    = 1 << 30
)

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, can := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: can}}})
	}
	return answer, nil
}

func missing(what string) error { return status.Errorf(codes.InvalidArgument, "no %s", what) }

// size of a volume: what is required, in whole blocks, and no more than the store would hold if it were empty.
func (d *driver) size(r *csi.CapacityRange, least int64) (int64, error) {
	bytes := max(r.GetRequiredBytes(), least, smallest)
	bytes = (bytes + block - 1) / block * block
	var fs unix.Statfs_t
	if err := unix.Statfs(d.store.dir, &fs); err != nil {
		return 0, err
	}
	if limit := r.GetLimitBytes(); limit > 0 && bytes > limit || bytes > int64(fs.Blocks)*fs.Bsize {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes cannot be had", bytes)
	}
	return bytes, nil
}

// source of a volume's content, if it has one: its name, its size and where it is.
func (d *driver) source(r *csi.CreateVolumeRequest, isBlock bool) (name string, bytes int64, data string, err error) {
	k, from := volumes, r.GetVolumeContentSource().GetVolume().GetVolumeId()
	if snapshot := r.GetVolumeContentSource().GetSnapshot(); snapshot != nil {
		k, from = snapshots, snapshot.GetSnapshotId()
	}
	if r.GetVolumeContentSource() == nil {
		return "", 0, "", nil
	}
	o, err := d.store.get(k, from)
	if err != nil {
		return "", 0, "", err
	} else if o == nil {
		return "", 0, "", status.Errorf(codes.NotFound, "%s has no %q", k, from)
	} else if o.Block != isBlock {
		return "", 0, "", status.Errorf(codes.InvalidArgument, "%s is of the other volume mode", from)
	}
	return string(k) + "/" + from, o.Bytes, d.store.data(k, from), nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	} else if len(r.GetVolumeCapabilities()) == 0 {
		return nil, missing("capabilities")
	}
	d.store.Lock()
	defer d.store.Unlock()
	isBlock := r.GetVolumeCapabilities()[0].GetBlock() != nil
	source, content, from, err := d.source(r, isBlock)
	if err != nil {
		return nil, err
	}
	bytes, err := d.size(r.GetCapacityRange(), content)
	if err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil && from == "" {
		bytes = usual
	}
	o, err := d.store.get(volumes, id(r.GetName()))
	if err != nil {
		return nil, err
	} else if o != nil && (o.Bytes != bytes || o.Source != source) {
		return nil, status.Errorf(codes.AlreadyExists, "%s is another volume, of %d bytes", o.Name, o.Bytes)
	} else if o == nil {
		o = &object{ID: id(r.GetName()), Name: r.GetName(), Bytes: bytes, Source: source, Block: isBlock, Created: time.Now()}
		if err := d.store.create(volumes, o, from); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: o.ID, CapacityBytes: o.Bytes, ContentSource: r.GetVolumeContentSource(),
		VolumeContext: r.GetParameters()}}, nil
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume")
	}
	d.store.Lock()
	defer d.store.Unlock()
	return &csi.DeleteVolumeResponse{}, d.store.remove(volumes, r.GetVolumeId())
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, missing("capabilities")
	}
	if _, err := d.volume(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters()}}, nil
}

// volume that has to be there.
func (d *driver) volume(id string) (*object, error) {
	if id == "" {
		return nil, missing("volume")
	}
	o, err := d.store.get(volumes, id)
	if err == nil && o == nil {
		err = status.Errorf(codes.NotFound, "there is no volume %q", id)
	}
	return o, err
}

// ControllerExpandVolume makes the file larger; nodes that have the volume then make their devices so.
func (d *driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	o, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	} else if r.GetCapacityRange() == nil {
		return nil, missing("capacity range")
	}
	bytes, err := d.size(r.GetCapacityRange(), o.Bytes)
	if err != nil {
		return nil, err
	}
	o.Bytes = bytes
	if err := unix.Truncate(d.store.data(volumes, o.ID), o.size()); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes, NodeExpansionRequired: true}, d.store.put(volumes, o)
}

func (d *driver) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	}
	d.store.Lock()
	defer d.store.Unlock()
	volume, err := d.volume(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	o, err := d.store.get(snapshots, id(r.GetName()))
	if err != nil {
		return nil, err
	} else if o != nil && o.Source != volume.ID {
		return nil, status.Errorf(codes.AlreadyExists, "%s is a snapshot of another volume", o.Name)
	} else if o == nil {
		o = &object{ID: id(r.GetName()), Name: r.GetName(), Bytes: volume.Bytes, Block: volume.Block, Source: volume.ID, Created: time.Now()}
		if err := d.store.create(snapshots, o, d.store.data(volumes, volume.ID)); err != nil {
			return nil, err
		}
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: o.ID, SourceVolumeId: o.Source, SizeBytes: o.Bytes,
		CreationTime: timestamppb.New(o.Created), ReadyToUse: true}}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, missing("snapshot")
	}
	d.store.Lock()
	defer d.store.Unlock()
	return &csi.DeleteSnapshotResponse{}, d.store.remove(snapshots, r.GetSnapshotId())
}
