package nfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exported(t testing.TB, s store, readOnly bool) *export {
	t.Helper()
	e := newExport(s, "/srv/files", readOnly)
	t.Cleanup(func() { ok(t, e.close()) })
	return e
}

func opened(t testing.TB, dir string) *directory {
	t.Helper()
	d, err := openDirectory(dir)
	ok(t, err)
	return d
}

// overStores runs a test with an export of a directory, and with one in memory.
func overStores(t *testing.T, f func(t *testing.T, c *client, root []byte)) {
	t.Run("directory", func(t *testing.T) {
		c := local(exported(t, opened(t, t.TempDir()), false))
		f(t, c, c.mount(t, "/srv/files"))
	})
	t.Run("memory", func(t *testing.T) {
		c := local(exported(t, newMemory(64<<20), false))
		f(t, c, c.mount(t, "/"))
	})
}

func TestFiles(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		dir := c.mkdir(t, root, "dir")
		file := c.create(t, dir, "file")
		data := bytes.Repeat([]byte("0123456789"), 1000)
		committed, verifier := c.write(t, file, 0, data, 0)
		if committed != 0 {
			t.Error("an unstable WRITE is said to be committed")
		}
		x := c.must(t, procCommit, file, uint64(0), 0)
		x.wcc()
		if v := x.uint64(); v != verifier {
			t.Errorf("COMMIT has verifier %#x, WRITE had %#x", v, verifier)
		}
		if committed, _ = c.write(t, file, 5, []byte("abc"), 2); committed != 2 {
			t.Error("a stable WRITE is not committed")
		}
		copy(data[5:], "abc")
		got, eof := c.read(t, file, 0, len(data))
		if !bytes.Equal(got, data) || !eof {
			t.Errorf("%d bytes, %v", len(got), eof)
		}
		if got, eof = c.read(t, file, 9990, 5); string(got) != "01234" || eof {
			t.Errorf("%q, %v", got, eof)
		}
		if got, eof = c.read(t, file, 20000, 5); len(got) != 0 || !eof {
			t.Errorf("%q, %v after the end", got, eof)
		}
		// A sparse file of more than 4 GiB, where the store has room.
		if s, _ := c.nfs(t, procSetattr, file, 0, 0, 0, 1, uint64(5<<30), 0, 0, 0); s == nfsOK {
			c.write(t, file, 5<<30-1, []byte("end"), 0)
			if got, _ := c.read(t, file, 5<<30, 10); string(got) != "nd" || c.getattr(t, file).size != 5<<30+2 {
				t.Errorf("at 5 GiB is %q; the size is %d", got, c.getattr(t, file).size)
			}
		} else if s != nfsNospc && s != nfsFbig {
			t.Errorf("setting the size: %d", s)
		}
		c.must(t, procSetattr, file, 0, 0, 0, 1, uint64(3), 0, 2, 1_000_000_000, 0, 0)
		if a := c.getattr(t, file); a.size != 3 || a.mtime != 1_000_000_000 || a.kind != 1 || a.links != 1 {
			t.Errorf("%+v", a)
		}
		c.must(t, procSetattr, file, 1, 0o400, 0, 0, 0, 0, 0, 0)
		if a := c.getattr(t, file); a.mode != 0o400 {
			t.Errorf("mode %o", a.mode)
		}
		c.write(t, file, 0, []byte("x"), 0) // by its owner
	})
}

