package powercut

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a block device with a volatile write cache: what was written is durable after a flush. It
// is a loop device on a file that another process serves, and ends with this one.
type Disk struct {
	Device string // its name in /dev
	event  func()
	server *os.Process

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
	image, err := d.serve(t)
	if err != nil {
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
