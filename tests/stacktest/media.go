// Package stacktest provides pairs of hosts for tests of behaviour, on each stack and each link,
// with a network of their own.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package stacktest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/netstack"
)

// InSystem reports whether this is the system run or the long run, which tests/internal/gate
// describes. Tests then cover everything: all media, many seeds.
func InSystem() bool { return os.Getenv("SOFTRNIC_SYSTEM") != "" || os.Getenv("SOFTRNIC_LONG") != "" }

// Size returns the size of a test: by default, in the system run, and in the long run.
func Size(normal, system, long int) int {
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		return long
	case InSystem():
		return system
	}
	return normal
}

// mtu is the MTU of the links, which leaves room for a path MTU of 4096.
const mtu = 4200

// Host is a stack that can be closed. The test that receives one must close it.
type Host interface {
	stack.Network
	io.Closer
}

// End is a host and its addresses. Addr6 is invalid if the host has no IPv6 address that the other
// host reaches.
type End struct {
	Host        Host
	Addr, Addr6 netip.Addr
}

// Medium is a stack on a medium.
type Medium struct {
	Name       string
	privileged bool // skipped without privileges
	hosts      func(t *testing.T) (a, b End)
}

// Hosts creates two hosts on a network of their own.
func (m Medium) Hosts(t *testing.T) (a, b End) {
	t.Helper()
	return m.hosts(t)
}

// Direct copies messages from memory to memory.
var Direct = Medium{"direct", false, onLinks(func(*testing.T) [2]link.Link {
	lan := new(pipe.Switch)
	return [2]link.Link{lan.Port(), lan.Port()}
})}

// Media are all media that this system and this user have. A test of timing, of packets or of a
// single link or stack creates its own network.
var Media = slices.Concat([]Medium{
	Direct,
	{"pipe", false, onLinks(func(*testing.T) [2]link.Link {
		lan := new(pipe.Switch)
		return [2]link.Link{cable{lan.Port()}, cable{lan.Port()}}
	})},
	{"stream", false, onLinks(func(t *testing.T) [2]link.Link {
		path := filepath.Join(directory(t), "s")
		listener := must(stream.Open(path, &stream.Config{Listening: true, MTU: mtu}))(t)
		return [2]link.Link{listener, must(stream.Open(path, &stream.Config{MTU: mtu}))(t)}
	})},
	{"wireguard", false, onLinks(tunnel)},
	{"kernel", false, func(t *testing.T) (a, b End) {
		if runtime.GOOS != "linux" {
			t.Skip("this system's loopback has one address only")
		}
		return OnLoopback(t, nil), OnLoopback(t, nil)
	}},
}, platform)

// tunnel returns the two ends of a tunnel on the loopback.
func tunnel(t *testing.T) [2]link.Link {
	t.Helper()
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	end := func(i int, port uint16, endpoint string, keepalive time.Duration) (*wireguard.Link, error) {
		return wireguard.Open(&wireguard.Config{PrivateKey: keys[i], Port: port, MTU: mtu,
			Peers: []wireguard.PeerConfig{{PublicKey: keys[1-i].Public(), Endpoint: endpoint,
				Keepalive: keepalive}}})
	}
	for range 100 {
		port := 1024 + rand.N[uint16](30000) // below the ports that systems choose
		a, err := end(0, port, "", 0)
		if err != nil {
			continue // in use
		}
		b, err := end(1, 0, fmt.Sprintf("127.0.0.1:%d", port), time.Minute) // so that it begins
		return [2]link.Link{a, must(b, err)(t)}
	}
	t.Fatal("no UDP port is free")
	return [2]link.Link{}
}

// Kept keeps a tunnel in a bubble of testing/synctest until the process ends, and returns it. What
// wireguard-go does with it when it is collected must not happen outside of the bubble.
func Kept(l *wireguard.Link) *wireguard.Link {
	kept.Lock()
	defer kept.Unlock()
	kept.links = append(kept.links, l)
	return l
}

var kept struct {
	sync.Mutex
	links []*wireguard.Link
}

// cable hides a link's medium, so that all data passes in frames.
type cable struct{ link.Link }

// onLinks creates hosts of gVisor's stack on two links.
func onLinks(links func(t *testing.T) [2]link.Link) func(*testing.T) (a, b End) {
	return func(t *testing.T) (a, b End) {
		t.Helper()
		ls := links(t)
		on := func(l link.Link, four, six string) End {
			h := must(netstack.New(l, &netstack.Config{Addrs: []string{four + "/24", six + "/64"}}))(t)
			return End{h, netip.MustParseAddr(four), netip.MustParseAddr(six)}
		}
		return on(ls[0], "10.0.0.1", "fd00::1"), on(ls[1], "10.0.0.2", "fd00::2")
	}
}

// OnLoopback creates a host on the kernel's sockets, at a loopback address that is not in use.
func OnLoopback(t *testing.T, cfg *kernel.Config) End {
	t.Helper()
	var c kernel.Config
	if cfg != nil {
		c = *cfg
	}
	for range 100 {
		addr := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(255)), byte(1 + rand.N(254))})
		c.Addrs = []string{addr.String()}
		h, err := kernel.New(&c)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		return End{Host: must(h, err)(t), Addr: addr}
	}
	t.Fatal("every address of the loopback is in use")
	return End{}
}

// directory returns a directory with a short path for unix sockets. t.TempDir's path contains the
// name of the test.
func directory(t *testing.T) string {
	t.Helper()
	dir := must(os.MkdirTemp("", "m"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// must returns the value, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
