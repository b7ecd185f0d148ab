package target_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "disk")
	if _, err := target.OpenFile(name, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
	for _, step := range []struct {
		cfg  *target.FileConfig
		size int64 // 0: invalid
	}{
		{&target.FileConfig{Size: -1}, 0}, {&target.FileConfig{Size: 1 << 20}, 1 << 20}, {nil, 1 << 20},
		{&target.FileConfig{Size: 4096}, 1 << 20}, {&target.FileConfig{Size: 2 << 20}, 2 << 20}, {&target.FileConfig{ReadOnly: true}, 2 << 20},
		{&target.FileConfig{ReadOnly: true, Size: 3 << 20}, 0},
	} {
		f, err := target.OpenFile(name, step.cfg)
		switch {
		case step.size == 0 && !errors.Is(err, verbs.ErrInvalid):
			t.Errorf("%+v: %v", step.cfg, err)
		case step.size == 0:
			continue
		case err != nil:
			t.Errorf("%+v: %v", step.cfg, err)
			continue
		case f.Size() != step.size:
			t.Errorf("%+v: %d bytes, want %d", step.cfg, f.Size(), step.size)
		}
		if err == nil {
			ok(t, f.Close())
		}
	}
	for _, other := range []string{dir, os.DevNull} {
		if _, err := target.OpenFile(other, &target.FileConfig{ReadOnly: true}); err == nil {
			t.Errorf("%s is opened", other)
		}
	}
	empty := filepath.Join(dir, "empty")
	ok(t, os.WriteFile(empty, nil, 0o600))
	if _, err := target.OpenFile(empty, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an empty file: %v", err)
	}
}

const holdEnv = "SOFTRNIC_HOLD_FILE"

// A file has one File that writes, or several that read, in all processes. Force opens another.
func TestFileInUse(t *testing.T) {
	if name := os.Getenv(holdEnv); name != "" { // the other process
		f, err := target.OpenFile(name, nil)
		ok(t, err)
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin)
		ok(t, f.Close())
		return
	}
	switch runtime.GOOS {
	case "darwin", "dragonfly", "freebsd", "linux", "netbsd", "openbsd":
	default:
		t.Skip("needs flock")
	}
	name := filepath.Join(t.TempDir(), "disk")
	writes, reads := &target.FileConfig{Size: 1 << 20}, &target.FileConfig{ReadOnly: true}
	try := func(cfg *target.FileConfig, busy bool) {
		t.Helper()
		f, err := target.OpenFile(name, cfg)
		if busy {
			if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), name) {
				t.Errorf("%+v: %v", cfg, err)
			}
			forced := *cfg
			forced.Force = true
			f, err = target.OpenFile(name, &forced)
		}
		ok(t, err)
		ok(t, f.Close())
	}
	f, err := target.OpenFile(name, writes)
	ok(t, err)
	try(writes, true)
	try(reads, true)
	ok(t, f.Close())
	f, err = target.OpenFile(name, reads)
	ok(t, err)
	try(reads, false)
	try(writes, true)
	ok(t, f.Close())
	try(writes, false)

	other := exec.Command(os.Args[0], "-test.run=^TestFileInUse$", "-test.count=1")
	other.Env = append(os.Environ(), holdEnv+"="+name)
	in, out := must(other.StdinPipe())(t), must(other.StdoutPipe())(t)
	ok(t, other.Start())
	defer func() { _ = other.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	try(writes, true)
	try(reads, true)
	ok(t, in.Close())
	_, _ = io.Copy(io.Discard, out)
	ok(t, other.Wait())
	try(writes, false)
}

// Discarded ranges read as zeros, and a read that does not block reads all or nothing.
func TestFile(t *testing.T) {
	f, err := target.OpenFile(filepath.Join(t.TempDir(), "disk"), &target.FileConfig{Size: 1 << 20})
	ok(t, err)
	defer f.Close()
	want := bytes.Repeat([]byte("content."), 2048)
	done, err := f.TryWriteAt(want, 4096)
	if ok(t, err); !done {
		t.Fatal("a write blocks")
	}
	got := make([]byte, len(want))
	if done, err := f.TryReadAt(got, 4096); err != nil || done && !bytes.Equal(got, want) {
		t.Errorf("read: %v, wrong data: %v", err, done)
	}
	if _, err := f.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %v", err)
	}
	if done, err := f.TryReadAt(got, 1<<20-100); done || err != nil { // ReadAt has the error
		t.Errorf("a read over the end: %v, %v", done, err)
	}
	for _, zero := range []func(off, n int64) error{f.Discard, f.Zero} {
		err := zero(8192, 4096)
		if errors.Is(err, errors.ErrUnsupported) && runtime.GOOS != "linux" {
			continue
		}
		if errors.Is(err, errors.ErrUnsupported) {
			t.Log("the file system supports it not")
			continue
		}
		ok(t, err)
		clear(want[4096:8192])
		if _, err := f.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
			t.Errorf("after zeroing: %v", err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{1}, 4096), 8192)
		ok(t, err)
	}
	ok(t, f.Sync())
	if f.Size() != 1<<20 {
		t.Errorf("%d bytes", f.Size())
	}
}

func TestMemoryBounds(t *testing.T) {
	m := target.NewMemory(200 << 10) // several stripes
	want := bytes.Repeat([]byte{7}, 150<<10)
	if n, err := m.WriteAt(want, 30<<10); n != len(want) || err != nil {
		t.Error(n, err)
	}
	got := make([]byte, len(want))
	if n, err := m.ReadAt(got, 30<<10); n != len(want) || err != nil || !bytes.Equal(got, want) {
		t.Error(n, err)
	}
	for _, off := range []int64{-1, 200<<10 - 1, 1 << 62} {
		if n, err := m.ReadAt(got[:2], off); n != 0 || err == nil {
			t.Errorf("read at %d: %d, %v", off, n, err)
		}
	}
	m.Resize(100)
	m.Resize(200)
	if _, err := m.ReadAt(got[:200], 0); err != nil || m.Size() != 200 {
		t.Error(err)
	}
}
