package static

import (
	"slices"
	"sync"
	"time"
)

// loop has the frames that a host sends to itself.
type loop struct {
	h       *Host
	mu      sync.Mutex
	frames  [][]byte
	running bool // deliver is due
	closed  bool
}

const (
	// loopDelay is the time that a frame takes. Without it, the time of a simulation would stand while
	// a host talks to itself.
	loopDelay = time.Microsecond
	// loopFrames is the number of frames that wait at most. Further ones are dropped.
	loopFrames = 4096
)

// isOwn says whether a frame is for the host that sends it.
func (h *Host) isOwn(frame []byte) bool { return [6]byte(frame) == h.mac }

// add takes a copy of a frame.
func (l *loop) add(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.frames) == loopFrames {
		l.h.counters.txErrors.Add(1)
		return
	}
	l.h.counters.sent.add(len(frame))
	l.frames = append(l.frames, slices.Clone(frame))
	l.start()
}

// start arranges that frames are delivered. mu is held.
func (l *loop) start() {
	if len(l.frames) > 0 && !l.running {
		l.running = true
		l.h.clock.AfterFunc(loopDelay, l.deliver)
	}
}

// deliver passes the frames to the host, which may send further ones meanwhile.
func (l *loop) deliver() {
	l.mu.Lock()
	frames := l.frames
	l.frames = nil
	l.mu.Unlock()
	for _, f := range frames {
		l.h.pass(f, true)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	l.start()
}

func (l *loop) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.frames = true, nil
}
