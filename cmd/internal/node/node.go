// Package node is a host with an RDMA device. It is configured by flags that most commands have:
// its link, addresses and routes.
package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/cable"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/link/vlan"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/stack/tlshost"
	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// Flags describe a node. Each command that needs a node embeds them.
type Flags struct {
	Link       LinkSpec `group:"node" default:"pipe" placeholder:"LINK" help:"Ethernet link, or kernel. pipe: inside this process. shm[:NAME]: memory shared with other processes of this user that use the same name (Linux only; elsewhere use stream or kernel). They find each other in $XDG_RUNTIME_DIR/softrnic or, if XDG_RUNTIME_DIR is not set, in /run/softrnic-0 for root, and in softrnic-UID in $TMPDIR or /tmp for others. stream:PATH[,listen]: a unix socket, or tcp:HOST:PORT, to softrnic switch, another node or QEMU's -netdev stream; one side listens. tap:NAME[,bridge=BRIDGE][,offloads=off]: a TAP interface, created if it does not exist and otherwise used unchanged; offloads=off sends one packet per frame. packet:INTERFACE[,mac=interface]: AF_PACKET on an existing interface, with a MAC address of its own or the interface's. TAP and AF_PACKET accept wait=adaptive, event or poll (how an idle receiving thread waits) and queues=N (the number of receiving threads). Each Ethernet link accepts vlan=ID, an 802.1Q VLAN whose priorities are the service levels. kernel[:INTERFACE]: no Ethernet link, but the machine's own UDP and TCP sockets and addresses. It needs no privileges, and has no raw packets and no RoCE v1. Its default INTERFACE is that of the default route, otherwise the first with a global address. Default: pipe."`
	Addr       []CIDR   `group:"node" sep:"none" placeholder:"CIDR" help:"IP address with prefix length, such as 10.0.0.9/24; repeatable. Each address is a GID, from index 1 on; index 0 is the IPv6 link-local address. The same GIDs for RoCE v1 start at index 128. Default for shm: the first free address of 10.83.0.1 to .254, printed to stderr. With --link kernel, it selects addresses of the interface, and the prefix length is optional; default: all of them."`
	Gateway    []IPAddr `group:"node" sep:"none" placeholder:"IP" help:"Default gateway; one each for IPv4 and IPv6. Not with --link kernel."`
	MAC        macAddr  `group:"node" placeholder:"MAC" help:"MAC address of the node. Default: derived from the first --addr, so that neighbours' cache entries stay valid after a restart; without --addr, random. Not with --link kernel."`
	Shared     bool     `group:"node" help:"With --link kernel: share its addresses with other processes of this user, through a hub (softrnic hub --help), which is started if none runs. Without --shared, a node shares its addresses only if a hub already has them. Linux only."`
	Congestion bool     `group:"node" help:"RoCEv2: congestion control by DCQCN. The network may mark packets (ECN), and connections with marked packets slow down. Default: off."`
	ByDelay    bool     `group:"node" name:"congestion-by-delay" help:"RoCEv2: congestion control by the delay of packets, for long paths. It needs no support in the network. Default: off."`
	Window     int      `group:"node" type:"window" placeholder:"BYTES" help:"RoCEv2: maximum bytes in flight of a reliable connection, a power of two from 131072 to 16777216. A long path needs the product of its rate and its round-trip time. Default: 524288."`
	Selective  bool     `group:"node" name:"selective-repeat" help:"RoCEv2: retransmit only lost packets, if the peer is a SoftRNIC with the same flag. Peers recognise each other by reserved bits of the BTH, which are otherwise zero. Default: off; everything from a lost packet on is retransmitted, as in the IBTA specification."`
	LongFPDUs  bool     `group:"node" name:"long-fpdus" help:"iWARP: allow FPDUs longer than a TCP segment, if the links of both nodes segment TCP and the peer is a SoftRNIC with the same flag. Peers recognise each other by reserved bits of MPA frames, which are otherwise zero. Default: off; an FPDU fits into a segment, as in RFC 5044."`
	MPA        mpaSetUp `group:"node" name:"mpa" placeholder:"SET-UP" help:"iWARP: options of the MPA connection setup: no-crc (no CRCs in FPDUs if the peer needs none either), markers (request markers from the peer), revision1 (send requests of RFC 5044, not RFC 6581), client-server (do not request peer-to-peer mode), or several, such as no-crc,markers. Default: none."`
	StrictICRC bool     `group:"node" name:"strict-icrc" help:"RoCEv2 with --link kernel: drop IPv4 packets unless their ICRC matches an IP identification that SoftRNICs send. Sockets do not show the identification. Without this flag, it is therefore computed from the ICRC, as needed for packets of Linux's rxe and of most hardware; icrc_id_solved counts these. icrc_errors counts dropped packets. With or without this flag, these include all packets that have passed a NAT; iWARP works through a NAT (--transport iwarp). Other links see the identification, and are always strict."`
	RxeFlush   bool     `group:"node" name:"rxe-flush" help:"RoCEv2: the peers are Linux's rxe, whose FLUSH has an ICRC that no other device has: send FLUSHes of RC QPs with that ICRC, and accept only those. Peers must be rxes, or SoftRNICs with this flag, to exchange FLUSHes. Default: off; a FLUSH has the ICRC of the IBTA specification, and rxe does not answer it."`
	Counters   bool     `group:"node" help:"Print the node's non-zero counters to stderr when it ends, with the names of Linux's port counters and rxe's hw_counters."`
	Trace      string   `group:"node" type:"path" placeholder:"FILE" help:"Append the events of queue pairs to this file, one JSON object per line: state changes, losses, timeouts, RNR waits, NAKs, start and end of iWARP streams."`
	Secure     string   `group:"node" type:"path" placeholder:"FILE" help:"Encrypt and authenticate everything, by WireGuard: the link is a tunnel to each --peer through this machine's UDP, also through NATs. FILE has this node's private key, of softrnic key, or a configuration in the format of wg(8), with peers; only its owner may read it. The node has the address that softrnic key prints, besides those of --addr. With --link stream, tap or packet, the tunnels are in Ethernet frames there, and peers have no HOST: a switch can relay between nodes behind NATs."`
	Peer       []Peer   `group:"node" placeholder:"[NAME=]KEY[@HOST[:PORT]]" help:"With --secure: a peer's public key, and where it is at first unless it contacts this node; repeatable, or separated by commas. Default PORT: 51820. A peer has the address of its key, and the only peer has all addresses. With HOST, a packet is sent every 25 seconds, so that NATs keep the way back open."`
	SecurePort uint16   `group:"node" name:"secure-port" placeholder:"PORT" help:"With --secure: the UDP port of this node. Default: that of FILE, otherwise 51820 if a peer is given without HOST, and otherwise any free port."`
	// Rate and GUID are those of softrnic run.
	Rate Rate       `kong:"-"`
	GUID verbs.GUID `kong:"-"`
	// The hosts that may reach the node; none: all.
	Allow []Allowed `group:"node" placeholder:"HOST" help:"Let only these hosts reach the node: addresses, networks (CIDR), and names and public keys of peers (with --secure those of --peer, with TLS those of verified certificates: DNS names and SHA-256 hashes of keys); separated by commas, repeatable. Connection requests of other hosts are rejected, their datagrams are dropped, and queue pairs cannot be connected to them. access_denied of --counters counts these. It does not apply to raw packets. Without --secure, senders may forge their addresses; with TLS and a name or key, the certificate of each connection decides. Default: all hosts."`
	// The node is only described: with --link kernel it reserves no address and starts no hub.
	Describe bool `kong:"-"`
	TLSFlags
	LinkFlags
}

