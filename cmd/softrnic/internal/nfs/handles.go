package nfs

import (
	"encoding/binary"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
)

// handles are the NFS file handles of a store. A handle contains the file's identity, so it remains
// valid when the file is renamed, and when the server is started again. From the identity alone the
// file cannot be opened without privileges, so its name is remembered. If it is not known, as after
// a start, the file is searched for: the handle has a byte of each directory above the file. Files
// more than maxLevels directories deep are not found.
//
//	version  levels  0  0  export (8 bytes)  number (8)  generation (8)  a byte of each level
type handles struct {
	store  store
	export uint64

	mu    sync.Mutex
	nodes map[identity]*knownFile
	root  identity
}

// knownFile is a file whose name is remembered: that of its directory, and its own in there.
type knownFile struct {
	id       identity
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
	handleVersion = 1
	handleFixed   = 28
	handleMax     = 64 // NFS3_FHSIZE (RFC 1813 §2.4)
	maxLevels     = handleMax - handleFixed

	// maxNodes is the number of files that are remembered, at about 200 bytes each.
	maxNodes = 1 << 20
)

func newHandles(s store) (*handles, error) {
	h := &handles{store: s, nodes: map[identity]*knownFile{}}
	info, err := s.Lstat(rootName)
	if err != nil {
		return nil, err
	}
	h.root = s.Identity(rootName, info)
	h.nodes[h.root] = &knownFile{id: h.root}
	h.export = h.root.number*0x9e3779b97f4a7c15 ^ h.root.generation
	return h, nil
}

// path returns the name of a node in the store. mu is held.
func (n *knownFile) path() string {
	if n.parent == nil {
		return rootName
	}
	var parts []string
	for ; n.parent != nil; n = n.parent {
		parts = append(parts, n.name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

// level returns the byte of a directory in handles.
func level(id identity) byte { return byte((id.number * 0x9e3779b97f4a7c15) >> 56) }

// encode returns the handle of a node. mu is held.
func (h *handles) encode(n *knownFile) []byte {
	var levels []byte
	for p := n.parent; p != nil && p.parent != nil; p = p.parent {
		levels = append(levels, level(p.id))
	}
	slices.Reverse(levels) // from the root on
	levels = levels[:min(len(levels), maxLevels)]
	b := make([]byte, handleFixed+(len(levels)+3)&^3)
	b[0], b[1] = handleVersion, byte(len(levels))
	binary.BigEndian.PutUint64(b[4:], h.export)
	binary.BigEndian.PutUint64(b[12:], n.id.number)
	binary.BigEndian.PutUint64(b[20:], n.id.generation)
	copy(b[handleFixed:], levels)
	return b
}

// decode returns the identity and the levels in a handle.
func (h *handles) decode(b []byte) (id identity, levels []byte, ok bool) {
	if len(b) < handleFixed || len(b) > handleMax || b[0] != handleVersion || int(b[1]) > len(b)-handleFixed ||
		binary.BigEndian.Uint64(b[4:]) != h.export {
		return identity{}, nil, false
	}
	id = identity{binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint64(b[20:])}
	return id, b[handleFixed : handleFixed+int(b[1])], true
}

// of returns the handle of a name in the store, or nil if there is no such file.
func (h *handles) of(name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.learn(name)
	if n == nil {
		return nil
	}
	return h.encode(n)
}

// ofEntries sets the handles of a directory's entries that have an identity.
func (h *handles) ofEntries(dir string, entries []entry, files []listed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	parent := h.learn(dir)
	if parent == nil {
		return
	}
	for i := range files {
		if files[i].attributes != nil {
			files[i].handle = h.encode(h.put(files[i].id, parent, entries[i].name))
		}
	}
}

// learn returns the node of a name. mu is held.
func (h *handles) learn(name string) *knownFile {
	if name == rootName {
		return h.nodes[h.root]
	}
	info, err := h.store.Lstat(name)
	if err != nil {
		return nil
	}
	id := h.store.Identity(name, info)
	base, dir := strings.Clone(path.Base(name)), path.Dir(name) // without the rest of the path
	if n := h.nodes[id]; n != nil && n.parent != nil && n.name == base && n.parent.path() == dir {
		return n
	}
	parent := h.learn(dir)
	if parent == nil {
		return nil
	}
	return h.put(id, parent, base)
}

// put makes a file known by a name. mu is held.
func (h *handles) put(id identity, parent *knownFile, base string) *knownFile {
	n := h.nodes[id]
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
		n = &knownFile{id: id}
		h.nodes[id] = n
	case n.parent == nil:
		return n
	default:
		if n.parent != parent || n.name != base {
			n.keep()
		}
		n.parent.children--
	}
	n.parent, n.name = parent, base
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

// find returns the name of the file that a handle refers to. It does not hold the lock while it
// asks the store: others must not wait for a search.
func (h *handles) find(handle []byte) (at string, ok bool) {
	id, levels, ok := h.decode(handle)
	if !ok {
		return "", false
	}
	for i, name := range h.names(id) {
		if h.is(name, id) {
			if i > 0 {
				h.renamed(name)
			}
			return name, true
		}
	}
	return h.search(rootName, id, levels)
}

// names returns the names that a file has had, the last one first.
func (h *handles) names(id identity) (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[id]
	if n == nil {
		return nil
	}
	names = append(names, n.path())
	for _, other := range n.others {
		names = append(names, path.Join(other.parent.path(), other.name))
	}
	return names
}

// is reports whether a file has a name.
func (h *handles) is(path string, id identity) bool {
	info, err := h.store.Lstat(path)
	return err == nil && h.store.Identity(path, info) == id
}

// search looks for a file in and below a directory, and returns its name. levels are the bytes of
// the directories below this one; without any, the file is in this one. All files that it sees
// become known.
func (h *handles) search(dir string, id identity, levels []byte) (at string, ok bool) {
	infos, err := h.store.ReadDir(dir)
	if err != nil {
		return "", false
	}
	ids := make([]identity, len(infos))
	var below []string
	for i, info := range infos {
		name := path.Join(dir, info.Name())
		if ids[i] = h.store.Identity(name, info); ids[i] == id {
			at, ok = name, true
		}
		if info.IsDir() && len(levels) > 0 && level(ids[i]) == levels[0] {
			below = append(below, name)
		}
	}
	const atATime = 1024 // while others wait
	for from := 0; from < len(ids); from += atATime {
		to := min(len(ids), from+atATime)
		h.learnEntries(dir, infos[from:to], ids[from:to])
	}
	for i := 0; i < len(below) && !ok; i++ {
		at, ok = h.search(below[i], id, levels[1:])
	}
	return at, ok
}

// learnEntries makes entries of a directory known.
func (h *handles) learnEntries(dir string, infos []fs.FileInfo, ids []identity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if parent := h.learn(dir); parent != nil {
		for i, info := range infos {
			h.put(ids[i], parent, info.Name())
		}
	}
}

// renamed notes that a file has got another name.
func (h *handles) renamed(to string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learn(to)
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
