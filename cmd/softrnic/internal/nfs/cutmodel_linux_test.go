package nfs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// model is what a client expects of the files that it alone changes: those that calls have changed
// and acknowledged. Files have numbers, so that calls can be applied to a copy.
type model struct {
	nodes map[int]*modelFile
}

const top = 0 // the number of the client's directory

// modelFile is a file of a model.
type modelFile struct {
	kind           kind
	mode, uid, gid uint32
	mtime          int64 // in seconds; 0: any
	loose          bool  // its attributes are being changed
	target         string
	entries        map[string]int
	content        content
	handle         []byte
}

func (m *model) clone() *model {
	c := &model{map[int]*modelFile{}}
	for i, n := range m.nodes {
		copied := *n
		copied.entries = maps.Clone(n.entries)
		copied.content = n.content.clone()
		c.nodes[i] = &copied
	}
	return c
}

// names returns the number of names that a file has.
func (m *model) names(number int) (names uint64) {
	for _, n := range m.nodes {
		for _, child := range n.entries {
			if child == number {
				names++
			}
		}
	}
	return names
}

// collect forgets the files without names.
func (m *model) collect() {
	for i := range m.nodes {
		if i != top && m.names(i) == 0 {
			delete(m.nodes, i)
		}
	}
}

// content is the data of a file.
type content struct {
	stable   []byte // zeros where nothing is stable
	unstable []extent
	least    int // the size is from here to len(stable)

	// shrinks, unless 0, is the size that a call without a reply sets. A file system may first zero
	// what comes after it in a block.
	shrinks int
}

// extent is data that was written after what is stable. It may have reached the disk, or not.
type extent struct {
	off  int
	data []byte
}

func (c content) clone() content {
	c.stable, c.unstable = slices.Clone(c.stable), slices.Clone(c.unstable)
	return c
}

func (c *content) write(off int, data []byte) {
	c.grow(off + len(data))
	c.unstable = append(c.unstable, extent{off, data})
}

func (c *content) grow(size int) {
	if size > len(c.stable) {
		c.stable = append(c.stable, make([]byte, size-len(c.stable))...)
	}
}

// commit makes what was written to a range stable.
func (c *content) commit(from, to int) {
	for _, e := range c.unstable {
		start, end := max(from, e.off), min(to, e.off+len(e.data))
		if start < end {
			copy(c.stable[start:end], e.data[start-e.off:])
			c.least = max(c.least, end)
		}
	}
	c.cut(from, to)
}

// cut removes a range of what is unstable.
func (c *content) cut(from, to int) {
	var rest []extent
	for _, e := range c.unstable {
		end := e.off + len(e.data)
		if e.off < from {
			rest = append(rest, extent{e.off, e.data[:min(end, from)-e.off]})
		}
		if start := max(e.off, to); start < end {
			rest = append(rest, extent{start, e.data[start-e.off:]})
		}
	}
	c.unstable = rest
}

func (c *content) truncate(size int) {
	c.cut(size, len(c.stable))
	c.grow(size)
	c.stable, c.least, c.shrinks = c.stable[:size], size, 0
}

// check returns an error unless a file may have the data.
func (c *content) check(data []byte) error {
	if len(data) < c.least || len(data) > len(c.stable) {
		return fmt.Errorf("%d bytes, not %d to %d", len(data), c.least, len(c.stable))
	}
	for i, b := range data {
		if b == c.stable[i] || b == 0 && c.shrinks > 0 && i >= c.shrinks || slices.ContainsFunc(c.unstable, func(e extent) bool {
			return e.off <= i && i < e.off+len(e.data) && e.data[i-e.off] == b
		}) {
			continue
		}
		return fmt.Errorf("byte %d of %d is %d, not %d", i, len(data), b, c.stable[i])
	}
	return nil
}

// comparison compares a model with a directory.
type comparison struct {
	*model
	inodes  map[int]uint64 // of the tree's files
	numbers map[uint64]int
}

// check returns an error unless a directory may have what the model has.
func (m *model) check(dir string) error {
	c := &comparison{m, map[int]uint64{}, map[uint64]int{}}
	return c.check(top, dir)
}

func (c *comparison) check(number int, name string) error {
	if err := c.file(number, name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n := c.nodes[number]
	if n.kind != kindDirectory {
		return nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		child, ok := n.entries[e.Name()]
		if !ok {
			return fmt.Errorf("%s/%s should not be there", name, e.Name())
		}
		if err := c.check(child, filepath.Join(name, e.Name())); err != nil {
			return err
		}
	}
	if len(entries) < len(n.entries) {
		return fmt.Errorf("%s has %d entries, not %q", name, len(entries), slices.Sorted(maps.Keys(n.entries)))
	}
	return nil
}

// file compares one file.
func (c *comparison) file(number int, name string) error {
	n := c.nodes[number]
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil {
		return err
	}
	if ino, ok := c.inodes[number]; ok && ino != st.Ino {
		return fmt.Errorf("it is not the file of the other link")
	}
	if other, ok := c.numbers[st.Ino]; ok && other != number {
		return fmt.Errorf("it is a link to another file")
	}
	c.inodes[number], c.numbers[st.Ino] = st.Ino, number
	if k := kinds[uint16(st.Mode&syscall.S_IFMT)]; k != n.kind {
		return fmt.Errorf("kind %d, not %d", k, n.kind)
	}
	if n.kind != kindDirectory && uint64(st.Nlink) != c.names(number) {
		return fmt.Errorf("%d links, not %d", st.Nlink, c.names(number))
	}
	if !n.loose && number != top {
		if mode := st.Mode & modeBits; n.kind != kindSymlink && mode != n.mode {
			return fmt.Errorf("mode %#o, not %#o", mode, n.mode)
		}
		if st.Uid != n.uid || st.Gid != n.gid {
			return fmt.Errorf("owners %d and %d, not %d and %d", st.Uid, st.Gid, n.uid, n.gid)
		}
		if n.mtime != 0 && int64(st.Mtim.Sec) != n.mtime {
			return fmt.Errorf("time %d, not %d", st.Mtim.Sec, n.mtime)
		}
	}
	switch n.kind {
	case kindRegular:
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return n.content.check(data)
	case kindSymlink:
		if target, err := os.Readlink(name); err != nil || target != n.target {
			return fmt.Errorf("a link to %q, not %q: %v", target, n.target, err)
		}
	}
	return nil
}
