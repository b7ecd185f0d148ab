package nfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/powercut"
)

// changer is a client that changes files in its directory at random, and knows what to expect of
// them. The mutex of cuts protects the tree and what is being done.
type changer struct {
	*client
	t      *testing.T
	cuts   *powercut.Cuts
	random *rand.Rand
	calls  int
	number int // of the last file that it has made
	at     int // the time that it has set last

	model *model
	doing string       // the call without a reply
	apply func(*model) // its effect, if some of it is there
}

// possible returns the trees that may be on the disk.
func (p *changer) possible() []*model {
	before := p.model.clone()
	if p.apply == nil {
		return []*model{before}
	}
	after := p.model.clone()
	p.apply(after)
	return []*model{before, after}
}

// try makes a call. begun is its effect as long as there is no reply, and ended with it.
func (p *changer) try(begun func(*model), ended func(*model, *xdr), what string, procedure uint32, list ...any) {
	p.calls++
	p.cuts.Lock()
	p.doing, p.apply = what, begun
	p.cuts.Unlock()
	x := p.must(p.t, procedure, list...)
	p.cuts.Lock()
	defer p.cuts.Unlock()
	p.doing, p.apply = "", nil
	ended(p.model, x)
	p.cuts.Reply()
}

// do is try for a call whose effect is there or not.
func (p *changer) do(effect func(*model), what string, procedure uint32, list ...any) {
	p.try(effect, func(m *model, _ *xdr) { effect(m) }, what, procedure, list...)
}

// pick returns the number of a random file that matches, or -1. It has a name.
func (p *changer) pick(match func(*modelFile) bool) int {
	var all []int
	for _, i := range slices.Sorted(maps.Keys(p.model.nodes)) {
		if match(p.model.nodes[i]) && (i == top || p.model.names(i) > 0) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return -1
	}
	return all[p.random.IntN(len(all))]
}

func isKind(k kind) func(*modelFile) bool { return func(n *modelFile) bool { return n.kind == k } }

// entry returns a random name of a directory, and the number of its file, or -1.
func (p *changer) entry() (dir int, name string, file int) {
	dir = p.pick(isKind(kindDirectory))
	name = fmt.Sprint("name", p.random.IntN(8))
	if file, ok := p.model.nodes[dir].entries[name]; ok {
		return dir, name, file
	}
	return dir, name, -1
}

func (p *changer) handle(number int) []byte { return p.model.nodes[number].handle }

const largest = 24 << 10 // of the files

// change makes a random call.
func (p *changer) change() {
	switch n := p.random.IntN(100); {
	case n < 30:
		p.writes()
	case n < 38:
		p.commits()
	case n < 50:
		p.sets()
	case n < 70:
		p.makes()
	case n < 82:
		p.removes()
	case n < 94:
		p.renames()
	default:
		p.links()
	}
}

func (p *changer) writes() {
	file := p.pick(isKind(kindRegular))
	if file < 0 {
		return
	}
	data := make([]byte, 1+p.random.IntN(8<<10))
	fill := byte(1 + p.random.IntN(255))
	for i := range data {
		data[i] = fill
	}
	off, stable := p.random.IntN(largest-len(data)), max(0, p.random.IntN(4)-1)
	begun := func(m *model) {
		n := m.nodes[file]
		n.content.write(off, data)
		n.mtime = 0
	}
	ended := func(m *model, x *xdr) {
		begun(m)
		x.wcc()
		n, committed := int(x.uint32()), int(x.uint32())
		if n != len(data) || committed < stable {
			p.t.Errorf("%d bytes of %d were written, stable %d, not %d", n, len(data), committed, stable)
		}
		if committed > 0 {
			m.nodes[file].content.commit(off, off+n)
		}
	}
	p.try(begun, ended, fmt.Sprintf("WRITE of %d bytes at %d, stable %d", len(data), off, stable),
		procWrite, p.handle(file), uint64(off), len(data), stable, data)
}

func (p *changer) commits() {
	file := p.pick(func(n *modelFile) bool { return n.kind == kindRegular && len(n.content.unstable) > 0 })
	if file < 0 {
		return
	}
	off, n, end := 0, 0, largest
	if p.random.IntN(3) == 0 {
		off, n = p.random.IntN(largest), 1+p.random.IntN(largest)
		end = off + n
	}
	p.try(func(*model) {}, func(m *model, _ *xdr) {
		c := &m.nodes[file].content
		if c.commit(off, end); n == 0 {
			c.least = len(c.stable)
		}
	}, fmt.Sprintf("COMMIT of %d bytes at %d", n, off), procCommit, p.handle(file), uint64(off), n)
}

// sattr makes a random sattr3, and returns its effect.
func (p *changer) sattr(sizes bool) (list []any, effect func(*modelFile)) {
	var effects []func(*modelFile)
	for i, bits := range []uint32{0o777, 0xffff, 0xffff} { // mode, uid, gid
		if p.random.IntN(3) > 0 {
			list = append(list, 0)
			continue
		}
		v := p.random.Uint32() & bits
		list = append(list, 1, int(v))
		effects = append(effects, func(n *modelFile) { *[]*uint32{&n.mode, &n.uid, &n.gid}[i] = v })
	}
	if sizes && p.random.IntN(2) == 0 {
		size := p.random.IntN(largest)
		list = append(list, 1, uint64(size))
		effects = append(effects, func(n *modelFile) {
			n.content.truncate(size)
			n.mtime = 0
		})
	} else {
		list = append(list, 0)
	}
	list = append(list, 0) // atime
	if p.random.IntN(3) == 0 {
		p.at++
		at := int64(1e9 + p.at)
		list = append(list, 2, int(at), 0)
		effects = append(effects, func(n *modelFile) { n.mtime = at })
	} else {
		list = append(list, 0)
	}
	return list, func(n *modelFile) {
		for _, f := range effects {
			f(n)
		}
	}
}

