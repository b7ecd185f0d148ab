package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/kubernetes"
)

// driverName is the name of the driver, and the domain of its attributes.
const driverName = "softrnic.dev"

// driver implements kubeletplugin.DRAPlugin, whose calls are one at a time.
type driver struct {
	node   *kubernetes.Node
	pool   string // the node's name
	health monitor
	claims string // a directory with a file for each prepared claim
	log    *slog.Logger
	fail   func(error) // ends the driver
}

// monitor is what the driver needs of kubernetes.Monitor.
type monitor interface {
	Problems() (problems map[string]string, changed <-chan struct{})
	Run(ctx context.Context) error
}

// defaultMbps is the rate that ports report by default, in Mbit/s.
const defaultMbps = 40000

// resources returns the devices that can be allocated: those of healthy rails.
func (d *driver) resources(problems map[string]string) resourceslice.DriverResources {
	rate := int64(defaultMbps)
	if gbps, err := strconv.ParseFloat(d.node.Settings.Speed, 64); err == nil {
		rate = int64(math.Round(gbps * 1000))
	}
	var slices []resourceslice.Slice
	for _, r := range d.node.Rails {
		if problems[r.Name] != "" {
			continue
		}
		text := func(s string) resource.DeviceAttribute { return resource.DeviceAttribute{StringValue: &s} }
		attributes := map[resource.QualifiedName]resource.DeviceAttribute{"rail": text(r.Name), "link": text(r.Spec.Link),
			"rateMbps": {IntValue: &rate}}
		if r.Network != "" {
			attributes["network"] = text(r.Network)
		}
		for i := range d.node.Count {
			if i%resource.ResourceSliceMaxDevices == 0 {
				slices = append(slices, resourceslice.Slice{})
			}
			last := &slices[len(slices)-1]
			last.Devices = append(last.Devices, resource.Device{Name: r.DeviceName(i), Attributes: attributes})
		}
	}
	if slices == nil {
		slices = []resourceslice.Slice{{}} // an empty pool
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.pool: {Slices: slices}}}
}

// prepared is the state of a prepared claim: the position of each device among those of a
// container. It is kept in a file, as the kubelet may prepare a claim again with a later process.
type prepared map[string]int

func (d *driver) file(claim types.UID) string {
	return filepath.Join(d.claims, string(claim)+".json")
}

// state returns the state of a claim, nil if it is not prepared. So is one whose file is damaged: a
// crash of the node may leave an empty file, and no pod that uses the claim.
func (d *driver) state(claim types.UID) (p prepared, err error) {
	text, err := os.ReadFile(d.file(claim))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		d.log.Warn("the state of a claim is damaged", "file", d.file(claim), "error", err)
		return nil, nil
	}
	return p, nil
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin. The claims are those of one pod: their
// devices have different positions.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult,
	error) {
	if err := d.node.WriteSpec(); err != nil { // it may have been removed just now
		return nil, fmt.Errorf("CDI specification: %w", err)
	}
	states, taken := map[types.UID]prepared{}, map[int]types.UID{}
	rails := map[int]*kubernetes.Rail{} // of the pod, by position
	result := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims { // those of another pod too come first
		p, err := d.state(c.UID)
		for _, position := range p {
			if other, is := taken[position]; is && err == nil {
				err = fmt.Errorf("its devices have the positions of those of claim %s, which was prepared for another pod", other)
			}
			taken[position] = c.UID
		}
		if err != nil {
			result[c.UID] = kubeletplugin.PrepareResult{Err: err}
		}
		states[c.UID] = p
	}
	for _, c := range claims {
		if result[c.UID].Err == nil {
			devices, err := d.prepare(c, states[c.UID], taken, rails)
			result[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
		}
		if err := result[c.UID].Err; err != nil {
			d.log.Warn("claim is not prepared", "claim", c.Namespace+"/"+c.Name, "error", err)
		} else {
			d.log.Info("claim is prepared", "claim", c.Namespace+"/"+c.Name, "devices", len(result[c.UID].Devices))
		}
	}
	return result, nil
}

// prepare prepares a claim, in positions that are not taken unless it is prepared already. It adds
// the claim's devices to the rails of the pod.
func (d *driver) prepare(c *resource.ResourceClaim, p prepared, taken map[int]types.UID, rails map[int]*kubernetes.Rail) (
	devices []kubeletplugin.Device, err error) {
	fresh := p == nil
	if fresh {
		p = prepared{}
	}
	others, err := d.others(c.UID)
	if err != nil {
		return nil, err
	}
	for _, a := range c.Status.Allocation.Devices.Results {
		if a.Driver != driverName {
			continue
		}
		r, _, err := d.node.RailOf(a.Device)
		if err != nil {
			return nil, err
		}
		if other, used := others[a.Device]; used {
			return nil, fmt.Errorf("%s is in use by claim %s", a.Device, other)
		}
		position, is := p[a.Device]
		if !is {
			for position = 0; taken[position] != ""; position++ {
			}
			if position >= dropin.MaxRails {
				return nil, fmt.Errorf("%s: a pod may have at most %d devices", a.Device, dropin.MaxRails)
			}
			p[a.Device], taken[position], fresh = position, c.UID, true
		}
		rails[position] = r
		devices = append(devices, kubeletplugin.Device{Requests: []string{a.Request}, PoolName: a.Pool, DeviceName: a.Device,
			CDIDeviceIDs: []string{d.node.CDIDevice(r, position)}})
	}
	if err := d.node.Validate(rails); err != nil || !fresh {
		return devices, err
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = cdi.WriteFile(d.file(c.UID), text, 0o600)
	}
	return devices, err
}

// others returns the devices of all prepared claims but one.
func (d *driver) others(claim types.UID) (map[string]types.UID, error) {
	entries, err := os.ReadDir(d.claims)
	if err != nil {
		return nil, err
	}
	devices := map[string]types.UID{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if other := types.UID(name); ok && other != claim {
			p, err := d.state(other)
			if err != nil {
				return nil, err
			}
			for device := range p {
				devices[device] = other
			}
		}
	}
	return devices, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	for _, c := range claims {
		err := os.Remove(d.file(c.UID))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		result[c.UID] = err
	}
	return result, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *driver) HandleError(_ context.Context, err error, msg string) {
	d.log.Error(msg, "error", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// resend is how often the health is reported if it does not change. The kubelet takes older reports
// than 30 s for stale.
const resend = 10 * time.Second

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	ticker := time.NewTicker(resend)
	defer ticker.Stop()
	for {
		problems, changed := d.health.Problems()
		var report kubeletplugin.DeviceHealthReport
		for _, r := range d.node.Rails {
			health := kubeletplugin.HealthStatusHealthy
			if problems[r.Name] != "" {
				health = kubeletplugin.HealthStatusUnhealthy
			}
			for i := range d.node.Count {
				report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{PoolName: d.pool, DeviceName: r.DeviceName(i), Health: health,
					LastUpdated: time.Now(), Message: problems[r.Name]})
			}
		}
		select {
		case reports <- report:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
