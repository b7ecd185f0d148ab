package target_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// command runs a program and returns what it prints.
func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// fullDevice returns a loop device of 64 MiB in a file system that has room for 16.
func fullDevice(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a loop device")
	}
	for _, name := range []string{"mount", "umount", "losetup", "mkfs.ext4"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs " + name)
		}
	}
	dir := t.TempDir()
	command(t, "mount", "-t", "tmpfs", "-o", "size=16M", "none", dir)
	t.Cleanup(func() { command(t, "umount", dir) })
	image := filepath.Join(dir, "image")
	ok(t, os.WriteFile(image, nil, 0o600))
	ok(t, os.Truncate(image, 64<<20))
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("needs loop devices: %s", out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { command(t, "losetup", "-d", device) })
	return device
}

// mounted makes a file system on a device, and returns where it is mounted until the test ends.
func mounted(t *testing.T, device string) string {
	t.Helper()
	command(t, "mkfs.ext4", "-q", device)
	at := t.TempDir()
	command(t, "mount", device, at)
	t.Cleanup(func() { command(t, "umount", at) })
	return at
}

// A file whose writes the system accepts, and then cannot write to the device.
func TestFullDevice(t *testing.T) {
	const size = 40 << 20
	file := filepath.Join(mounted(t, fullDevice(t)), "disk")
	disk, err := target.OpenFile(file, &target.FileConfig{Size: size})
	ok(t, err)
	defer disk.Close()
	// Two targets have it.
	namespaces := []target.Namespace{{Backend: disk}}
	a := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: namespaces}).associate(1, 0)
	b := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: namespaces}).associate(1, 0)
	a.io[0].want(rw(nvme.Flush, 0, 1), nil, nvme.Success)
	const n = 1 << 20
	for i := range uint64(size / n) {
		_, _ = rand.Read(a.io[0].data.Buf()[:n])
		w := rw(nvme.Write, i*n/512, n/512)
		w.SGL = a.io[0].keyed(0, n)
		a.io[0].want(w, nil, nvme.Success)
	}
	for range 2 {
		for _, h := range []*association{a, b} {
			if s := h.io[0].do(rw(nvme.Flush, 0, 1), nil).Status; s.Err() == nil || s&nvme.DoNotRetry == 0 {
				t.Errorf("Flush of data that is lost: %v (%#x)", s, uint16(s))
			}
		}
	}
	if err := disk.Close(); !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EIO) {
		t.Errorf("Close of a file that has lost data: %v", err)
	}
	disk, err = target.OpenFile(file, nil)
	ok(t, err)
	ok(t, disk.Sync())
	ok(t, disk.Close())
}

// Close writes the rest, and says that this fails.
func TestCloseFullDevice(t *testing.T) {
	device := fullDevice(t)
	disk, err := target.OpenFile(device, nil)
	ok(t, err)
	_, err = disk.WriteAt(bytes.Repeat([]byte("lost"), 8<<20), 0)
	ok(t, err)
	if err := disk.Close(); !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EIO) {
		t.Errorf("Close of a device that has lost data: %v", err)
	}
}

// A block device that is mounted, or that another File has.
func TestDeviceInUse(t *testing.T) {
	device := fullDevice(t)
	busy := func() {
		t.Helper()
		for _, readOnly := range []bool{false, true} {
			if _, err := target.OpenFile(device, &target.FileConfig{ReadOnly: readOnly, Size: 1 << 20}); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("read-only %v: %v, want %v", readOnly, err, syscall.EBUSY)
			}
			f, err := target.OpenFile(device, &target.FileConfig{ReadOnly: readOnly, Force: true})
			ok(t, err)
			ok(t, f.Close())
		}
	}
	f, err := target.OpenFile(device, &target.FileConfig{Size: 1 << 20})
	ok(t, err)
	busy()
	ok(t, f.Close())
	mounted(t, device)
	busy()
}
