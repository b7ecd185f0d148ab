package inlet

import (
	"runtime"
	"time"
)

// watchTime is how long Run looks for more before it sleeps: about what it costs the sender, in its system call, to wake up who
// sleeps on another processor, and the receiver to be woken.
const watchTime = 20 * time.Microsecond

// vigil knows whether to look for more has been worth it. Where what comes comes seldom, or its sender waits for this very
// processor, it never is. Nobody is asked to let others run meanwhile (sched_yield): on a busy machine that costs all the turns
// that one has.
type vigil struct {
	luck int // of the last looks; at most mostLuck
	vain int // sleeps without a look
}

const (
	mostLuck = 4
	seldom   = 32 // after bad luck, one sleep in so many is preceded by a look all the same
)

// due tells whether to look before this sleep.
func (v *vigil) due() bool {
	if v.luck > 0 {
		return true
	}
	v.vain++
	if v.vain >= seldom {
		v.vain = 0
		return true
	}
	return false
}

// looked takes in what came of a look.
func (v *vigil) looked(found bool) {
	if found {
		v.luck = mostLuck
	} else if v.luck > 0 {
		v.luck--
	}
}

// watch looks for more for a while; false if Run is to sleep.
func (s *Socket) watch(fd uintptr) bool {
	v := &s.batch.vigil
	if s.batch.eager != nil || !v.due() {
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
			v.looked(true)
			return true
		}
		if !time.Now().Before(end) {
			v.looked(false)
			return false
		}
	}
}