func TestNames(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		a, b := c.mkdir(t, root, "a"), c.mkdir(t, root, "b")
		file := c.create(t, a, "file")
		c.write(t, file, 0, []byte("text"), 0)
		refused := func(want status, procedure uint32, list ...any) {
			t.Helper()
			if s, _ := c.nfs(t, procedure, list...); s != want {
				t.Errorf("procedure %d %q: %d, not %d", procedure, list, s, want)
			}
		}
		// The handle remains valid when the file, or its directory, is renamed.
		c.must(t, procRename, a, "file", b, "renamed")
		refused(nfsNoent, procLookup, a, "file")
		c.must(t, procRename, root, "b", root, "c")
		if got, _ := c.read(t, file, 0, 10); string(got) != "text" {
			t.Errorf("after renaming: %q", got)
		}
		c.must(t, procLink, file, a, "link")
		if got := c.getattr(t, file); got.links != 2 || c.getattr(t, c.lookup(t, a, "link")).id != got.id {
			t.Errorf("after linking: %+v", got)
		}
		refused(nfsNotempty, procRmdir, root, "c")
		refused(nfsNotdir, procRmdir, a, "link")
		refused(nfsIsdir, procRemove, root, "a")
		refused(nfsExist, procCreate, join([]any{a, "link", createGuarded}, noAttributes)...)
		refused(nfsExist, procMkdir, join([]any{root, "a"}, noAttributes)...)
		refused(nfsExist, procLink, file, a, "link")
		if s, _ := c.nfs(t, procRename, root, "a", root, "c"); s != nfsNotempty && s != nfsExist { // it depends on the file system
			t.Errorf("renaming to a directory that is not empty: %d", s)
		}
		refused(nfsNoent, procRemove, a, "nothing")
		refused(nfsPerm, procMknod, join([]any{a, "device", int(kindBlock)}, noAttributes, []any{8, 0})...)
		refused(nfsBadtype, procMknod, a, "regular", int(kindRegular))
		refused(nfsNameTooLong, procLookup, a, strings.Repeat("x", 256))
		// UNCHECKED does not truncate.
		c.must(t, procCreate, join([]any{a, "link", 0}, noAttributes)...)
		c.must(t, procRemove, a, "link")
		if got, _ := c.read(t, file, 0, 10); string(got) != "text" || c.getattr(t, file).links != 1 {
			t.Errorf("after removing one of its names: %q", got)
		}
		target := "../" + strings.Repeat("0123456789/", 370) // nearly 4 KiB
		c.must(t, procSymlink, join([]any{a, "symlink"}, noAttributes, []any{target})...)
		link := c.lookup(t, a, "symlink")
		x := c.must(t, procReadlink, link)
		x.postOp()
		if got := string(x.bytes(5000)); got != target || c.getattr(t, link).kind != 5 {
			t.Errorf("the link's target is %.60q…", got)
		}
		refused(nfsInval, procRead, link, uint64(0), 10)
		for _, name := range []string{"renamed", "symlink"} {
			refused(nfsNoent, procRemove, root, name)
		}
		c.must(t, procRemove, a, "symlink")
		c.must(t, procRemove, c.lookup(t, root, "c"), "renamed")
		refused(nfsStale, procGetattr, file)
		c.must(t, procRmdir, root, "c")
		c.must(t, procRmdir, root, "a")
	})
}

