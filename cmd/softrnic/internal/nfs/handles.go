package nfs

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// handles are the NFS file handles of a directory. A handle contains the file's identity, so it
// remains valid when the file is renamed, and when the server is started again. The file's name is
// remembered. If it is not known, as after a start, the file is searched for: the handle has a byte
// of each directory above the file, as far as there is room, and their number.
//
//	version  levels  depth (2)  export (8 bytes)  number (8)  generation (8)  a byte of each level
//
// Linux opens a file by its inode alone (open_by_handle_at), but then nothing tells whether it is
// in the export: an inode does not know its directories. So the kernel's handle would still need a
// search, and a client that invents one would reach all of the file system.
type handles struct {
	d      *directory
	export uint64

	mu    sync.Mutex // is not held while the file system is asked
	nodes map[identity]*knownFile
	root  *knownFile

	scanning sync.Mutex // of all of the tree
	nextScan time.Time  // scanning protects it
}

// knownFile is a file whose name is remembered: that of its directory, and its own in there.
type knownFile struct {
	id       identity
	levels   string // of its handle, which does not change when the file moves
	depth    int
	parent   *knownFile // nil: the root
	name     string
	children int
	others   []name // that it has had, and may still have
}

// name is a name in a directory.
type name struct {
	parent *knownFile
	name   string
}

// maxOthers is the number of further names of a file that are remembered.
const maxOthers = 8

const (
	handleVersion = 2
	handleFixed   = 28
	handleMax     = 64 // NFS3_FHSIZE (RFC 1813 §2.4)
	maxLevels     = handleMax - handleFixed
	maxDepth      = 1<<16 - 1

	// maxNodes is the number of files that are remembered, at about 250 bytes each.
	maxNodes = 1 << 20
)

func newHandles(d *directory, root identity) *handles {
	h := &handles{d: d, root: &knownFile{id: root}, export: root.number*0x9e3779b97f4a7c15 ^ root.generation}
	h.nodes = map[identity]*knownFile{root: h.root}
	return h
}

// elements returns the names that lead from the root to a file. mu is held.
func (n *knownFile) elements() (names []string) {
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return names
}

// directoryOf returns the names that lead to the directory of a file.
func (h *handles) directoryOf(n *knownFile) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n.parent == nil {
		return nil
	}
	return n.parent.elements()
}

// level returns the byte of a directory in handles.
func level(number uint64) byte { return byte((number * 0x9e3779b97f4a7c15) >> 56) }

// place sets the levels of a file, whose parent is set. mu is held.
func (n *knownFile) place() {
	var levels []byte
	for p := n.parent; p.parent != nil; p = p.parent {
		levels = append(levels, level(p.id.number))
	}
	slices.Reverse(levels) // from the root on
	n.depth = min(len(levels), maxDepth)
	n.levels = string(levels[:min(len(levels), maxLevels)])
}

// encode returns the handle of a file.
func (h *handles) encode(n *knownFile) []byte {
	b := make([]byte, handleFixed+(len(n.levels)+3)&^3)
	b[0], b[1] = handleVersion, byte(len(n.levels))
	binary.BigEndian.PutUint16(b[2:], uint16(n.depth))
	binary.BigEndian.PutUint64(b[4:], h.export)
	binary.BigEndian.PutUint64(b[12:], n.id.number)
	binary.BigEndian.PutUint64(b[20:], n.id.generation)
	copy(b[handleFixed:], n.levels)
	return b
}

// decode returns what is in a handle.
func (h *handles) decode(b []byte) (id identity, levels []byte, depth int, ok bool) {
	if len(b) < handleFixed || len(b) > handleMax || b[0] != handleVersion || int(b[1]) > len(b)-handleFixed ||
		binary.BigEndian.Uint64(b[4:]) != h.export {
		return identity{}, nil, 0, false
	}
	id = identity{binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint64(b[20:])}
	levels, depth = b[handleFixed:handleFixed+int(b[1])], int(binary.BigEndian.Uint16(b[2:]))
	return id, levels, depth, len(levels) == min(depth, maxLevels) // with fewer, all directories would be searched
}

// put makes a file known by a name.
func (h *handles) put(id identity, parent *knownFile, base string) *knownFile {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[id]
	if n != nil && n.parent == parent && n.name == base {
		return n
	}
	for p := parent; p != nil; p = p.parent {
		if p == n { // a mount shows a directory in itself
			return n
		}
	}
	switch {
	case n == nil:
		parent.children++ // so that it is not forgotten
		h.makeRoom()
		parent.children--
		n = &knownFile{id: id, parent: parent}
		n.place()
		h.nodes[id] = n
	case n.parent == nil:
		return n
	default:
		n.keep()
		n.parent.children--
	}
	n.parent, n.name = parent, strings.Clone(base) // without the rest of the call
	parent.children++
	return n
}

