package powercut

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a block device with a volatile write cache: what was written is durable after a flush. It
// is a loop device on a file that this process serves (see served).
type Disk struct {
	Device string // its name in /dev
	event  func()

	mu       sync.Mutex
	content  []byte  // as it is read
	durable  []byte  // without the writes since the last flush
	volatile []write // those
}

type write struct {
	off  int
	data []byte // a copy
}

const (
	logical  = 512  // bytes of a block
	physical = 4096 // bytes that are written completely or not at all, of which ext4 takes account
)

// NewDisk makes a disk of size bytes, or skips the test. event, unless nil, is called before each
// write and each flush that the disk executes, which wait for it meanwhile.
func NewDisk(t testing.TB, size int, event func()) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a block device needs root")
	}
	if event == nil {
		event = func() {}
	}
	d := &Disk{event: event, content: make([]byte, size), durable: make([]byte, size)}
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := serve(t, d, image); err != nil {
		t.Skipf("a file of a FUSE file system: %v", err)
	}
	// Not by os.Open: the runtime would poll the file in a call that it does not expect to block, and
	// this process could not answer.
	fd, err := unix.Open(image, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	device, detach, err := attach(fd, unix.LO_FLAGS_DIRECT_IO)
	_ = unix.Close(fd)
	if err != nil {
		t.Skipf("a loop device: %v", err)
	}
	t.Cleanup(detach)
	d.Device = device
	return d
}

// Mount makes an ext4 file system on the disk, and mounts it until the end of the test.
func (d *Disk) Mount(t testing.TB, options ...string) (dir string) {
	t.Helper()
	if out, err := exec.Command("mkfs.ext4", append(append([]string{"-q", "-m", "0"}, options...), d.Device)...).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v %s", err, out)
	}
	dir = t.TempDir()
	if err := unix.Mount(d.Device, dir, "ext4", 0, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("umount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// Cut returns the content of the disk if the power fails now. Of the writes since the last flush
// nothing remains, or what came first, or any physical sectors.
func (d *Disk) Cut(r *rand.Rand) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	image := slices.Clone(d.durable)
	remaining, odds := len(d.volatile), 1.0
	switch r.IntN(4) {
	case 0:
		remaining = 0
	case 1:
		remaining = r.IntN(remaining + 1)
	default:
		odds = r.Float64()
	}
	for _, w := range d.volatile[:remaining] {
		for at, end := w.off, w.off+len(w.data); at < end; {
			next := min(at/physical*physical+physical, end)
			if r.Float64() < odds {
				copy(image[at:next], w.data[at-w.off:])
			}
			at = next
		}
	}
	return image
}

func (d *Disk) write(off int, data []byte) {
	d.event()
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.content[off:], data)
	d.volatile = append(d.volatile, write{off, slices.Clone(data)})
}

func (d *Disk) flush() {
	d.event()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.volatile {
		copy(d.durable[w.off:], w.data)
	}
	d.volatile = nil
}

// Mounted calls f with the directory of an image's file system.
func Mounted(t testing.TB, image []byte, f func(dir string) error) error {
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "image")
	defer func() { _ = file.Close() }()
	if _, err := file.Write(image); err != nil {
		return err
	}
	device, detach, err := attach(int(file.Fd()), 0)
	if err != nil {
		return err
	}
	defer detach()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		return err
	}
	if err := unix.Mount(device, dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return &os.PathError{Op: "mount", Path: device, Err: err}
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	return f(dir)
}

// attach makes a loop device of a file.
func attach(fd int, flags uint32) (device string, detach func(), err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = control.Close() }()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", nil, err
		}
		loop, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
		if err != nil {
			return "", nil, err
		}
		cfg := &unix.LoopConfig{Fd: uint32(fd), Size: logical, Info: unix.LoopInfo64{Flags: flags}}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), cfg)
		switch {
		case err == nil:
			return loop.Name(), func() {
				_ = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
				_ = loop.Close()
			}, nil
		case err != unix.EBUSY: // another program was faster
			_ = loop.Close()
			return "", nil, err
		}
		_ = loop.Close()
	}
}
