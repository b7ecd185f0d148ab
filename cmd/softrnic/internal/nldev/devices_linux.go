package nldev

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

// device is a device with one port, as sysfs has it.
type device struct {
	dir                 string
	name, fw, netdev    string
	nodeGUID, imageGUID verbs.GUID
	nodeType            uint8
	state, physState    uint8
}

// readDevices returns the devices in sysfs below root, sorted by their names.
func readDevices(root string) ([]device, error) {
	class := filepath.Join(root, "sys/class/infiniband")
	entries, err := os.ReadDir(class)
	if err != nil {
		return nil, err
	}
	var all []device
	for _, e := range entries {
		d := device{dir: filepath.Join(class, e.Name()), name: e.Name()}
		d.fw, d.netdev = d.read("fw_ver"), d.read("ports/1/gid_attrs/ndevs/0")
		d.nodeGUID, d.imageGUID = d.guid("node_guid"), d.guid("sys_image_guid")
		d.nodeType, d.state, d.physState = code(d.read("node_type")), code(d.read("ports/1/state")), code(d.read("ports/1/phys_state"))
		all = append(all, d)
	}
	return all, nil
}

// read returns the text of a file of the device, or "".
func (d *device) read(file string) string {
	b, _ := os.ReadFile(filepath.Join(d.dir, file)) // not every device has every file
	return strings.TrimSpace(string(b))
}

// guid returns the GUID in a file of the device, or 0.
func (d *device) guid(file string) verbs.GUID {
	g, _ := verbs.ParseGUID(d.read(file))
	return g
}

// code returns the number in a text such as "4: ACTIVE".
func code(text string) uint8 {
	number, _, _ := strings.Cut(text, ":")
	v, _ := strconv.ParseUint(number, 10, 8)
	return uint8(v)
}

func (d *device) protocol() string {
	if d.nodeType == uint8(verbs.NodeRNIC) {
		return "iw"
	}
	return "roce"
}

// ifindex returns the index of the device's network interface, or 0.
func (d *device) ifindex() uint32 {
	ifce, err := net.InterfaceByName(d.netdev)
	if err != nil {
		return 0
	}
	return uint32(ifce.Index)
}

// counter is one of hw_counters.
type counter struct {
	name  string
	value uint64
}

// hwCounters returns the counters that the kernel has in hw_counters, too: not those of the port
// and of CM messages, which it has elsewhere.
func (d *device) hwCounters() (all []counter) {
	port, _ := os.ReadDir(filepath.Join(d.dir, "ports/1/counters"))
	hw, _ := os.ReadDir(filepath.Join(d.dir, "ports/1/hw_counters"))
	for _, e := range hw {
		if strings.HasPrefix(e.Name(), "cm_") || slices.ContainsFunc(port, func(p os.DirEntry) bool { return p.Name() == e.Name() }) {
			continue
		}
		if v, err := strconv.ParseUint(d.read("ports/1/hw_counters/"+e.Name()), 10, 64); err == nil {
			all = append(all, counter{e.Name(), v})
		}
	}
	return all
}
