package shm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/ring"
)

// hostile is a process that has joined a segment and misbehaves.
type hostile struct {
	r   *rand.Rand
	c   *net.UnixConn
	in  []byte // memory of the ring from the victim
	out []byte // memory of the ring to the victim
	own hello
	fd  int
	at  []io.Closer // its socket and its claim
}

// newHostile completes a handshake with the link at a socket. It returns nil if the link has closed
// or is busy.
func newHostile(r *rand.Rand, socket string) *hostile {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil
	}
	h := &hostile{r: r, c: c, fd: -1}
	h.own = hello{ring: ring.MinLen, mac: [6]byte{2, 0xee, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}}
	for i := range h.own.id {
		h.own.id[i] = byte(r.Uint32())
	}
	dir := filepath.Dir(socket)
	if f, err := claim(dir, net.HardwareAddr(h.own.mac[:]).String()); err == nil {
		h.at = append(h.at, f)
	}
	if l, err := net.Listen("unixpacket", filepath.Join(dir, hex.EncodeToString(h.own.id[:]))); err == nil {
		h.at = append(h.at, l)
	}
	if h.fd, h.in, err = ring.NewMemory(h.own.ring); err == nil {
		_, _, err = c.WriteMsgUnix(h.own.encode(), unix.UnixRights(h.fd), nil)
	}
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		h.out, err = ring.ReceiveMemory(c, func(b []byte) (int, error) {
			theirs, err := decodeHello(b)
			return theirs.ring, err
		})
	}
	if err != nil {
		h.close()
		return nil
	}
	return h
}

func (h *hostile) close() {
	for _, c := range h.at {
		_ = c.Close()
	}
	_ = h.c.Close()
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
	for _, b := range [][]byte{h.in, h.out} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
}

func (h *hostile) ring() { _, _ = h.c.Write([]byte{1}) }

// misbehave performs one kind of attack for a moment. The victim may close the connection at any
// time.
func (h *hostile) misbehave(victim [6]byte) {
	at := func(b []byte, i int) []byte { return b[i : i+8] }
	put := func(b []byte, i int, v uint64) { binary.NativeEndian.PutUint64(at(b, i), v) }
	const tailAt, headAt, recordsAt = 0, 128, 4096
	switch h.r.IntN(7) {
	case 0: // arbitrary bytes in both rings
		for range 2000 {
			h.out[h.r.IntN(len(h.out))], h.in[h.r.IntN(len(h.in))] = byte(h.r.Uint32()), byte(h.r.Uint32())
		}
		h.ring()
	case 1: // impossible and possible indices
		put(h.out, tailAt, h.r.Uint64()>>h.r.IntN(64))
		put(h.in, headAt, h.r.Uint64()>>h.r.IntN(64))
		h.ring()
	case 2: // a flood of records, empty or with garbage, before a moving index
		for i := range uint64(400) {
			n := uint32(32 * (1 + h.r.IntN(60)))
			rec := h.out[recordsAt+int(i*1920%(ring.MinLen-4096)):]
			binary.NativeEndian.PutUint32(rec, uint32(h.r.IntN(int(n)))&^uint32(h.r.IntN(2)*0xffff))
			binary.NativeEndian.PutUint32(rec[16:], n)
			put(h.out, tailAt, i*32)
		}
		h.ring()
	case 3: // valid frames, whose records and bytes change while they are received
		p, err := ring.NewProducer(h.out)
		if err != nil {
			return
		}
		f := linktest.Superframe(victim[:], h.own.mac[:], h.r.IntN(2) == 0, 30, 1040)
		f.NoICRC = h.r.IntN(4) > 0
		for range 50 {
			if ok, err := p.Put(&f); !ok || err != nil {
				break
			}
			p.Publish()
			h.ring()
			for range 50 {
				h.out[recordsAt+h.r.IntN(40<<10)] = byte(h.r.Uint32())
				h.out[recordsAt+h.r.IntN(128)] = byte(h.r.Uint32()) // the header or the frame
			}
		}
	case 4: // memory that would disappear
		if unix.Ftruncate(h.fd, 0) == nil || unix.Ftruncate(h.fd, 1<<30) == nil {
			panic("sealed memory was truncated")
		}
		_ = unix.Fallocate(h.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(h.in)))
	case 5: // unexpected descriptors
		fds := bytesOf(h.fd, 250)
		for range 100 {
			_ = h.c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			if _, _, err := h.c.WriteMsgUnix([]byte{1}, unix.UnixRights(fds...), nil); err != nil {
				break
			}
		}
	case 6: // only wakeups
		for range 1000 {
			_ = h.c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			h.ring()
		}
	}
}

