package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// devices are the CDI devices of a folder, as a container runtime finds them.
func devices(t *testing.T, folder string) *cdi.Cache {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(folder), cdi.WithAutoRefresh(false))
	must(t, err)
	return cache
}

func TestTheCDIFileIsValidAndFollowsTheDisks(t *testing.T) {
	b := newBed(t)
	path := b.path("cdi/ring3.dev-disk.json")
	b.status(entry("scratch", "running", "scratch-1", 0, "scratch-2", 1))
	b.startKubelet()
	plugin := b.start()
	b.registered()
	eventually(t, "a file", func() bool { return exists(path) })
	found := devices(t, b.path("cdi"))
	if names := strings.Join(found.ListDevices(), " "); names !=
		"ring3.dev/disk=scratch-1 ring3.dev/disk=scratch-2" || len(found.GetErrors()) > 0 {
		t.Fatalf("a runtime finds %q, %v", names, found.GetErrors())
	}
	node := found.GetDevice("ring3.dev/disk=scratch-2").ContainerEdits.DeviceNodes[0]
	if *node != (specs.DeviceNode{
		Path: "/dev/ring3/scratch-2", HostPath: "/dev/ublkb1", Type: "b", Permissions: "rw",
	}) {
		t.Fatalf("the node is %+v", *node)
	}
	file, err := os.Stat(path)
	must(t, err)
	if file.Mode() != 0o644 {
		t.Fatalf("the file has mode %v", file.Mode())
	}
	b.status(entry("scratch", "running", "scratch-1", 5))
	eventually(t, "the new number", func() bool {
		device := devices(t, b.path("cdi")).GetDevice("ring3.dev/disk=scratch-1")
		return device != nil &&
			device.ContainerEdits.DeviceNodes[0].HostPath == "/dev/ublkb5"
	})
	// What is unhealthy is not in the file, and without devices there is no file.
	b.status(entry("scratch", "failed"))
	eventually(t, "no file", func() bool { return !exists(path) })
	b.status(entry("scratch", "running", "scratch-1", 5))
	eventually(t, "a file again", func() bool { return exists(path) })
	plugin.stop()
	if code := <-plugin.code; code != 0 {
		t.Fatalf("ended with %d", code)
	}
	left, err := filepath.Glob(b.path("cdi/*"))
	must(t, err)
	hidden, err := filepath.Glob(b.path("cdi/.*"))
	must(t, err)
	if len(left)+len(hidden) > 0 {
		t.Fatalf("left behind: %v %v", left, hidden)
	}
}

func TestAFileThatADeadPluginHasLeftIsRemovedWhereNothingIsServed(t *testing.T) {
	b := newBed(t)
	path := b.path("cdi/ring3.dev-disk.json")
	must(t, os.Mkdir(b.path("cdi"), 0o700))
	must(t, os.WriteFile(path, []byte("{}"), 0o600))
	b.status()
	b.start()
	eventually(t, "no file", func() bool { return !exists(path) })
}

func TestTheCDIFileCanBeWrittenOnceForRuntimesWithoutKubernetes(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0), entry("lost", "failed", "scratch-2", 1))
	once := func() (int, string) {
		log := &record{}
		args := []string{
			"cdi", "--ring3", b.path("ring3"), "--allow", "scratch*", "--access", "r",
			"--resource", "example.org/model", "--out", b.path("out"),
		}
		return run(context.Background(), args, log, log), log.String()
	}
	path := b.path("out/example.org-model.json")
	if code, log := once(); code != 0 || log != path+"\n" {
		t.Fatalf("ended with %d: %s", code, log)
	}
	data, err := os.ReadFile(path)
	must(t, err)
	var spec specs.Spec
	must(t, json.Unmarshal(data, &spec))
	if len(spec.Devices) != 1 || spec.Kind != "example.org/model" || spec.Version != "0.5.0" {
		t.Fatalf("wrote %s", data)
	}
	b.status()
	if code, log := once(); code != 1 || !strings.Contains(log, "no allowed disk is served") {
		t.Fatalf("ended with %d: %s", code, log)
	}
}

func TestAFileThatTheLibraryRefusesDoesNotReplaceAGoodOne(t *testing.T) {
	b := newBed(t)
	o := &options{resource: "ring3.dev/disk", access: "rw", containerDir: "/dev/ring3"}
	file := &cdiFile{options: o, path: b.path("file.json")}
	must(t, file.update([]disk{{name: "good", node: "/dev/ublkb0"}}))
	if err := file.update([]disk{{name: "-bad-", node: "/dev/ublkb0"}}); err == nil {
		t.Fatal("a bad name was written")
	}
	spec, err := cdi.ReadSpec(file.path, 0)
	must(t, err)
	if spec.GetDevice("good") == nil {
		t.Fatal("the good file is gone")
	}
}
