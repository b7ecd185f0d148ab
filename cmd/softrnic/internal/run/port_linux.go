package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/live"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// description has what changes of a tree.
type description struct {
	counters []*live.Directory // of the rails; the program's processes change them
	nodes    []*node.Node      // whose addresses and state may change
	ports    []*port

	stop      func() // ends follow; nil before
	following sync.WaitGroup
}

// interval is the longest time between two looks at a device. Not every change is an event: a port
// that is down may be down for another reason.
const interval = 500 * time.Millisecond

// follow keeps the files below root as the devices are, until Close.
func (d *description) follow(root string) {
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	for i, n := range d.nodes {
		next := filepath.Join(root, "next"+strconv.Itoa(i))
		d.following.Go(func() {
			for failed := false; ; {
				for _, p := range d.ports {
					if p.n != n {
						continue
					}
					if err := p.update(root, next); err != nil && !failed {
						failed = true
						n.Log.Warn("sysfs does not follow the device", "error", err)
					}
				}
				soon, cancel := context.WithTimeout(ctx, interval)
				_, _ = n.Dev.GetAsyncEvent(soon)
				cancel()
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
}

// Close ends follow. The counters remain if other processes have them open.
func (d *description) Close() (err error) {
	if d.stop != nil {
		d.stop()
		d.following.Wait()
	}
	for _, n := range d.nodes {
		err = errors.Join(err, n.Close())
	}
	for _, c := range d.counters {
		c.Close()
	}
	return err
}

// leave ends the description and keeps what it has created.
func (d *description) leave() (err error) {
	for _, n := range d.nodes {
		err = errors.Join(err, n.Close())
	}
	for _, c := range d.counters {
		c.Leave()
	}
	return err
}

// port is the directory of a device's port.
type port struct {
	n     *node.Node
	iwarp bool
	at    string // below the root of the tree
	// What the directory has, and the device's state and GIDs as look has found them.
	has   files
	state verbs.PortAttr
	table []verbs.GIDEntry
}

// noGID stands for a file of an index without a GID: reading it fails with EINVAL.
const noGID = ""

// unreadable is a file that the kernel refuses to read with EINVAL: the loopback has no speed.
const unreadable = "/" + namespace.ClassNet + "/lo/speed"

// generations are the kernel's names of lane speeds.
var generations = map[uint16]string{2: " DDR", 4: " QDR", 8: " FDR10", 16: " FDR", 32: " EDR", 64: " HDR", 128: " NDR", 256: " XDR"}

// physStates are the kernel's names of the states of links.
var physStates = map[uint8]string{2: "Polling", 3: "Disabled", 5: "LinkUp"}

// files returns the files of the port. There is one for each index of the GID table.
func (p *port) files() files {
	a, table := p.state, p.table
	types := map[verbs.GIDType]string{verbs.GIDTypeRoCEv1: "IB/RoCE v1", verbs.GIDTypeRoCEv2: "RoCE v2"}
	if p.iwarp {
		mac := verbs.GIDEntry{NetDev: p.n.Name()}
		copy(mac.GID[:], p.n.Host.NICs()[0].MAC())
		table, types, a.GIDTblLen = []verbs.GIDEntry{mac}, map[verbs.GIDType]string{0: "IB/RoCE v1"}, 1
	}
	gbps, lanes := a.Rate()
	f := files{
		"state": fmt.Sprintf("%d: %v", a.State, a.State), "phys_state": fmt.Sprintf("%d: %s", a.PhysState, physStates[a.PhysState]),
		"lid": "0x0", "sm_lid": "0x0", "sm_sl": "0", "lid_mask_count": "0", "link_layer": "Ethernet",
		"cap_mask": fmt.Sprintf("0x%08x", a.PortCapFlags), "rate": fmt.Sprintf("%g Gb/sec (%dX%s)", gbps, lanes, generations[a.ActiveSpeed]),
	}
	if !p.iwarp {
		f["pkeys/0"] = "0xffff"
	}
	for i := range a.GIDTblLen {
		index := strconv.Itoa(i)
		f["gids/"+index], f["gid_attrs/types/"+index], f["gid_attrs/ndevs/"+index] = verbs.GID{}.String(), noGID, noGID
	}
	for _, e := range table {
		index := strconv.Itoa(e.Index)
		f["gids/"+index], f["gid_attrs/types/"+index], f["gid_attrs/ndevs/"+index] = e.GID.String(), types[e.Type], e.NetDev
	}
	return f
}

// look looks at the device. It reports whether the port has changed.
func (p *port) look() (changed bool, err error) {
	state, err := p.n.Dev.QueryPort(1)
	if err != nil {
		return false, err
	}
	table, err := p.n.Dev.GIDTable(1)
	if err != nil {
		return false, err
	}
	changed = state != p.state || !slices.Equal(table, p.table)
	p.state, p.table = state, table
	return changed, nil
}

// create creates the directory below root, as look has found the device.
func (p *port) create(root string) error {
	in := folders{root: filepath.Join(root, p.at)}
	defer in.close()
	type file struct {
		dir  int
		name string
	}
	same := map[string]file{} // one with each text
	p.has = p.files()
	for path, text := range p.has {
		dir, name, err := in.folder(path)
		if err != nil {
			return err
		}
		// Files are replaced and not changed, so that hundreds of unused GIDs can be one file.
		if first, ok := same[text]; ok && unix.Linkat(first.dir, first.name, dir, name, 0) == nil {
			continue
		}
		if err := put(text, dir, name); err != nil {
			return fmt.Errorf("%s: %w", in.root, err)
		}
		same[text] = file{dir, name}
	}
	return nil
}

// load reads the directory, which another process has created below root.
func (p *port) load(root string) error {
	p.has = files{}
	for name := range p.files() {
		at := filepath.Join(root, p.at, name)
		if _, err := os.Readlink(at); err == nil {
			p.has[name] = noGID
			continue
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		p.has[name] = strings.TrimSuffix(string(text), "\n")
	}
	return nil
}

// update changes the files that are not as the device is.
func (p *port) update(root, next string) error {
	changed, err := p.look()
	if err != nil || !changed {
		return err
	}
	if err = p.write(root, next); err != nil {
		p.state = verbs.PortAttr{} // the next look tries again
	}
	return err
}

// write changes the files that are not as look has found the device. It replaces each by another
// file, which it creates at next, so that a program that reads it sees the old text or the new one.
func (p *port) write(root, next string) error {
	at := filepath.Join(root, p.at)
	dir, err := openDir(at)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	files := p.files()
	names := slices.Sorted(maps.Keys(files)) // gid_attrs, then gids
	// A GID has its type when programs see it, and is gone before its type.
	for _, gone := range []bool{false, true} {
		for _, name := range names {
			text := files[name]
			if was, ok := p.has[name]; ok && was == text || gone != (text == noGID) {
				continue
			}
			err := put(text, unix.AT_FDCWD, next)
			if err == nil {
				err = os.NewSyscallError("rename "+name, unix.Renameat(unix.AT_FDCWD, next, dir, name))
			}
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", at, err), os.RemoveAll(next))
			}
			p.has[name] = text
		}
	}
	return nil
}

// put makes a file in the open directory dir, or in that of the process (AT_FDCWD).
func put(text string, dir int, name string) error {
	if text == noGID {
		return os.NewSyscallError("symlink "+name, unix.Symlinkat(unreadable, dir, name))
	}
	return writeFile(dir, name, text+"\n", 0o444)
}
