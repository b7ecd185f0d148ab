package run

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// files has the contents of files by path, without the line feed at the end.
type files map[string]string

// describe creates, below root, the files that the kernel has for RDMA devices in sysfs and /dev.
func describe(e *cli.Env, cfg *dropin.Config, command, root string) error {
	env := *e
	env.Command = command
	all := files{sysClass + "/infiniband_verbs/abi_version": "6"}
	devices := 0
	for i := range cfg.Rails {
		if err := describeRail(&env, &cfg.Rails[i], root, all, &devices); err != nil {
			return err
		}
	}
	if err := device(filepath.Join(root, dev, "infiniband"), "rdma_cm"); err != nil {
		return err
	}
	for name, text := range all {
		if err := write(filepath.Join(root, name), text+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// describeRail adds the files of a rail's devices to all, and creates their entries of /dev. It
// opens the node that the program will open, or only describes it. The counters are a snapshot.
func describeRail(env *cli.Env, r *dropin.Rail, root string, all files, devices *int) (err error) {
	flags := r.Flags
	flags.Describe = true
	n, err := flags.Open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	for _, d := range []struct {
		name  string
		iwarp bool
	}{{r.RoCE, false}, {r.IWARP, true}} {
		if d.name == "" {
			continue
		}
		f, err := deviceFiles(n, d.name, d.iwarp)
		if err != nil {
			return err
		}
		for name, text := range f {
			all[sysClass+"/infiniband/"+d.name+"/"+name] = text
		}
		uverbs := "uverbs" + strconv.Itoa(*devices)
		maps.Copy(all, files{
			sysClass + "/infiniband_verbs/" + uverbs + "/ibdev":       d.name,
			sysClass + "/infiniband_verbs/" + uverbs + "/abi_version": "1",
			// Numbered as in Linux.
			sysClass + "/infiniband_verbs/" + uverbs + "/dev": fmt.Sprintf("231:%d", 192+*devices),
		})
		if err := device(filepath.Join(root, dev, "infiniband"), uverbs); err != nil {
			return err
		}
		*devices++
	}
	return nil
}

func write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o444)
}

// device creates a symbolic link to the null device, as only a privileged user can create a device.
// Programs only check for a character device and open it.
func device(dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Symlink("/dev/null", filepath.Join(dir, name))
}

func guid(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}

// gid formats a GID as in sysfs.
func gid(g verbs.GID) string {
	s := ""
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			s += ":"
		}
		s += fmt.Sprintf("%02x%02x", g[i], g[i+1])
	}
	return s
}

// generations are the kernel's names of lane speeds.
var generations = map[uint8]string{2: " DDR", 4: " QDR", 8: " FDR10", 16: " FDR", 32: " EDR", 64: " HDR", 128: " NDR"}

// deviceFiles returns the files of one of a node's two devices.
func deviceFiles(n *node.Node, name string, iwarp bool) (files, error) {
	a := n.Dev.QueryDevice()
	p, err := n.Dev.QueryPort(1)
	if err != nil {
		return nil, err
	}
	table, err := n.Dev.GIDTable(1)
	if err != nil {
		return nil, err
	}
	gbps, lanes := p.Rate()
	netdev := n.Host.NICs()[0].Name()
	kind, nodeGUID, types := "1: CA", a.NodeGUID, map[verbs.GIDType]string{verbs.GIDTypeRoCEv1: "IB/RoCE v1",
		verbs.GIDTypeRoCEv2: "RoCE v2"}
	if iwarp {
		kind, nodeGUID = "4: RNIC", nodeGUID^1 // as in the libraries
		mac := verbs.GIDEntry{NetDev: netdev}
		copy(mac.GID[:], n.Host.NICs()[0].MAC())
		table, types, p.PKeyTblLen = []verbs.GIDEntry{mac}, map[verbs.GIDType]string{0: "IB/RoCE v1"}, 1
	}
	f := files{
		"node_type": kind, "node_guid": guid(nodeGUID), "sys_image_guid": guid(a.SysImageGUID), "fw_ver": a.FWVer,
		"node_desc": name, "hw_rev": fmt.Sprintf("%#x", a.HWVer), "device/vendor": fmt.Sprintf("%#06x", a.VendorID),
		"device/device":    fmt.Sprintf("%#06x", a.VendorPartID),
		"device/numa_node": "-1", "device/infiniband/" + name + "/node_guid": guid(nodeGUID),
		"ports/1/state": fmt.Sprintf("%d: %v", p.State, p.State), "ports/1/phys_state": "5: LinkUp", "ports/1/lid": "0x0",
		"ports/1/sm_lid": "0x0", "ports/1/sm_sl": "0",
		"ports/1/lid_mask_count": "0", "ports/1/link_layer": "Ethernet", "ports/1/cap_mask": fmt.Sprintf("0x%08x", p.PortCapFlags),
		"ports/1/pkeys/0": "0xffff",
		"ports/1/rate":    fmt.Sprintf("%g Gb/sec (%dX%s)", gbps, lanes, generations[p.ActiveSpeed]),
	}
	// Programs query the kernel for the addresses of this interface.
	if _, err := net.InterfaceByName(netdev); err == nil {
		f["device/net/"+netdev+"/dev_port"] = "0"
	}
	if p.State != verbs.PortActive {
		f["ports/1/phys_state"] = "3: Disabled"
	}
	for _, e := range table {
		i := strconv.Itoa(e.Index)
		f["ports/1/gids/"+i], f["ports/1/gid_attrs/types/"+i], f["ports/1/gid_attrs/ndevs/"+i] = gid(e.GID), types[e.Type], e.NetDev
	}
	counters, err := n.Dev.PortCounters(1)
	if err != nil {
		return nil, err
	}
	for name, v := range counters {
		f["ports/1/counters/"+name] = strconv.FormatUint(v, 10)
	}
	for name, v := range n.Dev.HWCounters() {
		f["ports/1/hw_counters/"+name] = strconv.FormatUint(v, 10)
	}
	return f, nil
}