func (p *changer) sets() {
	file := p.pick(func(n *modelFile) bool { return n.kind == kindRegular || n.kind == kindDirectory || n.kind == kindFIFO })
	if file == top {
		return
	}
	list, effect := p.sattr(p.model.nodes[file].kind == kindRegular)
	p.loosely(file, func(n *modelFile) {
		effect(n)
		if n.kind == kindDirectory { // its entries change it
			n.mtime = 0
		}
	}, fmt.Sprintf("SETATTR %v", list), procSetattr, join([]any{p.handle(file)}, list, []any{0})...)
}

// loosely is do for a call that changes a file, and its attributes one after the other.
func (p *changer) loosely(file int, effect func(*modelFile), what string, procedure uint32, list ...any) {
	p.cuts.Lock()
	n := p.model.nodes[file]
	n.loose = true
	after := *n
	after.content = n.content.clone()
	effect(&after)
	n.content.shrinks = after.content.least
	p.cuts.Unlock()
	p.try(func(m *model) { effect(m.nodes[file]) }, func(m *model, _ *xdr) {
		effect(m.nodes[file])
		m.nodes[file].loose, m.nodes[file].content.shrinks = false, 0
	}, what, procedure, list...)
}

// makes makes a file of any kind, or replaces the data of one.
func (p *changer) makes() {
	dir, name, file := p.entry()
	if file >= 0 {
		if p.model.nodes[file].kind == kindRegular { // an UNCHECKED CREATE truncates it
			p.loosely(file, func(n *modelFile) {
				n.content.truncate(0)
				n.mtime = 0
			}, "CREATE of what exists", procCreate, p.handle(dir), name, 0, 0, 0, 0, 1, uint64(0), 0, 0)
		}
		return
	}
	if len(p.model.nodes) > 60 {
		return
	}
	p.number++
	number := p.number
	list, set := p.sattr(false)
	made := modelFile{loose: true}
	var what string
	var procedure uint32
	arguments := []any{p.handle(dir), name}
	switch n := p.random.IntN(10); {
	case n < 4:
		what, procedure, made.kind = "CREATE", procCreate, kindRegular
		arguments = join(arguments, []any{p.random.IntN(2)}, list)
	case n < 5:
		what, procedure, made.kind = "exclusive CREATE", procCreate, kindRegular
		arguments, set = join(arguments, []any{createExclusive, number, number}), func(*modelFile) {}
	case n < 7:
		what, procedure, made.kind = "MKDIR", procMkdir, kindDirectory
		arguments = join(arguments, list)
	case n < 8:
		what, procedure, made.kind = "MKNOD", procMknod, kindFIFO
		arguments = join(arguments, []any{int(kindFIFO)}, list)
	default:
		what, procedure, made.kind = "SYMLINK", procSymlink, kindSymlink
		made.target = strings.Repeat("target", 1+p.random.IntN(40))
		arguments, set = join(arguments, noAttributes, []any{made.target}), func(*modelFile) {}
	}
	begun := func(m *model) {
		n := made
		n.entries = map[string]int{}
		m.nodes[number] = &n
		m.nodes[dir].entries[name] = number
	}
	p.try(begun, func(m *model, x *xdr) {
		begun(m)
		x.uint32()
		n := m.nodes[number]
		n.handle, n.mode = x.bytes(handleMax), x.postOp().mode
		set(n)
		if n.kind == kindDirectory {
			n.mtime = 0
		}
		n.loose = false
	}, what, procedure, arguments...)
}

func (p *changer) removes() {
	dir, name, file := p.entry()
	if file < 0 {
		return
	}
	what, procedure := "REMOVE", uint32(procRemove)
	if n := p.model.nodes[file]; n.kind == kindDirectory {
		if len(n.entries) > 0 {
			return
		}
		what, procedure = "RMDIR", procRmdir
	}
	p.do(func(m *model) {
		delete(m.nodes[dir].entries, name)
		m.collect()
	}, what, procedure, p.handle(dir), name)
}

func (p *changer) renames() {
	from, name, file := p.entry()
	to, newName, replaced := p.entry()
	if file < 0 || file == replaced || p.within(to, file) {
		return
	}
	if replaced >= 0 {
		old := p.model.nodes[replaced]
		if (old.kind == kindDirectory) != (p.model.nodes[file].kind == kindDirectory) || len(old.entries) > 0 {
			return
		}
	}
	p.do(func(m *model) {
		delete(m.nodes[from].entries, name)
		m.nodes[to].entries[newName] = file
		m.collect()
	}, "RENAME", procRename, p.handle(from), name, p.handle(to), newName)
}

// within reports whether a directory is another one, or below it.
func (p *changer) within(dir, other int) bool {
	if dir == other {
		return true
	}
	for _, child := range p.model.nodes[other].entries {
		if p.within(dir, child) {
			return true
		}
	}
	return false
}

func (p *changer) links() {
	dir, name, existing := p.entry()
	file := p.pick(func(n *modelFile) bool { return n.kind != kindDirectory })
	if file < 0 || existing >= 0 {
		return
	}
	p.do(func(m *model) { m.nodes[dir].entries[name] = file }, "LINK", procLink, p.handle(file), p.handle(dir), name)
}