// TestOutside: no name and no symbolic link leads out of the export.
func TestOutside(t *testing.T) {
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	ok(t, os.WriteFile(secret, []byte("secret"), 0o644))
	dir := filepath.Join(top, "export")
	ok(t, os.Mkdir(dir, 0o755))
	ok(t, os.WriteFile(filepath.Join(dir, "file"), []byte("file"), 0o644))
	for link, target := range map[string]string{"up": "..", "absolute": top, "secret": "../secret", "self": "file"} {
		ok(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	c := local(exported(t, opened(t, dir), false))
	root := c.mount(t, "/")
	file := c.lookup(t, root, "file")
	for _, name := range []string{"../secret", "..", "/etc/passwd", "up/secret", "absolute/secret", "a/../../secret", "", ".",
		"x\x00", "./file", "file/"} {
		for procedure, list := range map[uint32][]any{
			procLookup: {root, name}, procCreate: join([]any{root, name, 0}, noAttributes), procMkdir: join([]any{root, name}, noAttributes),
			procSymlink: join([]any{root, name}, noAttributes, []any{"x"}), procRemove: {root, name}, procRmdir: {root, name},
			procRename: {root, "file", root, name}, procLink: {file, root, name},
		} {
			s, x := c.nfs(t, procedure, list...)
			if procedure == procLookup && (name == "." || name == "..") { // the export itself, or refused
				if s == nfsOK && !bytes.Equal(x.bytes(handleMax), root) {
					t.Errorf("LOOKUP %q has another handle", name)
				}
				continue
			}
			if s == nfsOK {
				t.Errorf("procedure %d of %q succeeds", procedure, name)
			}
		}
	}
	for _, name := range []string{"up", "absolute", "secret", "self"} {
		link := c.lookup(t, root, name)
		for procedure, list := range map[uint32][]any{
			procLookup: {link, "secret"}, procRead: {link, uint64(0), 10}, procWrite: {link, uint64(0), 1, 2, "x"},
			procReaddir: {link, uint64(0), uint64(0), 4096},
			procCreate:  join([]any{link, "new", 0}, noAttributes), procCommit: {link, uint64(0), 0},
			procSetattr: {link, 0, 0, 0, 1, uint64(0), 0, 0, 0},
		} {
			if s, _ := c.nfs(t, procedure, list...); s == nfsOK {
				t.Errorf("procedure %d through %s succeeds", procedure, name)
			}
		}
		if s, _ := c.nfs(t, procCreate, join([]any{root, name, 0}, noAttributes)...); s == nfsOK {
			if a := c.getattr(t, c.lookup(t, root, name)); a.kind != 5 {
				t.Errorf("CREATE has replaced the link %s", name)
			}
		}
		c.must(t, procSetattr, link, 1, 0o600, 0, 0, 0, 0, 2, 1, 1, 0) // of the link, or nothing
	}
	info, err := os.Stat(secret)
	ok(t, err)
	if b, err := os.ReadFile(secret); string(b) != "secret" || err != nil || info.Mode().Perm() != 0o644 || info.ModTime().Unix() < 2 {
		t.Errorf("the file outside: %q, %v, %v", b, info.Mode(), info.ModTime())
	}
	names, err := filepath.Glob(filepath.Join(top, "*"))
	ok(t, err)
	if len(names) != 2 {
		t.Errorf("outside: %q", names)
	}
}

// TestMovedOut: handles of what was moved out of the export are stale, also when a symbolic link
// has its name.
func TestMovedOut(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no inode numbers")
	}
	top := t.TempDir()
	dir := filepath.Join(top, "export")
	ok(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755))
	ok(t, os.WriteFile(filepath.Join(dir, "a", "b", "file"), []byte("secret"), 0o644))
	c := local(exported(t, opened(t, dir), false))
	a := c.lookup(t, c.mount(t, "/"), "a")
	b := c.lookup(t, a, "b")
	file := c.lookup(t, b, "file")
	stale := func(when string) {
		t.Helper()
		for procedure, list := range map[uint32][]any{procLookup: {b, "file"}, procRead: {file, uint64(0), 10}, procGetattr: {b},
			procWrite: {file, uint64(0), 1, 2, "x"}, procCreate: join([]any{b, "new", 0}, noAttributes), procRemove: {b, "file"},
			procReaddir: {b, uint64(0), uint64(0), 4096}} {
			if s, _ := c.nfs(t, procedure, list...); s != nfsStale {
				t.Errorf("%s: procedure %d: %d", when, procedure, s)
			}
		}
	}
	ok(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(top, "a")))
	stale("moved out")
	for _, target := range []string{"../a", filepath.Join(top, "a")} {
		ok(t, os.Symlink(target, filepath.Join(dir, "a")))
		stale(target)
		ok(t, os.Remove(filepath.Join(dir, "a")))
	}
	if b, err := os.ReadFile(filepath.Join(top, "a", "b", "file")); string(b) != "secret" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	// Moved within the export, and back.
	ok(t, os.Rename(filepath.Join(top, "a"), filepath.Join(dir, "c")))
	if got, _ := c.read(t, file, 0, 10); string(got) != "secret" {
		t.Errorf("%q", got)
	}
}

// TestFIFO: a FIFO in the export is shown, and not opened.
func TestFIFO(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no FIFOs")
	}
	dir := t.TempDir()
	ok(t, mkfifo(filepath.Join(dir, "fifo")))
	c := local(exported(t, opened(t, dir), false))
	fifo := c.lookup(t, c.mount(t, "/"), "fifo")
	if a := c.getattr(t, fifo); a.kind != 7 {
		t.Errorf("%+v", a)
	}
	for procedure, list := range map[uint32][]any{procRead: {fifo, uint64(0), 10}, procWrite: {fifo, uint64(0), 1, 2, "x"},
		procCommit: {fifo, uint64(0), 0}} {
		if s, _ := c.nfs(t, procedure, list...); s == nfsOK {
			t.Errorf("procedure %d succeeds", procedure)
		}
	}
}

