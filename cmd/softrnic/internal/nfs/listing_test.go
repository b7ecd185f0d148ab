package nfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// page makes a READDIR or READDIRPLUS after a cookie, and returns the names and the last one's
// cookie.
func (c *client) page(t testing.TB, dir []byte, cookie uint64, plus bool, size int) (names []string, next uint64, eof bool) {
	t.Helper()
	list := []any{dir, cookie, uint64(0), size}
	procedure := uint32(procReaddir)
	if plus {
		procedure, list = procReaddirplus, append(list, size)
	}
	x := c.must(t, procedure, list...)
	if len(x.b)-x.off > size {
		t.Errorf("%d bytes, and at most %d are asked for", len(x.b)-x.off, size)
	}
	x.postOp()
	x.skip(8)
	for x.uint32() == 1 {
		x.skip(8)
		names = append(names, string(x.bytes(nameMax)))
		next = x.uint64()
		if plus {
			x.postOp()
			if x.uint32() == 1 {
				x.opaque(handleMax)
			}
		}
	}
	return names, next, x.uint32() == 1
}

// TestListingWhileChanged: while a client lists a directory in pages, others create, rename and
// remove files. What is there all the time comes once.
func TestListingWhileChanged(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		const n = 200
		var stay []string
		for i := range n {
			stay = append(stay, fmt.Sprint("stay", i))
			c.create(t, root, stay[i])
			c.create(t, root, fmt.Sprint("go", i))
		}
		for _, plus := range []bool{false, true} {
			var got []string
			i := 0
			for cookie, eof := uint64(0), false; !eof; i++ {
				var names []string
				names, cookie, eof = c.page(t, root, cookie, plus, 2048)
				got = append(got, names...)
				c.create(t, root, fmt.Sprint("new", plus, i))
				if s, _ := c.nfs(t, procRemove, root, fmt.Sprint("go", i)); s != nfsOK && s != nfsNoent {
					t.Error(s)
				}
				c.must(t, procRename, root, fmt.Sprint("new", plus, i), root, fmt.Sprint("renamed", plus, i))
			}
			got = slices.DeleteFunc(got, func(name string) bool { return !strings.HasPrefix(name, "stay") })
			slices.Sort(got)
			slices.Sort(stay)
			if !slices.Equal(got, stay) {
				t.Errorf("plus %v: in %d pages come %d of %d names", plus, i, len(got), n)
			}
		}
	})
}

// TestRemoveWhileListed: a client removes all that it lists, page by page. Nothing is left.
func TestRemoveWhileListed(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		for i := range 300 {
			c.create(t, root, fmt.Sprint(i))
		}
		for cookie, eof := uint64(0), false; !eof; {
			var names []string
			names, cookie, eof = c.page(t, root, cookie, false, 1024)
			for _, name := range names {
				if name != "." && name != ".." {
					c.must(t, procRemove, root, name)
				}
			}
		}
		if left, _, _ := c.page(t, root, 0, true, 8192); len(left) != 2 {
			t.Errorf("left: %q", left)
		}
	})
}

// TestLargeDirectory: a directory is read once for a listing in many pages, and again while it
// changes, but not for each page. A listing sees what was created before it.
func TestLargeDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		s := &hookedStore{store: newMemory(16 << 20), list: func(string) error {
			reads.Add(1)
			return nil
		}}
		e := newExport(s, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		const n = 3000
		for i := range n {
			c.create(t, root, fmt.Sprint(i))
		}
		if got := len(c.list(t, root, true, 4096)); got != n+2 || reads.Load() != 1 {
			t.Errorf("%d names, and the directory was read %d times", got, reads.Load())
		}
		c.create(t, root, "new")
		if got := len(c.list(t, root, false, 4096)); got != n+3 || reads.Load() != 2 {
			t.Errorf("%d names, and the directory was read %d times", got, reads.Load())
		}
		for cookie, eof := uint64(0), false; !eof; time.Sleep(10 * time.Millisecond) {
			_, cookie, eof = c.page(t, root, cookie, false, 1024)
			c.must(t, procRemove, root, c.another(t, root))
		}
		if n := reads.Load(); n > 10 {
			t.Errorf("the directory was read %d times while it changed", n)
		}
		ok(t, e.close())
	})
}

// another creates a file and returns its name.
func (c *client) another(t testing.TB, dir []byte) string {
	name := fmt.Sprint("any", c.xid)
	c.create(t, dir, name)
	return name
}

// TestListingLimits: a limit that has no room for a name is refused, and listings that are kept are
// bounded.
func TestListingLimits(t *testing.T) {
	e := exported(t, newMemory(16<<20), false)
	c := local(e)
	root := c.mount(t, "/")
	for _, size := range []int{0, 1, listingLen, listingLen + entryLen} {
		if s, _ := c.nfs(t, procReaddir, root, uint64(0), uint64(0), size); s != nfsToosmall {
			t.Errorf("READDIR with %d bytes: %d", size, s)
		}
		if s, _ := c.nfs(t, procReaddirplus, root, uint64(0), uint64(0), size, size); s != nfsToosmall {
			t.Errorf("READDIRPLUS with %d bytes: %d", size, s)
		}
	}
	if s, _ := c.nfs(t, procReaddir, c.create(t, root, "file"), uint64(0), uint64(0), 4096); s != nfsNotdir {
		t.Errorf("READDIR of a file: %d", s)
	}
	for i := range maxKept + 10 {
		c.list(t, c.mkdir(t, root, fmt.Sprint(i)), false, 4096)
	}
	if n := len(e.listings.kept); n != maxKept {
		t.Errorf("%d listings are kept", n)
	}
	for i := range uint64(3) {
		e.listings.put(&listing{id: identity{number: 1<<40 + i}, size: maxListed / 2})
	}
	if n := e.listings.size; n != maxListed {
		t.Errorf("%d bytes are kept", n)
	}
}

// TestEqualCookies: names with the same cookie come in one page.
func TestEqualCookies(t *testing.T) {
	l := &listing{last: true, entries: []entry{{5, "a", 1}, {7, "b", 2}, {7, "c", 3}, {9, "d", 4}}}
	var got string
	for cookie, eof := uint64(0), false; !eof; {
		var page []entry
		page, eof = l.page(nil, cookie, 2*(entryLen+4), 0)
		if len(page) == 0 {
			t.Fatal("an empty page")
		}
		for _, e := range page {
			got += e.name
		}
		got, cookie = got+" ", page[len(page)-1].cookie
	}
	if got != "a bc d " {
		t.Errorf("%q", got)
	}
}

// BenchmarkListing lists a directory of 100,000 files in pages of two sizes, with attributes and
// handles.
func BenchmarkListing(b *testing.B) {
	dir := b.TempDir()
	for i := range 100_000 {
		ok(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d", i)), nil, 0o644))
	}
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size>>10, " KiB"), func(b *testing.B) {
			for b.Loop() {
				d, err := openDirectory(dir)
				ok(b, err)
				e := newExport(d, dir, false)
				c := local(e)
				root := c.mount(b, "/")
				for cookie, eof := uint64(0), false; !eof; {
					_, cookie, eof = c.page(b, root, cookie, true, size)
				}
				ok(b, e.close())
			}
		})
	}
}
