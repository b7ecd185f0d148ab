package shm

import (
	"fmt"
	"os"

	"github.com/softrnic/softrnic/link/ring"
)

// Limits for each other process: its connections, because it may have several links, and the bytes
// that wait for room in their rings.
const (
	maxLinks = 32
	// The limit for all processes without a visible PID together, for example in other containers.
	maxUnknownLinks   = maxPeers / 2
	processQueueBytes = 4 * ring.QueueBytes
)

// process is another process, or this one.
type process struct {
	pid   int32 // 0: it is in another PID namespace
	links int   // connections with it; guarded by the segment's mu
	queue ring.Quota
}

func newProcess(pid int32) *process {
	return &process{pid: pid, queue: ring.Quota{Bytes: processQueueBytes}}
}

// addLink counts a connection with a process. It fails if the process has reached its limit. This
// process's own links are unlimited and share no quota. s.mu is held.
func (s *segment) addLink(pid int32) (*process, error) {
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
		most = maxUnknownLinks
	}
	if r.links == most {
		return nil, fmt.Errorf("process %d has %d connections, the most allowed", pid, most)
	}
	r.links++
	return r, nil
}

// removeLink counts the end of a connection with a process.
func (s *segment) removeLink(r *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.links--; r.links == 0 {
		delete(s.processes, r.pid)
	}
}