// TestReadOnly: nothing can be changed, and everything can be read.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "file"), []byte("file"), 0o644))
	ok(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	before := tree(t, dir)
	c := local(exported(t, opened(t, dir), true))
	root := c.mount(t, "/")
	file := c.lookup(t, root, "file")
	tried := map[uint32]bool{}
	for procedure, list := range map[uint32][]any{
		procSetattr: {file, 1, 0o600, 0, 0, 0, 0, 0, 0}, procWrite: {file, uint64(0), 1, 2, "x"},
		procCreate: join([]any{root, "new", 0}, noAttributes), procMkdir: join([]any{root, "new"}, noAttributes),
		procSymlink: join([]any{root, "new"}, noAttributes, []any{"x"}), procRemove: {root, "file"}, procRmdir: {root, "empty"},
		procRename: {root, "file", root, "new"}, procLink: {file, root, "new"}, procCommit: {file, uint64(0), 0},
		procMknod: join([]any{root, "new", int(kindFIFO)}, noAttributes),
	} {
		tried[procedure] = true
		if s, _ := c.nfs(t, procedure, list...); s != nfsRofs {
			t.Errorf("procedure %d: %d", procedure, s)
		}
	}
	for procedure, p := range nfsProcedures {
		if (p.effect != reads) != tried[uint32(procedure)] {
			t.Errorf("procedure %d: %v", procedure, p)
		}
	}
	const all = 0x3f
	x := c.must(t, procAccess, file, all)
	x.postOp()
	if rights := x.uint32(); rights&(0x04|0x08|0x10) != 0 || rights&0x01 == 0 { // MODIFY, EXTEND, DELETE; READ
		t.Errorf("ACCESS: %#x", rights)
	}
	if got, _ := c.read(t, file, 0, 10); string(got) != "file" {
		t.Errorf("%q", got)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("%s has become %s", before, after)
	}
}

// tree describes a directory.
func tree(t *testing.T, dir string) (s string) {
	t.Helper()
	ok(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		s += fmt.Sprintln(name, info.Mode(), info.Size(), info.ModTime())
		return err
	}))
	return s
}

// TestListing: a large directory is listed in many calls, while files are removed.
func TestListing(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		const n = 700
		want := []string{".", ".."}
		for i := range n {
			name := fmt.Sprintf("%03d%s", i, strings.Repeat("n", i%250))
			want = append(want, name)
			c.create(t, root, name)
		}
		for _, plus := range []bool{true, false} {
			for _, size := range []int{4096, 1 << 20, 1 << 30} {
				got := c.list(t, root, plus, size)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("%v, %d: %d names", plus, size, len(got))
				}
			}
		}
		for _, name := range c.list(t, root, true, 8192)[2:] {
			c.must(t, procRemove, root, name)
		}
		if left := c.list(t, root, false, 4096); len(left) != 2 {
			t.Errorf("left: %q", left)
		}
	})
}

// TestRestart: handles and names remain valid when the server is started again; the verifier does
// not.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	c := local(exported(t, opened(t, dir), false))
	root := c.mount(t, "/")
	deep := root
	for i := range 5 {
		for j := range 20 {
			c.mkdir(t, deep, fmt.Sprintf("%d-%d", i, j))
		}
		deep = c.lookup(t, deep, fmt.Sprintf("%d-%d", i, 7))
	}
	file, gone := c.create(t, deep, "file"), c.create(t, deep, "gone")
	_, before := c.write(t, file, 0, []byte("text"), 0)
	c.must(t, procRemove, deep, "gone")

	again := local(exported(t, opened(t, dir), false))
	if got, _ := again.read(t, file, 0, 10); string(got) != "text" {
		t.Errorf("%q", got)
	}
	if got := again.list(t, deep, true, 4096); len(got) != 3 {
		t.Errorf("%q", got)
	}
	if s, _ := again.nfs(t, procGetattr, gone); s != nfsStale {
		t.Errorf("a removed file: %d", s)
	}
	if _, after := again.write(t, file, 0, []byte("text"), 0); after == before {
		t.Error("the verifier is the same")
	}
	other := local(exported(t, opened(t, t.TempDir()), false))
	if s, _ := other.nfs(t, procGetattr, root); s != nfsStale {
		t.Errorf("a handle of another export: %d", s)
	}
}

