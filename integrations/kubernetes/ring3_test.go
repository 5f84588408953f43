package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parsed are devices as ring3 prints them.
func parsed(t testing.TB, entries ...map[string]any) (devices []device) {
	data, err := json.Marshal(entries)
	if err == nil {
		err = json.Unmarshal(data, &devices)
	}
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func TestHostileNamesAreRefused(t *testing.T) {
	for _, name := range []string{
		"", "..", ".", "a/b", "../sda", "a\nb", "a\n", "\na", "a\x00b", "a b", "a=b", "a:b",
		"a,b", "-a", "a-", ".a", "_a", "a.", "é", "a\xff", "*", strings.Repeat("x", 81),
		strings.Repeat("x", 10_000),
	} {
		devices := parsed(t, entry("d", "running", name, 0))
		disks, complaints := offered(devices, patterns{"*", name})
		if len(disks) != 0 || len(complaints) != 1 || len(complaints[0]) > 500 {
			t.Errorf("%.20q: offered as %v, %v", name, disks, complaints)
		}
	}
	for _, name := range []string{"a", "7", "data-2", "A.b_c", strings.Repeat("x", 80)} {
		devices := parsed(t, entry("d", "running", name, 0))
		disks, complaints := offered(devices, patterns{"*"})
		if len(disks) != 1 || len(complaints) != 0 {
			t.Errorf("%q: %v, %v", name, disks, complaints)
		}
	}
}

func TestANodeThatIsNotOfUblkIsRefused(t *testing.T) {
	for _, node := range []string{
		"", "/dev/sda", "/dev/ublkc0", "/dev/ublkb", "/dev/ublkb00", "/dev/ublkb0p1",
		"/dev/ublkb0\n",
		"/dev/ublkb0/../sda", "/dev/../dev/ublkb0", "ublkb0", "/dev/ublkb99999999",
	} {
		devices := parsed(t, entry("d", "running", "disk", 0))
		devices[0].Disks[0].Path = node
		disks, complaints := offered(devices, patterns{"*"})
		if len(disks) != 0 || len(complaints) != 1 {
			t.Errorf("%q: %v, %v", node, disks, complaints)
		}
	}
}

func TestANameOrANodeThatComesTwiceIsNobodys(t *testing.T) {
	for _, devices := range [][]device{
		parsed(t, entry("a", "running", "disk", 0), entry("b", "running", "disk", 1)),
		parsed(t, entry("a", "running", "disk", 0, "disk-2", 0)),
		// The other one is not allowed, and that changes nothing.
		parsed(t, entry("a", "running", "disk", 0), entry("b", "running", "other", 0)),
	} {
		if disks, complaints := offered(devices, patterns{"disk*"}); len(disks) != 0 ||
			len(complaints) == 0 {
			t.Errorf("%v: %v, %v", devices, disks, complaints)
		}
	}
}

func TestADiskWithoutALinkIsNotOffered(t *testing.T) {
	devices := parsed(t, entry("d", "starting", "disk", 0))
	devices[0].Disks[0].Link = nil
	if disks, complaints := offered(devices, patterns{"*"}); len(disks)+len(complaints) != 0 {
		t.Errorf("%v, %v", disks, complaints)
	}
}

func TestNoMoreDisksThanTheLimitAreOffered(t *testing.T) {
	var many []map[string]any
	for i := range maxDisks + 50 {
		many = append(many, entry(fmt.Sprint("d", i), "running", fmt.Sprint("d", i), i))
	}
	disks, complaints := offered(parsed(t, many...), patterns{"*"})
	if len(disks) != maxDisks || len(complaints) != 1 {
		t.Fatalf("%d disks, %v", len(disks), complaints)
	}
	// Those that were lost do not exceed it, either.
	other := []disk{{name: "lost", device: "d0"}}
	if kept := keepLost(other, disks, parsed(t, many...)); len(kept) != maxDisks {
		t.Fatalf("%d disks", len(kept))
	}
}

func TestAStateThatIsNotKnownIsNotHealthy(t *testing.T) {
	disks, _ := offered(parsed(t, entry("d", "melting", "disk", 0)), patterns{"*"})
	if len(disks) != 1 || disks[0].reason == "" {
		t.Fatalf("%v", disks)
	}
}

func FuzzAnyAnswerGivesGoodNamesAndNodesOrNone(f *testing.F) {
	f.Add([]byte(`[{"name":"d","state":"running","disks":[{"path":"/dev/ublkb0",` +
		`"link":"/dev/ring3/d"}]}]`))
	f.Add([]byte(`[{"disks":[{"link":null},{"link":"/dev/ring3/../sda"}]},{"disks":null}]`))
	f.Add([]byte(`[[[[{}]]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var devices []device
		if json.Unmarshal(data, &devices) != nil {
			return
		}
		disks, complaints := offered(devices, patterns{"*"})
		for _, d := range disks {
			if !diskName.MatchString(d.name) || !diskNode.MatchString(d.node) {
				t.Fatalf("%+v", d)
			}
		}
		if len(disks) > maxDisks || len(complaints) > maxComplaints {
			t.Fatalf("%d disks, %d complaints", len(disks), len(complaints))
		}
	})
}

func TestAbsurdOutputOfRing3IsAnErrorInTime(t *testing.T) {
	b := newBed(t)
	for _, test := range []struct{ script, wanted string }{
		{"head -c 10000000 /dev/zero", "more than"},
		{"yes '[]'", "more than"},
		{"echo '[{\"name\":'", "no list"},
		{"echo '[]trailing'", "no list"},
		{"echo null", "no list"},
		{"echo '{}'", "no list"},
		{"echo '[{\"disks\":7}]'", "no list"},
		{"true", "no list"},
		{"sleep 1000", "did not end"},
		{"sleep 1000 & wait", "did not end"},
		{"trap '' TERM; while :; do sleep 1; done", "did not end"},
		{"head -c 10000000 /dev/zero | tr '\\0' 'x' >&2; exit 3", "exit status 3"},
		{"kill -9 $$", "killed"},
	} {
		b.program(test.script)
		begun := time.Now()
		o := &options{ring3: b.path("ring3"), timeout: time.Second}
		if strings.Contains(test.wanted, "more") || strings.Contains(test.wanted, "exit") {
			o.timeout = patience
		}
		_, err := ask(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), test.wanted) ||
			len(err.Error()) > 2000 {
			t.Errorf("%s: %v", test.script, err)
		}
		if time.Since(begun) > o.timeout+5*time.Second {
			t.Errorf("%s: took %v", test.script, time.Since(begun))
		}
	}
}

func TestRing3GetsTheSocketAndNoShell(t *testing.T) {
	b := newBed(t)
	b.program(`[ "$#" = 4 ] && [ "$4" = '/a b;$(c)' ] && echo '[]'`)
	o := &options{ring3: b.path("ring3"), socket: "/a b;$(c)", timeout: patience}
	_, err := ask(context.Background(), o)
	must(t, err)
}

func TestStatesAndFieldsAreThoseOfTheSchema(t *testing.T) {
	data, err := os.ReadFile("../../docs/output.schema.json")
	must(t, err)
	var schema struct {
		Defs struct {
			State  struct{ Enum []string }
			Status struct {
				Items struct{ Properties map[string]map[string]any }
			}
		} `json:"$defs"`
	}
	must(t, json.Unmarshal(data, &schema))
	if len(schema.Defs.State.Enum) != len(usable) {
		t.Errorf("the states are %v", schema.Defs.State.Enum)
	}
	for _, state := range schema.Defs.State.Enum {
		if _, known := usable[state]; !known {
			t.Errorf("state %s is unknown", state)
		}
	}
	device := schema.Defs.Status.Items.Properties
	disk := device["disks"]["items"].(map[string]any)["properties"].(map[string]any)
	if device["name"] == nil || device["state"] == nil ||
		disk["path"] == nil || disk["link"] == nil {
		t.Errorf("a field is missing: %v", device)
	}
}

// TestTheStatusOfARealRing3dIsUnderstood needs RING3, the path of a built `ring3` with `ring3d`
// and `ring3-driver` beside it. ring3d runs in a user namespace, so that this test needs no root
// and makes no block device where ublk is there: the disk of the model stays unserved.
func TestTheStatusOfARealRing3dIsUnderstood(t *testing.T) {
	program := os.Getenv("RING3")
	if program == "" {
		t.Skip("RING3 does not name the program ring3")
	}
	program, err := filepath.Abs(program)
	must(t, err)
	b := newBed(t)
	manifest := "[device.scratch]\nmatch = { device = \"sim:nvme,size=16M\" }\n"
	must(t, os.WriteFile(b.path("scratch.toml"), []byte(manifest), 0o600))
	command := exec.Command(filepath.Join(filepath.Dir(program), "ring3d"),
		"--config", b.path("scratch.toml"), "--socket", b.path("control"))
	log := &record{}
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	// The signal at the parent's death is that of its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Start(); err != nil {
		t.Skipf("no user namespace: %v", err)
	}
	stop := func() {
		command.Process.Signal(syscall.SIGTERM)
		// A second and a third signal insist.
		timer := time.AfterFunc(patience/2, func() { command.Process.Kill() })
		command.Wait()
		timer.Stop()
		if t.Failed() {
			t.Log(log)
		}
	}
	defer stop()
	o := &options{ring3: program, socket: b.path("control"), timeout: patience}
	var devices []device
	eventually(t, "an answer", func() bool {
		devices, err = ask(context.Background(), o)
		return err == nil
	})
	if len(devices) != 1 || devices[0].Name != "scratch" {
		t.Fatalf("ring3d keeps %+v", devices)
	}
	if _, known := usable[devices[0].State]; !known {
		t.Fatalf("state %q is unknown", devices[0].State)
	}
	t.Logf("the device is %q with %d disks", devices[0].State, len(devices[0].Disks))
	b.startKubelet()
	plugin := b.start("--ring3", program)
	b.await(b.watch(b.registered()), "")
	stop()
	eventually(t, "a line about ring3d", func() bool {
		return strings.Contains(plugin.log.String(), "nobody answers")
	})
}
