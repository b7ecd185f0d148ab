package run

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/live"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// files has the contents of files by path, without the line feed at the end.
type files map[string]string

// numbered adds what the kernel has of each character device. It numbers RDMA devices as Linux
// does.
func (f files) numbered(name string, minor int, more string) files {
	const major = 231
	f["dev"] = fmt.Sprintf("%d:%d", major, minor)
	f["uevent"] = fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s%s", major, minor, name, more)
	return f
}

// tree is a part of the kernel's file systems. Paths have no slash at the begin.
type tree struct {
	files  files
	binary map[string][]byte
	links  map[string]string // targets of symbolic links
	of     *description
	// The number of devices of each kind so far.
	uverbs, umad int
}

// link adds a symbolic link from one path of the tree to another, relative as the kernel's.
func (t *tree) link(from, to string) {
	t.links[from], _ = filepath.Rel(filepath.Dir(from), to) // fails for absolute paths only
}

// has reports whether the tree has a path.
func (t *tree) has(path string) bool {
	for _, names := range []iter.Seq[string]{maps.Keys(t.files), maps.Keys(t.binary), maps.Keys(t.links)} {
		for name := range names {
			if name == path || strings.HasPrefix(name, path+"/") {
				return true
			}
		}
	}
	return false
}

// keepKernels adds links to the kernel's entries of the merged directories that t has. The
// preloaded library shows programs a directory of t in place of the kernel's.
func (t *tree) keepKernels() error {
	for dir := range namespace.Merged {
		if !t.has(dir) {
			continue
		}
		entries, err := os.ReadDir("/" + dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, e := range entries {
			name := dir + "/" + e.Name()
			if namespace.Merged[name] || t.has(name) {
				continue
			}
			if kernel, err := filepath.EvalSymlinks("/" + name); err == nil {
				t.links[name] = kernel
			}
		}
	}
	return nil
}

// write creates the files and links below a directory.
func (t *tree) write(root string) error {
	in := folders{root: root}
	defer in.close()
	for name, text := range t.files {
		mode := fs.FileMode(0o444)
		if base := filepath.Base(name); base == "uevent" || base == "node_desc" { // those that the kernel lets one write
			mode = 0o644
		}
		if err := in.write(name, text+"\n", mode); err != nil {
			return err
		}
	}
	for name, content := range t.binary {
		if err := in.write(name, string(content), 0o444); err != nil {
			return err
		}
	}
	for name, target := range t.links {
		dir, base, err := in.folder(name)
		if err == nil {
			err = unix.Symlinkat(target, dir, base)
		}
		if err != nil {
			return &fs.PathError{Op: "symlink", Path: filepath.Join(root, name), Err: err}
		}
	}
	for _, p := range t.of.ports {
		if err := p.create(root); err != nil {
			return err
		}
	}
	return nil
}

// gather returns the files that the kernel has for RDMA devices in sysfs and /dev. With keep,
// counters remain from earlier processes.
func gather(e *cli.Env, cfg *dropin.Config, command string, keep bool) (_ *tree, err error) {
	env := *e
	env.Command = command
	t := &tree{files: files{namespace.Class + "/infiniband_verbs/abi_version": "6", namespace.Class + "/infiniband_mad/abi_version": "5"},
		binary: map[string][]byte{}, links: map[string]string{}, of: &description{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.of.Close())
		}
	}()
	for i := range cfg.Rails {
		if err := t.addRail(&env, cfg, i, keep); err != nil {
			return nil, err
		}
	}
	t.addNode("rdma_cm")
	t.addPeermem(&cfg.Settings)
	return t, nil
}

// follows reports whether the addresses and the state of a rail follow an interface of the kernel.
func follows(r dropin.Rail) bool { return r.Flags.Medium() == "kernel" }

// addRail adds the files of a rail's devices to the tree. It opens the node that the program will
// open, or only describes it. The counters are a snapshot.
func (t *tree) addRail(env *cli.Env, cfg *dropin.Config, rail int, keep bool) (err error) {
	r := cfg.Rails[rail]
	r.Flags.Describe = true
	r.Flags.Capture, r.Flags.Impair, r.Flags.Fault = "", nil, nil // the program opens its own
	n, err := r.Flags.Open(env)
	if err != nil {
		return err
	}
	if follows(r) {
		t.of.nodes = append(t.of.nodes, n)
	} else { // nothing changes its addresses and its state, and the program may need them for its own node
		defer func() { err = errors.Join(err, n.Close()) }()
	}
	counters, err := live.Create(&r, n.Dev, keep)
	if err != nil {
		n.Log.Warn("the counters in sysfs will not change", "error", err)
	} else {
		t.of.counters = append(t.of.counters, counters)
	}
	var functions []string // of the rail's card
	if r.Card != nil {
		s, err := t.slot("/", rail, len(cfg.Rails))
		if err != nil {
			return err
		}
		count := 1
		if r.Card.IWARP && r.RoCE != "" && r.IWARP != "" {
			count = 2
		}
		functions = t.addCard(r.Card, &s, count)
	}
	for _, d := range []struct {
		name  string
		iwarp bool
	}{{r.RoCE, false}, {r.IWARP, true}} {
		if d.name == "" {
			continue
		}
		card, function := r.OfDevice(d.iwarp), ""
		if card != nil {
			function, functions = functions[0], functions[1:]
			if err := t.addInterface(function, n.Name()); err != nil {
				return err
			}
		}
		at := t.addDevice(function, d.name, "infiniband", deviceFiles(n, d.name, d.iwarp, card)) + "/ports/1"
		p := &port{n: n, iwarp: d.iwarp, at: at}
		if _, err := p.look(); err != nil {
			return err
		}
		t.of.ports = append(t.of.ports, p)
		if counters != nil {
			for _, dir := range live.Dirs(d.iwarp) {
				t.links[at+"/"+dir] = filepath.Join(counters.Path, dir)
			}
		} else if err := t.addCounters(at+"/", n.Dev); err != nil {
			return err
		}
		uverbs := "uverbs" + strconv.Itoa(t.uverbs)
		abi := "1"
		if card == nil && !d.iwarp { // as rxe has it
			abi = "2"
		}
		t.addDevice(function, uverbs, "infiniband_verbs", files{"ibdev": d.name, "abi_version": abi}.numbered(uverbs, 192+t.uverbs,
			"\nDEVMODE=0666"))
		t.addNode(uverbs)
		t.uverbs++
		if !d.iwarp { // iWARP has no management datagrams
			umad := "umad" + strconv.Itoa(t.umad)
			t.addDevice(function, umad, "infiniband_mad", files{"ibdev": d.name, "port": "1"}.numbered(umad, t.umad, ""))
			t.umad++
		}
	}
	return nil
}

