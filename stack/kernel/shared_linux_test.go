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

	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

// TestPartlyOpenedAddress checks that an address from which sending fails is not added, and is
// retried. When a hub returns, the interface's addresses are read again, as some may have been
// added meanwhile.
func TestPartlyOpenedAddress(t *testing.T) {
	own, err := os.MkdirTemp("", "h") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	dir := filepath.Join(own, "hub")
	serve := func() (end func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: classify.New()}) }()
		return func() {
			if cancel(); <-ended != nil {
				t.Error("the hub failed")
			}
		}
	}
	end := serve()
	one := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(256)), 1})
	h, err := New(&Config{Addrs: []string{one.String()}, Sharing: &Sharing{Directory: dir, Start: func(string) error { return nil }}})
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
	n.port.closed.Store(true) // no socket can be opened
	if err := add(); err == nil || n.has(two) {
		t.Errorf("the address was added: %t, %v", n.has(two), err)
	}
	n.port.closed.Store(false)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(two, stack.RoCEPort)))
	for give := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(give); time.Sleep(10 * time.Millisecond) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(two, stack.RoCEPort)))
	}
	if err != nil {
		t.Fatalf("the hub still has it: %v", err)
	}
	_ = c.Close()
	if err := add(); err != nil || !n.has(two) {
		t.Errorf("after a retry: added %t, %v", n.has(two), err)
	}

	three := two.Next() // another process has its port, and releases it
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
	n.updateAddrs()
	if n.has(three) {
		t.Error("an address was added though another process has its port")
	}
	_ = c.Close()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Error("no change of the addresses was reported")
	}
	if !n.has(three) {
		t.Error("an address whose port became free was not added")
	}
	n.changing.Lock()
	interfacePrefixes = machine
	n.changing.Unlock()

	missed := netip.MustParseAddr("192.0.2.1") // removed from the interface without a notification
	old := n.table.Load()
	n.table.Store(&gidTable{append(old.prefixes, netip.PrefixFrom(missed, 24)), append(old.last, missed)})
	end()
	defer serve()()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Error("no change of the addresses was reported")
	}
	if n.has(missed) || !n.has(one) || !n.has(two) {
		t.Errorf("after the hub's return the addresses are %v", n.addrs())
	}
}
