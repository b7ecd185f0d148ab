package kubernetes

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// Rail is a kind of devices that the node offers. Each device of a rail is for one pod at a time.
type Rail struct {
	Name      string // a DNS label
	Spec      dropin.RailSpec
	Network   string // which rails reach each other; "": that of the pods
	Interface string // of the node: the devices are healthy while it is up. "": no interface
}

// DefaultRail has the addresses of the pod, over the pod's own sockets.
var DefaultRail = Rail{Name: "rail0", Spec: dropin.RailSpec{Link: "kernel"}}

// label is a DNS label, which names of devices in Kubernetes must be.
var label = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`) })

// UnmarshalText parses a value of --rail.
func (r *Rail) UnmarshalText(text []byte) error {
	*r = Rail{}
	for part := range strings.SplitSeq(string(text), ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		field, known := map[string]*string{"name": &r.Name, "link": &r.Spec.Link, "addr": &r.Spec.Addr, "device": &r.Spec.Device,
			"network": &r.Network, "interface": &r.Interface}[name]
		if !ok || !known {
			return fmt.Errorf("%q: must be name=, link=, addr=, device=, network= or interface=, separated by semicolons", part)
		}
		*field = value
	}
	if !label().MatchString(r.Name) {
		return fmt.Errorf("name=%s: must be 1 to 32 lower-case letters, digits and inner hyphens", r.Name)
	}
	if r.Spec.Link == "" {
		r.Spec.Link = DefaultRail.Spec.Link
	}
	return nil
}

// Node describes the devices of this node.
type Node struct {
	Rails    []Rail
	Count    int // the devices of each rail
	Settings cdi.Settings
	CDIDir   string // of the specification; "": the container runtime does not support CDI
	// CDIPrefix begins the names of the specification's devices, and that of its file. The device
	// plugin and the DRA driver of one node have different ones.
	CDIPrefix string
}

// MaxCount is the most devices of a rail.
const MaxCount = 1024

// validate returns an error that names what the plugin, or the libraries in a pod, would refuse.
func (n *Node) validate() error {
	seen := map[string]bool{}
	for _, r := range n.Rails {
		if seen[r.Name] {
			return fmt.Errorf("--rail: two rails have the name %s", r.Name)
		}
		seen[r.Name] = true
		for position := range dropin.MaxRails {
			if err := n.Validate(map[int]*Rail{position: &r}); err != nil {
				return fmt.Errorf("--rail name=%s: %w", r.Name, err)
			}
		}
	}
	for i := range n.Rails {
		for j := range n.Rails {
			first, second := &n.Rails[i], &n.Rails[j]
			if i == j && strings.TrimSpace(first.Spec.Link) == dropin.AllInterfaces { // see plugin.Allocate
				continue
			}
			if err := n.Validate(map[int]*Rail{0: first, 1: second}); err != nil {
				return fmt.Errorf("--rail name=%s and name=%s in one container: %w", first.Name, second.Name, err)
			}
		}
	}
	if len(n.Rails) > dropin.MaxRails {
		return fmt.Errorf("--rail: %d rails: must be at most %d", len(n.Rails), dropin.MaxRails)
	}
	if n.Count < 1 || n.Count > MaxCount {
		return fmt.Errorf("--devices %d: must be 1 to %d", n.Count, MaxCount)
	}
	return nil
}

// DeviceName returns the name of one of the devices of a rail, from 0 to Count-1.
func (r *Rail) DeviceName(number int) string { return r.Name + "-" + strconv.Itoa(number) }

// errUnknown is for a device that this node does not have, as after a change of its rails.
var errUnknown = errors.New("this node has no such device")

// RailOf returns the rail of the device with a name, and the device's number.
func (n *Node) RailOf(device string) (r *Rail, number int, err error) {
	if i := strings.LastIndexByte(device, '-'); i > 0 {
		number, err = strconv.Atoi(device[i+1:])
		for j := range n.Rails {
			if r = &n.Rails[j]; err == nil && r.Name == device[:i] && number >= 0 && number < n.Count {
				return r, number, nil
			}
		}
	}
	return nil, 0, fmt.Errorf("%s: %w", device, errUnknown)
}
