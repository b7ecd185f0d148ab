//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// traffic is sent by one thread and received by another.
type traffic struct {
	payload, packets int
	work             bool
	window, memory   int
	cpu              int // the sender's

	// Packets, in total; a cache line each.
	sent     atomic.Uint64
	_        [56]byte
	received atomic.Uint64
	_        [56]byte
	lost     atomic.Uint64
	failed   atomic.Pointer[error]
}

// segment returns the UDP payload of a packet.
func (t *traffic) segment() int { return bthLen + t.payload + icrcLen }

func (t *traffic) check() error {
	switch longest := link.MaxSuperframe - ipLen - udpLen; {
	case t.payload < 1 || t.packets < 1 || t.packets > link.MaxSegments || t.packets*t.segment() > longest:
		return fmt.Errorf("%d packets of %d bytes: must be 1 to %d, together at most %d bytes with 16 more a packet",
			t.packets, t.payload, link.MaxSegments, longest)
	case t.cpu != 0 && t.cpu != 1:
		return fmt.Errorf("-cpu %d: must be 0 or 1", t.cpu)
	case t.memory < t.payload:
		return fmt.Errorf("-memory %d: must be at least -payload, %d", t.memory, t.payload)
	}
	return nil
}

// measure runs both threads and measures their progress. The threads never end: the process does.
func (t *traffic) measure(ends [2]int, warmup, duration time.Duration) (*result, error) {
	for i, f := range []func(fd int) error{t.send, t.receive} {
		go func() {
			runtime.LockOSThread()
			pin(i ^ t.cpu)
			if err := f(ends[i]); err != nil {
				t.failed.Store(&err)
			}
		}()
	}
	time.Sleep(warmup)
	before, cpu, began := t.received.Load(), cpuSeconds(), time.Now()
	time.Sleep(duration)
	after, took := t.received.Load(), time.Since(began)
	cpu = cpuSeconds() - cpu
	if err := t.failed.Load(); err != nil {
		return nil, *err
	}
	bytes := float64(after-before) * float64(t.payload)
	if bytes == 0 {
		return nil, errors.New("nothing arrives")
	}
	return &result{Gbps: bytes * 8 / 1e9 / took.Seconds(), CPUPerGB: cpu / (bytes / 1e9), Lost: t.lost.Load()}, nil
}

// lossTimeout is how long the sender waits for packets in flight before it counts them as lost.
const lossTimeout = 20 * time.Millisecond

// send writes frames as fast as the window permits.
func (t *traffic) send(fd int) error {
	f := frame(0, t.segment(), t.packets)
	from := memory{bytes: pattern(t.memory)}
	window := uint64(max(t.window/t.segment(), 2*t.packets))
	for {
		var seen uint64
		var since time.Time
		for spins := 0; t.sent.Load()+uint64(t.packets) > t.received.Load()+t.lost.Load()+window; spins++ {
			if spins%256 != 255 {
				continue
			}
			yield()
			if now := t.received.Load(); now != seen || since.IsZero() {
				seen, since = now, time.Now()
			} else if time.Since(since) > lossTimeout {
				t.lost.Store(t.sent.Load() - now)
			}
		}
		if t.work {
			for b := f[headerLen:]; len(b) > 0; b = b[t.segment():] {
				data := from.next(t.payload)
				sum := icrc(data)
				copy(b[bthLen:], data)
				binary.LittleEndian.PutUint32(b[bthLen+t.payload:], sum)
			}
		}
		if _, err := unix.Write(fd, f); err == unix.EAGAIN || err == unix.ENOBUFS {
			continue
		} else if err != nil {
			return err
		}
		t.sent.Add(uint64(t.packets))
	}
}

// receive reads frames.
func (t *traffic) receive(fd int) error {
	buf := make([]byte, 1<<17)
	to := memory{bytes: pattern(t.memory)}
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		} else if err != nil {
			return err
		}
		data, segment := payload(buf[:n], 1)
		if segment != t.segment() {
			continue // any other frame
		}
		packets := len(data) / segment
		for ; t.work && len(data) >= segment; data = data[segment:] {
			body := data[bthLen : segment-icrcLen]
			if icrc(body) != binary.LittleEndian.Uint32(data[segment-icrcLen:]) {
				return errors.New("a packet's ICRC is wrong")
			}
			copy(to.next(t.payload), body)
		}
		t.received.Add(uint64(packets))
	}
}

var maskedHeaders [48]byte

// icrc does the work of an ICRC: over the masked headers, then over the data.
func icrc(data []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(maskedHeaders[:]), crc32.IEEETable, data)
}

// memory is used from the beginning to the end, again and again.
type memory struct {
	bytes []byte
	pos   int
}

func (m *memory) next(n int) []byte {
	if m.pos+n > len(m.bytes) {
		m.pos = 0
	}
	b := m.bytes[m.pos:][:n]
	m.pos += n
	return b
}

// pattern returns memory that has been written to, so that it is present.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 31 >> 3)
	}
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// copyMemory copies from one region to another on one goroutine. With crc it computes MPA's CRC of
// each copy (RFC 5044 §4.4).
func copyMemory(bytes, size int, crc bool, warmup, duration time.Duration) *result {
	from, to := memory{bytes: pattern(bytes)}, memory{bytes: pattern(bytes)}
	var sum uint32
	run := func(d time.Duration) (n int, took time.Duration) {
		began := time.Now()
		for took < d {
			for range 16 {
				b := to.next(size)
				n += copy(b, from.next(size))
				if crc {
					sum = crc32.Update(sum, castagnoli, b)
				}
			}
			took = time.Since(began)
		}
		return n, took
	}
	run(warmup)
	cpu := cpuSeconds()
	n, took := run(duration)
	return &result{CRC: sum, Gbps: float64(n) * 8 / 1e9 / took.Seconds(), CPUPerGB: (cpuSeconds() - cpu) / (float64(n) / 1e9)}
}