// TestReplaced: the handle of a file does not become that of another file with its name or number.
func TestReplaced(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		seen := map[string]bool{}
		for range 50 {
			file := c.create(t, root, "file")
			if seen[string(file)] {
				t.Skip("the file system has no time of birth")
			}
			seen[string(file)] = true
			c.write(t, file, 0, []byte("text"), 2)
			c.must(t, procRemove, root, "file")
			for old := range seen {
				if s, _ := c.nfs(t, procRead, []byte(old), uint64(0), 4); s != nfsStale {
					t.Fatalf("the handle of a removed file: %d", s)
				}
			}
		}
	})
}

// TestRepeated: a repeated call has the result of the first one.
func TestRepeated(t *testing.T) {
	c := local(exported(t, newMemory(1<<20), false))
	root := c.mount(t, "/")
	c.create(t, root, "file")
	remove := callOf(99, programNFS, version3, procRemove, root, "file")
	first, err := c.do(remove)
	ok(t, err)
	second, err := c.do(remove)
	ok(t, err)
	if !bytes.Equal(first, second) || binary.BigEndian.Uint32(first[resultOffset:]) != 0 {
		t.Errorf("%x and %x", first, second)
	}
	remove[3]++ // another XID
	if third, err := c.do(remove); err != nil || status(binary.BigEndian.Uint32(third[resultOffset:])) != nfsNoent {
		t.Errorf("%x, %v", third, err)
	}
}

// TestRPC: calls that are not for this server, or not well-formed, have the answers of RFC 5531.
func TestRPC(t *testing.T) {
	c := local(exported(t, newMemory(1<<20), false))
	root := c.mount(t, "/")
	long := callOf(1, programNFS, version3, procGetattr, root)
	binary.BigEndian.PutUint32(long[40:], 1<<31) // the length of the handle
	gss := callOf(1, programNFS, version3, procNull)
	gss[27] = 6
	rpc3 := callOf(1, programNFS, version3, procNull)
	rpc3[11] = 3
	for name, x := range map[string]struct {
		call []byte
		want []uint32 // from the XID on; nil: no reply
	}{
		"null":            {callOf(1, programNFS, version3, procNull), []uint32{1, 1, 0, 0, 0, 0}},
		"mount null":      {callOf(1, programMount, version3, procNull), []uint32{1, 1, 0, 0, 0, 0}},
		"program":         {callOf(1, 100004, 2, 0), []uint32{1, 1, 0, 0, 0, acceptProgUnavail}},
		"version":         {callOf(1, programNFS, 4, 1), []uint32{1, 1, 0, 0, 0, acceptProgMismatch, 3, 3}},
		"procedure":       {callOf(1, programNFS, version3, 22), []uint32{1, 1, 0, 0, 0, acceptProcUnavail}},
		"mount procedure": {callOf(1, programMount, version3, 6), []uint32{1, 1, 0, 0, 0, acceptProcUnavail}},
		"no arguments":    {callOf(1, programNFS, version3, procRead, root), []uint32{1, 1, 0, 0, 0, acceptGarbageArgs}},
		"long handle":     {long, []uint32{1, 1, 0, 0, 0, acceptGarbageArgs}},
		"credentials":     {gss, []uint32{1, 1, 1, 1, 1}},
		"RPC version":     {rpc3, []uint32{1, 1, 1, 0, 2, 2}},
		"export":          {callOf(1, programMount, version3, mountExport), []uint32{1, 1, 0, 0, 0, 0, 1, 1, '/' << 24, 0, 0}},
		"another path":    {callOf(1, programMount, version3, 1, "/etc"), []uint32{1, 1, 0, 0, 0, 0, 2}},
		"a reply":         {words(nil, 1, 1, 0, 0, 0, 0), nil},
		"truncated":       {callOf(1, programNFS, version3, procNull)[:30], nil},
		"nothing":         {nil, nil},
	} {
		got, _ := c.do(x.call)
		if want := words(nil, x.want...); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, not %x", name, got, want)
		}
	}
	x := c.must(t, procFsinfo, root)
	x.postOp()
	for i, want := range []uint32{maxTransfer, maxTransfer, 4096, maxTransfer, maxTransfer, 4096, 64 << 10} {
		if got := x.uint32(); got != want {
			t.Errorf("FSINFO: word %d is %d", i, got)
		}
	}
}

