package rtnetlink

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestRefused checks that without a subscription the present state can still be read, that Run
// returns, and that no descriptor is closed twice.
func TestRefused(t *testing.T) {
	bind = func(int, unix.Sockaddr) error { return unix.EPERM }
	defer func() { bind = unix.Bind }()
	l, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Run(Events{})
	if at, err := l.LinkByName("lo"); err != nil || at.RawFlags&unix.IFF_LOOPBACK == 0 {
		t.Errorf("lo: %+v, %v", at, err)
	}
	var files []*os.File // one of them has the socket's former number
	for range 10 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for range 3 {
		runtime.GC() // would close the descriptor a second time
		runtime.Gosched()
	}
	for _, f := range files {
		if _, err := f.Stat(); err != nil {
			t.Errorf("a file that was opened afterwards: %v", err)
		}
	}
}

// TestMissed checks that Missed is called after an overflow, once the buffered notifications have
// been read. Later notifications arrive; after Close there are none.
func TestMissed(t *testing.T) {
	interfaces.Namespace(t)
	interfaces.Veth(t, 1500)
	l, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	v0 := interfaces.ByName(t, "v0")
	resize := func(mtu int) {
		if err := netlink.LinkSetMTU(v0, mtu); err != nil {
			t.Fatal(err)
		}
	}
	const changes = 3000
	for i := range changes {
		resize(1400 + i%2)
	}
	seen, missed, ended := make(chan int, 10*changes), make(chan int, 10), make(chan struct{})
	addrs := make(chan int, 10)
	go func() {
		defer close(ended)
		l.Run(Events{
			Link: func(at *netlink.LinkAttrs, removed bool) {
				if at.Index == v0.Attrs().Index && !removed {
					seen <- at.MTU
				}
			},
			Addrs: func(index int) { addrs <- index },
			Missed: func() {
				at, err := l.Link(v0.Attrs().Index)
				if err != nil {
					t.Error(err)
					return
				}
				missed <- at.MTU
			},
		})
	}()
	within := time.After(20 * time.Second)
	select {
	case mtu := <-missed:
		if mtu != 1401 {
			t.Errorf("the MTU is %d", mtu)
		}
	case <-within:
		t.Fatal("Missed was not called")
	}
	if len(seen) == 0 || len(seen) >= changes {
		t.Errorf("%d of %d notifications arrived before Missed", len(seen), changes)
	}
	resize(1450)
	for mtu := 0; mtu != 1450; {
		select {
		case mtu = <-seen:
		case <-within:
			t.Fatal("no notification of a change after Missed")
		}
	}
	a, err := netlink.ParseAddr("10.7.0.1/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(v0, a); err != nil {
		t.Fatal(err)
	}
	for index := 0; index != v0.Attrs().Index; {
		select {
		case index = <-addrs:
		case <-within:
			t.Fatal("no notification of an address")
		}
	}
	l.Close()
	l.Close()
	<-ended
	if _, err := l.Link(1); err == nil {
		t.Error("an interface can be read after Close")
	}
}
