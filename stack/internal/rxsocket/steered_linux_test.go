package rxsocket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// kept keeps the payloads of arrivals.
type kept struct{ got [][]byte }

func (k *kept) Deliver(a *Arrival, _ bool) { k.got = append(k.got, append([]byte{}, a.Payload...)) }
func (*kept) Polling() bool                { return true }

// take returns the last byte of the only datagram that has arrived, or -1 if there is none.
func (k *kept) take(t *testing.T, s *Steered) int {
	t.Helper()
	s.Poll()
	if len(k.got) == 0 {
		return -1
	}
	if len(k.got) > 1 {
		t.Errorf("%d datagrams arrived", len(k.got))
	}
	last := k.got[0][len(k.got[0])-1]
	k.got = nil
	return int(last)
}

// read returns the last byte of the next datagram at a socket of Add, or -1 if there is none.
func read(t *testing.T, f *os.File) int {
	t.Helper()
	var b [100]byte
	n, _, err := unix.Recvfrom(int(f.Fd()), b[:], unix.MSG_DONTWAIT)
	if err != nil {
		return -1
	}
	return int(b[n-1])
}

// datagram is one for a QPN with these upper bits.
func datagram(upper, last byte) []byte {
	return []byte{0x0a, 0, 0xff, 0xff, 0, upper, 1, 2, 0, 0, 0, 0, last}
}

// dial returns a socket that sends from an address to port 4791 of another.
func dial(t *testing.T, from, to netip.Addr) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: from.AsSlice()}, &net.UDPAddr{IP: to.AsSlice(), Port: stack.RoCEPort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// openSteered opens an address that only this process has.
func openSteered(t *testing.T, a netip.Addr, r Receiver) *Steered {
	t.Helper()
	s, err := OpenSteered(a, "lo", r)
	for give := time.Now().Add(20 * time.Second); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(give); {
		time.Sleep(50 * time.Millisecond) // another package's tests use ::1
		s, err = OpenSteered(a, "lo", r)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestSteered checks that each datagram arrives at the socket that the table names, with as many
// sockets as there are ranges of QPNs, and that sources and flows of the table override the QPN.
func TestSteered(t *testing.T) {
	for _, x := range []struct{ from, to string }{{"127.31.3.2", "127.31.3.1"}, {"::1", "::1"}} {
		t.Run(x.to, func(t *testing.T) {
			c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(x.to)})
			if err != nil {
				t.Skip(err) // no IPv6
			}
			_ = c.Close()
			from, to := netip.MustParseAddr(x.from), netip.MustParseAddr(x.to)
			own := &kept{}
			s := openSteered(t, to, own)
			if !s.Alone() {
				t.Fatal("another process has sockets")
			}
			var all []*os.File
			var table Table
			for i := range 254 {
				f, index, err := s.Add()
				if err != nil || int(index) != i+1 {
					t.Fatalf("socket %d has index %d, %v", i, index, err)
				}
				defer f.Close()
				all = append(all, f)
				table.ByQPN[254-i] = index // so that all ranges are different
			}
			one, other := dial(t, from, to), dial(t, from, to)
			send := func(c *net.UDPConn, upper byte) {
				t.Helper()
				if _, err := c.Write(datagram(upper, upper)); err != nil {
					t.Fatal(err)
				}
			}
			// check sends a datagram for each socket from each peer, some of which are for the first.
			check := func(what string, toOwn map[*net.UDPConn]bool) {
				t.Helper()
				if err := s.Steer(&table); err != nil {
					t.Fatal(what, err)
				}
				for _, c := range []*net.UDPConn{one, other} {
					for upper := range 256 {
						send(c, byte(upper))
						index := table.ByQPN[upper]
						if toOwn[c] {
							index = 0
						}
						got, want := -1, upper
						if index == 0 {
							got = own.take(t, s)
						} else {
							got = read(t, all[index-1])
						}
						if got != want {
							t.Fatalf("%s: %#x for socket %d: %d arrived", what, upper, index, got)
						}
					}
				}
			}
			check("by QPN", nil)
			addr := one.LocalAddr().(*net.UDPAddr).AddrPort()
			table.Flows = []netip.AddrPort{netip.AddrPortFrom(from, 1), netip.AddrPortFrom(from, addr.Port())}
			check("by flow", map[*net.UDPConn]bool{one: true})
			for i := range byte(MaxSources - 1) {
				near := from.As16()
				near[15] ^= 0x80 | i
				table.Sources = append(table.Sources, netip.AddrFrom16(near).Unmap())
			}
			check("by flow, with other sources", map[*net.UDPConn]bool{one: true})
			table.Sources = append(table.Sources, from)
			check("by source", map[*net.UDPConn]bool{one: true, other: true})
			table.Sources = nil
			for _, short := range [][]byte{{}, {1}, datagram(1, 0)[:5]} {
				if _, err := one.Write(short); err != nil {
					t.Fatal(err)
				}
				s.Poll()
				if len(own.got) != 1 {
					t.Errorf("a datagram of %d bytes: %d arrived", len(short), len(own.got))
				}
				own.got = nil
			}
			if err := s.Steer(nil); err != nil {
				t.Fatal(err)
			}
			if send(one, 9); own.take(t, s) != 9 {
				t.Error("without a table, a datagram did not arrive at the first socket")
			}
		})
	}
}

// TestSteeredByInterface checks that datagrams from one interface arrive at the first socket, and
// those from others by the QPN.
func TestSteeredByInterface(t *testing.T) {
	for _, x := range []struct{ from, to string }{{"127.31.3.7", "127.31.3.6"}, {"::1", "::1"}} {
		if probe, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(x.to)}); err != nil {
			continue // no IPv6
		} else {
			_ = probe.Close()
		}
		from, to := netip.MustParseAddr(x.from), netip.MustParseAddr(x.to)
		own := &kept{}
		s := openSteered(t, to, own)
		f, index, err := s.Add()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lo, err := net.InterfaceByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		table := Table{}
		table.ByQPN[7] = index
		c := dial(t, from, to)
		for _, number := range []int{lo.Index, lo.Index + 1} {
			table.Interface = number
			if err := s.Steer(&table); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(datagram(7, 70)); err != nil {
				t.Fatal(err)
			}
			if a, b := own.take(t, s), read(t, f); number == lo.Index != (a == 70) || number == lo.Index != (b == -1) {
				t.Errorf("%s, interface %d of the table, and %d of the datagram: %d and %d arrived", x.to, number, lo.Index, a, b)
			}
		}
	}
}

