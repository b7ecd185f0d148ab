package live

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// device returns a node with an address, and its rail. Directories are the test's own.
func device(t *testing.T) (*dropin.Rail, *node.Node) {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	r := &dropin.Rail{RoCE: "rnic0", IWARP: "rnic0_iw"}
	f := &r.Flags
	if err := f.Link.UnmarshalText([]byte("pipe")); err != nil {
		t.Fatal(err)
	}
	var a node.CIDR
	if err := a.UnmarshalText([]byte("10.0.0.1/24")); err != nil {
		t.Fatal(err)
	}
	f.Addr = []node.CIDR{a}
	n, err := f.Open(&cli.Env{Stdout: io.Discard, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, n
}

func create(t *testing.T, r *dropin.Rail, n *node.Node, keep bool) *Directory {
	t.Helper()
	d, err := Create(r, n.Dev, keep)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func value(t *testing.T, d *Directory) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.Path, PortDir, "port_xmit_data"))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(b))
}

// TestSum: the files have the sum of several processes, which update them at the same time.
func TestSum(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	const processes, rounds = 8, 50
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			w := &writer{dir: d.Path, patience: lockPatience}
			for i := range uint64(rounds) {
				now := map[string]uint64{PortDir + "/port_xmit_data": 3 * (i + 1), HWDir + "/duplicate_request": i}
				for w.update(now) { // until there is no change, as others may have held the lock
				}
			}
		})
	}
	all.Wait()
	if got := value(t, d); got != "1200" {
		t.Errorf("the sum is %s, want %d", got, processes*rounds*3)
	}
}

// TestReader: a program that reads a file in parts, while its number grows, sees one number.
func TestReader(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	f, err := os.Open(filepath.Join(d.Path, PortDir, "port_xmit_data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 2)
	if _, err := io.ReadFull(f, b); err != nil {
		t.Fatal(err)
	}
	(&writer{dir: d.Path, patience: lockPatience}).update(map[string]uint64{PortDir + "/port_xmit_data": 12340})
	if rest, err := io.ReadAll(f); err != nil || string(b)+string(rest) != "0\n" {
		t.Errorf("%q and then %q (%v), want 0", b, rest, err)
	}
	if got := value(t, d); got != "12340" {
		t.Errorf("the file has %s, want 12340", got)
	}
}

// TestUnchanged: counters that do not change write nothing.
func TestUnchanged(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	w := &writer{dir: d.Path, patience: lockPatience}
	now := map[string]uint64{PortDir + "/port_xmit_data": 5}
	if !w.update(now) || w.update(now) {
		t.Error("update does not report whether counters have changed")
	}
	if got := value(t, d); got != "5" {
		t.Errorf("the file has %s, want 5", got)
	}
}

// TestLifetime: the directory exists as long as a process has it open, and one that killed
// processes have left is not used again.
func TestLifetime(t *testing.T) {
	r, n := device(t)
	if _, err := Open(r, n.Dev); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it is created: %v", err)
	}
	first := create(t, r, n, false)
	program, err := Open(r, n.Dev)
	if err != nil {
		t.Fatal(err)
	}
	(&writer{dir: program.Path, patience: lockPatience}).update(map[string]uint64{PortDir + "/port_xmit_data": 7})
	first.Close()
	second := create(t, r, n, false)
	if got := value(t, second); got != "7" {
		t.Errorf("a second tree of the same device has %s, want 7", got)
	}
	second.Close()
	program.Close()
	if _, err := os.Stat(first.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", first.Path, err)
	}
	create(t, r, n, false).Leave() // as a killed process does
	left := &writer{dir: first.Path, patience: lockPatience}
	left.update(map[string]uint64{PortDir + "/port_xmit_data": 9})
	kept := create(t, r, n, true)
	if got := value(t, kept); got != "9" {
		t.Errorf("a container's counters are %s, want 9", got)
	}
	kept.Leave()
	fresh := create(t, r, n, false)
	defer fresh.Close()
	if got := value(t, fresh); got != "0" {
		t.Errorf("the counters of a killed process are %s, want 0", got)
	}
}

// TestFollow: a program's end leaves its counters, which a container's next process reads.
func TestFollow(t *testing.T) {
	r, n := device(t)
	create(t, r, n, true).Leave()
	program, err := Open(r, n.Dev)
	if err != nil {
		t.Fatal(err)
	}
	(&writer{dir: program.Path, patience: lockPatience}).update(map[string]uint64{PortDir + "/port_xmit_data": 7})
	program.Follow()()
	next := create(t, r, n, true)
	defer next.Close()
	if got := value(t, next); got != "7" {
		t.Errorf("after the program's end: %s, want 7", got)
	}
}

// TestCreateAtOnce: processes that create the directory at the same time find no empty file.
func TestCreateAtOnce(t *testing.T) {
	r, n := device(t)
	for range 20 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				d, err := Create(r, n.Dev, false)
				if err != nil {
					t.Error(err)
					return
				}
				files, _ := filepath.Glob(d.Path + "/*_counters/*")
				for _, file := range files {
					if b, err := os.ReadFile(file); err != nil || string(b) != "0\n" {
						t.Errorf("%s has %q (%v)", file, b, err)
					}
				}
				if len(files) == 0 {
					t.Error("there are no files")
				}
				d.Close()
			})
		}
		all.Wait()
	}
}

