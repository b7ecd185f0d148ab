package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

// Host is a [stack.Network] with one interface: the machine, or the part of it that has some of its
// addresses.
type Host struct {
	nic  *nic
	why  string        // reason for the choice of the interface
	done chan struct{} // closed by Close

	mu     sync.Mutex
	open   map[aborter]struct{} // streams and listeners
	closed bool
}

var _ stack.Network = (*Host)(nil)

// aborter is closed when the host is.
type aborter interface{ Abort() }

// Config configures a host. The zero Config is a host with all addresses of the default interface.
type Config struct {
	// Interface is the interface's name, for example "eth0". "" means the interface that has the first
	// of Addrs. Without Addrs, it means the first of these that is up: the interface of the default
	// route, one with a global address, one with a link-local address, the loopback. See [Host.Why].
	Interface string
	// Addrs are addresses of the interface, for example "10.0.0.1" or "2001:db8::1". None means all
	// addresses. On the loopback interface any address of 127.0.0.0/8 is valid.
	Addrs []string
	// Sharing, if not nil, shares the host's addresses with other processes.
	Sharing *Sharing
	// Unopened opens no sockets. The host has the interface's addresses, but neither sends nor
	// receives. It does not conflict with other users of the addresses. Unopened excludes Sharing.
	Unopened bool
	// Logger is the log; nil discards it.
	Logger *slog.Logger
}

// config is a Config that has been checked.
type config struct {
	name    string
	addrs   []netip.Addr
	sharing *Sharing // nil: the host does not share its addresses
	closed  bool     // Unopened
	log     *slog.Logger
}

func (cfg *Config) check() (*config, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	c := &config{name: cfg.Interface, sharing: cfg.Sharing, closed: cfg.Unopened, log: cfg.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.closed && c.sharing != nil {
		return nil, errors.New("fields Unopened and Sharing: only one is allowed")
	}
	for i, s := range cfg.Addrs {
		a, err := netip.ParseAddr(s)
		if err != nil || !isHostAddr(a.Unmap()) {
			return nil, fmt.Errorf("field Addrs[%d] %q: want an IP address of this machine, such as 10.0.0.1", i, s)
		}
		c.addrs = append(c.addrs, a.Unmap().WithZone(""))
	}
	return c, nil
}

// New opens the sockets for RoCE packets, UDP port 4791 of each address. The error wraps EADDRINUSE
// if a port is in use, EADDRNOTAVAIL if the machine does not have an address, and EMSGSIZE if the
// interface's MTU is less than [link.MinMTU]. With nil, cfg is the zero Config.
func New(cfg *Config) (*Host, error) {
	c, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	iface, prefixes, why, err := c.find()
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	if iface.MTU < link.MinMTU {
		return nil, fmt.Errorf("kernel: %s has MTU %d, too small for RoCE and IPv6: ip link set dev %s mtu %d, or more: %w",
			iface.Name, iface.MTU, iface.Name, link.MinMTU, syscall.EMSGSIZE)
	}
	h := &Host{why: why, done: make(chan struct{}), open: map[aborter]struct{}{}}
	h.nic, err = newNIC(iface, prefixes, c)
	system := hub.SystemDirectory()
	if errors.Is(err, syscall.EADDRINUSE) && c.sharing != nil && c.sharing.Directory == "" && hub.Running(system) {
		of := *c.sharing
		of.Directory, c.sharing = system, &of
		h.nic, err = newNIC(iface, prefixes, c)
	}
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	return h, nil
}

// choose returns the selected addresses among those of an interface.
func (c *config) choose(have []netip.Prefix) (chosen []netip.Prefix, err error) {
	if len(c.addrs) == 0 {
		if len(have) == 0 {
			return nil, fmt.Errorf("the interface has no address: %w", syscall.EADDRNOTAVAIL)
		}
		return have, nil
	}
	for _, a := range c.addrs {
		p := owns(have, a)
		if !p.IsValid() {
			return nil, fmt.Errorf("%v is not one of its addresses, which are %v: %w", a, have, syscall.EADDRNOTAVAIL)
		}
		if !slices.Contains(chosen, p) {
			chosen = append(chosen, p)
		}
	}
	return chosen, nil
}

// owns returns an address with its prefix length, if it is among an interface's addresses.
// Otherwise it returns the zero Prefix.
func owns(have []netip.Prefix, a netip.Addr) netip.Prefix {
	for _, p := range have {
		if p.Addr() == a || a.IsLoopback() && a.Is4() && p.Addr().IsLoopback() && p.Contains(a) {
			return netip.PrefixFrom(a, p.Bits())
		}
	}
	return netip.Prefix{}
}

func prefixesOf(iface *net.Interface) (have []netip.Prefix, err error) {
	addrs, err := iface.Addrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ok && isHostAddr(ip) {
			bits, _ := n.Mask.Size()
			have = append(have, netip.PrefixFrom(ip, bits))
		}
	}
	return have, nil
}

// Why returns the reason for the choice of the interface in a few words, for example "of the
// default route".
func (h *Host) Why() string { return h.why }

// NICs implements [stack.Network].
func (h *Host) NICs() []stack.NIC { return []stack.NIC{h.nic} }

// Close ends every connection and closes the sockets. A datagram receiver must not call it.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	open := h.open
	h.open = nil
	close(h.done)
	h.mu.Unlock()
	h.nic.setRemoved()
	for a := range open {
		a.Abort()
	}
	h.nic.close()
	h.nic.yielder.Close()
	return nil
}

// track registers a stream or listener that ends with the host. It returns false if the host is
// closed.
func (h *Host) track(a aborter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.open[a] = struct{}{}
	return true
}

func (h *Host) untrack(a aborter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, a)
}

// pause waits briefly before a retry. It returns false if the channel over is closed, or the host.
func (h *Host) pause(over <-chan struct{}) bool {
	select {
	case <-time.After(10 * time.Millisecond):
		return true
	case <-over:
	case <-h.done:
	}
	return false
}
