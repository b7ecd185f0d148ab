package hub

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// FuzzSession runs two clients that follow no rules. They send the input as parts of requests, and
// write to their rings. The hub answers each well-formed request or disconnects. Another client is
// served all the while. When the two have left, their resources are free for others.
func FuzzSession(f *testing.F) {
	var work sync.WaitGroup
	dir, end := hubHere(f, &work)
	f.Cleanup(end)
	pid := os.Getpid() // the fuzzer has several processes
	own := netip.AddrFrom4([4]byte{127, byte(32 + pid>>16), byte(pid >> 8), byte(pid)})
	victim := client(f, &work, dir, own.String(), func(*Arrival) {})
	f.Cleanup(victim.Close)
	f.Add([]byte{0, 0, 1, 0, 0, 0, 0, 5, 1, 2, 0, 0, 0, 0, 3, 0, 1, 2, 0, 0, 0})
	f.Add([]byte{2, 0, 1, 9, 0, 0, 0, 2, 1, 1, 9, 0, 0, 0, 3, 0, 1, 9, 0, 0, 0})
	f.Add([]byte{4, 0, 1, 0, 0, 0, 1, 7, 1, 1, 0, 1, 1, 1, 6, 0, 0, 1, 1, 1, 0})
	f.Add([]byte{122, 48, 48, 50, 48, 48, 48}) // a service at the other client's address
	addrs := []netip.Addr{{}, netip.MustParseAddr(hostileAddr), own, netip.MustParseAddr("127.31.1.3"), netip.MustParseAddr("192.0.2.1")}
	f.Fuzz(func(t *testing.T, b []byte) {
		pair := [2]*hostile{joinHostile(t, dir), joinHostile(t, dir)}
		leave := sync.OnceFunc(func() {
			for _, h := range pair {
				if h != nil {
					h.close()
				}
			}
		})
		defer leave()
		if pair[0] == nil || pair[1] == nil {
			t.Fatal("the hub has no room for two clients")
		}
		const part = 7
		for ; len(b) >= part && len(b) < 64*part; b = b[part:] {
			h := pair[b[1]&1]
			q := request{
				kind: kind(b[0]%uint8(lastKind)) + 1, number: uint32(b[1]), addr: addrs[int(b[2])%len(addrs)], zone: "lo",
				service: stack.Service{Addr: addrs[int(b[3])%len(addrs)], ID: uint64(b[3]), Mask: uint64(b[4])},
				qpn:     (uint32(pair[b[5]&1].qpnSlot)+uint32(b[5]>>4))<<slotBits + uint32(b[4]),
				serial:  uint32(b[6] >> 2), own: addrs[int(b[6])%len(addrs)],
			}
			message := q.encode()
			switch b[1] >> 6 {
			case 1:
				message[int(b[5])%len(message)] = b[6] // possibly an invalid request
			case 2:
				h.memory[(int(b[5])<<8|int(b[6]))%len(h.memory)] = b[4]
			}
			var rights []byte
			if q.hasSocket() && b[1]&2 == 0 {
				file, err := os.Open("/dev/null") // not a socket
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				rights = unix.UnixRights(int(file.Fd()))
			}
			if _, _, err := h.conn.WriteMsgUnix(message, rights, nil); err != nil {
				break // the hub has disconnected
			}
			_ = h.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := h.conn.Read(make([]byte, maxMessage)); os.IsTimeout(err) {
				t.Fatalf("request %+v has no answer", q)
			} else if err != nil {
				break
			}
		}
		// They may have resources that the other client requests. That request is refused until
		// they leave.
		mine := stack.Service{Addr: own, ID: 0xffff, Mask: 0xffff}
		err := victim.Serve(mine)
		if err != nil && !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Fatalf("the other client is refused: %v", err)
		}
		leave()
		for give := time.Now().Add(20 * time.Second); err != nil; err = victim.Serve(mine) {
			if time.Now().After(give) {
				t.Fatalf("the resources of the two are not free: %v", err)
			}
			time.Sleep(100 * time.Microsecond)
		}
		victim.EndServe(mine)
	})
}
