//go:build linux

package peer

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// registry has the running peers and namespaces of the test binary. They are created on first use
// and shared.
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

// Main is TestMain's body: it runs the tests, removes everything, and returns the exit code. If all
// tests run, the peers of the given configurations are booted one after the other during the first
// tests, as a boot keeps one processor busy for long.
func Main(m *testing.M, ahead ...Config) (code int) {
	flag.Parse()
	if all := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == ""; all && !testing.Short() &&
		gate.InSystem() && mayBoot() == nil {
		go bootAhead(ahead)
	}
	code = m.Run()
	registry.Lock()
	for _, n := range registry.netns {
		n.close()
	}
	return code
}

// bootAhead boots peers. Errors are reported to the test that uses the peer.
func bootAhead(configs []Config) {
	img, err := onceImage()
	if err != nil {
		return
	}
	for _, cfg := range configs {
		cfg = cfg.whole()
		if netns, err := netnsOf(cfg.MTU); err == nil {
			_, _ = entryOf(cfg).boot(cfg, img, netns)
		}
	}
}

// Boot returns the test binary's peers of the given configurations. It boots those that do not run
// yet or have crashed: Linux 6.1 was seen to, with siw. It skips the test if peers are impossible
// here, or fails it if the environment has CI. If the test fails, it logs the consoles.
func Boot(t testing.TB, configs ...Config) []*Peer {
	t.Helper()
	img := need(t)
	peers := make([]*Peer, len(configs))
	errs := make([]error, len(configs))
	var wg sync.WaitGroup
	for i, cfg := range configs {
		cfg = cfg.whole()
		if cfg.ID < 2 || cfg.ID > 99 {
			t.Fatalf("peer.Config.ID is %d: must be 2 to 99", cfg.ID)
		}
		netns, err := netnsOf(cfg.MTU)
		if err != nil {
			t.Fatal(err)
		}
		removeCrashed(t, cfg)
		e := entryOf(cfg)
		wg.Go(func() { peers[i], errs[i] = e.boot(cfg, img, netns) })
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

func netnsOf(mtu int) (*Netns, error) {
	registry.Lock()
	defer registry.Unlock()
	if n := registry.netns[mtu]; n != nil {
		return n, nil
	}
	n, err := newNetns(mtu)
	if err == nil {
		registry.netns[mtu] = n
	}
	return n, err
}

func entryOf(cfg Config) *entry {
	registry.Lock()
	defer registry.Unlock()
	e := registry.peers[cfg]
	if e == nil {
		e = new(entry)
		registry.peers[cfg] = e
	}
	return e
}

// boot boots the peer, unless it was booted before. It waits for a boot in progress. A kernel that
// panics while it boots is booted again, once: emulated, Linux 6.12 was seen to, in an interrupt.
func (e *entry) boot(cfg Config, img *image, netns *Netns) (*Peer, error) {
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		p, err := boot(ctx, cfg, img, netns)
		if err != nil && strings.Contains(err.Error(), "Kernel panic") && ctx.Err() == nil {
			log.Printf("booting once more: %v", err)
			p, err = boot(ctx, cfg, img, netns)
		}
		registry.Lock()
		defer registry.Unlock()
		e.peer, e.err = p, err
	})
	return e.peer, e.err
}

// removeCrashed removes a peer that has crashed.
func removeCrashed(t testing.TB, cfg Config) {
	registry.Lock()
	var p *Peer
	if e := registry.peers[cfg]; e != nil {
		p = e.peer
	}
	registry.Unlock()
	if p != nil && p.ended() {
		t.Logf("peer %d has crashed; its console:\n%s", cfg.ID, p.Console())
		p.Kill()
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

// Unavailable ends a test because this machine lacks something: the test is skipped, or fails if
// the environment has CI.
func Unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// mayBoot requires only apt-get, which installs the other programs.
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
