package nfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// sattrOf returns an sattr3 with a mode, or a size, or neither.
func sattrOf(mode int, size int64) []any {
	list := []any{0, 0, 0, 0, 0, 0}
	if size >= 0 {
		list = []any{0, 0, 0, 1, uint64(size), 0, 0}
	}
	if mode >= 0 {
		list = append([]any{1, mode}, list[1:]...)
	}
	return list
}

// TestModes: files have the twelve bits of Unix, at their creation and later.
func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	overStores(t, func(t *testing.T, c *client, root []byte) {
		check := func(handle []byte, want uint32) {
			t.Helper()
			if got := c.getattr(t, handle).mode; got != want {
				t.Errorf("mode %o, not %o", got, want)
			}
		}
		file, dir := c.create(t, root, "file"), c.mkdir(t, root, "dir")
		for _, mode := range []int{0o4755, 0o2711, 0o1777, 0o6000, 0o777, 0o644} {
			for _, handle := range [][]byte{file, dir} {
				c.must(t, procSetattr, join([]any{handle}, sattrOf(mode, -1), []any{0})...)
				check(handle, uint32(mode))
			}
			name := fmt.Sprint(mode)
			c.must(t, procCreate, join([]any{root, "f" + name, createGuarded}, sattrOf(mode, -1))...)
			check(c.lookup(t, root, "f"+name), uint32(mode))
			c.must(t, procMkdir, join([]any{root, "d" + name}, sattrOf(mode, -1))...)
			check(c.lookup(t, root, "d"+name), uint32(mode))
		}
		if runtime.GOOS == "linux" { // new directories inherit set-group-ID
			c.must(t, procSetattr, join([]any{dir}, sattrOf(0o2775, -1), []any{0})...)
			c.must(t, procMkdir, join([]any{dir, "below"}, sattrOf(0o750, -1))...)
			check(c.lookup(t, dir, "below"), 0o2750)
		}
		// A new owner takes away the first two bits, even if it is the old one.
		for before, after := range map[int]uint32{0o4755: 0o755, 0o6711: 0o711, 0o2644: 0o2644} {
			c.must(t, procSetattr, join([]any{file}, sattrOf(before, -1), []any{0})...)
			c.must(t, procSetattr, file, 0, 1, os.Getuid(), 0, 0, 0, 0, 0)
			check(file, after)
		}
	})
}

// TestTimes: a change is seen by the time of the change, whatever a client sets the others to.
func TestTimes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Go has no time of change on Windows")
	}
	overStores(t, func(t *testing.T, c *client, root []byte) {
		file := c.create(t, root, "file")
		const client = 2
		set := func() attrs {
			c.must(t, procSetattr, file, 0, 0, 0, 0, client, 1000, 5, client, 2000, 7, 0)
			return c.getattr(t, file)
		}
		c.write(t, file, 0, []byte("text"), 2)
		before := set()
		if before.accessed != 1000<<32|5 || before.mtime != 2000 || before.changedAt>>32 < 1e9 {
			t.Errorf("%+v", before)
		}
		for c.getattr(t, file).changedAt == before.changedAt { // the file system's clock has ticks
			c.write(t, file, 0, []byte("TEXT"), 2)
			if after := set(); after.size != before.size || after.mtime != before.mtime {
				t.Fatalf("%+v", after)
			}
		}
		// An SETATTR that depends on the time of change.
		now := c.getattr(t, file).changedAt
		for _, x := range []struct {
			ctime uint64
			want  status
		}{{now + 1, nfsNotSync}, {now, nfsOK}} {
			if s, _ := c.nfs(t, procSetattr, join([]any{file}, sattrOf(0o600, -1), []any{1, x.ctime})...); s != x.want {
				t.Errorf("with a guard: %d, not %d", s, x.want)
			}
		}
	})
}

// TestHoles: what a file occupies is not its size.
func TestHoles(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "file"))
	ok(t, err)
	ok(t, f.Truncate(1<<30))
	ok(t, f.Close())
	c := local(exported(t, opened(t, dir), false))
	if a := c.getattr(t, c.lookup(t, c.mount(t, "/"), "file")); a.size != 1<<30 || runtime.GOOS == "linux" && a.used > 1<<20 {
		t.Errorf("%+v", a)
	}
}

// TestExclusive: an exclusive CREATE has one winner, who is told so again when it repeats the call.
func TestExclusive(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		create := func(name string, verifier uint64) (status, []byte) {
			t.Helper()
			s, x := c.nfs(t, procCreate, root, name, createExclusive, verifier)
			if s != nfsOK {
				return s, nil
			}
			x.uint32()
			return s, x.bytes(handleMax)
		}
		const mine, other = 0xfedcba9876543210, 0xfedcba9876543211
		_, first := create("lock", mine)
		if s, again := create("lock", mine); s != nfsOK || !bytes.Equal(again, first) {
			t.Errorf("the repetition: %d", s)
		}
		if s, _ := create("lock", other); s != nfsExist {
			t.Errorf("another client's: %d", s)
		}
		if a := c.getattr(t, first); a.mode&0o077 != 0 {
			t.Errorf("before the client has set a mode it is %o", a.mode)
		}
		c.write(t, first, 0, []byte("x"), 2)
		if s, _ := create("lock", mine); s != nfsExist {
			t.Errorf("when the file has data: %d", s)
		}
		c.mkdir(t, root, "dir")
		if s, _ := create("dir", mine); s != nfsExist {
			t.Errorf("the name of a directory: %d", s)
		}
		if s, _ := c.nfs(t, procCreate, join([]any{root, "new", 3}, noAttributes)...); s != nfsInval {
			t.Errorf("an unknown way to create: %d", s)
		}
	})
}