// Rate is the rate that a port reports. 0: the default.
type Rate struct {
	Gbps  float64
	Lanes int // 0: chosen to suit Gbps
}

// LinkFlags describe a link, its capture and its log.
type LinkFlags struct {
	MTU     int        `group:"node" name:"mtu" type:"mtu" placeholder:"BYTES" help:"Largest IP packet on the link: 1500 for path MTU 1024, 4200 for 4096. Default: the link's own."`
	Capture string     `group:"node" type:"path" placeholder:"FILE" help:"Write every frame to this pcapng file, for Wireshark or tshark. The file must be new or empty. With --impair, the frames are those on the link: incoming frames are captured before they are impaired. With --link kernel, the file has the RoCE packets that the kernel was given or has delivered, with synthetic Ethernet headers; TCP is not captured."`
	Impair  *Impairing `group:"node" placeholder:"SPEC" help:"Impair the link, for example loss=1%,reorder=0.5%,delay=1ms±200us,seed=7. With --link kernel, only RoCE packets are impaired."`
	Fault   *Faulting  `group:"node" env:"SOFTRNIC_FAULT" placeholder:"RULES" help:"Make the device fail on purpose: rules separated by semicolons, such as reg_mr=ENOMEM or wc:nth=100=RETRY_EXC_ERR. softrnic fault changes them, and its help describes them. With none, nothing fails until then."`
	Log     slog.Level `group:"node" name:"log-level" default:"warn" placeholder:"LEVEL" help:"Log messages of at least this level to stderr: debug, info, warn or error. Default: warn."`
}