// TestNeverDrained checks a peer that closes its side of the connection, and keeps adding frames to
// the ring. It is dropped after one ring's worth of frames.
func TestNeverDrained(t *testing.T) {
	dir := directory(t)
	a := join(t, dir, &Config{Ring: ring.MinLen})
	entries, err := os.ReadDir(filepath.Join(dir, "shm-x"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e os.DirEntry) bool { return e.Type() == os.ModeSocket })
	h := newHostile(rand.New(rand.NewPCG(1, 1)), filepath.Join(dir, "shm-x", entries[i].Name()))
	if h == nil {
		t.Fatal("no peer")
	}
	defer h.close()
	await(t, "the peer is connected", func() bool { return len(a.Peers()) == 1 })
	p, err := ring.NewProducer(h.out)
	if err != nil {
		t.Fatal(err)
	}
	f := linktest.Plain(a.MAC(), h.own.mac[:], 15, "")
	// This goroutine fills the ring first, and then the link's goroutine does.
	var filling sync.Mutex
	fill := func() {
		filling.Lock()
		defer filling.Unlock()
		for ok := true; ok; {
			ok, _ = p.Put(&f)
		}
		p.Publish()
	}
	got := 0
	a.Attach(func(frames []link.Frame) {
		got += len(frames)
		if got < 20*ring.MinLen/64 {
			fill()
		}
	})
	await(t, "the link sleeps", func() bool { return binary.NativeEndian.Uint32(h.out[64:]) != 0 })
	fill()
	if err := h.c.CloseWrite(); err != nil { // instead of a wakeup
		t.Fatal(err)
	}
	await(t, "the peer is dropped", func() bool { return len(a.Peers()) == 0 })
	if most := 2 * ring.MinLen / 64; got > most {
		t.Errorf("%d frames arrived, %d fit into the ring", got, most/2)
	}
}

// TestHostile checks that hostile processes do not disturb two others. The hostile ones write
// anything into their rings, and modify it between check and use. They try to truncate their
// memory, and send descriptors by the thousand. Each frame arrives once, in order and unmodified,
// and no resources leak. With SOFTRNIC_LONG it runs for a minute.
func TestHostile(t *testing.T) {
	duration := 200 * time.Millisecond
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		duration = time.Minute
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		duration = 2 * time.Second
	}
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	fds, maps := descriptorsOpen(t)
	super := linktest.Superframe(b.MAC(), a.MAC(), false, 20, 1040)
	super.NoICRC = true
	plain := linktest.Plain(b.MAC(), a.MAC(), 4000, "")
	var next, wrong atomic.Uint64
	for _, l := range []*Link{a, b} {
		l.AllowInPlace()
		l.Attach(func(frames []link.Frame) {
			for _, f := range frames {
				data := f.Data
				if len(f.More) > 0 {
					data = append(bytes.Clone(data), f.More[0]...)
				}
				// From a hostile process.
				if len(data) < 60 || [6]byte(data[6:]) != [6]byte(a.MAC()) {
					continue
				}
				want := super.Data
				if !f.NoICRC {
					want = plain.Data
				}
				n := binary.BigEndian.Uint64(data[50:])
				if n != next.Add(1)-1 || !bytes.Equal(data[:50], want[:50]) || !bytes.Equal(data[58:], want[58:]) {
					wrong.Add(1)
				}
			}
		})
	}
	entries, err := os.ReadDir(filepath.Join(dir, "shm-x"))
	if err != nil {
		t.Fatal(err)
	}
	var sockets []string
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			sockets = append(sockets, filepath.Join(dir, "shm-x", e.Name()))
		}
	}
	stop, work := make(chan struct{}), sync.WaitGroup{}
	var joined, acts atomic.Int64
	for i := range uint64(3) {
		work.Go(func() {
			r := rand.New(rand.NewPCG(i, 7))
			for {
				select {
				case <-stop:
					return
				default:
				}
				h := newHostile(r, sockets[r.IntN(len(sockets))])
				if h == nil {
					time.Sleep(time.Millisecond)
					continue
				}
				joined.Add(1)
				for range 1 + r.IntN(5) {
					h.misbehave([6]byte(b.MAC()))
					acts.Add(1)
					time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
				}
				h.close()
			}
		})
	}
	sent := uint64(0)
	number := func(b []byte) []byte { binary.BigEndian.PutUint64(b[50:], sent); return b }
	idle := func() bool { return joined.Load() < 10 || a.Malformed()+b.Malformed() == 0 }
	for began := time.Now(); time.Since(began) < duration || idle() && time.Since(began) < time.Minute; sent++ {
		if sent%2 == 0 {
			number(super.Data)
			if room := a.Reserve([6]byte(b.MAC()), len(super.Data)); room.Data != nil {
				room.Owner.Commit(room.At, &super, copy(room.Data, super.Data))
			} else {
				send(t, a, link.Frame{Data: number(plain.Data)})
			}
		} else {
			send(t, a, link.Frame{Data: number(plain.Data)})
		}
		for deadline := time.Now().Add(10 * time.Second); next.Load()+100 < sent; {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d frames arrived", next.Load(), sent)
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	close(stop)
	work.Wait()
	await(t, "all frames have arrived", func() bool { return next.Load() == sent })
	if wrong.Load() > 0 || a.Dropped() > 0 {
		t.Errorf("%d frames of %d were wrong, %d dropped", wrong.Load(), sent, a.Dropped())
	}
	await(t, "all resources are released", func() bool {
		f, m := descriptorsOpen(t)
		return f <= fds && m <= maps && len(a.Peers()) == 1 && len(b.Peers()) == 1
	})
	t.Logf("result: %d frames, %d hostile processes, %d acts, malformed %d and %d",
		sent, joined.Load(), acts.Load(), a.Malformed(), b.Malformed())
	if idle() {
		t.Errorf("%d hostile processes, %d malformed: no attack took place", joined.Load(), a.Malformed()+b.Malformed())
	}
}
