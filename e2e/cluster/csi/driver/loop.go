package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	fifreeze    = 0xc0045877
	fithaw      = 0xc0045878
	xfsGrow     = 0x4010586e
	block       = 4096
	maxAttempts = 100
	options     = "nouuid,discard"
)

// lock is for what drivers on several nodes do about a file.
func lock(path string) (func(), error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// loops are the open loop devices whose names are these.
func loops(named func(string) bool) ([]*os.File, error) {
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	var found []*os.File
	for _, sys := range attached {
		device, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(sys)), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && named(unix.ByteSliceToString(info.File_name[:])) {
			found = append(found, device)
		} else {
			device.Close()
		}
	}
	return found, nil
}

func exactly(name string) func(string) bool { return func(s string) bool { return s == name } }

// attach returns the loop device of this name, which it makes of the file if there is none. With AUTOCLEAR it is there as
// long as it is open or mounted. The caller has the file locked.
func attach(path, name string, flags uint32) (*os.File, error) {
	if found, err := loops(exactly(name)); err != nil || len(found) > 0 {
		closeAll(found[min(1, len(found)):])
		if err != nil {
			return nil, err
		}
		return found[0], nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	copy(config.Info.File_name[:63], name)
	for range maxAttempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		// Another process of this machine was faster.
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, errors.New("no loop device is free")
}

// detach frees the loop device of this name; one that a container still has open goes when that closes it.
func detach(name string) error {
	found, err := loops(exactly(name))
	defer closeAll(found)
	for _, device := range found {
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
	}
	return err
}

// mountFile mounts the file system in the file, which may be a copy of another that is mounted, too.
func mountFile(path, name, target string) error {
	device, err := attach(path, name, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return unix.Mount(device.Name(), target, "xfs", 0, options)
}

// grow has a volume's loop devices as large as its file, and the file system that is mounted at MOUNT, if any.
func (s *store) grow(id, mount string) error {
	found, err := loops(s.owns(id))
	defer closeAll(found)
	for _, device := range found {
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
			return err
		}
	}
	if err != nil || mount == "" {
		return err
	}
	stat, err := os.Stat(s.data(volumes, id))
	if err != nil {
		return err
	}
	root, err := os.Open(mount)
	if err != nil {
		return err
	}
	defer root.Close()
	size := struct {
		blocks  uint64
		maximum uint32
	}{blocks: uint64(stat.Size() / block)}
	return ioctl(root, xfsGrow, unsafe.Pointer(&size))
}

// quiesce has all that was written to a volume in its file, and its file system stand still until the function that it
// returns is called.
func (s *store) quiesce(id string) (func(), error) {
	nothing := func() {}
	found, err := loops(s.owns(id))
	defer closeAll(found)
	if err != nil {
		return nil, err
	}
	for _, device := range found {
		if err := device.Sync(); err != nil {
			return nil, err
		}
	}
	// The loop device that all nodes share has a file system; a Block volume has none that is the driver's.
	if len(found) != 1 {
		return nothing, nil
	}
	info, err := unix.IoctlLoopGetStatus64(int(found[0].Fd()))
	if err != nil || info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		return nothing, err
	}
	mount, err := os.MkdirTemp("", "freeze")
	if err != nil {
		return nil, err
	}
	defer os.Remove(mount)
	if err := unix.Mount(found[0].Name(), mount, "xfs", 0, options); err != nil {
		return nil, err
	}
	root, err := os.Open(mount)
	if err == nil {
		err = ioctl(root, fifreeze, nil)
	}
	// Open, it stays.
	if e := unix.Unmount(mount, unix.MNT_DETACH); e != nil || err != nil {
		if root != nil {
			root.Close()
		}
		return nil, errors.Join(err, e)
	}
	return func() { _ = ioctl(root, fithaw, nil); root.Close() }, nil
}

func ioctl(file *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