// Host is the network stack of a node.
type Host interface {
	stack.Network
	Close() error
}

// Node is a host with an RDMA device.
type Node struct {
	Host     Host
	Dev      *verbs.Device
	Segment  *shm.Link       // the segment of --link shm, or nil
	Tunnel   *wireguard.Link // the link of --secure, or nil
	TLS      *tlshost.Host   // the host of --tls, or nil
	captured *capture.Link   // nil without --capture
	Wire     *countedLink    // nil unless Env.Counted
	// Impairment is that of the link; nil without --impair.
	Impairment *Impairment
	Faults     *Faults
	cable      *cable.Link  // nil without --fault
	counters   io.Writer    // nil without --counters
	trace      *os.File     // nil without --trace
	traced     *cli.Checked // the writer to trace
	Log        *slog.Logger

	logRemoved sync.Once
	chosen     netip.Prefix   // the address chosen without --addr
	own        []netip.Prefix // addresses of --secure
	medium     string         // LinkSpec.Medium
	why        string         // the reason for the choice of the interface; "": it was given
	strict     bool           // --strict-icrc
	allow      func(netip.Addr) bool
	networks   []netip.Prefix
}

// RunNode opens a node, calls do with it, and closes it. If the node's interface is removed, do's
// context ends and RunNode returns an error that says so.
func (f *Flags) RunNode(ctx context.Context, e *cli.Env, do func(context.Context, *Node) error) (err error) {
	n, err := f.Open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	working, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { n.watch(working, cancel) })
	if n.mayHaveNAT() && f.Impair == nil { // --impair corrupts packets on purpose
		watching.Go(func() { (&natDetector{n: n}).watch(working) })
	}
	defer func() {
		cancel()
		watching.Wait() // all events are logged
	}()
	if n.removed() != nil { // it may have been removed before watch began
		cancel()
	}
	err = do(working, n)
	if err != nil || working.Err() != nil && ctx.Err() == nil {
		if removed := n.removed(); removed != nil { // the cause of other errors
			return removed
		}
	}
	if err != nil {
		n.warnNothingReceived(ctx.Err() != nil)
	}
	return err
}

// RunNodeForPeer is RunNode for a command whose peer is another program.
func (f *Flags) RunNodeForPeer(ctx context.Context, e *cli.Env, do func(context.Context, *Node) error) error {
	if f.Medium() == "pipe" && e.LAN == nil {
		return cli.Usagef("this needs a peer, and a pipe is within one process: use --link kernel, shm, stream:PATH, tap:NAME " +
			"or packet:INTERFACE")
	}
	return f.RunNode(ctx, e, do)
}

// watch logs events of the node's port. It calls end when the link is removed.
func (n *Node) watch(ctx context.Context, end func()) {
	for {
		e, err := n.Dev.GetAsyncEvent(ctx)
		switch {
		case err != nil:
			return
		case e.Type == verbs.EventDeviceFatal:
			if n.removed() != nil { // else the node is being closed
				end()
			}
			return
		case e.Type == verbs.EventPortErr:
			n.Log.Warn("the port is down", "event", e.Type, "link", n.Name(), "state", n.Host.NICs()[0].State())
		case e.Type == verbs.EventPortActive:
			n.Log.Info("the port is up", "event", e.Type, "link", n.Name())
		}
	}
}

// removed returns an error if the node's interface was removed, and else nil. It logs the error
// once.
func (n *Node) removed() error {
	if n.Host.NICs()[0].State() != stack.LinkRemoved {
		return nil
	}
	n.logRemoved.Do(func() { n.Log.Error("the interface was removed", "link", n.Name()) })
	return fmt.Errorf("link %s: the interface was removed", n.Name())
}

// Name returns the link's name.
func (n *Node) Name() string { return n.Host.NICs()[0].Name() }

// Why returns the reason for the choice of the node's interface, or "" if the interface was given.
func (n *Node) Why() string { return n.why }

