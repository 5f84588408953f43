package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// cdiFile describes the healthy disks to container runtimes, by the Container Device Interface.
type cdiFile struct {
	options *options
	path    string
	written []disk
	isKnown bool // whether `written` is what is in the file
}

// update makes the file that of these disks. A runtime sees the old file or the new one. CDI knows
// no file without devices, so that no disks are no file.
func (f *cdiFile) update(disks []disk) error {
	if f.isKnown && slices.Equal(f.written, disks) {
		return nil
	}
	f.isKnown = false
	if err := f.replace(disks); err != nil {
		return fmt.Errorf("the CDI file %s: %w", f.path, err)
	}
	f.written, f.isKnown = disks, true
	return nil
}

func (f *cdiFile) replace(disks []disk) error {
	if len(disks) == 0 {
		return f.remove()
	}
	data, err := json.MarshalIndent(f.spec(disks), "", "  ")
	if err != nil {
		return err
	}
	folder := filepath.Dir(f.path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// Runtimes read only *.json and *.yaml.
	temporary, err := os.CreateTemp(folder, ".ring3-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(append(data, '\n'))
	// Rootless runtimes read it, too.
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Close())
	if err != nil {
		return err
	}
	// The library validates what it reads, so it reads the bytes that runtimes will read.
	if _, err := cdi.ReadSpec(temporary.Name(), 0); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), f.path)
}

// remove deletes the file, if there is one.
func (f *cdiFile) remove() error {
	if err := os.Remove(f.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// spec is the file's content. A node has no owner here: the runtime makes it one of the container's
// user, so that this user need not be root.
func (f *cdiFile) spec(disks []disk) *specs.Spec {
	spec := &specs.Spec{Kind: f.options.resource}
	for _, d := range disks {
		node := &specs.DeviceNode{
			Path:        f.options.containerPath(d.name),
			HostPath:    d.node,
			Type:        "b",
			Permissions: f.options.access,
		}
		device := specs.Device{Name: d.name}
		device.ContainerEdits.DeviceNodes = []*specs.DeviceNode{node}
		spec.Devices = append(spec.Devices, device)
	}
	// The oldest version that has what is used, for the sake of old runtimes.
	spec.Version, _ = specs.MinimumRequiredVersion(spec)
	return spec
}
