package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience is longer than anything here takes on a busy host.
const patience = 20 * time.Second

// TestMain is the plugin itself, if a test has started it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("RING3_TEST_PLUGIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// bed is a folder with a program `ring3` and a kubelet that are not the real ones.
type bed struct {
	t      *testing.T
	folder string
	server *grpc.Server
	seen   chan *v1beta1.RegisterRequest
}

func newBed(t *testing.T) *bed {
	// The names of tests are long, and the path of a socket has 107 bytes at most.
	folder, err := os.MkdirTemp("", "ring3-")
	must(t, err)
	b := &bed{t: t, folder: folder, seen: make(chan *v1beta1.RegisterRequest, 16)}
	must(t, os.Mkdir(b.path("kubelet"), 0o700))
	b.program(`exec cat "` + b.path("status") + `"`)
	t.Cleanup(func() {
		b.stopKubelet()
		os.RemoveAll(folder)
	})
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.folder, name) }

// program makes `ring3` a script. A rename, because a file that runs cannot be written.
func (b *bed) program(script string) {
	must(b.t, os.WriteFile(b.path("ring3.new"), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	must(b.t, os.Rename(b.path("ring3.new"), b.path("ring3")))
}

// entry is a device of ring3d's as JSON. Its disks are pairs of a name and a number of ublk.
func entry(name, state string, disks ...any) map[string]any {
	list := []any{}
	for i := 0; i < len(disks); i += 2 {
		list = append(list, map[string]any{
			"link": fmt.Sprintf("/dev/ring3/%v", disks[i]),
			"path": fmt.Sprintf("/dev/ublkb%v", disks[i+1]),
		})
	}
	return map[string]any{"name": name, "state": state, "disks": list}
}

// status makes these the devices of ring3d.
func (b *bed) status(devices ...map[string]any) {
	if devices == nil {
		devices = []map[string]any{}
	}
	data, err := json.Marshal(devices)
	must(b.t, err)
	must(b.t, os.WriteFile(b.path("status.new"), data, 0o600))
	must(b.t, os.Rename(b.path("status.new"), b.path("status")))
}

type registration struct {
	v1beta1.UnimplementedRegistrationServer
	seen chan *v1beta1.RegisterRequest
}

func (r registration) Register(
	_ context.Context, request *v1beta1.RegisterRequest,
) (*v1beta1.Empty, error) {
	r.seen <- request
	return &v1beta1.Empty{}, nil
}

// startKubelet removes all sockets, as kubelet does, and takes registrations.
func (b *bed) startKubelet() {
	old, err := filepath.Glob(b.path("kubelet/*"))
	must(b.t, err)
	for _, path := range old {
		must(b.t, os.Remove(path))
	}
	listener, err := net.Listen("unix", b.path("kubelet/kubelet.sock"))
	must(b.t, err)
	b.server = grpc.NewServer()
	v1beta1.RegisterRegistrationServer(b.server, registration{seen: b.seen})
	go b.server.Serve(listener)
}

func (b *bed) stopKubelet() {
	if b.server != nil {
		b.server.Stop()
	}
}

// registered waits for a registration and connects to the plugin that it names.
func (b *bed) registered() v1beta1.DevicePluginClient {
	b.t.Helper()
	select {
	case request := <-b.seen:
		if request.Version != "v1beta1" || request.Endpoint != "ring3.dev-disk.sock" ||
			request.ResourceName != "ring3.dev/disk" {
			b.t.Fatalf("registered as %v", request)
		}
		return b.client()
	case <-time.After(patience):
		b.t.Fatal("nobody has registered")
		return nil
	}
}

func (b *bed) client() v1beta1.DevicePluginClient {
	connection, err := grpc.NewClient("unix:"+b.path("kubelet/ring3.dev-disk.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b.t, err)
	b.t.Cleanup(func() { connection.Close() })
	return v1beta1.NewDevicePluginClient(connection)
}

// args are the command line of a plugin in this bed.
func (b *bed) args(more ...string) []string {
	return append([]string{
		"--ring3", b.path("ring3"), "--socket", b.path("control"), "--every", "50ms",
		"--kubelet-dir", b.path("kubelet"), "--cdi-dir", b.path("cdi"),
		"--allow", "scratch*",
	}, more...)
}

// running is a plugin in this process.
type running struct {
	stop context.CancelFunc
	code chan int
	log  *record
}

func (b *bed) start(more ...string) *running {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{stop: stop, code: make(chan int, 1), log: &record{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.code <- run(ctx, b.args(more...), r.log, r.log)
	}()
	b.t.Cleanup(func() {
		stop()
		<-done
		if b.t.Failed() {
			b.t.Log(r.log)
		}
	})
	return r
}

// record is a buffer for several writers.
type record struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (r *record) Write(data []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.Write(data)
}

func (r *record) String() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.String()
}

// watch are the lists that the plugin sends, each as `name=Healthy` with blanks between.
func (b *bed) watch(client v1beta1.DevicePluginClient) <-chan string {
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	stream, err := client.ListAndWatch(ctx, &v1beta1.Empty{}, grpc.WaitForReady(true))
	must(b.t, err)
	lists := make(chan string, 256)
	go func() {
		defer close(lists)
		for {
			list, err := stream.Recv()
			if err != nil {
				return
			}
			var words []string
			for _, device := range list.Devices {
				words = append(words, device.ID+"="+device.Health)
			}
			slices.Sort(words)
			lists <- strings.Join(words, " ")
		}
	}()
	return lists
}

// await waits until the plugin sends this list.
func (b *bed) await(lists <-chan string, wanted string) {
	b.t.Helper()
	limit, seen := time.After(patience), []string{}
	for {
		select {
		case list, open := <-lists:
			if list == wanted {
				return
			}
			if seen = append(seen, list); !open {
				b.t.Fatalf("the stream has ended; wanted %q, seen %q", wanted, seen)
			}
		case <-limit:
			b.t.Fatalf("wanted %q, seen %q", wanted, seen)
		}
	}
}

// allocate asks for one container with these disks.
func allocate(
	client v1beta1.DevicePluginClient, ids ...string,
) (*v1beta1.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	container := &v1beta1.ContainerAllocateRequest{DevicesIds: ids}
	request := &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{container},
	}
	answer, err := client.Allocate(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return answer.ContainerResponses[0], nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until it is so.
func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
