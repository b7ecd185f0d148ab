package nfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// disk is an ext4 file system on a loop device.
type disk struct {
	t     *testing.T
	image string
}

// newDisk makes an image of a file system, or skips the test.
func newDisk(t *testing.T, dir string, size int64) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a loop device needs root")
	}
	d := &disk{t, filepath.Join(dir, "disk.img")}
	f, err := os.Create(d.image)
	ok(t, err)
	ok(t, f.Truncate(size))
	ok(t, f.Close())
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", d.image).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v %s", err, out)
	}
	return d
}

// mount mounts an image until the returned function is called, or the test ends.
func (d *disk) mount(image string) (dir string, unmount func()) {
	d.t.Helper()
	dir = d.t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		d.t.Skipf("mount -o loop: %v %s", err, out)
	}
	unmount = func() { _ = exec.Command("umount", "-l", dir).Run() }
	d.t.Cleanup(unmount)
	return dir, unmount
}

// cut returns the tree that is on the disk at this moment, as after a power failure: one line for
// each file, with its mode, its links and its data.
func (d *disk) cut() string {
	d.t.Helper()
	after := filepath.Join(d.t.TempDir(), "after.img")
	from, err := os.Open(d.image)
	ok(d.t, err)
	defer from.Close()
	to, err := os.Create(after)
	ok(d.t, err)
	_, err = io.Copy(to, from)
	ok(d.t, err)
	ok(d.t, to.Close())
	dir, unmount := d.mount(after)
	defer unmount()
	return described(d.t, filepath.Join(dir, "export"))
}

// described describes a tree.
func described(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	ok(t, filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprint(&b, strings.TrimPrefix(name, dir), " ", info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " to %q", target)
		}
		b.WriteString("\n")
		return nil
	}))
	return b.String()
}

// TestPowerCut: whatever a reply has acknowledged is on the disk if power fails at that moment.
func TestPowerCut(t *testing.T) {
	d := newDisk(t, t.TempDir(), 16<<20)
	dir, unmount := d.mount(d.image)
	dir = filepath.Join(dir, "export")
	ok(t, os.Mkdir(dir, 0o755))
	if out, err := exec.Command("sync", "-f", dir).CombinedOutput(); err != nil {
		t.Skipf("sync: %v %s", err, out)
	}
	e := newExport(opened(t, dir), "/", false)
	defer unmount()
	defer e.close()
	c := local(e)
	root := c.mount(t, "/")
	check := func(what string) {
		t.Helper()
		if want, got := described(t, dir), d.cut(); got != want {
			t.Errorf("after %s the disk has\n%sand not\n%s", what, got, want)
		}
	}
	file := c.create(t, root, "file")
	check("CREATE")
	for stable, what := range map[int]string{1: "WRITE with DATA_SYNC", 2: "WRITE with FILE_SYNC"} {
		c.write(t, file, uint64(4*stable), []byte(fmt.Sprint("data", stable)), stable)
		check(what)
	}
	c.write(t, file, 0, []byte("text"), 0)
	if s, _ := c.commit(t, file); s != nfsOK {
		t.Error(s)
	}
	check("COMMIT")
	c.must(t, procSetattr, file, 1, 0o600, 0, 0, 1, uint64(7), 0, 0, 0)
	check("SETATTR")
	a := c.mkdir(t, root, "a")
	check("MKDIR")
	c.must(t, procSymlink, join([]any{a, "symlink"}, noAttributes, []any{strings.Repeat("target", 50)})...)
	check("SYMLINK")
	c.must(t, procLink, file, a, "link")
	check("LINK")
	c.must(t, procRename, root, "file", a, "moved")
	check("RENAME")
	c.must(t, procRemove, a, "symlink")
	check("REMOVE")
	c.mkdir(t, root, "empty")
	c.must(t, procRmdir, root, "empty")
	check("RMDIR")
}

// TestFullBackingStore: a thin disk has no room for what clients have written, and one of them is
// told so by its COMMIT. The other one sees another verifier at its own.
func TestFullBackingStore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a loop device needs root")
	}
	thin := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", thin).CombinedOutput(); err != nil {
		t.Skipf("mount -t tmpfs: %v %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", thin).Run() })
	d := newDisk(t, thin, 64<<20)
	dir, unmount := d.mount(d.image)
	e := newExport(opened(t, dir), "/", false)
	defer unmount()
	defer e.close()
	a, b := local(e), local(e)
	root := a.mount(t, "/")
	file := a.create(t, root, "file")
	data := bytes.Repeat([]byte("data"), 256<<10)
	_, verifier := b.write(t, file, 0, data[:4096], 0)
	failed := false
	for i := range uint64(40) {
		x := a.must(t, procWrite, file, (i+1)<<20, len(data), 0, data)
		x.wcc()
	}
	if s, v := a.commit(t, file); s == nfsIO || s == nfsNospc || s == nfsOK && v != verifier {
		failed = true
	}
	if s, v := b.commit(t, file); !failed || s == nfsOK && v == verifier {
		t.Errorf("40 MiB are said to be on a disk of 12 MiB: the first COMMIT has failed: %v, the second one: %d, verifier %#x, before %#x",
			failed, s, v, verifier)
	}
}
