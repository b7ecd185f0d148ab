package tap

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/vnet"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// end is one of the two hosts of a benchmark: a polled link, or a raw descriptor.
type end interface {
	send(frame []link.Frame)
	// poll receives without waiting. It returns the number of bytes of frames received so far.
	poll() uint64
}

type polledLink struct {
	*Link
	got atomic.Uint64
}

func (e *polledLink) send(f []link.Frame) { _, _ = e.Write(f) }
func (e *polledLink) poll() uint64        { e.Poll(); return e.got.Load() }

func (e *polledLink) receive(frames []link.Frame) {
	for i := range frames {
		if len(frames[i].Data) > 13 && frames[i].Data[12] != 0x86 { // not the kernel's own IPv6
			e.got.Add(uint64(len(frames[i].Data)))
		}
	}
}

// rawEnd makes the fewest system calls possible: a write and a read per frame, and sched_yield if
// there is none.
type rawEnd struct {
	fd     int
	header [vnet.HeaderLen]byte
	iov    [2]unix.Iovec
	buf    []byte
	got    uint64
}

func (e *rawEnd) send(f []link.Frame) {
	for i := range f {
		clear(e.header[:])
		if f[i].Segmentation == link.UDP {
			e.header[0], e.header[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4
			for at, v := range [...]uint16{f[i].HeaderLen, f[i].SegmentSize, f[i].ChecksumStart, f[i].ChecksumOffset} {
				binary.NativeEndian.PutUint16(e.header[2+2*at:], v)
			}
		}
		e.iov[0].Base, e.iov[1].Base = &e.header[0], &f[i].Data[0]
		e.iov[0].SetLen(len(e.header))
		e.iov[1].SetLen(len(f[i].Data))
		_, _, _ = unix.RawSyscall(unix.SYS_WRITEV, uintptr(e.fd), uintptr(unsafe.Pointer(&e.iov[0])), 2)
	}
}

func (e *rawEnd) poll() uint64 {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(e.fd), uintptr(unsafe.Pointer(&e.buf[0])), uintptr(len(e.buf)))
	if errno != 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	} else if e.buf[vnet.HeaderLen+12] != 0x86 {
		e.got += uint64(n - vnet.HeaderLen)
	}
	return e.got
}

// ends returns two hosts of each kind on one bridge.
func ends(b *testing.B, mtu int) map[string][2]end {
	inNamespace(b)
	interfaces.Bridge(b, "br0", mtu)
	var links, raw [2]end
	for i, name := range []string{"a0", "b0"} {
		l := openTAP(b, name, &Config{Bridge: "br0", MTU: mtu})
		e := &polledLink{Link: l}
		l.Attach(e.receive)
		links[i] = e
	}
	for i, name := range []string{"c0", "d0"} {
		c := config{name: name, Config: Config{Bridge: "br0", MTU: mtu}}
		fd, _, err := c.attach()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Close(fd) })
		if err := c.configure(); err != nil {
			b.Fatal(err)
		}
		raw[i] = &rawEnd{fd: fd, buf: make([]byte, 128<<10)}
	}
	return map[string][2]end{"link": links, "raw": raw}
}

// BenchmarkPingPong measures the round trip of a frame of 64 bytes between two polling goroutines.
func BenchmarkPingPong(b *testing.B) {
	for kind, pair := range ends(b, 1500) {
		b.Run(kind, func(b *testing.B) {
			ping, pong := linktest.Plain(mac(2), mac(1), 50, ""), linktest.Plain(mac(1), mac(2), 50, "")
			size := uint64(ping.Len())
			var stop atomic.Bool
			go func() {
				f := []link.Frame{pong}
				for seen := pair[1].poll(); !stop.Load(); {
					if n := pair[1].poll(); n != seen {
						seen = n
						pair[1].send(f)
					}
				}
			}()
			defer stop.Store(true)
			f := []link.Frame{ping}
			for tries := 0; pair[0].poll() == 0; tries++ { // until the bridge forwards
				if tries%1000 == 0 {
					pair[0].send(f)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				want := pair[0].poll() + size
				pair[0].send(f)
				for pair[0].poll() < want {
				}
			}
		})
	}
}

func mac(n byte) []byte { return []byte{2, 0, 0, 0, 0, n} }

// BenchmarkSuperframes sends superframes of 15 packets of 4112 bytes to a polling goroutine, with
// at most eight in flight.
func BenchmarkSuperframes(b *testing.B) {
	for kind, pair := range ends(b, 4200) {
		b.Run(kind, func(b *testing.B) {
			f := []link.Frame{linktest.Superframe(mac(2), mac(1), false, 15, 4112)}
			size := int64(f[0].Len())
			var got atomic.Int64
			var stop atomic.Bool
			go func() {
				for !stop.Load() {
					got.Store(int64(pair[1].poll()))
				}
			}()
			defer stop.Store(true)
			// Until the bridge forwards and has learned the port.
			for tries := 0; got.Load() < size; tries++ {
				if tries%1000 == 0 {
					pair[1].send([]link.Frame{linktest.Plain(mac(1), mac(2), 50, "")})
					pair[0].send(f)
				}
				runtime.Gosched()
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for sent := got.Load(); b.Loop(); sent += size {
				for waits := 0; sent-got.Load() >= 8*size; waits++ {
					if waits > 1<<24 {
						b.Fatal("frames were lost")
					}
					runtime.Gosched()
				}
				pair[0].send(f)
			}
		})
	}
}
