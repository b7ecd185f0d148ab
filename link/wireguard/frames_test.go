package wireguard_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestUnder: nodes whose tunnels are in frames of a switch reach each other. The switch sees
// encrypted frames only.
func TestUnder(t *testing.T) {
	lan := must(pipe.New(&pipe.Config{MTU: 1500}))(t)
	var keys [3]wireguard.SecretKey
	for i := range keys {
		keys[i] = wireguard.NewPrivateKey()
	}
	var mu sync.Mutex
	types := map[uint16]int{}
	var hosts [len(keys)]*netstack.Host
	for i, k := range keys {
		cfg := &wireguard.Config{PrivateKey: k, Logger: logger(), Under: &spied{must(lan.PortWithMAC(k.Public().MAC()))(t), func(f *link.Frame) {
			mu.Lock()
			defer mu.Unlock()
			types[binary.BigEndian.Uint16(f.Data[12:])]++
		}}}
		for j, other := range keys {
			if j != i {
				cfg.Peers = append(cfg.Peers, wireguard.PeerConfig{PublicKey: other.Public()})
			}
		}
		l := must(wireguard.Open(cfg))(t)
		if l.MTU() != 1500-34 {
			t.Errorf("MTU %d", l.MTU())
		}
		hosts[i] = must(netstack.New(l, &netstack.Config{Addrs: []string{netip.PrefixFrom(k.Public().Addr(), 48).String()}}))(t)
		defer func() { _ = hosts[i].Close() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, h := range hosts {
		for j, k := range keys {
			if i == j {
				continue
			}
			if _, err := h.Ping(ctx, k.Public().Addr()); err != nil {
				t.Errorf("from %d to %d: %v", i, j, err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(types) != 1 || types[0x88b6] == 0 {
		t.Errorf("types of the frames: %v", types)
	}
}

// TestPlace: a peer whose frames come from another MAC address, as damage or an attacker on the
// path changes them, still gets its packets at its own.
func TestPlace(t *testing.T) {
	lan := must(pipe.New(&pipe.Config{MTU: 1500}))(t)
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	var elsewhere atomic.Bool
	var hosts [2]*netstack.Host
	for i, k := range keys {
		under := &spied{must(lan.PortWithMAC(k.Public().MAC()))(t), func(f *link.Frame) {
			if i == 1 && elsewhere.Load() {
				f.Data[11] ^= 1
			}
		}}
		l := must(wireguard.Open(&wireguard.Config{PrivateKey: k, Logger: logger(), Under: under,
			Peers: []wireguard.PeerConfig{{PublicKey: keys[1-i].Public()}}}))(t)
		hosts[i] = must(netstack.New(l, &netstack.Config{Addrs: []string{netip.PrefixFrom(k.Public().Addr(), 48).String()}}))(t)
		defer func() { _ = hosts[i].Close() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for n := range 4 {
		elsewhere.Store(n > 0)
		if _, err := hosts[0].Ping(ctx, keys[1].Public().Addr()); err != nil {
			t.Fatalf("ping %d: %v", n, err)
		}
	}
}

// spied shows what is written to a link.
type spied struct {
	link.Link
	show func(*link.Frame)
}

func (s *spied) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		s.show(&frames[i])
	}
	return s.Link.Write(frames)
}

// TestConfigErrors: an error names the field.
func TestConfigErrors(t *testing.T) {
	own, other := wireguard.NewPrivateKey(), wireguard.NewPrivateKey().Public()
	peers := func(p ...wireguard.PeerConfig) wireguard.Config { return wireguard.Config{PrivateKey: own, Peers: p} }
	wide := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	under := peers(wireguard.PeerConfig{PublicKey: other})
	under.Under = new(pipe.Switch).Port()
	long := peers(wireguard.PeerConfig{PublicKey: other})
	long.MTU = 65536
	for want, cfg := range map[string]wireguard.Config{
		"PrivateKey is zero":       {},
		"Peers is empty":           peers(),
		"its PublicKey is zero":    peers(wireguard.PeerConfig{}),
		"key of this node itself":  peers(wireguard.PeerConfig{PublicKey: own.Public()}),
		"two peers with its key":   peers(wireguard.PeerConfig{PublicKey: other}, wireguard.PeerConfig{PublicKey: other}),
		"Keepalive 1.5s":           peers(wireguard.PeerConfig{PublicKey: other, Keepalive: 1500 * time.Millisecond}),
		"AllowedIPs has invalid":   peers(wireguard.PeerConfig{PublicKey: other, AllowedIPs: make([]netip.Prefix, 1)}),
		"peer bob: endpoint \"x\"": peers(wireguard.PeerConfig{Name: "bob", PublicKey: other, Endpoint: "x"}),
		"MTU 65536":                long,
		"field Under has MAC":      under,
		"peer bob have both 10.0.0.0/8": peers(wireguard.PeerConfig{PublicKey: other, AllowedIPs: wide},
			wireguard.PeerConfig{Name: "bob", PublicKey: wireguard.NewPrivateKey().Public(), AllowedIPs: wide}),
	} {
		_, err := wireguard.Open(&cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
