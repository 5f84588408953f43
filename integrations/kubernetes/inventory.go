package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// inventory is what is known of the allowed disks.
type inventory struct {
	options *options
	log     *slog.Logger
	// publish makes the healthy disks known to container runtimes.
	publish func([]disk) error

	// refreshing is held while ring3d is asked: an older answer never replaces a newer one.
	refreshing sync.Mutex
	logged     string // what the log said last of answers, which are the same for hours

	mutex   sync.Mutex
	disks   []disk
	changed chan struct{} // closed when disks change
}

func newInventory(o *options, log *slog.Logger) *inventory {
	publish := func([]disk) error { return nil }
	return &inventory{options: o, log: log, publish: publish, changed: make(chan struct{})}
}

// follow asks ring3d again and again until the context ends.
func (v *inventory) follow(ctx context.Context, every time.Duration) {
	for sleep(ctx, every); ctx.Err() == nil; sleep(ctx, every) {
		// Whatever fails is in the log, and in the health of the disks.
		_ = v.refresh(ctx)
	}
}

// refresh asks ring3d and makes its answer known. After an error no disk may be given to a pod.
func (v *inventory) refresh(ctx context.Context) error {
	v.refreshing.Lock()
	defer v.refreshing.Unlock()
	devices, err := ask(ctx, v.options)
	if ctx.Err() != nil {
		// Who has asked is gone. That says nothing of ring3d.
		return ctx.Err()
	}
	before, _ := v.list()
	var disks []disk
	var complaints []string
	if err != nil {
		disks = withReason(before, "ring3d does not answer")
		complaints = []string{err.Error()}
	} else {
		disks, complaints = offered(devices, v.options.allow)
		disks = keepLost(before, disks, devices)
	}
	// First the file, then kubelet: a pod that is given a disk finds it in the file.
	if failure := v.publish(healthy(disks)); failure != nil {
		complaints = append(complaints, failure.Error())
		disks, err = withReason(disks, "its CDI file cannot be written"), failure
	}
	v.report(complaints)
	v.set(disks)
	return err
}

// keepLost adds disks that are gone while their device is still in a manifest, as unhealthy. So
// kubelet counts the disk of a stopped device as one that is out of order.
func keepLost(before, disks []disk, devices []device) []disk {
	for _, lost := range before {
		isLost := func(d disk) bool { return d.name == lost.name }
		isOwner := func(d device) bool { return d.Name == lost.device }
		if !slices.ContainsFunc(disks, isLost) && slices.ContainsFunc(devices, isOwner) &&
			len(disks) < maxDisks {
			lost.reason = "it is not served"
			disks = append(disks, lost)
		}
	}
	slices.SortFunc(disks, func(a, b disk) int { return strings.Compare(a.name, b.name) })
	return disks
}

func withReason(disks []disk, reason string) []disk {
	disks = slices.Clone(disks)
	for i := range disks {
		disks[i].reason = reason
	}
	return disks
}

// report logs complaints once, and that there are none any more.
func (v *inventory) report(complaints []string) {
	text := strings.Join(complaints, "; ")
	if text == v.logged {
		return
	}
	v.logged = text
	if text == "" {
		v.log.Info("ring3d answers, and nothing is wrong with its disks")
	} else {
		v.log.Warn(text)
	}
}

// list are the disks, and what is closed when they change.
func (v *inventory) list() ([]disk, <-chan struct{}) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	return v.disks, v.changed
}

func (v *inventory) set(disks []disk) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if slices.Equal(v.disks, disks) {
		return
	}
	for _, d := range disks {
		if !slices.Contains(v.disks, d) {
			v.log.Info("disk", "name", d.name, "node", d.node, "unhealthy", d.reason)
		}
	}
	v.disks = disks
	close(v.changed)
	v.changed = make(chan struct{})
}

// sleep waits, and ends early with the context.
func sleep(ctx context.Context, limit time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(limit):
	}
}
