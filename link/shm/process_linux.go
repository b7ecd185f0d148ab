package shm

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// What one other process may have: places among the peers, as it may have several links, and bytes that wait for room in their
// rings.
const (
	maxLinks          = 32
	maxForeign        = maxPeers / 2 // of all processes whose numbers cannot be seen from here, as in other containers
	processQueueBytes = 4 * queueBytes
)

// process is another process, or this one.
type process struct {
	pid    int32 // 0: it is in another PID namespace
	links  int   // connections with it; under the segment's mu
	queued atomic.Int64
}

// processOf asks the kernel who was the other side of a connection when it began, or began to listen.
func processOf(conn *net.UnixConn) (pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	return cred.Pid, nil
}

// admit gives a process one more place, unless it has as many as it may. This process's own links are not bounded, and share
// nothing. It is called with s.mu held.
func (s *segment) admit(pid int32) (*process, error) {
	if int(pid) == os.Getpid() {
		return &process{pid: pid}, nil
	}
	r := s.processes[pid]
	if r == nil {
		r = &process{pid: pid}
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
