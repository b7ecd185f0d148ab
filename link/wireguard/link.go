// Package wireguard is a link through encrypted and authenticated tunnels: WireGuard in user space
// (https://www.wireguard.com/protocol/). It needs no privileges and no TUN interface, only UDP
// between the machines, also through NATs. Peers are other programs with this package, or any
// WireGuard, such as Linux's.
//
// Nodes know each other by their public keys. Nothing arrives that a peer with its private key has
// not sent, and no peer can send with the address of another one. A node has an address made from
// its key, [PublicKey.Addr], and any others that its peers allow it.
//
// A tunnel carries IP packets. The link answers ARP and neighbour solicitations itself, for the
// addresses of peers. Other frames, such as those of RoCE v1, go nowhere. Packets to a multicast
// group go to the peer that has the group's address among its own, such as one that is the only
// peer and has all addresses. Packets to a group of the link's scope (224.0.0.0/24, ff02::/16) go
// nowhere.
package wireguard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/idle"
)

// Link is one node's end of its tunnels to all of its peers.
type Link struct {
	name   string
	key    PublicKey
	mac    [6]byte
	mtu    int
	port   uint16
	peers  []*peer
	routes *routes
	log    *slog.Logger
	under  link.Link // Config.Under

	dev     *device.Device
	out     *outbox
	in      *backlog
	events  chan tun.Event
	answers chan []byte
	recv    atomic.Pointer[link.Receiver]
	dropped atomic.Uint64
	yielder idle.Yielder
	sockets bool // of this machine carry the encrypted packets

	done      chan struct{} // closed by Close
	answering sync.WaitGroup
	closing   sync.Once
	attached  atomic.Bool
}

var (
	_ link.Link   = (*Link)(nil)
	_ link.Poller = (*Link)(nil)
)

// peer is a peer and what the link derives from its configuration.
type peer struct {
	PeerConfig
	mac      [6]byte
	allowed  []netip.Prefix
	endpoint netip.AddrPort // invalid: none
	// The device's peer has finalizers that receive from channels. In a bubble of testing/synctest
	// they must not run, so tests keep the link.
	ofDevice *device.Peer
}

// lookupTimeout bounds the time in which the name of an endpoint is looked up.
const lookupTimeout = 10 * time.Second

// Open opens the link's UDP port, unless cfg has another way for packets. An error names the field
// whose value is out of bounds.
func Open(cfg *Config) (*Link, error) {
	l, err := open(cfg)
	if err != nil {
		if cfg.Under != nil {
			_ = cfg.Under.Close()
		}
		return nil, fmt.Errorf("wireguard: %w", err)
	}
	return l, nil
}

func open(cfg *Config) (*Link, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Link{key: cfg.PrivateKey.Public(), log: cfg.Logger, events: make(chan tun.Event), answers: make(chan []byte, maxAnswers),
		done: make(chan struct{})}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.name = "wireguard:" + l.key.String()[:8]
	copy(l.mac[:], l.key.MAC())
	var endpoints []netip.AddrPort
	for i := range cfg.Peers {
		p := &peer{PeerConfig: cfg.Peers[i], allowed: cfg.allowed(&cfg.Peers[i])}
		copy(p.mac[:], p.PublicKey.MAC())
		if p.Endpoint != "" {
			var err error
			if p.endpoint, err = lookup(p.Endpoint); err != nil {
				return nil, fmt.Errorf("%s: %w", p.title(), err)
			}
			endpoints = append(endpoints, p.endpoint)
		}
		l.peers = append(l.peers, p)
	}
	var err error
	if l.routes, err = newRoutes(l.peers); err != nil {
		return nil, err
	}
	l.mtu = cfg.mtu(endpoints)
	under := cfg.Bind
	if cfg.Under != nil {
		under, l.under = newFrameBind(cfg.Under), cfg.Under
	}
	if under == nil {
		under, l.sockets = newSockets(len(l.peers)), true
	}
	l.out, l.in = newOutbox(l.name, l.mtu), newBacklog()
	log := l.logger()
	failed := func(err error) { log.Errorf("cannot receive: %v", err) }
	l.dev = device.NewDevice((*tunnelEnd)(l), &bind{under, l.out, l.in, failed}, log)
	if err := l.configure(cfg); err != nil {
		_ = l.Close()
		return nil, err
	}
	l.log.Debug("tunnel is open", "link", l.name, "key", l.key.String(), "port", l.port, "mtu", l.mtu, "peers", len(l.peers))
	return l, nil
}