// TestCreateWithSize: a CREATE that is not guarded sets the size of a file that exists, and nothing
// else of it.
func TestCreateWithSize(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		c.must(t, procCreate, join([]any{root, "file", createGuarded}, sattrOf(0o640, 100))...)
		file := c.lookup(t, root, "file")
		if a := c.getattr(t, file); a.size != 100 || a.mode != 0o640 && runtime.GOOS != "windows" {
			t.Errorf("%+v", a)
		}
		x := c.must(t, procCreate, join([]any{root, "file", 0}, sattrOf(0o777, 3))...)
		x.uint32()
		if got := x.bytes(handleMax); !bytes.Equal(got, file) {
			t.Error("another handle")
		}
		if a := c.getattr(t, file); a.size != 3 || a.mode != 0o640 && runtime.GOOS != "windows" {
			t.Errorf("%+v", a)
		}
	})
}

// TestSpecialFiles: clients make FIFOs and sockets, which they use among themselves.
func TestSpecialFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux")
	}
	overStores(t, func(t *testing.T, c *client, root []byte) {
		for name, k := range map[string]kind{"fifo": kindFIFO, "socket": kindSocket} {
			x := c.must(t, procMknod, join([]any{root, name, int(k)}, sattrOf(0o640, -1))...)
			x.uint32()
			handle := x.bytes(handleMax)
			if a := c.getattr(t, handle); a.kind != uint32(k) || a.mode != 0o640 {
				t.Errorf("%s: %+v", name, a)
			}
			if s, _ := c.nfs(t, procMknod, join([]any{root, name, int(k)}, noAttributes)...); s != nfsExist {
				t.Errorf("%s again: %d", name, s)
			}
			if s, _ := c.nfs(t, procRead, handle, uint64(0), 1); s != nfsInval {
				t.Errorf("READ of %s: %d", name, s)
			}
			c.must(t, procSetattr, join([]any{handle}, sattrOf(0o600, -1), []any{0})...)
			c.must(t, procRemove, root, name)
		}
	})
}

// TestAccess: rights are those of the server's user, and have a meaning for the kind of the file.
func TestAccess(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		access := func(handle []byte) uint32 {
			x := c.must(t, procAccess, handle, 0x3f)
			x.postOp()
			return x.uint32()
		}
		file := c.create(t, root, "file")
		if got := access(root); got != rightRead|rightLookup|rightModify|rightExtend|rightDelete {
			t.Errorf("a directory: %#x", got)
		}
		if got := access(file); got != rightRead|rightModify|rightExtend && runtime.GOOS != "windows" {
			t.Errorf("a file: %#x", got)
		}
		c.must(t, procSetattr, join([]any{file}, sattrOf(0o755, -1), []any{0})...)
		if got := access(file); got != rightRead|rightModify|rightExtend|rightExecute {
			t.Errorf("a program: %#x", got)
		}
	})
}

// TestParents: the handles of "." and ".." are those of the directories, and nothing is above the
// export.
func TestParents(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		dir := c.mkdir(t, root, "dir")
		for _, x := range []struct{ at, want []byte }{{dir, root}, {root, root}} {
			if got := c.lookup(t, x.at, ".."); !bytes.Equal(got, x.want) {
				t.Errorf("%x", got)
			}
			if got := c.lookup(t, x.at, "."); !bytes.Equal(got, x.at) {
				t.Errorf("%x", got)
			}
		}
	})
}

// TestLargeListing: a listing does not occupy memory with its directory, and is quick.
func TestLargeListing(t *testing.T) {
	const n = 100_000
	m := newMemory(1 << 30)
	for i := range n {
		_, err := m.root.add(fmt.Sprintf("%06d%s", i, strings.Repeat("n", i%40)), kindRegular, 0o644, nil, nil)
		ok(t, err)
	}
	e := exported(t, m, false)
	c := local(e)
	start := time.Now()
	seen := map[string]bool{}
	for _, name := range c.list(t, c.mount(t, "/"), true, 1<<20) {
		if seen[name] {
			t.Fatalf("%s comes twice", name)
		}
		seen[name] = true
	}
	t.Logf("%d names in %v", len(seen), time.Since(start))
	if len(seen) != n+2 {
		t.Errorf("%d names", len(seen))
	}
	if len(e.listings.kept) < 2 {
		t.Error("all of the directory is in one listing")
	}
	for _, l := range e.listings.kept {
		if l.size > maxListing+1000 || !l.last && l.size < maxListing || cap(l.entries) > 5*len(l.entries)/4 {
			t.Errorf("a listing has %d bytes, and room for %d entries", l.size, cap(l.entries))
		}
	}
}
