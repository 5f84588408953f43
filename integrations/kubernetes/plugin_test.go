package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestThePluginRegistersAndOffersTheAllowedDisksAlone(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch-1", 0, "scratch-2", 1),
		entry("root", "running", "root", 2))
	b.startKubelet()
	b.start()
	client := b.registered()
	b.await(b.watch(client), "scratch-1=Healthy scratch-2=Healthy")
	options, err := client.GetDevicePluginOptions(context.Background(), &v1beta1.Empty{})
	must(t, err)
	if options.PreStartRequired || options.GetPreferredAllocationAvailable {
		t.Fatalf("offers calls that it does not have: %v", options)
	}
	file, err := os.Stat(b.path("kubelet/ring3.dev-disk.sock"))
	must(t, err)
	if file.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("the socket has mode %v", file.Mode())
	}
}

func TestAPluginThatIsStartedBeforeKubeletWaitsForIt(t *testing.T) {
	b := newBed(t)
	b.status()
	b.start()
	time.Sleep(100 * time.Millisecond)
	b.startKubelet()
	b.await(b.watch(b.registered()), "")
}

func TestAKubeletThatIsStartedAgainGetsAnotherRegistration(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	b.start()
	b.registered()
	for range 2 {
		b.stopKubelet()
		b.startKubelet()
		b.await(b.watch(b.registered()), "scratch=Healthy")
	}
}

func TestASocketThatSomebodyHasRemovedIsMadeAgain(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	b.start()
	b.registered()
	must(t, os.Remove(b.path("kubelet/ring3.dev-disk.sock")))
	b.await(b.watch(b.registered()), "scratch=Healthy")
}

func TestAChangeOfHealthIsStreamed(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	b.start()
	lists := b.watch(b.registered())
	b.await(lists, "scratch=Healthy")
	// Users wait, and nothing is lost: that is no change.
	b.status(entry("scratch", "recovering", "scratch", 0))
	time.Sleep(300 * time.Millisecond)
	b.status(entry("scratch", "backing_off", "scratch", 0))
	if next := <-lists; next != "scratch=Unhealthy" {
		t.Fatalf("recovering was told: %s", next)
	}
	b.status(entry("scratch", "running", "scratch", 0))
	b.await(lists, "scratch=Healthy")
	// The block device is gone, and the manifest is still there.
	b.status(entry("scratch", "failed"))
	b.await(lists, "scratch=Unhealthy")
	b.status(entry("scratch", "running", "scratch", 3))
	b.await(lists, "scratch=Healthy")
	// No manifest names it any more.
	b.status(entry("other", "running", "scratch-2", 4))
	b.await(lists, "scratch-2=Healthy")
}

func TestWithoutRing3dDisksAreUnhealthyAndThePluginStays(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	plugin := b.start()
	client := b.registered()
	lists := b.watch(client)
	b.await(lists, "scratch=Healthy")
	b.program("echo 'error: nobody answers at /run/ring3/control' >&2; exit 1")
	b.await(lists, "scratch=Unhealthy")
	if exists(b.path("cdi/ring3.dev-disk.json")) {
		t.Fatal("the CDI file names a disk of which nothing is known")
	}
	if _, err := allocate(client, "scratch"); status.Code(err) != codes.Unavailable {
		t.Fatalf("allocated without ring3d: %v", err)
	}
	time.Sleep(200 * time.Millisecond)
	if count := strings.Count(plugin.log.String(), "nobody answers"); count != 1 {
		t.Fatalf("logged %d times", count)
	}
	b.program(`exec cat "` + b.path("status") + `"`)
	b.await(lists, "scratch=Healthy")
}

func TestAnAllocatedDiskIsACDIName(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch-1", 0, "scratch-2", 1))
	b.startKubelet()
	b.start()
	given, err := allocate(b.registered(), "scratch-2", "scratch-1")
	must(t, err)
	if len(given.CdiDevices) != 2 || len(given.Devices) != 0 ||
		given.CdiDevices[0].Name != "ring3.dev/disk=scratch-2" ||
		given.Envs["RING3_DISKS"] != "/dev/ring3/scratch-2:/dev/ring3/scratch-1" {
		t.Fatalf("given %v", given)
	}
}