// lookup returns the address of an endpoint. IPv4 is preferred, as more networks have it.
func lookup(endpoint string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(endpoint); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
	}
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	best := addrs[0].Unmap()
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() && !best.Is4() {
			best = a
		}
	}
	return netip.AddrPortFrom(best, uint16(port)), nil
}

// configure gives the device its keys and peers, and starts it.
func (l *Link) configure(cfg *Config) error {
	if err := l.dev.SetPrivateKey(device.NoisePrivateKey(cfg.PrivateKey)); err != nil {
		return err
	}
	var b strings.Builder
	port := cfg.port()
	fmt.Fprintf(&b, "listen_port=%d\n", port)
	if cfg.Mark != 0 {
		fmt.Fprintf(&b, "fwmark=%d\n", cfg.Mark)
	}
	for _, p := range l.peers {
		fmt.Fprintf(&b, "public_key=%x\n", p.PublicKey[:])
		if p.PresharedKey != (SecretKey{}) {
			fmt.Fprintf(&b, "preshared_key=%s\n", hex.EncodeToString(p.PresharedKey[:]))
		}
		switch {
		case p.endpoint.IsValid():
			fmt.Fprintf(&b, "endpoint=%v\n", p.endpoint)
		case cfg.Under != nil:
			fmt.Fprintf(&b, "endpoint=%v\n", p.PublicKey.MAC())
		}
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", p.Keepalive/time.Second)
		for _, a := range p.allowed {
			fmt.Fprintf(&b, "allowed_ip=%v\n", a)
		}
	}
	if err := l.dev.IpcSet(b.String()); err != nil {
		return err
	}
	if cfg.Under != nil {
		// A peer does not move there: its place is its key's MAC address. Otherwise the device
		// would send to any address from which a packet of the peer seems to come.
		l.dev.DisableSomeRoamingForBrokenMobileSemantics()
	}
	for _, p := range l.peers {
		p.ofDevice = l.dev.LookupPeer(device.NoisePublicKey(p.PublicKey))
	}
	if err := l.dev.Up(); err != nil {
		return fmt.Errorf("UDP port %d: %w", port, err)
	}
	text, err := l.dev.IpcGet()
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "listen_port="); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 16)
			l.port = uint16(n)
		}
	}
	return nil
}

// Name is "wireguard:" and the beginning of the node's public key.
func (l *Link) Name() string { return l.name }

// PublicKey is the node's own key.
func (l *Link) PublicKey() PublicKey { return l.key }

// Port is the UDP port that the link listens on.
func (l *Link) Port() uint16 { return l.port }

// MAC is that of the node's public key.
func (l *Link) MAC() net.HardwareAddr { return net.HardwareAddr(l.mac[:]) }

// MTU is the largest IP packet within the tunnel.
func (l *Link) MTU() int { return l.mtu }

// Offloads are all offloads: superframes are cut when they are encrypted.
func (l *Link) Offloads() link.Offloads { return offloads }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// Dropped returns the number of frames that were for no peer, or no IP packets.
func (l *Link) Dropped() uint64 { return l.dropped.Load() }

// Attach implements link.Link. recv is called concurrently for packets of different peers.
func (l *Link) Attach(recv link.Receiver) {
	if l.attached.Swap(true) {
		panic(l.name + ": Attach called twice: a link serves one host")
	}
	l.recv.Store(&recv)
	l.answering.Add(1)
	go l.passAnswers()
}

// Poll implements link.Poller. It receives nothing, since WireGuard has goroutines for that. They
// may need the processor.
func (l *Link) Poll() bool {
	runtime.Gosched()
	if l.sockets {
		l.yielder.EmptyPoll()
	}
	return false
}

