package run

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// slot is the place of a card: alone on the bus of a port, which is alone on a host bridge, or
// beside that of a GPU.
type slot struct {
	above       string // the directory that has the port's
	own         bool   // above is a host bridge that the machine does not have
	domain      string // of the PCI addresses
	bridge, bus int    // of the port, and of the card
	device      int    // number of the port
	node        int    // NUMA node, or -1
	cpus        string
	cpuMask     string
}

// slot returns a slot for the card of a rail, on the machine with a root directory. It is beside
// the GPU of NVIDIA's with the rail's number, so that programs choose the card for that.
func (t *tree) slot(root string, rail, rails int) (slot, error) {
	if gpus := gpusOf(root); len(gpus) > 0 {
		if s, ok := t.beside(root, gpus[rail%len(gpus)]); ok {
			return s, nil
		}
	}
	return freeSlot(rail, rails)
}

// pciAddress is the address of a PCI function.
var pciAddress = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{4,}):([0-9a-f]{2}):[0-9a-f]{2}\.[0-7]$`) })

// gpusOf returns the directories of NVIDIA's GPUs below a root directory, in the order of their
// addresses.
func gpusOf(root string) (gpus []string) {
	all, _ := filepath.Glob(filepath.Join(root, namespace.PCIBus, "devices/*")) // sorted
	for _, name := range all {
		vendor, _ := os.ReadFile(name + "/vendor")
		class, _ := os.ReadFile(name + "/class")
		if strings.TrimSpace(string(vendor)) != "0x10de" || !strings.HasPrefix(string(class), "0x03") { // display controller
			continue
		}
		if path, err := filepath.EvalSymlinks(name); err == nil {
			if path, err = filepath.Rel(root, path); err == nil && strings.HasPrefix(path, namespace.Devices+"/pci") {
				gpus = append(gpus, path)
			}
		}
	}
	return gpus
}

// beside returns a slot beside a GPU: below the same PCI switch, or else on the same host bridge.
// ok is false if no number is left there.
func (t *tree) beside(root, gpu string) (s slot, ok bool) {
	free := func(path string) bool {
		_, err := os.Lstat(filepath.Join(root, path))
		return err != nil && !t.has(path)
	}
	s.above = filepath.Dir(gpu)
	at := pciAddress().FindStringSubmatch(filepath.Base(gpu))
	if port := pciAddress().FindStringSubmatch(filepath.Base(s.above)); port != nil {
		at, s.above = port, filepath.Dir(s.above)
	}
	if at == nil {
		return s, false
	}
	s.domain = at[1]
	bridge, _ := strconv.ParseUint(at[2], 16, 8) // the pattern has two digits
	s.bridge = int(bridge)
	for s.device = 0x1f; !free(s.port()); s.device-- {
		if s.device == 0 {
			return s, false
		}
	}
	for s.bus = 0xff; !free(fmt.Sprintf("%s/%s:%02x", namespace.ClassPCI, s.domain, s.bus)); s.bus-- {
		if s.bus == 0 {
			return s, false
		}
	}
	read := func(file string) string {
		b, _ := os.ReadFile(filepath.Join(root, gpu, file))
		return strings.TrimSpace(string(b))
	}
	node, err := strconv.Atoi(read("numa_node"))
	if err != nil {
		node = -1
	}
	s.node, s.cpus, s.cpuMask = node, read("local_cpulist"), read("local_cpus")
	return s, true
}

// freeSlot returns a slot for the card of a rail, on buses that the machine does not have. The
// rails are spread over the machine's NUMA nodes.
func freeSlot(rail, rails int) (s slot, err error) {
	has := func(bus int) bool {
		for _, name := range []string{namespace.Devices + "/pci0000:%02x", namespace.ClassPCI + "/0000:%02x"} {
			if _, err := os.Stat("/" + fmt.Sprintf(name, bus)); err == nil {
				return true
			}
		}
		return false
	}
	// Numbers that host bridges of servers have, 32 apart.
	first := 0x17 + 0x20*rail
	for s.bridge = first; has(s.bridge) || has(s.bridge+1); s.bridge += 2 {
		if s.bridge >= min(first+0x1e, 0xfd) {
			return s, fmt.Errorf("--card: the machine has all PCI buses from %02x to %02x, and none is left for a card", first, s.bridge+1)
		}
	}
	s.bus = s.bridge + 1
	s.above, s.own, s.domain = fmt.Sprintf("%s/pci0000:%02x", namespace.Devices, s.bridge), true, "0000"
	const nodes = "/" + namespace.Devices + "/system/node"
	online, _ := os.ReadFile(nodes + "/online") // without NUMA there is none
	list := numbers(string(online))
	if len(list) == 0 {
		cpus, err := os.ReadFile("/" + namespace.Devices + "/system/cpu/online")
		s.node, s.cpus, s.cpuMask = -1, strings.TrimSpace(string(cpus)), ""
		return s, err
	}
	s.node = list[rail*len(list)/rails]
	for file, to := range map[string]*string{"cpulist": &s.cpus, "cpumap": &s.cpuMask} {
		b, err := os.ReadFile(fmt.Sprintf("%s/node%d/%s", nodes, s.node, file))
		if err != nil {
			return s, err
		}
		*to = strings.TrimSpace(string(b))
	}
	return s, nil
}

// numbers returns the numbers of a list such as 0-1,4.
func numbers(list string) (all []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			return nil
		}
		for ; a <= b; a++ {
			all = append(all, a)
		}
	}
	return all
}

// port returns the directory of the port.
func (s *slot) port() string {
	return fmt.Sprintf("%s/%s:%02x:%02x.0", s.above, s.domain, s.bridge, s.device)
}

func (s *slot) address(function int) string {
	return fmt.Sprintf("%s:%02x:00.%d", s.domain, s.bus, function)
}

// function is a PCI function.
type function struct {
	vendor, device, subVendor, subDevice uint16
	revision                             uint8
	class                                uint32
	driver                               string
	speed                                float64 // GT/s
	secondary                            int     // the bus behind a bridge; 0: the function is none
}

// rootPort is QEMU's emulated one, so that no program takes it for a model that it knows.
var rootPort = function{vendor: 0x1b36, device: 0x000c, subVendor: 0x1b36, class: 0x060400, driver: "pcieport"}

// addFunction adds a PCI function at a path such as sys/devices/pci0000:17/0000:17:00.0.
func (t *tree) addFunction(path string, f function, s *slot) {
	address := filepath.Base(path)
	modalias := fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X", f.vendor, f.device, f.subVendor, f.subDevice, f.class>>16,
		f.class>>8&0xff, f.class&0xff)
	speed := fmt.Sprintf("%.1f GT/s PCIe", f.speed)
	for name, text := range map[string]string{
		"vendor": fmt.Sprintf("0x%04x", f.vendor), "device": fmt.Sprintf("0x%04x", f.device),
		"subsystem_vendor": fmt.Sprintf("0x%04x", f.subVendor), "subsystem_device": fmt.Sprintf("0x%04x", f.subDevice),
		"class": fmt.Sprintf("0x%06x", f.class), "revision": fmt.Sprintf("0x%02x", f.revision),
		"max_link_speed": speed, "current_link_speed": speed, "max_link_width": "16", "current_link_width": "16",
		"numa_node": strconv.Itoa(s.node), "local_cpulist": s.cpus, "local_cpus": s.cpuMask, "modalias": modalias,
		"enable": "1", "irq": "0", "dma_mask_bits": "64", "consistent_dma_mask_bits": "64", "power_state": "D0", "ari_enabled": "0",
		"resource": strings.TrimSuffix(strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 13), "\n"),
		"uevent": fmt.Sprintf("DRIVER=%s\nPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s\nMODALIAS=%s", f.driver,
			f.class, f.vendor, f.device, f.subVendor, f.subDevice, address, modalias),
	} {
		if text != "" {
			t.files[path+"/"+name] = text
		}
	}
	t.binary[path+"/config"] = f.config(s)
	t.link(path+"/subsystem", namespace.PCIBus)
	t.link(path+"/driver", namespace.PCIBus+"/drivers/"+f.driver)
	t.link(namespace.PCIBus+"/drivers/"+f.driver+"/"+address, path)
	t.link(namespace.PCIBus+"/devices/"+address, path)
}

// Registers of the configuration space (PCI Local Bus 3.0 §6.1, PCI Express Base 4.0 §7.5).
const (
	cfgStatusCapabilities = 1 << 4
	cfgCapability         = 0x60 // where config puts the PCI Express capability
)

// config returns the configuration space of a function.
func (f *function) config(s *slot) []byte {
	b, le := make([]byte, 256), binary.LittleEndian
	le.PutUint16(b[0x00:], f.vendor)
	le.PutUint16(b[0x02:], f.device)
	le.PutUint16(b[0x04:], 1<<1|1<<2) // memory space, bus master
	le.PutUint16(b[0x06:], cfgStatusCapabilities)
	le.PutUint32(b[0x08:], f.class<<8|uint32(f.revision))
	b[0x34] = cfgCapability
	portType := uint16(0) // endpoint
	if f.secondary != 0 {
		portType = 4 // root port
		if pciAddress().MatchString(filepath.Base(s.above)) {
			portType = 6 // downstream port of a switch
		}
		b[0x0e] = 1
		b[0x18], b[0x19], b[0x1a] = byte(s.bridge), byte(f.secondary), byte(f.secondary)
	} else {
		le.PutUint16(b[0x2c:], f.subVendor)
		le.PutUint16(b[0x2e:], f.subDevice)
	}
	c := b[cfgCapability:]
	generation := uint16(1)
	for speed := 2.5; speed < f.speed && generation < 6; speed = map[uint16]float64{2: 5, 3: 8, 4: 16, 5: 32, 6: 64}[generation] {
		generation++
	}
	c[0] = 0x10 // PCI Express; the last capability
	le.PutUint16(c[0x02:], 2|portType<<4)
	le.PutUint32(c[0x0c:], 16<<4|uint32(generation)) // link capabilities: width and speed
	le.PutUint16(c[0x12:], 16<<4|generation)         // link status
	return b
}

// addCard adds the PCI functions of a card with one RDMA device in each, and returns the path of
// each function.
func (t *tree) addCard(c *dropin.Card, s *slot, functions int) (paths []string) {
	port := rootPort
	port.speed, port.secondary = c.PCIe, s.bus
	root := s.port()
	t.addFunction(root, port, s)
	bus := fmt.Sprintf("%s:%02x", s.domain, s.bus)
	t.files[root+"/pci_bus/"+bus+"/cpulistaffinity"] = s.cpus
	t.link(namespace.ClassPCI+"/"+bus, root+"/pci_bus/"+bus)
	if s.own {
		bus = fmt.Sprintf("%s:%02x", s.domain, s.bridge)
		t.files[s.above+"/pci_bus/"+bus+"/cpulistaffinity"] = s.cpus
		t.link(namespace.ClassPCI+"/"+bus, s.above+"/pci_bus/"+bus)
	}
	for i := range functions {
		path := root + "/" + s.address(i)
		t.addFunction(path, function{vendor: c.Vendor, device: c.Device, subVendor: c.SubVendor, subDevice: c.SubDevice,
			revision: c.Revision, class: 0x020000, driver: c.Driver, speed: c.PCIe}, s)
		paths = append(paths, path)
	}
	return paths
}

// addInterface shows a network interface of the kernel as that of a card's function. Its files are
// links to the kernel's. If another card has it, too, /sys/class/net keeps the first.
func (t *tree) addInterface(path, name string) error {
	kernel, err := filepath.EvalSymlinks("/" + namespace.ClassNet + "/" + name)
	if err != nil {
		return nil // the link is no interface of the kernel
	}
	entries, err := os.ReadDir(kernel)
	if err != nil {
		return err
	}
	at := path + "/net/" + name
	for _, e := range entries {
		t.links[at+"/"+e.Name()] = filepath.Join(kernel, e.Name())
	}
	t.link(at+"/subsystem", namespace.ClassNet)
	t.link(at+"/device", path)
	if _, ok := t.links[namespace.ClassNet+"/"+name]; !ok {
		t.link(namespace.ClassNet+"/"+name, at)
	}
	return nil
}
