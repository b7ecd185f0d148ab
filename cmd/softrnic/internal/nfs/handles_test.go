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

// TestDeepHandles: the handle of a file below many directories, and of one whose path has become
// longer than the system allows, remain valid, also when the server is started again.
func TestDeepHandles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no inode numbers")
	}
	dir := t.TempDir()
	c := local(exported(t, opened(t, dir), false))
	root := c.mount(t, "/")
	handles := map[string][]byte{}
	for name, x := range map[string]struct {
		depth  int
		length int
	}{"many": {maxLevels + 10, 1}, "long": {18, 240}} {
		at := c.mkdir(t, root, name)
		for range x.depth {
			at = c.mkdir(t, at, strings.Repeat("d", x.length))
			c.mkdir(t, at, "another") // so that there is something to choose
		}
		handles[name] = c.create(t, at, "file")
		c.write(t, handles[name], 0, []byte("text"), 2)
		c.must(t, procRename, root, name, root, name+strings.Repeat("r", 200))
	}
	for _, again := range []*client{c, local(exported(t, opened(t, dir), false))} {
		for name, handle := range handles {
			if got, _ := again.read(t, handle, 0, 10); string(got) != "text" {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

// TestMovedBeforeStart: a file has moved to another directory, and then the server is started
// again. Its handle, and that of all that has moved with it, remain valid.
func TestMovedBeforeStart(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no inode numbers")
	}
	dir := t.TempDir()
	c := local(exported(t, opened(t, dir), false))
	root := c.mount(t, "/")
	a, b := c.mkdir(t, root, "a"), c.mkdir(t, root, "b")
	moved := c.mkdir(t, a, "moved")
	var files [][]byte
	for i := range 3 {
		files = append(files, c.create(t, moved, fmt.Sprint(i)), c.create(t, a, fmt.Sprint(i)))
		c.must(t, procRename, a, fmt.Sprint(i), b, fmt.Sprint(i))
	}
	gone := c.create(t, a, "gone")
	c.must(t, procRemove, a, "gone")
	c.must(t, procRename, a, "moved", b, "moved")
	for i := range 3 { // a client that sees another handle takes it for another file
		if got := c.lookup(t, b, fmt.Sprint(i)); !bytes.Equal(got, files[2*i+1]) {
			t.Errorf("after moving, the handle is %x", got)
		}
	}

	d := opened(t, dir)
	again := local(exported(t, d, false))
	for i, f := range files {
		if s, _ := again.nfs(t, procGetattr, f); s != nfsOK {
			t.Errorf("file %d: %d", i, s)
		}
	}
	if s, _ := again.nfs(t, procGetattr, gone); s != nfsStale {
		t.Errorf("a removed file: %d", s)
	}
	// A handle that refers to nothing does not make the server scan all again and again.
	d.handles.nextScan = time.Now().Add(time.Hour)
	next := d.handles.nextScan
	for range 3 {
		if s, _ := again.nfs(t, procGetattr, gone); s != nfsStale {
			t.Errorf("a removed file: %d", s)
		}
	}
	if d.handles.nextScan != next {
		t.Error("another scan")
	}
}

// TestInodeOutlivesName: what a call does to a file it does to that file, even if another program
// gives its name to another one at that moment.
func TestInodeOutlivesName(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux does an inode not depend on names")
	}
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, s) }
	for _, s := range []string{"file", "other"} {
		ok(t, os.WriteFile(name(s), []byte(s), 0o644))
	}
	ok(t, os.Symlink("other", name("link")))
	d := opened(t, dir)
	defer d.Close()
	root, err := d.Root()
	ok(t, err)
	defer root.Close()
	n, err := root.Lookup("file")
	ok(t, err)
	defer n.Close()
	handle := n.Handle()
	for _, s := range []string{"other", "link"} { // a file, and then a link to one, get the name
		ok(t, os.Rename(name("file"), name("moved"+s)))
		ok(t, os.Rename(name(s), name("file")))
		mode, mtime := uint32(0o600), time.Unix(1000, 0)
		ok(t, n.Change(&sattr{mode: &mode, mtime: &mtime}))
		ok(t, n.Sync())
		f, err := n.Open(true)
		ok(t, err)
		_, err = f.WriteAt([]byte("FILE"), 0)
		ok(t, err)
		ok(t, f.Close())
		ok(t, root.Link(n, "linked"+s))
		info, err := os.Lstat(name("file"))
		ok(t, err)
		if info.ModTime().Unix() == 1000 || info.Mode().IsRegular() && info.Mode() != 0o644 {
			t.Errorf("the other file has %v, %v", info.Mode(), info.ModTime())
		}
		if b, err := os.ReadFile(name("linked" + s)); string(b) != "FILE" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		ok(t, os.Rename(name("file"), name(s)))
		ok(t, os.Rename(name("moved"+s), name("file")))
	}
	again, err := d.Find(handle)
	ok(t, err)
	ok(t, again.Close())
}
