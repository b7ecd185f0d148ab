package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// Resource is the name of the resource in the limits of a container.
const Resource = cdi.Kind

// plugin implements the kubelet's interface of device plugins.
type plugin struct {
	api.UnimplementedDevicePluginServer
	node   *Node
	health *Monitor
	end    context.Context // done when the server stops
}

var options = &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}

// GetDevicePluginOptions implements api.DevicePluginServer.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options, nil
}

// ListAndWatch implements api.DevicePluginServer. It sends all devices with their health, and again
// when that has changed.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		problems, changed := p.health.Problems()
		list := &api.ListAndWatchResponse{}
		for _, r := range p.node.Rails {
			health := api.Healthy
			if problems[r.Name] != "" {
				health = api.Unhealthy
			}
			for i := range p.node.Count {
				list.Devices = append(list.Devices, &api.Device{ID: r.DeviceName(i), Health: health})
			}
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.end.Done():
			return nil
		}
	}
}

// device is a device that the kubelet has named.
type device struct {
	id           string
	rail, number int
}

// devices returns the devices with the given IDs in the order of rails and numbers.
func (p *plugin) devices(ids []string) (list []device, err error) {
	for _, id := range ids {
		r, number, err := p.node.RailOf(id)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		list = append(list, device{id, slices.IndexFunc(p.node.Rails, func(o Rail) bool { return o.Name == r.Name }), number})
	}
	slices.SortFunc(list, func(a, b device) int {
		if a.rail != b.rail {
			return a.rail - b.rail
		}
		return a.number - b.number
	})
	return slices.CompactFunc(list, func(a, b device) bool { return a.id == b.id }), nil
}

// GetPreferredAllocation implements api.DevicePluginServer. Several devices of a container are of
// different rails as far as possible.
func (p *plugin) GetPreferredAllocation(_ context.Context, req *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	resp := &api.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		chosen, err := p.devices(c.GetMustIncludeDeviceIDs())
		if err != nil {
			return nil, err
		}
		free, err := p.devices(c.GetAvailableDeviceIDs())
		if err != nil {
			return nil, err
		}
		used := make([]int, len(p.node.Rails))
		for _, d := range chosen {
			used[d.rail]++
		}
		free = slices.DeleteFunc(free, func(d device) bool { return slices.Contains(chosen, d) })
		for len(chosen) < int(c.GetAllocationSize()) && len(free) > 0 {
			best := 0
			for i, d := range free {
				if used[d.rail] < used[free[best].rail] {
					best = i
				}
			}
			used[free[best].rail]++
			chosen, free = append(chosen, free[best]), slices.Delete(free, best, best+1)
		}
		one := &api.ContainerPreferredAllocationResponse{}
		for _, d := range chosen {
			one.DeviceIDs = append(one.DeviceIDs, d.id)
		}
		resp.ContainerResponses = append(resp.ContainerResponses, one)
	}
	return resp, nil
}

// Allocate implements api.DevicePluginServer. It names CDI devices, or if the container runtime
// does not support CDI, what these stand for.
func (p *plugin) Allocate(_ context.Context, req *api.AllocateRequest) (*api.AllocateResponse, error) {
	resp := &api.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		list, err := p.devices(c.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		if len(list) > dropin.MaxRails {
			return nil, status.Errorf(codes.InvalidArgument, "%d devices of %s: a container may have at most %d", len(list), Resource,
				dropin.MaxRails)
		}
		rails := map[int]*Rail{}
		for position, d := range list {
			rails[position] = &p.node.Rails[d.rail]
		}
		// The node's rails are valid, but a container may have several of a rail of all interfaces.
		if err := p.node.Validate(rails); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		one := &api.ContainerAllocateResponse{}
		if p.node.CDIDir == "" {
			if one, err = p.withoutCDI(list); err != nil {
				return nil, err
			}
		} else if err := p.node.WriteSpec(); err != nil { // it may have been removed just now
			return nil, status.Error(codes.Unavailable, fmt.Sprintf("CDI specification: %v", err))
		} else {
			for position, d := range list {
				one.CdiDevices = append(one.CdiDevices, &api.CDIDevice{Name: p.node.CDIDevice(&p.node.Rails[d.rail], position)})
			}
		}
		resp.ContainerResponses = append(resp.ContainerResponses, one)
	}
	return resp, nil
}

// withoutCDI returns the edits of a container as the kubelet's own interface has them.
func (p *plugin) withoutCDI(list []device) (*api.ContainerAllocateResponse, error) {
	var rails []dropin.RailSpec
	for position, d := range list {
		rails = append(rails, p.node.Rails[d.rail].at(position))
	}
	edits, err := cdi.Edits(p.node.Settings, rails...)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	resp := &api.ContainerAllocateResponse{Envs: map[string]string{}}
	for _, e := range edits.Env {
		name, value, _ := strings.Cut(e, "=")
		resp.Envs[name] = value
	}
	for _, m := range edits.Mounts {
		resp.Mounts = append(resp.Mounts, &api.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath,
			ReadOnly: slices.Contains(m.Options, "ro")})
	}
	return resp, nil
}

// PreStartContainer implements api.DevicePluginServer. The kubelet does not call it.
func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}
