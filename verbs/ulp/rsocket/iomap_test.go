package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Data written to the peer's mappings is there when stream data that was written later has arrived.
// There are more rounds than credits.
func TestWriteAt(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport, Iomaps: 3, RQSize: 32, SQSize: 32})
		send := func(from, to *rsocket.Conn) {
			t.Helper()
			_, err := from.Write([]byte{1})
			ok(t, err)
			_, err = io.ReadFull(to, make([]byte, 1))
			ok(t, err)
		}
		if _, err := b.WriteAt(make([]byte, 1), 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("WriteAt without a mapping: %v", err)
		}
		for i := range 50 {
			first, second := make([]byte, 50_000), make([]byte, 10)
			m, err := a.Map(first, 1<<20)
			ok(t, err)
			m2, err := a.Map(second, -1)
			ok(t, err)
			send(a, b)
			data := random(len(first) - 1)
			n, err := b.WriteAt(data, 1<<20+1)
			if err != nil || n != len(data) {
				t.Fatalf("WriteAt: %d bytes of %d, %v", n, len(data), err)
			}
			_, err = b.WriteAt(data[:10], m2.Offset())
			ok(t, err)
			send(b, a)
			if first[0] != 0 || !bytes.Equal(first[1:], data) || !bytes.Equal(second, data[:10]) {
				t.Fatalf("round %d: different bytes have arrived", i)
			}
			ok(t, m.Close())
			ok(t, m2.Close())
		}
		if n, err := b.WriteAt(make([]byte, 1), 1<<20-1); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("WriteAt before a mapping: %d, %v", n, err)
		}
		for range 3 {
			_, err := a.Map(make([]byte, 1), -1)
			ok(t, err)
		}
		if _, err := a.Map(make([]byte, 1), -1); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("one mapping more than the peer supports: %v", err)
		}
	})
}

// A WriteAt to a closed mapping writes nothing, and the connection fails.
func TestWriteAtUnmapped(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport, Iomaps: 1})
		memory := make([]byte, 100)
		mapping, err := a.Map(memory, 0)
		ok(t, err)
		_, err = a.Write([]byte{1})
		ok(t, err)
		_, err = b.Read(make([]byte, 1))
		ok(t, err)
		ok(t, mapping.Close())
		_, err = b.WriteAt([]byte{1}, 0)
		ok(t, err)
		if _, err := b.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("Read after a WriteAt to a closed mapping: %v", err)
		}
		if memory[0] != 0 {
			t.Error("the memory was written")
		}
	})
}

// Map uses the last credits and slots of the send queue while a writer copies. The writer then
// waits for others, and all bytes arrive.
func TestMapWhileWriting(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		a, b, err := connect(from, to, serverAt, &rsocket.Config{
			Transport: transport, Iomaps: 4096, SQSize: 16, RQSize: 16, SendBuffer: 1 << 20, RecvBuffer: 1 << 20, Inline: -1,
		})
		ok(t, err)
		defer a.Close()
		defer b.Close()
		copies := 0
		a.WhileCopying(func() {
			if copies++; copies > 10 {
				return
			}
			for range 32 { // more than credits or slots, each with its own index
				if _, err := a.Map(make([]byte, 8), 0); err != nil {
					t.Errorf("Map: %v", err)
					return
				}
			}
		})
		const total = 2 << 20
		data := random(total)
		var working sync.WaitGroup
		working.Go(func() {
			got := make([]byte, total)
			if n, err := io.ReadFull(b, got); err != nil {
				t.Errorf("%d bytes of %d have arrived: %v", n, total, err)
			} else if !bytes.Equal(got, data) {
				t.Error("different bytes have arrived")
			}
		})
		wait := waiter(a)
		for left := data; len(left) > 0; {
			n, err := a.TryWrite(left)
			if left = left[n:]; errors.Is(err, verbs.ErrAgain) {
				wait(rsocket.Writable)
			} else if err != nil {
				t.Errorf("TryWrite: %v", err)
				break
			}
		}
		if copies == 0 {
			t.Error("no data was copied without the lock")
		}
		if t.Failed() {
			a.Close() // ends the reader
		}
		working.Wait()
	})
}

// Close of a Conn and of its mappings at the same time: each memory region is freed once.
func TestUnmapWhileClosing(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		for range 20 {
			a, b, err := connect(from, to, serverAt, &rsocket.Config{Transport: transport, Iomaps: 64})
			ok(t, err)
			var mappings []*rsocket.Mapping
			for range 64 {
				m, err := a.Map(make([]byte, 8), -1)
				ok(t, err)
				mappings = append(mappings, m)
			}
			ok(t, b.Close())
			var closing sync.WaitGroup
			closing.Go(func() {
				for _, m := range mappings {
					if err := m.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
						t.Errorf("Close of a Mapping: %v", err)
					}
				}
			})
			if err := a.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			closing.Wait()
		}
		if r := from.Resources(); r.MR != 0 || r.PD > 1 {
			t.Errorf("leaked: %+v", r)
		}
	})
}

// A WriteAt that waits for a pending mapping continues when the mapping is closed. Time is virtual,
// so that synctest.Wait returns when WriteAt waits.
func TestWriteAtWaitsForMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		a, b, err := connect(from, to, serverAt, &rsocket.Config{Iomaps: 1, RQSize: 16})
		ok(t, err)
		defer a.Close()
		defer b.Close()
		memory := make([]byte, 1)
		_, err = b.Map(memory, 0)
		ok(t, err)
		_, err = b.Write([]byte{1})
		ok(t, err)
		_, err = a.Read(make([]byte, 1))
		ok(t, err)
		for err == nil {
			_, err = a.TryWrite([]byte{1}) // b does not read: the credits run out
		}
		m, err := a.Map(make([]byte, 1), 0)
		ok(t, err)
		ok(t, a.SetWriteDeadline(time.Now().Add(time.Hour)))
		written := make(chan error, 1)
		go func() {
			_, err := a.WriteAt([]byte{2}, 0)
			written <- err
		}()
		synctest.Wait()
		select {
		case err := <-written:
			t.Fatalf("WriteAt did not wait: %v", err)
		default:
		}
		ok(t, m.Close())
		ok(t, <-written)
	})
}

// Map concurrent with Close leaks nothing, and fails when the Conn is closed.
func TestMapWhileClosing(t *testing.T) {
	lan := new(pipe.Switch)
	to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
	cfg := &rsocket.Config{Iomaps: 16, SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096}
	for range 300 {
		a, b, err := connect(from, to, serverAt, cfg)
		ok(t, err)
		ok(t, b.Close())
		var mapping sync.WaitGroup
		for range 2 {
			mapping.Go(func() {
				for {
					m, err := a.Map(make([]byte, 10), 0)
					if errors.Is(err, net.ErrClosed) {
						return
					} else if err != nil {
						t.Errorf("Map: %v", err)
						return
					}
					_ = m.Close() // fails if the Conn was closed first
				}
			})
		}
		if err := a.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		mapping.Wait()
	}
	if r := from.Resources(); r.MR != 0 || r.PD > 1 {
		t.Errorf("leaked: %+v", r)
	}
}
