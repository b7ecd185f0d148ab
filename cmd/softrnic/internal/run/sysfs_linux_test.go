package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// described returns a directory with the tree for an environment.
func described(t *testing.T, alone bool, env map[string]string) string {
	t.Helper()
	cfg, err := dropin.FromEnv(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	tree, err := gather(&cli.Env{Stdout: io.Discard, Stderr: os.Stderr}, &cfg, "softrnic", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.of.Close(); err != nil {
			t.Error(err)
		}
	})
	if alone {
		if err := tree.keepKernels(); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// read returns the text of a file. Unlike filepath.Join, it keeps "..", which may follow a link.
func read(t *testing.T, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(strings.Join(parts, "/"))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

// TestTreeWithoutCard: devices are virtual devices, to which their classes have links, as those of
// rxe and siw are. Other virtual devices remain.
func TestTreeWithoutCard(t *testing.T) {
	dir := described(t, true, map[string]string{"SOFTRNIC_LINK": "pipe", "SOFTRNIC_ADDR": "10.0.0.1/24"})
	for file, want := range map[string]string{
		"infiniband/softrnic0/ports/1/rate": "40 Gb/sec (4X QDR)", "infiniband/softrnic0_iw/node_type": "4: RNIC",
		"infiniband/softrnic0/device/vendor": "0xffffff", "infiniband/softrnic0/hca_type": "softrnic",
		"infiniband_verbs/uverbs1/ibdev": "softrnic0_iw", "infiniband_mad/umad0/ibdev": "softrnic0", "infiniband_mad/umad0/port": "1",
		"infiniband/softrnic0/ports/1/counters/port_xmit_data": "0",
	} {
		if got := read(t, dir, "sys/class", file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	for _, name := range []string{"infiniband/softrnic0", "infiniband/softrnic0_iw", "infiniband_verbs/uverbs0", "infiniband_mad/umad0"} {
		if got, want := link(t, filepath.Join(dir, "sys/class", name)), "../../devices/virtual/"+name; got != want {
			t.Errorf("class/%s is a link to %s, want %s", name, got, want)
		}
	}
	kernels, _ := os.ReadDir("/sys/devices/virtual") // a machine may have none
	for _, e := range kernels {
		if _, err := os.Stat(filepath.Join(dir, "sys/devices/virtual", e.Name())); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "sys")); err != nil || len(entries) != 2 {
		t.Errorf("sys has %v (%v), want class and devices only", entries, err)
	}
}

// TestTreeGUIDs: the devices of a rail have GUIDs of their own, and GIDs in sysfs's format.
func TestTreeGUIDs(t *testing.T) {
	dir := described(t, true, map[string]string{"SOFTRNIC_LINK": "pipe", "SOFTRNIC_ADDR": "10.0.0.1/24", "SOFTRNIC_GUID": "0002c90300123456"})
	for file, want := range map[string]string{
		"softrnic0/node_guid": "0002:c903:0012:3456", "softrnic0/sys_image_guid": "0002:c903:0012:3456",
		"softrnic0_iw/node_guid": "0002:c903:0012:3457", "softrnic0_iw/sys_image_guid": "0002:c903:0012:3456",
		"softrnic0/ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001",
	} {
		if got := read(t, dir, "sys/class/infiniband", file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
}

// TestTreeCards: each rail has a card of its own, whose paths lead to each other as in Linux.
func TestTreeCards(t *testing.T) {
	dir := described(t, false, map[string]string{"SOFTRNIC_LINK": "pipe", "SOFTRNIC_ADDR": "10.0.0.1/24;10.0.1.1/24;10.0.2.1/24;10.0.3.1/24",
		"SOFTRNIC_CARD": "connectx7;connectx5;e810;connectx8", "SOFTRNIC_DEVICE": "mlx5_0,siw0;mlx5_1,;irdma0,irdma1;mlx5_2,"})
	var addresses []string
	for name, want := range map[string]struct{ vendor, device, speed, rate, part string }{
		"mlx5_0": {"0x15b3", "0x1021", "32.0 GT/s PCIe", "400 Gb/sec (4X NDR)", "MT4129"},
		"mlx5_1": {"0x15b3", "0x1017", "8.0 GT/s PCIe", "100 Gb/sec (4X EDR)", "MT4119"},
		"mlx5_2": {"0x15b3", "0x1023", "64.0 GT/s PCIe", "800 Gb/sec (4X XDR)", "MT4131"},
		"irdma0": {"0x8086", "0x1592", "16.0 GT/s PCIe", "100 Gb/sec (4X EDR)", "IRDMA"},
		"irdma1": {"0x8086", "0x1592", "16.0 GT/s PCIe", "100 Gb/sec (4X EDR)", "IRDMA"},
	} {
		class := filepath.Join(dir, "sys/class/infiniband", name)
		for file, want := range map[string]string{"device/vendor": want.vendor, "device/device": want.device, "device/class": "0x020000",
			"device/max_link_speed": want.speed, "device/../max_link_speed": want.speed, "device/max_link_width": "16",
			"ports/1/rate": want.rate, "ports/1/link_layer": "Ethernet", "hca_type": want.part} {
			if got := read(t, class+"/"+file); got != want {
				t.Errorf("%s of %s is %q, want %q", file, name, got, want)
			}
		}
		device, err := filepath.EvalSymlinks(class + "/device")
		if err != nil {
			t.Fatal(err)
		}
		address := filepath.Base(device)
		addresses = append(addresses, address)
		slot, _, _ := strings.Cut(address, ":00.")
		for _, other := range []string{"bus/pci/devices/" + address, "class/pci_bus/" + slot + "/../../" + address,
			"class/infiniband_verbs/" + uverbsOf(t, dir, name) + "/device",
			"bus/pci/drivers/" + filepath.Base(link(t, device+"/driver")) + "/" + address} {
			// Not filepath.Join, which would remove the "..".
			if got, err := filepath.EvalSymlinks(dir + "/sys/" + other); err != nil || got != device {
				t.Errorf("%s is %s (%v), want %s", other, got, err, device)
			}
		}
		for end, want := range map[string]string{"subsystem": "pci", "infiniband/" + name + "/subsystem": "infiniband"} {
			if got := filepath.Base(link(t, device+"/"+end)); got != want {
				t.Errorf("%s of %s is %s, want %s", end, name, got, want)
			}
		}
		if got := read(t, device, "uevent"); !strings.Contains(got, "PCI_SLOT_NAME="+address+"\n") ||
			!strings.Contains(strings.ToLower(got), "pci_id="+want.vendor[2:]+":"+want.device[2:]+"\n") {
			t.Errorf("uevent of %s:\n%s", name, got)
		}
		config := read(t, device, "config")
		if id := fmt.Sprintf("0x%02x%02x", config[1], config[0]); id != want.vendor {
			t.Errorf("the configuration space of %s has vendor %s, want %s", name, id, want.vendor)
		}
	}
	slices.Sort(addresses)
	if len(slices.Compact(addresses)) != 5 {
		t.Errorf("addresses %v: want five", addresses)
	}
	if got := link(t, filepath.Join(dir, "sys/class/infiniband/siw0")); got != "../../devices/virtual/infiniband/siw0" {
		t.Errorf("siw0, which belongs to no card, is a link to %s", got)
	}
}

// uverbsOf returns the uverbs device of an RDMA device.
func uverbsOf(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "sys/class/infiniband_verbs/*/ibdev"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if read(t, f) == name {
			return filepath.Base(filepath.Dir(f))
		}
	}
	t.Fatalf("%s has no uverbs device", name)
	return ""
}

func link(t *testing.T, name string) string {
	t.Helper()
	target, err := os.Readlink(name)
	if err != nil {
		t.Error(err)
	}
	return target
}

// TestTreeInterface: the network interface of the device belongs to the card. In a tree that
// replaces the kernel's directories, the kernel's own entries remain.
func TestTreeInterface(t *testing.T) {
	if _, err := os.Stat("/sys/class/net/lo"); err != nil {
		t.Skip("there is no sysfs")
	}
	env := map[string]string{"SOFTRNIC_LINK": "kernel:lo", "SOFTRNIC_ADDR": "127.0.0.1", "SOFTRNIC_CARD": "connectx7"}
	dir := described(t, true, env)
	lo := filepath.Join(dir, "sys/class/net/lo")
	if got, want := read(t, lo, "mtu"), read(t, "/sys/class/net/lo/mtu"); got != want {
		t.Errorf("mtu is %s, want %s", got, want)
	}
	if got := read(t, lo, "device/device"); got != "0x1021" {
		t.Errorf("the interface belongs to device %s", got)
	}
	for _, kernels := range []string{"class/net", "bus/pci/devices"} {
		entries, _ := os.ReadDir("/sys/" + kernels) // a machine may have no PCI
		for _, e := range entries {
			if _, err := os.Stat(filepath.Join(dir, "sys", kernels, e.Name())); err != nil {
				t.Error(err)
			}
		}
	}
	// In a mount namespace the kernel's entries come from the kernel.
	dir = described(t, false, env)
	if entries, err := os.ReadDir(filepath.Join(dir, "sys/class/net")); err != nil || len(entries) != 1 {
		t.Errorf("class/net has %v (%v), want lo", entries, err)
	}
}

// TestGatherFails: an interface that is not there is an error, also after a rail that is.
func TestGatherFails(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	env := map[string]string{"SOFTRNIC_LINK": "kernel:lo;kernel:absent", "SOFTRNIC_ADDR": "127.0.0.1;10.0.0.1"}
	cfg, err := dropin.FromEnv(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := gather(&cli.Env{Stdout: io.Discard, Stderr: os.Stderr}, &cfg, "softrnic", false); err == nil {
		t.Error("no error", tree.of.Close())
	}
}

func TestNumbers(t *testing.T) {
	for list, want := range map[string][]int{"0\n": {0}, "0-1,4": {0, 1, 4}, "": nil, "x": nil} {
		if got := numbers(list); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", list, got, want)
		}
	}
}

// TestFreeSlots: rails have buses of their own, which the machine does not have.
func TestFreeSlots(t *testing.T) {
	seen := map[int]bool{}
	for rail := range dropin.MaxRails {
		s, err := freeSlot(rail, dropin.MaxRails)
		if err != nil {
			t.Fatal(err)
		}
		for _, bus := range []int{s.bridge, s.bus} {
			if seen[bus] || bus > 0xff {
				t.Errorf("rail %d has bus %#x", rail, bus)
			}
			seen[bus] = true
			if _, err := os.Stat(fmt.Sprintf("/sys/class/pci_bus/0000:%02x", bus)); err == nil {
				t.Errorf("rail %d has bus %#x of the machine", rail, bus)
			}
		}
		if s.cpus == "" {
			t.Errorf("rail %d has no CPUs", rail)
		}
	}
}

// TestBesideGPU: on a machine with GPUs, a card is below the PCI switch of the rail's GPU, or on
// its host bridge if there is no switch, and on its NUMA node. No two cards are at one place.
func TestBesideGPU(t *testing.T) {
	root := t.TempDir()
	const (
		plain    = "sys/devices/pci0000:3a/0000:3a:1f.0/0000:3b:00.0"
		switched = "sys/devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:00.0/0000:60:00.0"
		other    = "sys/devices/pci0000:00/0000:00:02.0" // a display controller, not NVIDIA's
		bare     = "sys/devices/pci0001:00/0001:00:00.0"
	)
	in := folders{root: root}
	defer in.close()
	for path, vendor := range map[string]string{plain: "0x10de", switched: "0x10de", other: "0x1a03", bare: "0x10de"} {
		for file, text := range map[string]string{"vendor": vendor, "class": "0x030200", "numa_node": "1", "local_cpulist": "4-7",
			"local_cpus": "f0"} {
			if err := in.write(filepath.Join(path, file), text+"\n", 0o444); err != nil {
				t.Fatal(err)
			}
		}
		device := filepath.Join(root, "sys/bus/pci/devices", filepath.Base(path))
		if err := errors.Join(makeDirs(filepath.Dir(device)), os.Symlink("../../../../"+path, device)); err != nil {
			t.Fatal(err)
		}
	}
	for _, bus := range []string{"0000:ff", "0000:fd"} {
		if err := makeDirs(filepath.Join(root, "sys/class/pci_bus", bus)); err != nil {
			t.Fatal(err)
		}
	}
	tr := &tree{files: files{}, binary: map[string][]byte{}, links: map[string]string{}}
	card := dropin.Card{Vendor: 0x15b3, Device: 0x1021, PCIe: 32}
	for rail, want := range []string{
		"sys/devices/pci0000:3a/0000:3a:1e.0/0000:fe:00.0",
		"sys/devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:1f.0/0000:fc:00.0",
		"sys/devices/pci0001:00/0001:00:1f.0/0001:ff:00.0",
		"sys/devices/pci0000:3a/0000:3a:1d.0/0000:fb:00.0",
	} {
		s, err := tr.slot(root, rail, 4)
		if err != nil {
			t.Fatal(err)
		}
		if got := tr.addCard(&card, &s, 1); !slices.Equal(got, []string{want}) {
			t.Errorf("rail %d is at %s, want %s", rail, got, want)
		}
		for file, want := range map[string]string{"numa_node": "1", "local_cpulist": "4-7", "local_cpus": "f0"} {
			if got := tr.files[s.port()+"/"+file]; got != want {
				t.Errorf("%s of rail %d is %q, want %q", file, rail, got, want)
			}
		}
	}
}

// TestHashes: containers with different files or links have different directories. The ports'
// files, which change, have a hash of their own.
func TestHashes(t *testing.T) {
	seen := map[string]tree{}
	for _, c := range []tree{
		{files: files{"a": "1"}, links: files{"b": "x"}}, {files: files{"b": "1"}, links: files{"b": "x"}},
		{files: files{"a": "2"}, links: files{"b": "x"}}, {files: files{"a": "1"}, links: files{"b": "y"}},
		{files: files{"a": "1", "b": "x"}}, {binary: map[string][]byte{"a": {1}}}, {binary: map[string][]byte{"a": {2}}},
	} {
		if other, ok := seen[c.hash()]; ok {
			t.Errorf("%v and %v have the same hash", c, other)
		}
		seen[c.hash()] = c
	}
}