// TestConcurrentCalls: callers change and read one tree at the same time.
func TestConcurrentCalls(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		var callers sync.WaitGroup
		for i := range 12 {
			callers.Go(func() {
				c := &client{do: c.do, xid: uint32(i) << 16}
				dir := c.mkdir(t, root, fmt.Sprint("dir", i))
				for j := range 20 {
					name, data := fmt.Sprint(j), bytes.Repeat([]byte{byte(i), byte(j)}, 5000)
					file := c.create(t, dir, name)
					c.write(t, file, 0, data, j%3)
					c.must(t, procRename, dir, name, dir, name+"x")
					if got, _ := c.read(t, file, 0, len(data)); !bytes.Equal(got, data) {
						t.Errorf("%d bytes, or other ones", len(got))
					}
					if j%2 == 0 {
						c.must(t, procRemove, dir, name+"x")
					}
				}
				if got := c.list(t, dir, true, 8192); len(got) != 12 {
					t.Errorf("%q", got)
				}
			})
		}
		callers.Wait()
	})
}

// TestFullMemory: a full store refuses data and files, and has room again after a removal.
func TestFullMemory(t *testing.T) {
	m := newMemory(100_000)
	c := local(exported(t, m, false))
	root := c.mount(t, "/")
	file := c.create(t, root, "file")
	c.write(t, file, 0, make([]byte, 90_000), 0)
	for _, list := range [][]any{{file, uint64(90_000), 20_000, 0, make([]byte, 20_000)}, {file, uint64(1 << 62), 1, 0, "x"}} {
		if s, _ := c.nfs(t, procWrite, list...); s != nfsNospc {
			t.Errorf("%d", s)
		}
	}
	n := 0
	for ; ; n++ {
		s, _ := c.nfs(t, procMkdir, join([]any{root, fmt.Sprint(n)}, noAttributes)...)
		if s != nfsOK {
			if s != nfsNospc {
				t.Errorf("%d", s)
			}
			break
		}
	}
	for i := range n {
		c.must(t, procRmdir, root, fmt.Sprint(i))
	}
	c.must(t, procRemove, root, "file")
	if m.used != 0 {
		t.Errorf("%d bytes are in use", m.used)
	}
}

// FuzzCalls: calls with arbitrary arguments, names and handles are answered, and do not disturb
// later ones. The input is calls, each after a byte with its length in words.
func FuzzCalls(f *testing.F) {
	e := newExport(newMemory(1<<20), "/", false)
	root := local(e).mount(f, "/")
	add := func(calls ...[]byte) {
		var b []byte
		for _, c := range calls {
			b = append(append(b, byte(len(c)/4)), c...)
		}
		f.Add(b)
	}
	for procedure, p := range nfsProcedures {
		var list []any
		for _, t := range p.args {
			switch t {
			case 'h':
				list = append(list, root)
			case 'n', 'p', 'o':
				list = append(list, "name")
			case '4':
				list = append(list, 4096)
			case '8':
				list = append(list, uint64(0))
			case 'a':
				list = append(list, noAttributes...)
			case 'g':
				list = append(list, 0)
			case 'c':
				list = append(append(list, 0), noAttributes...)
			case 'm':
				list = append(append(list, int(kindFIFO)), noAttributes...)
			}
		}
		call := callOf(1, programNFS, version3, uint32(procedure), list...)
		add(callOf(1, programNFS, version3, procMkdir, join([]any{root, "name"}, noAttributes)...), call, call)
	}
	add(callOf(1, programMount, version3, 1, "/"), callOf(1, programMount, version3, mountExport))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := exported(t, newMemory(1<<20), false)
		c := local(e)
		for len(b) > 1 {
			n := min(1+4*int(b[0]), len(b))
			call := b[1:n]
			if len(call) >= 40 { // reach the procedures
				copy(call[4:], words(nil, 0, 2))
			}
			reply, err := c.do(call)
			if err == nil && (len(reply) < 16 || !bytes.Equal(reply[:4], call[:4])) {
				t.Fatalf("%x is answered by %x", call, reply)
			}
			b = b[n:]
		}
		if a := c.getattr(t, c.mount(t, "/")); a.kind != 2 {
			t.Errorf("afterwards, the root is %+v", a)
		}
	})
}
