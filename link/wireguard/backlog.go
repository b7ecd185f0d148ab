package wireguard

import (
	"encoding/binary"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// maxBacklog limits the packets that the device has received and not yet passed to the host. Each
// takes 64 KiB. The device's own limit is 1024 batches of 128 for each peer, which a peer fills
// that sends small packets faster than the host handles them.
const maxBacklog = 4096

// A session's keys are used for rejectAfter at most (device.RejectAfterTime). The handshake before
// may take as long as handshakeTime.
const (
	handshakeTime = device.RekeyAttemptTime + device.RekeyTimeout
	issuedFor     = device.RejectAfterTime + handshakeTime
)

// backlog counts the packets of sessions in the device. It does not learn of packets that the
// device drops: after maxWait in which the host receives nothing, all count as dropped. Packets
// that name none of the node's sessions do not count, so that only peers, and those who see their
// packets, can cause a wait.
type backlog struct {
	mu      sync.Mutex
	room    sync.Cond
	closed  bool
	packets int
	passing int                  // calls of the host that are in progress
	passed  uint64               // calls that have returned
	issued  map[uint32]time.Time // sessions by the index that this node has given them
}

func newBacklog() *backlog {
	b := &backlog{issued: map[uint32]time.Time{}}
	b.room.L = &b.mu
	return b
}

// sent notes the sessions of handshake messages that the device sends.
func (b *backlog) sent(packets [][]byte) {
	for _, p := range packets {
		if len(p) < device.MessageResponseSize {
			continue
		}
		if kind := binary.LittleEndian.Uint32(p); kind != device.MessageInitiationType && kind != device.MessageResponseType {
			continue
		}
		b.issue(binary.LittleEndian.Uint32(p[4:]))
	}
}

// issue adds a session. Whenever their number becomes a power of two, it removes those that are
// over.
func (b *backlog) issue(index uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.issued[index] = now
	if n := len(b.issued); n&(n-1) != 0 {
		return
	}
	for i, at := range b.issued {
		if now.Sub(at) > issuedFor {
			delete(b.issued, i)
		}
	}
}

// received counts the packets of sessions with data.
func (b *backlog) received(packets [][]byte, sizes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := uint32(0) // index that was looked up
	_, known := b.issued[last]
	for i, p := range packets {
		if sizes[i] <= device.MessageKeepaliveSize || binary.LittleEndian.Uint32(p) != device.MessageTransportType {
			continue
		}
		if index := binary.LittleEndian.Uint32(p[4:]); index != last {
			last = index
			_, known = b.issued[index]
		}
		if known {
			b.packets++
		}
	}
}

// pass calls f, which passes n packets to the host.
func (b *backlog) pass(n int, f func()) {
	b.mu.Lock()
	b.passing++
	b.mu.Unlock()
	f()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passing--
	b.passed++
	full := b.packets >= maxBacklog
	b.packets = max(0, b.packets-n) // they may be more than were counted, after a wait that has expired
	if full && b.packets < maxBacklog {
		b.room.Broadcast()
	}
}

// awaitRoom waits until the device may receive more.
func (b *backlog) awaitRoom() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.packets < maxBacklog || b.closed {
		return
	}
	var timer *time.Timer
	passed, over := b.passed, false
	timer = time.AfterFunc(maxWait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if over {
			return
		}
		if b.passing > 0 || b.passed != passed {
			passed = b.passed
			timer.Reset(maxWait)
			return
		}
		b.packets = 0
		b.room.Broadcast()
	})
	defer func() {
		over = true
		timer.Stop()
	}()
	for b.packets >= maxBacklog && !b.closed {
		b.room.Wait()
	}
}

func (b *backlog) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.room.Broadcast()
}