// Addrs returns the node's addresses.
func (n *Node) Addrs() []netip.Addr {
	// The GID table may have holes, and index 0 may repeat the next address.
	return slices.Compact(slices.DeleteFunc(n.Host.NICs()[0].GIDs(), func(a netip.Addr) bool { return !a.IsValid() }))
}

// Open opens the node's link, stack and device.
func (f *Flags) Open(e *cli.Env) (*Node, error) {
	log := e.Log(f.Log)
	if err := f.Check(); err != nil {
		return nil, err
	}
	n := &Node{Log: log, medium: f.Medium(), strict: f.StrictICRC}
	open := f.openNetstack
	if f.Medium() == "kernel" {
		open = f.openKernel
	}
	err := open(e, n)
	if err == nil {
		err = f.openTLS(n)
	}
	if err != nil {
		return nil, err
	}
	cfg := roce.Config{SelectiveRepeat: f.Selective, StrictICRC: f.StrictICRC, RxeFlush: f.RxeFlush, Window: f.Window}
	if f.Congestion {
		cfg.DCQCN = &roce.DCQCN{}
	}
	if f.ByDelay {
		cfg.ByDelay = &roce.ByDelay{}
	}
	mpa := f.MPA.Config
	mpa.LongFPDUs = f.LongFPDUs
	device := &rdmatransport.Config{RoCE: cfg, IWARP: mpa, Rate: rdmatransport.Rate(f.Rate), GUID: f.GUID, Identify: n.identify}
	if n.allow, err = f.allow(n); err != nil {
		return nil, errors.Join(err, n.Host.Close())
	}
	device.Allow = n.allow
	if f.Trace != "" {
		if n.trace, err = os.OpenFile(f.Trace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666); err != nil {
			return nil, errors.Join(fmt.Errorf("--trace: %w", err), n.Host.Close())
		}
		n.traced = cli.NewChecked(n.trace)
		device.Trace = n.tracer()
	}
	if n.Dev, err = rdmatransport.Open(n.Host, device); err != nil {
		err = errors.Join(err, n.Host.Close())
		if n.trace != nil {
			err = errors.Join(err, n.trace.Close())
		}
		return nil, err
	}
	n.Faults = &Faults{dev: n.Dev, host: n.Host, cable: n.cable, trace: device.Trace}
	if f.Fault != nil {
		if err := n.Faults.Add(f.Fault.text); err != nil {
			return nil, errors.Join(fmt.Errorf("--fault: %w", err), n.Close())
		}
	}
	nic := n.Host.NICs()[0]
	log.Debug("node is up", "device", n.Dev.Name(), "link", nic.Name(), "mac", nic.MAC().String(), "mtu", nic.MTU(), "gids", n.Addrs())
	f.warnKernelAddr(log)
	if f.Counters {
		n.counters = e.Stderr
	}
	return n, nil
}

// Check returns an error if flags contradict each other.
func (f *Flags) Check() error {
	if err := cmp.Or(f.checkSecure(), f.checkTLS()); err != nil {
		return err
	}
	kernel := f.Medium() == "kernel"
	switch {
	case f.MAC != nil && f.Link.interfaceMAC:
		return cli.Usagef("--mac %v: --link has mac=interface: use only one of them", net.HardwareAddr(f.MAC))
	case f.Shared && !kernel:
		return cli.Usagef("--shared: only --link kernel can share addresses: leave it out")
	case kernel && f.MAC != nil:
		return cli.Usagef("--mac %v: with --link kernel, the node has the interface's MAC address: leave it out", net.HardwareAddr(f.MAC))
	case kernel && len(f.Gateway) > 0:
		return cli.Usagef("--gateway %v: with --link kernel, the machine's own routes are used: leave it out", f.Gateway[0])
	}
	for _, a := range f.Addr {
		if !kernel && !a.IsValid() {
			return cli.Usagef("--addr: %w", noPrefix(a.Addr().String()))
		}
	}
	return nil
}

// openNetstack sets n.Host to a host of package netstack on a link.
func (f *Flags) openNetstack(e *cli.Env, n *Node) error {
	l, err := f.openLink(e, n)
	if err != nil {
		return err
	}
	cfg := &netstack.Config{Logger: n.Log}
	for _, a := range f.Addr {
		n.networks = append(n.networks, a.Prefix)
	}
	n.networks = append(n.networks, n.own...)
	if n.chosen.IsValid() {
		n.networks = append(n.networks, n.chosen)
	}
	for _, p := range n.networks {
		cfg.Addrs = append(cfg.Addrs, p.String())
	}
	for _, gw := range f.Gateway {
		cfg.Gateways = append(cfg.Gateways, gw.String())
	}
	host, err := netstack.New(l, cfg) // owns l now
	if err != nil {
		return err
	}
	n.Host = host
	return nil
}

