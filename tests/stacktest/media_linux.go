package stacktest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/interfaces"
)

var platform = []Medium{
	{"shm", false, onLinks(func(t *testing.T) [2]link.Link {
		dir := &shm.Config{Directory: filepath.Join(directory(t), "s")}
		return [2]link.Link{must(shm.Open("lan", dir))(t), must(shm.Open("lan", dir))(t)}
	})},
	// Two hosts at one address: RoCE packets go through rings that the hub creates.
	{"hub", false, func(t *testing.T) (a, b End) {
		t.Helper()
		dir := Hub(t)
		a = OnLoopback(t, &kernel.Config{Sharing: through(dir)})
		return a, End{Host: must(kernel.New(&kernel.Config{Addrs: []string{a.Addr.String()}, Sharing: through(dir)}))(t), Addr: a.Addr}
	}},
	// Two hosts at addresses of two hubs: each hub forwards the datagrams that it receives.
	{"two hubs", false, func(t *testing.T) (a, b End) {
		t.Helper()
		a = OnLoopback(t, &kernel.Config{Sharing: through(Hub(t))})
		return a, OnLoopback(t, &kernel.Config{Sharing: through(Hub(t))})
	}},
	{"TAP", true, onLinks(func(t *testing.T) (ls [2]link.Link) {
		interfaces.Namespace(t)
		interfaces.TUN(t)
		interfaces.Bridge(t, "br0", mtu)
		for i, name := range []string{"rnic0", "rnic1"} {
			ls[i] = must(tap.Open(name, &tap.Config{MTU: mtu, Bridge: "br0"}))(t)
		}
		return ls
	})},
	{"packet", true, onLinks(func(t *testing.T) [2]link.Link {
		interfaces.Namespace(t)
		interfaces.Veth(t, mtu)
		return [2]link.Link{must(packet.Open("v0", nil))(t), must(packet.Open("v1", nil))(t)}
	})},
}

// through makes a host share its address through the hub of a directory.
func through(dir string) *kernel.Sharing {
	soon := func(string) error { return nil } // the hub is about to start
	return &kernel.Sharing{Directory: dir, Start: soon}
}

// Hub runs a hub until the end of the test, and returns its directory.
func Hub(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(directory(t), "hub")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: classify.New()}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return dir
}