// TestSteeredInUse checks that a second process of the user cannot steer at an address, although
// SO_REUSEPORT lets it bind the port.
func TestSteeredInUse(t *testing.T) {
	a := netip.MustParseAddr("127.31.3.3")
	s := openSteered(t, a, &kept{})
	if _, err := OpenSteered(a, "lo", &kept{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second owner: %v", err)
	}
	if _, err := Open(a, "lo", &kept{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a process that does not steer: %v", err)
	}
	s.Close()
	if s, err := OpenSteered(a, "lo", &kept{}); err != nil {
		t.Errorf("after the end of the first: %v", err)
	} else {
		s.Close()
	}
}

// TestNameTaken checks that a name that anyone may take keeps nobody from an address.
func TestNameTaken(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: another user")
	}
	for i, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		a := netip.AddrFrom4([4]byte{127, 31, 4, byte(i + 1)})
		taken := make(chan int)
		go func() {
			// The thread keeps the other user, and ends with the goroutine.
			runtime.LockOSThread()
			_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0))
			fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@softrnic-4791-" + a.String()})
			}
			if err == nil && kind != unix.SOCK_DGRAM {
				err = unix.Listen(fd, 1)
			}
			if err != nil {
				t.Error(err)
			}
			taken <- fd
		}()
		fd := <-taken
		s, err := OpenSteered(a, "lo", &kept{})
		if err != nil {
			t.Errorf("socket type %d: %v", kind, err)
		} else {
			s.Close()
		}
		_ = unix.Close(fd)
	}
}

// TestSocketsLeft checks that everything arrives at an owner of an address while other processes
// have sockets of an earlier owner, and that it steers once these are closed, in any order.
func TestSocketsLeft(t *testing.T) {
	a := netip.MustParseAddr("127.31.3.4")
	from := dial(t, netip.MustParseAddr("127.31.3.5"), a)
	for left := range 4 {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			first := openSteered(t, a, &kept{})
			var old []*os.File
			table := Table{}
			for i := range left {
				f, index, err := first.Add()
				if err != nil {
					t.Fatal(err)
				}
				old = append(old, f)
				table.ByQPN[i] = index
			}
			if err := first.Steer(&table); err != nil {
				t.Fatal(err)
			}
			first.Close()
			own := &kept{}
			s := openSteered(t, a, own)
			for {
				s.Look()
				if s.Alone() != (len(old) == 0) {
					t.Fatalf("%d sockets are left, alone: %t", len(old), s.Alone())
				}
				for upper := range byte(8) {
					if _, err := from.Write(datagram(upper, upper)); err != nil {
						t.Fatal(err)
					}
					if got := own.take(t, s); got != int(upper) {
						t.Errorf("%d sockets are left: %d arrived, want %d", len(old), got, upper)
					}
				}
				if len(old) == 0 {
					break
				}
				if _, _, err := s.Add(); err == nil {
					t.Error("added a socket after those of others")
				}
				i := len(old) / 2
				_ = old[i].Close()
				old = append(old[:i], old[i+1:]...)
			}
			f, index, err := s.Add()
			if err != nil || index != 1 {
				t.Fatalf("index %d, %v", index, err)
			}
			defer f.Close()
			table = Table{}
			table.ByQPN[3] = 1
			if err := s.Steer(&table); err != nil {
				t.Fatal(err)
			}
			if _, err := from.Write(datagram(3, 33)); err != nil || read(t, f) != 33 {
				t.Error("a datagram did not arrive at the new socket", err)
			}
		})
	}
}

// TestSteeredWithoutLoopback checks that an owner of an address that only it has can steer where
// probes do not arrive, as in a network namespace whose loopback interface is down.
func TestSteeredWithoutLoopback(t *testing.T) {
	interfaces.Namespace(t)
	interfaces.Veth(t, 1500)
	a := netip.MustParseAddr("10.31.3.1")
	v, err := netlink.LinkByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(v, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetDown(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !openSteered(t, a, &kept{}).Alone() {
		t.Error("another process has sockets")
	}
}