// addDevice adds a device of a class. It belongs to a PCI function or is a virtual device, as those
// of rxe and siw are. The class has a link to it.
func (t *tree) addDevice(function, name, class string, f files) (at string) {
	at = cmp.Or(function, namespace.Virtual) + "/" + class + "/" + name
	t.link(namespace.Class+"/"+class+"/"+name, at)
	t.link(at+"/subsystem", namespace.Class+"/"+class)
	if function != "" {
		t.link(at+"/device", function)
	}
	for file, text := range f {
		if function == "" || !strings.HasPrefix(file, "device/") {
			t.files[at+"/"+file] = text
		}
	}
	return at
}

// addNode adds an entry of /dev: a symbolic link to the null device, as only a privileged user can
// create a device. Programs only check for a character device and open it.
func (t *tree) addNode(name string) { t.links[namespace.Dev+"/infiniband/"+name] = "/dev/null" }

// addCounters adds the counters of a device as they are now.
func (t *tree) addCounters(at string, dev *verbs.Device) error {
	counters, err := live.Counters(dev)
	for name, v := range counters {
		t.files[at+name] = strconv.FormatUint(v, 10)
	}
	return err
}

// folders are directories below a root. They stay open, as a path below the root has up to ten
// directories. But there may be many, and few descriptors.
type folders struct {
	root string
	open map[string]int // descriptors
}

// folder returns the directory of a path below the root, and the name in it.
func (f *folders) folder(path string) (dir int, name string, err error) {
	folder, name := filepath.Split(path)
	if dir, ok := f.open[folder]; ok {
		return dir, name, nil
	}
	at := filepath.Join(f.root, folder)
	if err := makeDirs(at); err != nil {
		return 0, "", err
	}
	if dir, err = openDir(at); err != nil {
		return 0, "", err
	}
	const most = 32
	if len(f.open) >= most {
		f.close()
		f.open = nil
	}
	if f.open == nil {
		f.open = map[string]int{}
	}
	f.open[folder] = dir
	return dir, name, nil
}

// write writes a file.
func (f *folders) write(path, text string, mode fs.FileMode) error {
	dir, name, err := f.folder(path)
	if err != nil {
		return err
	}
	if err := writeFile(dir, name, text, mode); err != nil {
		return fmt.Errorf("in %s: %w", filepath.Dir(filepath.Join(f.root, path)), err)
	}
	return nil
}

func (f *folders) close() {
	for _, dir := range f.open {
		_ = unix.Close(dir)
	}
}

// openDir opens a directory for the names in it.
func openDir(path string) (int, error) {
	dir, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return dir, nil
}

// makeDirs is os.MkdirAll, and writeFile os.WriteFile, whatever the umask is: a program that drops
// its privileges reads the files, too.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return os.Chmod(dir, 0o755)
}

// writeFile writes a file in the open directory dir, or in that of the process (AT_FDCWD).
func writeFile(dir int, file, text string, mode fs.FileMode) error {
	// An os.File of each of some hundred files would be offered to the runtime's poller first.
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, uint32(mode))
	if err == nil {
		n := 0
		if n, err = unix.Write(fd, []byte(text)); err == nil && n < len(text) {
			err = io.ErrShortWrite
		}
		err = errors.Join(err, unix.Fchmod(fd, uint32(mode)), unix.Close(fd))
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// deviceFiles returns the files of one of a node's two devices, without those of its port. card may
// be nil.
func deviceFiles(n *node.Node, name string, iwarp bool, card *dropin.Card) files {
	a, netdev, kind := n.Dev.QueryDevice(), n.Name(), "1: CA"
	if iwarp {
		kind = "4: RNIC"
	}
	guid := dropin.GUID(n.Dev, iwarp).String()
	f := files{
		"node_type": kind, "node_guid": guid, "sys_image_guid": a.SysImageGUID.String(), "fw_ver": a.FWVer,
		"node_desc": name, "uevent": "NAME=" + name, "hca_type": "softrnic", "board_id": "softrnic",
		"hw_rev": fmt.Sprintf("%#x", a.HWVer), "device/vendor": fmt.Sprintf("%#06x", a.VendorID),
		"device/device":    fmt.Sprintf("%#06x", a.VendorPartID),
		"device/numa_node": "-1", "device/infiniband/" + name + "/node_guid": guid,
	}
	switch {
	case card == nil && !iwarp:
		f["parent"] = netdev // as rxe has it
	case card != nil:
		f["fw_ver"], f["hw_rev"], f["board_id"], f["hca_type"] = card.FWVer, card.HWRev, card.Board, card.HCA
	}
	// Programs query the kernel for the addresses of this interface.
	if _, err := net.InterfaceByName(netdev); err == nil {
		f["device/net/"+netdev+"/dev_port"] = "0"
	}
	return f
}
