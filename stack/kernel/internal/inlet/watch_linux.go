package inlet

import (
	"runtime"
	"time"
)

// watchTime is how long Run looks for more before it sleeps: about what it costs the sender, in its system call, to wake up who
// sleeps on another processor, and the receiver to be woken.
const watchTime = 20 * time.Microsecond

// watch looks for more for a while; false if Run is to sleep. Nobody is asked to let others run meanwhile (sched_yield): on a busy
// machine that costs all the turns that one has.
func (s *Socket) watch(fd uintptr) bool {
	v := &s.batch.vigil
	if s.batch.eager != nil || !v.ShouldSpin() {
		return false
	}
	runtime.Gosched() // whom the last datagrams have woken runs first
	for end := time.Now().Add(watchTime); ; {
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
