package rxsocket

import (
	"runtime"
	"time"
)

// spinTime is how long Run spins before it sleeps. It is about the cost of waking a sleeper on
// another processor: the sender's in its system call, plus the receiver's.
const spinTime = 20 * time.Microsecond

// spin looks for more datagrams for a while. It returns false if Run should sleep. It does not
// yield the thread (sched_yield): on a busy machine that would cost the whole time slice.
func (s *Socket) spin(fd uintptr) bool {
	v := &s.batch.adaptive
	if s.batch.direct != nil || !v.ShouldSpin() {
		return false
	}
	runtime.Gosched() // goroutines that the last datagrams have woken run first
	for end := time.Now().Add(spinTime); ; {
		if s.ended.Load() || s.receiver.Polled() {
			return true
		}
		s.mu.Lock()
		n := s.receive(fd, false)
		s.mu.Unlock()
		if n > 0 {
			v.Spun(true)
			return true
		}
		if !time.Now().Before(end) {
			v.Spun(false)
			return false
		}
	}
}