// tracer returns a sink that writes events to the node's file. Each event is one write, so that
// several nodes may share a file.
func (n *Node) tracer() trace.Sink {
	h := slog.NewJSONHandler(n.traced, &slog.HandlerOptions{Level: slog.LevelDebug})
	return trace.Logger(slog.New(h).With("node", n.Host.NICs()[0].MAC().String()))
}

// openLink opens the medium of n and wraps it. The wrappers that count and capture packets are next
// to the medium, so that they see VLAN tags.
func (f *Flags) openLink(e *cli.Env, n *Node) (link.Link, error) {
	mac := net.HardwareAddr(f.MAC)
	if mac == nil && f.Link.Medium != "pipe" && !f.Link.interfaceMAC && len(f.Addr) > 0 {
		mac = macFor(f.Addr[0].Addr())
	}
	var l link.Link
	var err error
	switch f.Medium() {
	case "shm":
		l, err = f.openShm(e, n, mac)
	case secureMedium:
		l, err = f.openTunnel(n)
	default:
		l, err = f.Link.open(e.LAN, mac, f.MTU)
	}
	if err != nil {
		return nil, err
	}
	if f.MTU != 0 && l.MTU() != f.MTU {
		return nil, errors.Join(fmt.Errorf("--mtu %d: %s has MTU %d: set it there, or leave --mtu out", f.MTU, l.Name(), l.MTU()),
			l.Close())
	}
	if l, err = f.wrap(e, n, l); err != nil {
		return nil, err
	}
	if f.Link.vlan != 0 {
		tagged, err := vlan.New(l, f.Link.vlan)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--link: %w", err), l.Close())
		}
		l = tagged
	}
	return l, nil
}

// wrap adds the counting, capturing, impairing and failing wrappers that the flags ask for. If
// that fails, it closes the link.
func (f *Flags) wrap(e *cli.Env, n *Node, l link.Link) (_ link.Link, err error) {
	if e.Counted {
		n.Wire = newCountedLink(l)
		l = n.Wire
	}
	if f.Capture != "" {
		if n.captured, err = capture.Create(l, f.Capture); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l = n.captured
	}
	if f.Impair != nil {
		impaired, err := impair.New(l, &f.Impair.Config)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--impair: %w", err), l.Close())
		}
		n.Impairment = &Impairment{link: impaired, spec: f.Impair.text}
		l = impaired
	}
	if f.Fault != nil {
		n.cable = cable.New(l)
		l = n.cable
	}
	return l, nil
}

// macFor returns a locally administered MAC address for the node with IP address a. Neighbours
// cache the MAC address of the last node with that IP address for minutes. They could not reach a
// node with another MAC address until then.
func macFor(a netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(a.AsSlice())
	sum[0] = sum[0]&^1 | 2
	return sum[:6]
}

// shutdownTimeout is how long a node waits for its peers to acknowledge the end of connections when
// it shuts down. More than two seconds pass only while there is no hub. Most hubs start within the
// timeout.
const shutdownTimeout = 10 * time.Second

// Close closes the node. It disconnects open connections. Other objects of the device must already
// be closed.
func (n *Node) Close() error {
	n.Log.Debug("node goes down")
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := n.Dev.Shutdown(ctx); err != nil {
		n.Log.Warn("some peers do not know that the node goes down", "error", err)
	}
	var counted error
	if n.counters != nil {
		counted = n.printCounters()
	}
	err := errors.Join(counted, n.Faults.AppendSites(), n.Dev.Close(), n.Host.Close())
	if n.captured != nil {
		err = errors.Join(err, n.captured.Err())
	}
	if n.trace != nil {
		err = errors.Join(err, n.TraceErr(), n.trace.Close())
	}
	return err
}

// TraceErr returns the first error of writing to --trace. It is called after the device's last
// event.
func (n *Node) TraceErr() error {
	if n.trace == nil || n.traced.Err() == nil {
		return nil
	}
	return fmt.Errorf("--trace: %w", n.traced.Err())
}

// FlushCapture writes buffered packets to the capture, and returns its first error.
func (n *Node) FlushCapture() error {
	if n.captured == nil {
		return nil
	}
	return n.captured.Flush()
}