// EndPoll implements link.Poller. It does nothing.
func (l *Link) EndPoll() {}

// Write implements link.Link. If the tunnel is slower than the writers, it waits.
func (l *Link) Write(frames []link.Frame) (int, error) {
	first := 0 // of the frames that are for a peer and not yet passed on
	for i := range frames {
		err := frames[i].Validate(l.mtu, offloads)
		to := tunnel
		if err == nil {
			to = l.classify(&frames[i])
		}
		if err == nil && to == tunnel {
			continue
		}
		if closed := l.out.write(frames[first:i]); closed != nil {
			return first, closed
		}
		if err != nil {
			return i, fmt.Errorf("%s: %w", l.name, err)
		}
		if to == nobody {
			l.dropped.Add(1)
		}
		first = i + 1
	}
	if err := l.out.write(frames[first:]); err != nil {
		return first, err
	}
	return len(frames), nil
}

// The last packets of a host, which end its connections, have lastPackets to leave. They are looked
// for each lookForPackets.
const (
	lastPackets    = 250 * time.Millisecond
	lookForPackets = time.Millisecond
)

// Close implements link.Link. It waits for the packets that are about to be sent.
func (l *Link) Close() error {
	l.closing.Do(func() {
		for waited := time.Duration(0); waited < lastPackets && l.attached.Load() && !l.out.drained(); waited += lookForPackets {
			time.Sleep(lookForPackets)
		}
		close(l.done)
		l.dev.Close()
	})
	l.answering.Wait()
	<-l.dev.Wait()
	l.yielder.Close()
	if l.under != nil {
		return l.under.Close()
	}
	return nil
}

// tunnelEnd is the link as WireGuard's device sees it.
type tunnelEnd Link

var _ tun.Device = (*tunnelEnd)(nil)

func (t *tunnelEnd) File() *os.File           { return nil }
func (t *tunnelEnd) MTU() (int, error)        { return t.mtu, nil }
func (t *tunnelEnd) Name() (string, error)    { return t.name, nil }
func (t *tunnelEnd) Events() <-chan tun.Event { return t.events }
func (t *tunnelEnd) BatchSize() int           { return batchFrames }

// Read implements tun.Device.
func (t *tunnelEnd) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	return t.out.read(bufs, sizes, offset)
}

// Write implements tun.Device.
func (t *tunnelEnd) Write(bufs [][]byte, offset int) (int, error) {
	if offset < link.EthernetHeaderLen {
		return 0, errors.New("no room for an Ethernet header")
	}
	t.in.pass(len(bufs), func() { (*Link)(t).receive(bufs, offset) })
	if t.out.pending() {
		// Acknowledgements leave before the next batch is handled, so that the peer works meanwhile.
		runtime.Gosched()
	}
	return len(bufs), nil
}

// Close implements tun.Device. The device calls it once.
func (t *tunnelEnd) Close() error {
	t.out.close()
	t.in.close()
	close(t.events)
	return nil
}

// logger returns the log of WireGuard's device. Errors that repeat, such as those of each packet
// when there is no route, are logged once in a second.
func (l *Link) logger() *device.Logger {
	var last, lastHint atomic.Int64
	once := func(last *atomic.Int64, format string, args []any) {
		now, before := time.Now().UnixNano(), last.Load()
		if now-before >= int64(time.Second) && last.CompareAndSwap(before, now) {
			l.log.Warn("wireguard: "+fmt.Sprintf(format, args...), "link", l.name)
		}
	}
	return &device.Logger{
		Verbosef: func(format string, args ...any) {
			if hint(format) {
				once(&lastHint, format, args)
			} else if l.log.Enabled(context.Background(), slog.LevelDebug) {
				l.log.Debug("wireguard: "+fmt.Sprintf(format, args...), "link", l.name)
			}
		},
		Errorf: func(format string, args ...any) { once(&last, format, args) },
	}
}

// hint reports whether a message may be all that a user sees of a wrong key or a wrong address.
func hint(format string) bool {
	return strings.HasPrefix(format, "Received invalid initiation message") || strings.Contains(format, "Handshake did not complete")
}
