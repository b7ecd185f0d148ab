package kernel

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/hub"
)

// TestHalfAnAddress: an address that can be received at and not be sent from is not added, and may be tried again. When a hub comes, the
// interface's addresses are looked at again, as some may have come while there was none.
func TestHalfAnAddress(t *testing.T) {
	own, err := os.MkdirTemp("", "h") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	dir := filepath.Join(own, "hub")
	serve := func() (end func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: rdmatransport.NewClassifier()}) }()
		return func() {
			if cancel(); <-ended != nil {
				t.Error("the hub ends with an error")
			}
		}
	}
	end := serve()
	one := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(256)), 1})
	h, err := New(Addr(one.String()), Shared(Sharing{Directory: dir, Start: func(string) error { return nil }}))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	n, two := h.nic, one.Next()
	add := func() error {
		n.changing.Lock()
		defer n.changing.Unlock()
		return n.addAddr(netip.PrefixFrom(two, 8))
	}
	n.port.closed.Store(true) // no socket is opened
	if err := add(); err == nil || n.has(two) {
		t.Errorf("the address is added: %t, %v", n.has(two), err)
	}
	n.port.closed.Store(false)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(two, stack.RoCEPort)))
	for give := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(give); time.Sleep(10 * time.Millisecond) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(two, stack.RoCEPort))) // a socket goes when its reader lets it
	}
	if err != nil {
		t.Fatalf("the hub has it still: %v", err)
	}
	_ = c.Close()
	if err := add(); err != nil || !n.has(two) {
		t.Errorf("it is added when it is tried again: %t, %v", n.has(two), err)
	}

	three := two.Next() // somebody else has its port, and goes
	c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(three, stack.RoCEPort)))
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan bool, 1)
	n.Watch(func(c stack.Change) {
		if c == stack.GIDsChanged {
			changed <- true
		}
	})
	machine := interfacePrefixes
	interfacePrefixes = func(i *net.Interface) ([]netip.Prefix, error) {
		have, err := machine(i)
		return append(have, netip.PrefixFrom(one, 8), netip.PrefixFrom(two, 8), netip.PrefixFrom(three, 8)), err
	}
	n.changing.Lock()
	n.wanted = append(n.wanted, two, three)
	n.changing.Unlock()
	n.readdress()
	if n.has(three) {
		t.Error("an address is added whose port somebody else has")
	}
	_ = c.Close()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
	}
	if !n.has(three) {
		t.Error("an address whose port has become free is not added until an address changes")
	}
	n.changing.Lock()
	interfacePrefixes = machine
	n.changing.Unlock()

	missed := netip.MustParseAddr("192.0.2.1") // has gone from the interface, of which nobody has heard
	old := n.table.Load()
	n.table.Store(&gidTable{append(old.prefixes, netip.PrefixFrom(missed, 24)), append(old.gids, missed)})
	end()
	defer serve()()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
	}
	if n.has(missed) || !n.has(one) || !n.has(two) {
		t.Errorf("when there is a hub again, the addresses are %v", n.addrs())
	}
}
