package powercut_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/powercut"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDisk: a file whose sync has returned is there after a cut. Of one without a sync something is
// missing in some of the cuts.
func TestDisk(t *testing.T) {
	d := powercut.NewDisk(t, 8<<20, nil)
	dir := d.Mount(t)
	data, random := bytes.Repeat([]byte("data"), 1000), rand.New(rand.NewPCG(1, 1))
	written := func(name string, sync bool) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		ok(t, err)
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.Write(data)
		ok(t, err)
		if sync {
			ok(t, f.Sync())
		}
		return f
	}
	written("synced", true)
	written("new", false)
	for range 5 {
		ok(t, powercut.Mounted(t, d.Cut(random), func(dir string) error {
			got, err := os.ReadFile(filepath.Join(dir, "synced"))
			if !bytes.Equal(got, data) {
				t.Errorf("a synced file has %d bytes", len(got))
			}
			if _, missing := os.Stat(filepath.Join(dir, "new")); !errors.Is(missing, os.ErrNotExist) {
				t.Errorf("a new file that nobody has synced: %v", missing)
			}
			return err
		}))
	}
}

// TestVolatile: writes that the disk has got, and not flushed, may be lost, or in part.
func TestVolatile(t *testing.T) {
	d := powercut.NewDisk(t, 1<<20, nil)
	f, err := os.OpenFile(d.Device, os.O_RDWR, 0)
	ok(t, err)
	defer func() { ok(t, f.Close()) }()
	old, data := bytes.Repeat([]byte{1}, 64<<10), bytes.Repeat([]byte{2}, 64<<10)
	_, err = f.Write(old)
	ok(t, err)
	ok(t, f.Sync())
	none, part, random := false, false, rand.New(rand.NewPCG(1, 1))
	_, err = f.WriteAt(data, 0)
	ok(t, err)
	ok(t, unix.SyncFileRange(int(f.Fd()), 0, int64(len(data)), unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER))
	for range 100 {
		got := d.Cut(random)[:len(data)]
		n := bytes.Count(got, []byte{2})
		none, part = none || n == 0, part || n > 0 && n < len(data)
		if n+bytes.Count(got, []byte{1}) != len(got) {
			t.Fatal("there is what nobody has written")
		}
	}
	if !none || !part {
		t.Errorf("all of the writes lost in one of the cuts: %v, a part: %v", none, part)
	}
	ok(t, f.Sync())
	if !bytes.Equal(d.Cut(random)[:len(data)], data) {
		t.Error("a flush is not durable")
	}
}