func TestWithoutCDIAnAllocatedDiskIsTheNodeThatItHasNow(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	// ring3d is not asked again in the time of this test, but by Allocate.
	b.start("--cdi=false", "--access", "r", "--container-dir", "/disks", "--every", "1h")
	client := b.registered()
	b.await(b.watch(client), "scratch=Healthy")
	b.status(entry("scratch", "running", "scratch", 7))
	given, err := allocate(client, "scratch")
	must(t, err)
	if len(given.Devices) != 1 || len(given.CdiDevices) != 0 {
		t.Fatalf("given %v", given)
	}
	node := given.Devices[0]
	if node.HostPath != "/dev/ublkb7" || node.ContainerPath != "/disks/scratch" ||
		node.Permissions != "r" {
		t.Fatalf("given %v", node)
	}
	if exists(b.path("cdi")) {
		t.Fatal("a folder of CDI was made")
	}
}

func TestAllocationOfADiskThatIsUnknownOrUnhealthyOrNotAllowedIsAnError(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "stopping", "scratch", 0), entry("root", "running", "root", 1))
	b.startKubelet()
	b.start()
	client := b.registered()
	for id, wanted := range map[string]codes.Code{
		"scratch":                    codes.FailedPrecondition,
		"root":                       codes.NotFound,
		"scratch-9":                  codes.NotFound,
		"":                           codes.NotFound,
		"../sda":                     codes.NotFound,
		strings.Repeat("x", 100_000): codes.NotFound,
	} {
		_, err := allocate(client, id)
		if status.Code(err) != wanted || len(err.Error()) > 300 {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

func TestADiskWhoseCDIFileCannotBeWrittenIsUnhealthy(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	must(t, os.WriteFile(b.path("cdi"), nil, 0o600))
	b.startKubelet()
	b.start()
	client := b.registered()
	lists := b.watch(client)
	b.await(lists, "scratch=Unhealthy")
	if _, err := allocate(client, "scratch"); status.Code(err) != codes.Unavailable {
		t.Fatalf("allocated: %v", err)
	}
	must(t, os.Remove(b.path("cdi")))
	b.await(lists, "scratch=Healthy")
}

func TestTheSocketOfALivingProcessStaysAndOneOfADeadProcessIsReplaced(t *testing.T) {
	b := newBed(t)
	path := b.path("socket")
	first, err := listen(path)
	must(t, err)
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Fatalf("taken from a living process: %v", err)
	}
	// It closes the socket and leaves the file.
	must(t, first.Close())
	second, err := listen(path)
	must(t, err)
	defer second.Close()
	connection, err := net.Dial("unix", path)
	must(t, err)
	connection.Close()
}

func TestSIGTERMEndsTheProgramAndLeavesNothing(t *testing.T) {
	b := newBed(t)
	b.status(entry("scratch", "running", "scratch", 0))
	b.startKubelet()
	self, err := os.Executable()
	must(t, err)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		command := exec.Command(self, b.args()...)
		command.Env = append(os.Environ(), "RING3_TEST_PLUGIN=1")
		log := &record{}
		command.Stderr = log
		must(t, command.Start())
		b.await(b.watch(b.registered()), "scratch=Healthy")
		left := []string{
			b.path("cdi/ring3.dev-disk.json"), b.path("kubelet/ring3.dev-disk.sock"),
		}
		eventually(t, "a CDI file", func() bool { return exists(left[0]) })
		must(t, command.Process.Signal(signal))
		if err := command.Wait(); err != nil {
			t.Fatalf("%v: %v\n%v", signal, err, log)
		}
		for _, path := range left {
			if exists(path) {
				t.Fatalf("%v has left %s", signal, path)
			}
		}
	}
}

func TestWrongOptionsAreRefusedWithASentence(t *testing.T) {
	for _, test := range []struct{ args, wanted string }{
		{"", "--allow"},
		{"--allow [", "pattern"},
		{"--allow a b", "unexpected argument"},
		{"--allow a --resource disk", "ring3.dev/disk"},
		{"--allow a --resource ring3.dev/../disk", "ring3.dev/disk"},
		{"--allow a --access rwm", "r or rw"},
		{"--allow a --container-dir disks", "absolute"},
		{"--allow a --every 0s", "longer than nothing"},
		{"cdi --allow a", "--out"},
		{"cdi --allow a --out /tmp --kubelet-dir /tmp", "not defined"},
	} {
		log := &record{}
		code := run(context.Background(), strings.Fields(test.args), log, log)
		if code != 2 || !strings.Contains(log.String(), test.wanted) {
			t.Errorf("%q: %d, %v", test.args, code, log)
		}
	}
}
