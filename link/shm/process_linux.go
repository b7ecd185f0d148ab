package shm

import (
	"fmt"
	"os"

	"github.com/softrnic/softrnic/link/ring"
)

// What one other process may have: places among the peers, as it may have several links, and bytes that wait for room in their
// rings.
const (
	maxLinks          = 32
	maxForeign        = maxPeers / 2 // of all processes whose numbers cannot be seen from here, as in other containers
	processQueueBytes = 4 * ring.QueueBytes
)

// process is another process, or this one.
type process struct {
	pid   int32 // 0: it is in another PID namespace
	links int   // connections with it; under the segment's mu
	queue ring.Quota
}

func newProcess(pid int32) *process {
	return &process{pid: pid, queue: ring.Quota{Bytes: processQueueBytes}}
}

// admit gives a process one more place, unless it has as many as it may. This process's own links are not bounded, and share
// nothing. It is called with s.mu held.
func (s *segment) admit(pid int32) (*process, error) {
	if int(pid) == os.Getpid() {
		return newProcess(pid), nil
	}
	r := s.processes[pid]
	if r == nil {
		r = newProcess(pid)
		s.processes[pid] = r
	}
	most := maxLinks
	if pid == 0 {
		most = maxForeign
	}
	if r.links == most {
		return nil, fmt.Errorf("process %d has all %d places that one may have", pid, most)
	}
	r.links++
	return r, nil
}

// dismiss ends a place of a process.
func (s *segment) dismiss(r *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.links--; r.links == 0 {
		delete(s.processes, r.pid)
	}
}