// keep remembers a file's name as one of the others.
func (n *knownFile) keep() {
	n.others = append(n.others, name{n.parent, n.name})
	n.others = n.others[max(0, len(n.others)-maxOthers):]
}

// makeRoom forgets a few files if too many are known. mu is held.
func (h *handles) makeRoom() {
	if len(h.nodes) < maxNodes {
		return
	}
	forgotten := 0
	for id, n := range h.nodes {
		if n.children == 0 && n.parent != nil {
			n.parent.children--
			delete(h.nodes, id)
			if forgotten++; forgotten == maxNodes/16 {
				return
			}
		}
	}
}

// find returns the file that a handle refers to, or syscall.ESTALE.
func (h *handles) find(handle []byte) (*fileNode, error) {
	id, levels, depth, ok := h.decode(handle)
	if !ok {
		return nil, syscall.ESTALE
	}
	for _, elements := range h.names(id) {
		n, err := h.d.walk(elements)
		if err == nil && n.known.id == id {
			return n, nil
		}
		if err == nil {
			err = n.Close()
		}
		if err != nil && !absent(err) {
			return nil, err
		}
	}
	root, err := h.d.root()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if n, err := h.search(root, id, levels, depth); n != nil || err != nil {
		return n, err
	}
	n, err := h.scan(root, id)
	if n == nil && err == nil {
		err = syscall.ESTALE
	}
	return n, err
}

// absent reports whether an error says that there is no such name, or that it leads to another
// file.
func absent(err error) bool {
	for _, is := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ESTALE} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// names returns the names that a file has had, the last one first. Each is those that lead from the
// root to it.
func (h *handles) names(id identity) (all [][]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[id]
	if n == nil {
		return nil
	}
	all = append(all, n.elements())
	for _, other := range slices.Backward(n.others) {
		all = append(all, append(other.parent.elements(), other.name))
	}
	return all
}

// search looks for a file that is so many directories below one, and returns nil if it is not
// there. levels are the bytes of the first of these directories.
func (h *handles) search(dir *fileNode, id identity, levels []byte, depth int) (*fileNode, error) {
	var names []string // that may lead to it
	err := dir.ref.list(func(name string, number uint64, may bool) {
		if depth == 0 && number == id.number || depth > 0 && may && (len(levels) == 0 || level(number) == levels[0]) {
			names = append(names, name)
		}
	})
	for _, name := range names {
		var n *fileNode
		if n, err = dir.lookup(name); err != nil {
			if !absent(err) {
				return nil, err
			}
			continue
		}
		if depth == 0 && n.known.id == id {
			return n, nil
		}
		var found *fileNode
		if depth > 0 && n.kind == kindDirectory {
			found, err = h.search(n, id, levels[min(1, len(levels)):], depth-1)
		}
		if closed := n.Close(); found != nil || err != nil {
			return found, errors.Join(err, closed)
		}
	}
	if err != nil && !absent(err) {
		return nil, err
	}
	return nil, nil
}

// scanShare is the part of the time, at most, in which all of the tree is scanned.
const scanShare = 20

// scan looks for a file that has moved to another directory since its handle was made, and before
// the server was started. All files become known, so one scan is enough for many handles. It takes
// time: so that hostile handles do not keep the disk busy, a file is not found if another scan
// runs, or did so a short time ago.
func (h *handles) scan(root *fileNode, id identity) (*fileNode, error) {
	if !h.scanning.TryLock() {
		return nil, nil
	}
	defer h.scanning.Unlock()
	start := time.Now()
	if start.Before(h.nextScan) {
		return nil, nil
	}
	left := maxNodes
	n, err := h.scanBelow(root, id, &left)
	h.nextScan = time.Now().Add(scanShare * time.Since(start))
	return n, err
}

// scanBelow scans at most so many files below a directory, and returns the one with an identity.
func (h *handles) scanBelow(dir *fileNode, id identity, left *int) (found *fileNode, err error) {
	var names []string
	if err := dir.ref.list(func(name string, _ uint64, _ bool) {
		if len(names) < *left {
			names = append(names, name)
		}
	}); err != nil && !absent(err) {
		return nil, err
	}
	*left -= len(names)
	for _, name := range names {
		n, err := dir.lookup(name)
		if err != nil {
			continue
		}
		if n.known.id == id && found == nil {
			found = n
			continue
		}
		if n.kind == kindDirectory && *left > 0 {
			below, err := h.scanBelow(n, id, left)
			if err != nil {
				return found, errors.Join(err, n.Close())
			}
			if below != nil && found == nil {
				found, below = below, nil
			}
			if below != nil {
				_ = below.Close()
			}
		}
		_ = n.Close()
	}
	return found, nil
}

// removed notes that a file has lost a name. It may have others.
func (h *handles) removed(id identity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[id]
	if n == nil || n.parent == nil || n.children > 0 || len(n.others) > 0 {
		return
	}
	n.parent.children--
	delete(h.nodes, id)
}
