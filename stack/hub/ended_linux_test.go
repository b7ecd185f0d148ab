package hub

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// TestServiceOfEndedProcess checks that a service of a process that has ended is free at once: also
// before the hub has read the end of its connection.
func TestServiceOfEndedProcess(t *testing.T) {
	join := func(slot uint32) (*member, *os.File) {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		own, other := os.NewFile(uintptr(fds[0]), "hub's"), os.NewFile(uintptr(fds[1]), "client's")
		defer own.Close()
		conn, err := net.FileConn(own)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(); _ = other.Close() })
		m, _ := newRinged(t, netip.MustParseAddr("10.0.0.1"), slot)
		m.conn = conn.(*net.UnixConn)
		if m.raw, err = m.conn.SyscallConn(); err != nil {
			t.Fatal(err)
		}
		return m, other
	}
	r := newRelay(everything{}, new(Counters))
	first, process := join(3)
	second, _ := join(4)
	r.add(first)
	r.add(second)
	s := stack.Service{ID: 7, Mask: ^uint64(0)}
	if err := r.serve(first, s); err != nil {
		t.Fatal(err)
	}
	if err := r.serve(second, s); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("the service of a process that lives: %v", err)
	}
	_ = process.Close()
	if err := r.serve(second, s); err != nil {
		t.Errorf("the service of a process that has ended: %v", err)
	}
	r.remove(first)
	if err := r.serve(second, s); err != nil || len(r.services) != 1 {
		t.Errorf("once more: %v, services %+v", err, r.services)
	}
}
