// Command ring3-device-plugin gives disks that ring3d serves to pods of Kubernetes.
//
// The way of a disk: ring3.go asks ring3d for its devices, inventory.go keeps those that the
// operator allows, cdi.go describes them to container runtimes, plugin.go answers kubelet's calls,
// and kubelet.go registers with kubelet for as long as this program runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

const usage = `Gives disks that ring3d serves to pods (docs/kubernetes.md).

  ring3-device-plugin --allow NAME [OPTION]...         serve kubelet until SIGTERM
  ring3-device-plugin cdi --out DIR --allow NAME ...   write the CDI file once

Options:
`

// options are what the operator has chosen.
type options struct {
	ring3        string        // the program ring3
	socket       string        // ring3d's socket
	allow        patterns      // which disks pods may have
	resource     string        // the resource, and the kind of the CDI devices
	access       string        // "r" or "rw"
	containerDir string        // the folder of the disks in a container
	useCDI       bool          // whether kubelet gets CDI names or device nodes
	cdiDir       string        // the folder of the CDI file
	kubeletDir   string        // the folder of kubelet's socket
	every        time.Duration // from one question to the next
	timeout      time.Duration // for one answer of ring3
	once         bool          // write the CDI file and end
}

// patterns are shell patterns of the names of disks.
type patterns []string

func (p *patterns) String() string { return strings.Join(*p, " ") }

func (p *patterns) Set(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
		return errors.New("not a name or a shell pattern")
	}
	*p = append(*p, pattern)
	return nil
}

func (p patterns) match(name string) bool {
	for _, pattern := range p {
		if matched, _ := path.Match(pattern, name); matched {
			return true
		}
	}
	return false
}

// parse reads the command line. What is wrong with it goes to `out`.
func parse(args []string, out io.Writer) (options, error) {
	o := options{useCDI: true}
	o.once = len(args) > 0 && args[0] == "cdi"
	flags := flag.NewFlagSet("ring3-device-plugin", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() { fmt.Fprint(out, usage); flags.PrintDefaults() }
	flags.Var(&o.allow, "allow", "a disk that pods may have: its `name` below /dev/ring3,\n"+
		"or a shell pattern; may be given several times. No other disk is offered")
	flags.StringVar(&o.ring3, "ring3", "ring3", "the `program` ring3, of ring3d's release")
	flags.StringVar(&o.socket, "socket", "/run/ring3/control", "ring3d's socket, a `path`")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long ring3 may take to answer")
	flags.StringVar(&o.resource, "resource", "ring3.dev/disk", "the `name` of the resource,\n"+
		"and the kind of the CDI devices")
	flags.StringVar(&o.access, "access", "rw", "what a pod may do: rw, or r to read only")
	flags.StringVar(&o.containerDir, "container-dir", "/dev/ring3",
		"the `folder` of the disks in a container")
	if o.once {
		args = args[1:]
		flags.StringVar(&o.cdiDir, "out", "", "the `folder` of the CDI file")
	} else {
		flags.BoolVar(&o.useCDI, "cdi", true,
			"give CDI names to kubelet; false: device nodes")
		flags.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi",
			"the `folder` of the CDI file")
		flags.StringVar(&o.kubeletDir, "kubelet-dir", v1beta1.DevicePluginPath,
			"the `folder` of kubelet.sock")
		flags.DurationVar(&o.every, "every", 2*time.Second, "how often ring3d is asked")
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	err := o.check(flags.Args())
	if err != nil {
		fmt.Fprintln(out, "ring3-device-plugin:", err)
	}
	return o, err
}

// check finds what the types of the options allow and their meaning does not.
func (o *options) check(rest []string) error {
	vendor, class := parser.ParseQualifier(o.resource)
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case len(o.allow) == 0:
		return errors.New("no disk is allowed: name those that pods may have with --allow")
	case parser.ValidateVendorName(vendor) != nil || parser.ValidateClassName(class) != nil:
		return fmt.Errorf("--resource %q: it is a name such as ring3.dev/disk", o.resource)
	case o.access != "r" && o.access != "rw":
		return fmt.Errorf("--access %q: r or rw", o.access)
	case !path.IsAbs(o.containerDir):
		return fmt.Errorf("--container-dir %q: an absolute path is needed", o.containerDir)
	case o.once && o.cdiDir == "":
		return errors.New("name the folder of the CDI file with --out")
	case o.timeout <= 0 || !o.once && o.every <= 0:
		return errors.New("--every and --timeout are longer than nothing")
	}
	return nil
}

// containerPath is where a container finds the disk.
func (o *options) containerPath(disk string) string { return path.Join(o.containerDir, disk) }

// fileName is the resource's name as that of a file.
func (o *options) fileName(extension string) string {
	return strings.ReplaceAll(o.resource, "/", "-") + extension
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. Its result is the exit code: 0, 1 after an error, 2 with wrong options.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if o.ring3, err = exec.LookPath(o.ring3); err != nil {
		log.Error("ring3 is not found: name it with --ring3", "error", err)
		return 1
	}
	file := &cdiFile{options: &o, path: filepath.Join(o.cdiDir, o.fileName(".json"))}
	if o.once {
		err = writeOnce(ctx, &o, file, stdout)
	} else {
		err = serve(ctx, &o, file, log)
	}
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

// writeOnce writes the CDI file of the disks that are served now.
func writeOnce(ctx context.Context, o *options, file *cdiFile, out io.Writer) error {
	devices, err := ask(ctx, o)
	if err != nil {
		return err
	}
	disks, complaints := offered(devices, o.allow)
	disks = healthy(disks)
	if len(disks) == 0 {
		return fmt.Errorf("no allowed disk is served; %s", strings.Join(complaints, "; "))
	}
	if err := file.update(disks); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, file.path)
	return err
}

// serve follows ring3d and serves kubelet until the context ends.
func serve(ctx context.Context, o *options, file *cdiFile, log *slog.Logger) error {
	inventory := newInventory(o, log)
	if o.useCDI {
		inventory.publish = file.update
	}
	// Before kubelet sees the plugin: a list that is empty at first would make kubelet refuse
	// pods.
	_ = inventory.refresh(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		inventory.follow(ctx, o.every)
	}()
	(&kubelet{options: o, inventory: inventory, log: log}).stay(ctx)
	// Nothing writes the file any more when it is removed.
	<-followed
	if o.useCDI {
		return file.remove()
	}
	return nil
}