// TestDip: a counter that is less than before for a moment is added once. A file that has become
// corrupt recovers.
func TestDip(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	const name = PortDir + "/port_xmit_data"
	w := &writer{dir: d.Path, patience: lockPatience}
	for _, v := range []uint64{1000, 990, 1000, 1001} {
		w.update(map[string]uint64{name: v})
		if got := value(t, d); got != "1000" && v <= 1000 || got != "1001" && v > 1000 {
			t.Errorf("after %d, the file has %s", v, got)
		}
	}
	file := filepath.Join(d.Path, name)
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("7\n01\n"), 0o444)); err != nil {
		t.Fatal(err)
	}
	w.update(map[string]uint64{name: 1003})
	if b, err := os.ReadFile(file); err != nil || string(b) != "9\n" {
		t.Errorf("a corrupt file has %q (%v), want 9", b, err)
	}
}

// TestLastUpdate: the update at the end waits for another process.
func TestLastUpdate(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	other, err := (&writer{dir: d.Path, patience: lockPatience}).lock()
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*lockPatience, func() { _ = other.Close() })
	if w := (&writer{dir: d.Path, patience: lastPatience}); !w.update(map[string]uint64{PortDir + "/port_xmit_data": 5}) || w.last == nil {
		t.Error("the last update was not made")
	}
}

// TestRails: rails with the same link and addresses have directories of their own.
func TestRails(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	second := *r
	second.RoCE, second.IWARP = "rnic1", "rnic1_iw"
	other := create(t, &second, n, false)
	defer other.Close()
	if d.Path == other.Path {
		t.Errorf("two rails share %s", d.Path)
	}
}

// TestForeign: a program neither waits for what another user may have created, nor writes to it.
func TestForeign(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	if err := os.Chmod(parent(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(r, n.Dev); err == nil {
		t.Error("a directory is used that others may write to")
	}
	if err := os.Chmod(parent(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(d.open.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(r, n.Dev); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a locked directory: %v", err)
	}
	if err := unix.Flock(int(d.open.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	lock, counter := filepath.Join(d.Path, lockFile), filepath.Join(d.Path, PortDir, "port_xmit_data")
	elsewhere := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(elsewhere, []byte("0\n"), 0o644), os.Remove(counter), os.Symlink(elsewhere, counter)); err != nil {
		t.Fatal(err)
	}
	w := &writer{dir: d.Path, patience: lockPatience}
	w.update(map[string]uint64{PortDir + "/port_xmit_data": 5})
	if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "0\n" {
		t.Errorf("the target of a symbolic link has %q (%v), want 0", b, err)
	}
	if err := errors.Join(os.Remove(lock), unix.Mkfifo(lock, 0o644)); err != nil {
		t.Fatal(err)
	}
	if f, err := w.lock(); err == nil { // and does not wait for a writer
		_ = f.Close()
	}
}

// TestZeros: counters of 0 may be one file, and one that changes is then another. Programs cannot
// write into them, also those of the user.
func TestZeros(t *testing.T) {
	r, n := device(t)
	d := create(t, r, n, false)
	defer d.Close()
	const changed = PortDir + "/port_xmit_data"
	w := &writer{dir: d.Path, patience: lockPatience}
	w.update(map[string]uint64{changed: 5})
	all, err := Counters(n.Dev)
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		want := "0\n"
		if name == changed {
			want = "5\n"
		}
		if b, err := os.ReadFile(filepath.Join(d.Path, name)); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v, want %q", name, b, err, want)
		}
		if info, err := os.Stat(filepath.Join(d.Path, name)); err != nil {
			t.Error(err)
		} else if info.Mode()&0o222 != 0 {
			t.Errorf("%s can be written: %v", name, info.Mode())
		}
	}
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() && e.Name() != lockFile {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// TestNoSpace: a rail's second process creates nothing, so that it needs no space.
func TestNoSpace(t *testing.T) {
	r, n := device(t)
	first := create(t, r, n, false)
	defer first.Close()
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(first.Path, long, long); err != nil {
		t.Fatal(err)
	}
	create(t, r, n, false).Leave()
	info, err := os.Stat(first.Path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.ModTime().Equal(long) {
		t.Errorf("the directory has changed at %v", info.ModTime())
	}
}
