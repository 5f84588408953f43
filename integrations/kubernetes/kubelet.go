package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// look is how often the sockets are looked at. Two system calls a second cost nothing, and
	// they also see a folder that was replaced, of which inotify would report nothing any more.
	look = time.Second
	// registerLimit is how long kubelet may take to answer a registration.
	registerLimit = 10 * time.Second
)

// errReplaced ends a session: kubelet was started again, or somebody has removed the socket.
var errReplaced = errors.New("kubelet.sock or the plugin's socket was replaced")

// kubelet is the node's kubelet, as seen from here.
type kubelet struct {
	options   *options
	inventory *inventory
	log       *slog.Logger
}

// stay registers with kubelet, and with each kubelet that follows, until the context ends.
func (k *kubelet) stay(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		err := k.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != logged {
			logged = err.Error()
			k.log.Warn("kubelet is tried again", "because", logged)
		}
		if !errors.Is(err, errReplaced) {
			sleep(ctx, look)
		}
	}
}

// session serves one kubelet: a socket of its own, a registration, and calls, until the context
// ends or kubelet is another one. A kubelet that starts removes all sockets of plugins, so that
// each session begins with a new one.
func (k *kubelet) session(ctx context.Context) error {
	peer := filepath.Join(k.options.kubeletDir, "kubelet.sock")
	before, err := os.Lstat(peer)
	if err != nil {
		return err
	}
	endpoint := k.options.fileName(".sock")
	path := filepath.Join(k.options.kubeletDir, endpoint)
	listener, err := listen(path)
	if err != nil {
		return err
	}
	own, err := os.Lstat(path)
	if err != nil {
		listener.Close()
		return err
	}
	// The last call has ended before the CDI file is removed.
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	defer func() {
		server.Stop()
		if isSame(path, own) {
			os.Remove(path)
		}
	}()
	service := &plugin{options: k.options, inventory: k.inventory}
	v1beta1.RegisterDevicePluginServer(server, service)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	if err := register(ctx, peer, endpoint, k.options.resource); err != nil {
		return fmt.Errorf("registering with kubelet: %w", err)
	}
	k.log.Info("registered with kubelet", "resource", k.options.resource)
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return fmt.Errorf("serving at %s: %w", path, err)
		case <-ticker.C:
			if !isSame(peer, before) || !isSame(path, own) {
				return errReplaced
			}
		}
	}
}

// isSame says whether the file at a path is still this one. The time tells a new file from an old
// one whose inode number it has got.
func isSame(path string, before fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime())
}

// listen makes a socket that its owner alone can use. It takes the place of one that a dead process
// has left, and not of a living one's.
func listen(path string) (net.Listener, error) {
	if connection, err := net.DialTimeout("unix", path, look); err == nil {
		connection.Close()
		return nil, fmt.Errorf("another process serves %s: stop it first", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The kernel gives the file the mode of the socket: it is right from the first moment on.
	private := func(_, _ string, connection syscall.RawConn) (failed error) {
		err := connection.Control(func(fd uintptr) {
			failed = syscall.Fchmod(int(fd), 0o600)
		})
		return errors.Join(err, failed)
	}
	config := net.ListenConfig{Control: private}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	// By then another process may have the path.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}

// register tells kubelet of this plugin. kubelet calls back while it answers.
func register(ctx context.Context, peer, endpoint, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", peer)
	}
	connection, err := grpc.NewClient("passthrough:///kubelet", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &v1beta1.RegisterRequest{
		Version:      v1beta1.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
		Options:      &v1beta1.DevicePluginOptions{},
	}
	_, err = v1beta1.NewRegistrationClient(connection).Register(ctx, request)
	return err
}
