package main

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// plugin answers kubelet. kubelet gives each disk to one container at a time.
type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	options   *options
	inventory *inventory
}

// GetDevicePluginOptions says that nothing is to be done before a container starts, and that no
// disk is better than another.
func (p *plugin) GetDevicePluginOptions(
	context.Context, *v1beta1.Empty,
) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends the disks, now and at each change.
func (p *plugin) ListAndWatch(
	_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer,
) error {
	for {
		disks, changed := p.inventory.list()
		answer := &v1beta1.ListAndWatchResponse{}
		for _, d := range disks {
			device := &v1beta1.Device{ID: d.name, Health: v1beta1.Healthy}
			if d.reason != "" {
				device.Health = v1beta1.Unhealthy
			}
			answer.Devices = append(answer.Devices, device)
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate says how containers get their disks. ring3d is asked again before: since the last time
// the disk may have been stopped, and another one may have its number.
func (p *plugin) Allocate(
	ctx context.Context, request *v1beta1.AllocateRequest,
) (*v1beta1.AllocateResponse, error) {
	if err := p.inventory.refresh(ctx); err != nil {
		return nil, status.Errorf(codes.Unavailable, "no disk can be given: %v", err)
	}
	disks, _ := p.inventory.list()
	answer := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := &v1beta1.ContainerAllocateResponse{}
		var paths []string
		for _, id := range container.DevicesIds {
			found, err := find(disks, id)
			if err != nil {
				return nil, err
			}
			p.give(given, found)
			paths = append(paths, p.options.containerPath(id))
		}
		// A pod cannot choose a disk, so it is told which one it has.
		given.Envs = map[string]string{"RING3_DISKS": strings.Join(paths, ":")}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// find is the disk of this id, or the reason why no pod may be given it.
func find(disks []disk, id string) (disk, error) {
	for _, d := range disks {
		if d.name == id && d.reason != "" {
			return d, status.Error(codes.FailedPrecondition, id+": "+d.reason)
		}
		if d.name == id {
			return d, nil
		}
	}
	return disk{}, status.Errorf(codes.NotFound, "there is no allowed disk %.80q", id)
}

// give adds a disk to what a container gets.
func (p *plugin) give(to *v1beta1.ContainerAllocateResponse, d disk) {
	if p.options.useCDI {
		vendor, class := parser.ParseQualifier(p.options.resource)
		name := parser.QualifiedName(vendor, class, d.name)
		to.CdiDevices = append(to.CdiDevices, &v1beta1.CDIDevice{Name: name})
		return
	}
	to.Devices = append(to.Devices, &v1beta1.DeviceSpec{
		HostPath:      d.node,
		ContainerPath: p.options.containerPath(d.name),
		Permissions:   p.options.access,
	})
}
