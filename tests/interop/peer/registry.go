//go:build linux

package peer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
)

// registry holds what the test binary has running: peers and namespaces are made when first asked for and shared.
var registry = struct {
	sync.Mutex
	netns map[int]*Netns // by MTU
	peers map[Config]*entry
}{netns: make(map[int]*Netns), peers: make(map[Config]*entry)}

type entry struct {
	once sync.Once
	peer *Peer
	err  error
}

// Main is TestMain's body: it runs the tests, removes everything, and exits.
func Main(m *testing.M) {
	code := m.Run()
	registry.Lock()
	for _, n := range registry.netns {
		n.close()
	}
	os.Exit(code)
}

// Boot returns the test binary's peers of the given configurations, booted first where they are not up, or have crashed:
// Linux 6.1 was seen to, with siw. It skips the test where there can be none, or fails it if the environment says CI. If
// the test fails, it logs the consoles.
func Boot(t testing.TB, configs ...Config) []*Peer {
	t.Helper()
	img := need(t)
	peers := make([]*Peer, len(configs))
	errs := make([]error, len(configs))
	var wg sync.WaitGroup
	for i, cfg := range configs {
		if cfg.MTU == 0 {
			cfg.MTU = 1500
		}
		if cfg.ID < 2 || cfg.ID > 99 {
			t.Fatalf("peer.Config.ID is %d: give one from 2 to 99", cfg.ID)
		}
		netns := netnsOf(t, cfg.MTU)
		bury(t, cfg)
		registry.Lock()
		e := registry.peers[cfg]
		if e == nil {
			e = new(entry)
			registry.peers[cfg] = e
		}
		registry.Unlock()
		wg.Go(func() {
			e.once.Do(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				e.peer, e.err = boot(ctx, cfg, img, netns)
			})
			peers[i], errs[i] = e.peer, e.err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, p := range peers {
			if t.Failed() {
				t.Logf("console of peer %d:\n%s", p.ID, p.Console())
			}
		}
	})
	return peers
}

func netnsOf(t testing.TB, mtu int) *Netns {
	t.Helper()
	registry.Lock()
	defer registry.Unlock()
	if n := registry.netns[mtu]; n != nil {
		return n
	}
	n, err := newNetns(mtu)
	if err != nil {
		t.Fatal(err)
	}
	registry.netns[mtu] = n
	return n
}

// bury removes a peer that has crashed.
func bury(t testing.TB, cfg Config) {
	registry.Lock()
	e := registry.peers[cfg]
	registry.Unlock()
	if e != nil && e.peer != nil && e.peer.ended() {
		t.Logf("peer %d has crashed; its console:\n%s", cfg.ID, e.peer.Console())
		e.peer.Kill()
	}
}

func forget(p *Peer) {
	registry.Lock()
	defer registry.Unlock()
	delete(registry.peers, p.Config)
}

var onceImage = sync.OnceValues(findImage)

func need(t testing.TB) *image {
	t.Helper()
	if testing.Short() {
		t.Skip("no peer is booted with -short")
	}
	if err := mayBoot(); err != nil {
		Unavailable(t, err)
	}
	img, err := onceImage()
	if err != nil {
		Unavailable(t, err)
	}
	return img
}

// Unavailable ends a test for want of what this machine lacks: it is skipped, or fails if the environment says CI.
func Unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// mayBoot asks for no program but apt-get, which brings the others.
func mayBoot() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the Linux peer is an amd64 machine, this is %s", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("the Linux peer needs root, this is user %d", os.Geteuid())
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("the Linux peer's TAP needs /dev/net/tun: %w", err)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("the Linux peer is made of Debian packages: %w", err)
	}
	return nil
}