// printCounters prints the nonzero counters in one write.
func (n *Node) printCounters() error {
	counters, err := n.Dev.HWCounters()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "Counters of %s (%v):\n", n.Dev.Name(), n.Addrs())
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if v := counters[name]; v != 0 {
			fmt.Fprintf(&b, "  %-26s %d\n", name, v)
		}
	}
	if n.TLS != nil && n.TLS.Refused() != 0 {
		fmt.Fprintf(&b, "  %-26s %d\n", "tls_refused", n.TLS.Refused())
	}
	if _, err := n.counters.Write(b.Bytes()); err != nil {
		return fmt.Errorf("--counters: %w", err)
	}
	return nil
}

// Resolve returns the address of a server, given as an IP address or a name that this machine
// resolves. If the name has several addresses, Resolve returns the first whose family the node has.
func (n *Node) Resolve(ctx context.Context, server string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(server); err == nil {
		return a.Unmap(), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("server %q: no IP address, and no name that can be looked up: %w", server, err)
	}
	for _, a := range addrs {
		if _, err := n.GID(1, a.Unmap()); err == nil {
			return a.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("server %q is %v, and the node has no address of that family: add one with --addr", server, addrs)
}

// GID returns the first entry of the port's GID table that suits a peer at to: it has the same
// family, and is link-local if and only if to is. If to is invalid, GID returns the entry of the
// first --addr.
func (n *Node) GID(port uint8, to netip.Addr) (verbs.GIDEntry, error) {
	table, err := n.Dev.GIDTable(port)
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	i := slices.IndexFunc(table, func(g verbs.GIDEntry) bool {
		a := g.GID.Addr()
		if !to.IsValid() {
			return !a.IsLinkLocalUnicast()
		}
		return a.Is4() == to.Is4() && a.IsLinkLocalUnicast() == to.IsLinkLocalUnicast()
	})
	switch {
	case i >= 0:
		return table[i], nil
	case !to.IsValid():
		return table[0], nil // there is only the link-local address
	}
	return verbs.GIDEntry{}, fmt.Errorf("the node has no address of the family of %v: add one with --addr", to)
}

// CIDR, IPAddr, macAddr, Impairing and mpaSetUp are values of flags. Their UnmarshalText methods
// explain errors in a value. A CIDR without a prefix length is an invalid Prefix with an Addr.
type (
	CIDR      struct{ netip.Prefix }
	IPAddr    struct{ netip.Addr }
	macAddr   net.HardwareAddr
	Impairing struct {
		impair.Config
		text string
	}
	mpaSetUp struct{ iwarp.Config }
)

func (m *mpaSetUp) UnmarshalText(text []byte) error {
	for word := range strings.SplitSeq(string(text), ",") {
		switch word {
		case "no-crc":
			m.NoCRC = true
		case "markers":
			m.Markers = true
		case "revision1":
			m.Revision = 1
		case "client-server":
			m.NoPeerToPeer = true
		default:
			return fmt.Errorf("%q is not a set-up of MPA: must be no-crc, markers, revision1, client-server, or several, separated by "+
				"commas",
				word)
		}
	}
	return nil
}

func (c *CIDR) UnmarshalText(text []byte) (err error) {
	if a, err := netip.ParseAddr(string(text)); err == nil {
		c.Prefix = netip.PrefixFrom(a, -1)
		return nil
	}
	if c.Prefix, err = netip.ParsePrefix(string(text)); err != nil {
		return noPrefix(string(text))
	}
	return nil
}

func noPrefix(text string) error {
	return fmt.Errorf("%q is not an address with a prefix length: must be like 10.0.0.9/24 or fd00::9/64", text)
}

func (a *IPAddr) UnmarshalText(text []byte) (err error) {
	if a.Addr, err = netip.ParseAddr(string(text)); err != nil {
		return fmt.Errorf("%q is not an IP address: must be like 10.0.0.254 or fd00::1", text)
	}
	return nil
}

func (m *macAddr) UnmarshalText(text []byte) error {
	a, err := net.ParseMAC(string(text))
	if err != nil || len(a) != 6 || a[0]&1 != 0 {
		return fmt.Errorf("%q is not an Ethernet address of a host: must be like 02:00:00:00:00:09", text)
	}
	*m = macAddr(a)
	return nil
}

func (i *Impairing) UnmarshalText(text []byte) (err error) {
	i.text = string(text)
	i.Config, err = impair.Parse(i.text)
	return err
}
