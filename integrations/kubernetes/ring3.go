package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxStatus bounds what ring3 may print: about two thousand devices.
	maxStatus = 4 << 20
	// maxDisks bounds what is offered to kubelet.
	maxDisks = 256
	// maxComplaints bounds what one answer of ring3d can write to the log.
	maxComplaints = 8
)

// device is what is used of an entry of `ring3 status --json` (docs/json.md).
type device struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Disks []struct {
		Path string  `json:"path"`
		Link *string `json:"link"`
	} `json:"disks"`
}

// usable says for each state of ring3d whether a pod may be given the disk. It may where requests
// are served, or wait for a driver that is about to serve: none of them is lost. Starts that failed
// (backing_off) are no such promise. A state that is not here is one of a later ring3d.
var usable = map[string]bool{
	"running":     true,
	"recovering":  true,
	"upgrading":   true,
	"sleeping":    true,
	"absent":      false,
	"starting":    false,
	"backing_off": false,
	"failed":      false,
	"stopping":    false,
	"stopped":     false,
}

// disk is a disk that the operator allows.
type disk struct {
	name   string // below /dev/ring3, and for kubelet
	node   string // /dev/ublkbN
	device string // what its manifest calls the device
	// reason says why no pod may be given it; empty if it is healthy.
	reason string
}

var (
	// A name of ring3d's that is one of CDI's, too. It becomes a path, so no `/` is in it.
	diskName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,78}[A-Za-z0-9])?$`)
	// Only ublk makes a disk of ring3d's. No other node of the host is ever given away.
	diskNode = regexp.MustCompile(`^/dev/ublkb(0|[1-9][0-9]{0,6})$`)
)

// offered are the allowed disks of devices by name, and sentences about those that are refused.
//
// # Trust
// ring3d checks names, but how many disks a device has is what its driver says. So names and nodes
// are checked again, and a name or a node that comes twice is nobody's: two pods could get it.
func offered(devices []device, allow patterns) (disks []disk, complaints []string) {
	refuse := func(format string, args ...any) {
		if len(complaints) < maxComplaints {
			complaints = append(complaints, fmt.Sprintf(format, args...))
		}
	}
	seen := map[string]int{}
	for _, device := range devices {
		reason := ""
		if !usable[device.State] {
			reason = fmt.Sprintf("its device is %.40q", device.State)
		}
		for _, found := range device.Disks {
			// A disk without a link is about to get one, or its name is another disk's.
			if found.Link == nil {
				continue
			}
			name, below := strings.CutPrefix(*found.Link, "/dev/ring3/")
			if !below || !diskName.MatchString(name) {
				refuse("%.80q is not a name of a disk", *found.Link)
				continue
			}
			seen[name]++
			seen[found.Path]++
			switch {
			case !allow.match(name):
			case !diskNode.MatchString(found.Path):
				refuse("%s: %.80q is not a node of ublk", name, found.Path)
			default:
				disks = append(disks, disk{name, found.Path, device.Name, reason})
			}
		}
	}
	disks = slices.DeleteFunc(disks, func(d disk) bool {
		twice := seen[d.name] > 1 || seen[d.node] > 1
		if twice {
			refuse("%s: its name or %s comes twice", d.name, d.node)
		}
		return twice
	})
	slices.SortFunc(disks, func(a, b disk) int { return strings.Compare(a.name, b.name) })
	if len(disks) > maxDisks {
		refuse("%d disks are allowed, and the first %d are offered", len(disks), maxDisks)
		disks = disks[:maxDisks]
	}
	return disks, complaints
}

// healthy are those disks that a pod may be given now.
func healthy(disks []disk) []disk {
	return slices.DeleteFunc(slices.Clone(disks), func(d disk) bool { return d.reason != "" })
}

// ask runs `ring3 status --json`. It ends after the time limit at the latest.
//
// The program is used, and not ring3d's socket, because its output is documented and stays; the
// protocol of the socket changes with releases.
func ask(ctx context.Context, o *options) ([]device, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	command := exec.CommandContext(ctx, o.ring3, "status", "--json", "--socket", o.socket)
	out, said := &bounded{limit: maxStatus, full: cancel}, &bounded{limit: 4096}
	command.Stdout, command.Stderr = out, said
	// A group of its own, so that what ring3 has started ends with it. A process that has left
	// the group can keep the pipes for one more second.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	err := command.Run()
	switch {
	case out.isFull:
		return nil, fmt.Errorf("ring3 status printed more than %d bytes", maxStatus)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("ring3 status did not end within %v", o.timeout)
	case err != nil:
		line, _, _ := strings.Cut(strings.TrimSpace(said.kept.String()), "\n")
		return nil, fmt.Errorf("ring3 status: %w: %.400q", err, line)
	}
	var devices []device
	if err := json.Unmarshal(out.kept.Bytes(), &devices); err != nil || devices == nil {
		return nil, fmt.Errorf("ring3 status printed no list of devices: %v", err)
	}
	return devices, nil
}

// bounded keeps the first bytes of what is written to it, and calls `full` at the first one more.
// The buffer is no embedded one, whose ReadFrom io.Copy would use in the place of Write.
type bounded struct {
	kept   bytes.Buffer
	limit  int
	isFull bool
	full   func()
}

func (b *bounded) Write(data []byte) (int, error) {
	keep := min(len(data), b.limit-b.kept.Len())
	b.kept.Write(data[:keep])
	if keep < len(data) {
		b.isFull = true
		if b.full != nil {
			b.full()
		}
	}
	return len(data), nil
}
