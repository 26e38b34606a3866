package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// store is the directory of volumes and snapshots. Each is two files: <id>.img, its data, and <id>.json, what it is, which
// is written last and taken away first.
type store struct {
	sync.Mutex
	name string
	dir  string
}

type kind string

const (
	volumes   kind = "volumes"
	snapshots kind = "snapshots"
)

// object is a volume or a snapshot.
type object struct {
	ID      string
	Name    string
	Bytes   int64
	Block   bool
	Source  string // of a volume: what it was made from; of a snapshot: its volume
	Created time.Time
}

// openStore mounts the image's file system, which it makes in an empty image. All drivers of a cluster do this, one at a
// time, and have the same file system then.
func openStore(image, mount string) (*store, error) {
	unlock, err := lock(image)
	if err != nil {
		return nil, err
	}
	defer unlock()
	magic := make([]byte, 4)
	if file, err := os.Open(image); err != nil {
		return nil, err
	} else {
		_, err = file.Read(magic)
		file.Close()
		if err != nil {
			return nil, err
		}
	}
	if string(magic) != "XFSB" {
		if err := mkfs("-m", "reflink=1", image); err != nil {
			return nil, err
		}
	}
	name := strings.TrimSuffix(filepath.Base(image), ".img")
	if err := mountFile(image, name, mount); err != nil {
		return nil, err
	}
	// The directory is seen in /sys/block/loop*/loop/backing_file, from outside of all name spaces.
	s := &store{name: name, dir: filepath.Join(mount, name)}
	for _, k := range []kind{volumes, snapshots} {
		if err := os.MkdirAll(filepath.Join(s.dir, string(k)), 0o700); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// id of what has this name: short, and always the same.
func id(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:16] }

func (s *store) data(k kind, id string) string {
	return filepath.Join(s.dir, string(k), filepath.Base(id)+".img")
}

func (s *store) meta(k kind, id string) string {
	return filepath.Join(s.dir, string(k), filepath.Base(id)+".json")
}

// loop is the name of a volume's loop device on a node, or of that which all nodes have.
func (s *store) loop(node, id string) string { return s.name + "/" + node + "/" + id }

const allNodes = "all"

// owns tells which names loop devices of this volume have.
func (s *store) owns(id string) func(string) bool {
	return func(name string) bool { return strings.HasPrefix(name, s.name+"/") && strings.HasSuffix(name, "/"+id) }
}

// get returns nil for what is not there.
func (s *store) get(k kind, id string) (*object, error) {
	text, err := os.ReadFile(s.meta(k, id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	o := &object{}
	return o, json.Unmarshal(text, o)
}

func (s *store) put(k kind, o *object) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	file := s.meta(k, o.ID)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func (s *store) remove(k kind, id string) error {
	for _, file := range []string{s.meta(k, id), s.data(k, id)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// kept is what a volume's file system may have for itself: its log, and blocks that it holds back.
const kept = 48 << 20

// size of an object's file.
func (o *object) size() int64 {
	if o.Block {
		return o.Bytes
	}
	return o.Bytes + kept
}

// create makes the object's data: of a copy of FROM, or of nothing, and then with a file system in a Filesystem volume.
func (s *store) create(k kind, o *object, from string) error {
	file, err := os.OpenFile(s.data(k, o.ID), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if from != "" {
		if err := s.reflink(file, from); err != nil {
			return err
		}
	}
	if err := file.Truncate(o.size()); err != nil {
		return err
	}
	if from == "" && !o.Block {
		// With a small log, nothing that takes room, and no limit of inodes that growing it would have to keep.
		if err := mkfs("-m", "reflink=0,rmapbt=0,finobt=0", "-i", "nrext64=0,maxpct=0", "-d", "agcount=1", "-l", "size=8m", file.Name()); err != nil {
			return err
		}
	}
	return s.put(k, o)
}

// reflink has the file share the data of FROM, with what the machine has yet to write of it.
func (s *store) reflink(file *os.File, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	thaw, err := s.quiesce(strings.TrimSuffix(filepath.Base(from), ".img"))
	if err != nil {
		return err
	}
	defer thaw()
	return unix.IoctlFileClone(int(file.Fd()), int(source.Fd()))
}

func mkfs(args ...string) error {
	command := exec.Command("mkfs.xfs", append([]string{"-q"}, args...)...)
	// These have it make file systems of less than 300 MiB.
	command.Env = append(os.Environ(), "TEST_DIR=1", "TEST_DEV=1", "QA_CHECK_FS=1")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.xfs: %w: %s", err, output)
	}
	return nil
}
