package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// MaxDatagram is the most bytes that a datagram has with its header, which is 8 bytes for IPv4 and 24 for IPv6. A path MTU below 2048
// is a lower limit.
const MaxDatagram = 2048

const grhLen = 40 // a UD QP places as much before each datagram

// PacketConn is a datagram socket over a UD QP (rsocket(7), SOCK_DGRAM). Its name is the address of an ordinary UDP socket, by
// which it and its peers tell each other their QPs. A first datagram to a peer goes that way too. Datagrams may be lost, repeated or overtaken by
// others, and their source is as easily made up as that of UDP. Its methods may be called by several goroutines.
type PacketConn struct {
	cfg   Config
	dev   *verbs.Device
	sock  net.PacketConn
	local netip.AddrPort
	port  uint8 // of the device
	max   int   // bytes of a datagram with its header
	pd    *verbs.PD
	ch    *verbs.CompChannel
	cq    *verbs.CQ
	qp    *verbs.QP
	mr    *verbs.MR
	buf   []byte // slots of what is received, then of what is sent
	slots int    // of what is received

	mu       sync.Mutex
	readable sync.Cond
	writable sync.Cond
	arrived  []arrival // a ring, count of them from first on
	first    int
	count    int
	sends    []int        // offsets of slots that are free
	sge      [1]verbs.SGE // of the request that is being posted, which would be allocated elsewhere
	peers    peers
	onReady  readyHook
	readBy   deadline
	writeBy  deadline
	closed   bool
	err      error // why nothing arrives any more

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
}

var _ net.PacketConn = (*PacketConn)(nil)

// arrival is a datagram that nobody has read yet.
type arrival struct {
	from netip.AddrPort
	data []byte
	slot int // its slot, or −1 if it came by UDP
}

// NewPacketConn makes a datagram socket of a UDP socket of the device's host, such as one of netstack.Host.ListenPacket, or for
// package kernel of net.ListenUDP. The PacketConn uses it up, and closes it, also if there is an error. There are no datagrams over iWARP.
//
// Config.RecvBuffer and SendBuffer have a slot of 2 KiB for each datagram that waits to be read or is being sent; what arrives when all
// are taken is lost.
func NewPacketConn(dev *verbs.Device, sock net.PacketConn, cfg *Config) (*PacketConn, error) {
	c := &PacketConn{cfg: cfg.WithDefaults(), dev: dev, sock: sock}
	c.readable.L, c.writable.L = &c.mu, &c.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Addr: sock.LocalAddr(), Err: errors.Join(err, c.release())}
	}
	c.goroutines.Go(c.listen)
	c.goroutines.Go(func() {
		c.fail(completions(c.ctx, c.ch, c.cq, c.completed))
	})
	return c, nil
}

// open makes the QP and what belongs to it.
func (c *PacketConn) open() (err error) {
	const op = "datagram socket"
	if c.cfg.Transport == verbs.IWARP {
		return verbs.Errorf(syscall.EOPNOTSUPP, op, "iWARP has no datagrams")
	}
	udp, ok := c.sock.LocalAddr().(*net.UDPAddr)
	if !ok {
		return verbs.Errorf(syscall.EINVAL, op, "%v is not the address of a UDP socket", c.sock.LocalAddr())
	}
	if c.local = unmapped(udp.AddrPort()); !c.local.Addr().IsValid() { // gVisor's of all addresses
		c.local = netip.AddrPortFrom(netip.IPv6Unspecified(), c.local.Port())
	}
	if c.port, err = portOf(c.dev, c.local.Addr()); err != nil {
		return err
	}
	attr, err := c.dev.QueryPort(c.port)
	if err != nil {
		return err
	}
	c.max = min(MaxDatagram, attr.ActiveMTU.Bytes())
	c.slots = min(max(c.cfg.RecvBuffer/MaxDatagram, 1), c.cfg.RQSize)
	sends := min(max(c.cfg.SendBuffer/MaxDatagram, 1), c.cfg.SQSize)
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	c.buf = make([]byte, c.slots*(grhLen+MaxDatagram)+sends*MaxDatagram)
	if c.mr, err = c.pd.RegMR(c.buf, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if c.ch, err = c.dev.CreateCompChannel(); err != nil {
		return err
	}
	if c.cq, err = c.dev.CreateCQ(c.slots+sends, &verbs.CQInitAttr{Channel: c.ch, Wait: verbs.WaitEvent}); err != nil {
		return err
	}
	c.qp, err = c.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.UD, Transport: c.cfg.Transport, SendCQ: c.cq, RecvCQ: c.cq, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: c.slots, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	for _, to := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: c.port, QKey: rdmacm.UDPQKey}, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey},
		{verbs.QPAttr{QPState: verbs.StateRTR}, 0},
		{verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrSQPSN},
	} {
		if err := c.qp.Modify(&to.attr, to.mask|verbs.QPAttrState); err != nil {
			return err
		}
	}
	c.arrived = make([]arrival, 2*c.slots) // by QPs and by UDP
	for i := range c.slots {
		if err := c.postReceive(i); err != nil {
			return err
		}
	}
	for i := range sends {
		c.sends = append(c.sends, c.slots*(grhLen+MaxDatagram)+i*MaxDatagram)
	}
	return nil
}

// portOf is the port of a device that has an address; the first if the address is unspecified.
func portOf(dev *verbs.Device, addr netip.Addr) (uint8, error) {
	if addr.IsUnspecified() {
		return 1, nil
	}
	for port := range uint8(dev.QueryDevice().PhysPortCnt) {
		gids, err := dev.GIDTable(port + 1)
		if err != nil {
			return 0, err
		}
		for _, g := range gids {
			if g.GID.Addr() == addr {
				return port + 1, nil
			}
		}
	}
	return 0, verbs.Errorf(syscall.EADDRNOTAVAIL, "datagram socket", "%v is not an address of the device", addr)
}

// unmapped is an address that is not IPv6 if it can be IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// release frees all that there is.
func (c *PacketConn) release() error {
	c.cancel()
	errs := []error{c.sock.Close()}
	c.goroutines.Wait()
	c.mu.Lock() // who is late still asks for peers
	errs = append(errs, c.peers.destroy())
	c.mu.Unlock()
	if c.qp != nil {
		errs = append(errs, c.qp.Destroy())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Destroy())
	}
	if c.ch != nil {
		errs = append(errs, c.ch.Destroy())
	}
	if c.mr != nil {
		errs = append(errs, c.mr.Dereg())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Dealloc())
	}
	return errors.Join(errs...)
}

// Close frees the socket. Datagrams that were not read are lost. Calls that wait return net.ErrClosed.
func (c *PacketConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.readBy.stop()
	c.writeBy.stop()
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.changed()
	c.mu.Unlock()
	return c.release()
}

// LocalAddr returns the address of the UDP socket, a *net.UDPAddr.
func (c *PacketConn) LocalAddr() net.Addr { return c.sock.LocalAddr() }

// QP returns the socket's QP, for its state and counters. Its work requests are the PacketConn's.
func (c *PacketConn) QP() *verbs.QP { return c.qp }

func (c *PacketConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rsocket", Source: c.LocalAddr(), Err: err}
}

// fail ends reading.
func (c *PacketConn) fail(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.readable.Broadcast()
	c.changed()
}

func (c *PacketConn) postReceive(slot int) error {
	return c.qp.PostRecv(&verbs.RecvWR{ID: receiveID | uint64(slot),
		SGList: []verbs.SGE{c.mr.SGE(slot*(grhLen+MaxDatagram), grhLen+MaxDatagram)}})
}

// completed takes in completions.
func (c *PacketConn) completed(wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		if wc.WRID&receiveID == 0 {
			c.sends = append(c.sends, int(wc.WRID))
			c.writable.Broadcast() // one of the writers may go by UDP after all, and take no slot
			c.changed()
			continue
		}
		if slot := int(wc.WRID &^ receiveID); wc.Status != verbs.WCSuccess || !c.received(slot, int(wc.ByteLen)) {
			c.repost(slot)
		}
	}
}

// received takes in a datagram; false if it is none of this protocol's. mu is held.
func (c *PacketConn) received(slot, n int) bool {
	if n < grhLen || c.closed {
		return false
	}
	from, data, ok := parseSource(c.buf[slot*(grhLen+MaxDatagram):][grhLen:n])
	if !ok {
		return false
	}
	return c.arrive(arrival{unmapped(from), data, slot})
}

// arrive adds a datagram to those that can be read; false if there are too many. mu is held.
func (c *PacketConn) arrive(a arrival) bool {
	if c.count == len(c.arrived) {
		return false
	}
	c.arrived[(c.first+c.count)%len(c.arrived)] = a
	c.count++
	c.readable.Signal()
	c.changed()
	return true
}

// repost posts a receive request again, unless the socket is about to be closed. mu is held.
func (c *PacketConn) repost(slot int) {
	if c.closed {
		return
	}
	if err := c.postReceive(slot); err != nil && c.err == nil {
		c.err = err
		c.readable.Broadcast()
		c.changed()
	}
}

// ReadFrom reads one datagram, of which what b has no room for is lost. The address is a *net.UDPAddr.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromAddrPort is ReadFrom, and allocates nothing for the address.
func (c *PacketConn) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.count == 0 || c.closed || c.readBy.past {
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.readBy.past:
			err = os.ErrDeadlineExceeded
		default:
			err = c.err
		}
		if err != nil {
			return 0, from, c.opError("read", err)
		}
		c.readable.Wait()
	}
	n, from = c.take(b)
	return n, from, nil
}

// take takes the first of the datagrams that have arrived. mu is held.
func (c *PacketConn) take(b []byte) (n int, from netip.AddrPort) {
	a := c.arrived[c.first]
	c.first = (c.first + 1) % len(c.arrived)
	c.count--
	n = copy(b, a.data)
	if a.slot >= 0 {
		c.repost(a.slot)
	}
	return n, a.from
}

// WriteTo sends one datagram to a *net.UDPAddr, or to another address whose String is an IP address and a port.
func (c *PacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if udp, ok := to.(*net.UDPAddr); ok {
		return c.WriteToAddrPort(b, udp.AddrPort())
	}
	addr, err := netip.ParseAddrPort(to.String())
	if err != nil {
		return 0, c.opError("write", verbs.Errorf(syscall.EINVAL, "write", "%v", err))
	}
	return c.WriteToAddrPort(b, addr)
}

// WriteToAddrPort sends one datagram. If the peer's QP is not known yet, it goes by UDP.
func (c *PacketConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	to = unmapped(to)
	err := c.check(len(b), to)
	if err == nil {
		err = c.write(b, to)
	}
	if err != nil {
		return 0, c.opError("write", err)
	}
	return len(b), nil
}

// write waits until it can send.
func (c *PacketConn) write(b []byte, to netip.AddrPort) error {
	c.mu.Lock()
	for {
		switch {
		case c.closed:
			c.mu.Unlock()
			return net.ErrClosed
		case c.writeBy.past:
			c.mu.Unlock()
			return os.ErrDeadlineExceeded
		}
		p := c.peers.get(to)
		if p.ah == nil {
			c.mu.Unlock()
			return c.introduce(opData, b, to)
		}
		if len(c.sends) > 0 {
			err := c.send(b, p)
			c.mu.Unlock()
			return err
		}
		c.writable.Wait()
	}
}

// check refuses what cannot be sent.
func (c *PacketConn) check(n int, to netip.AddrPort) error {
	a := to.Addr()
	switch {
	case !a.IsValid() || a.IsUnspecified() || to.Port() == 0:
		return verbs.Errorf(syscall.EINVAL, "write", "%v is not the address and port of a socket", to)
	case a.IsMulticast():
		return verbs.Errorf(syscall.EOPNOTSUPP, "write", "%v: rsockets have no multicast", to)
	case !c.local.Addr().IsUnspecified() && c.local.Addr().Is4() != a.Is4():
		return verbs.Errorf(syscall.EAFNOSUPPORT, "write", "%v is of the other IP version than %v", to, c.local)
	case n > c.max-sourceLen(a):
		return verbs.Errorf(syscall.EMSGSIZE, "write", "%d bytes; a datagram to %v has up to %d", n, a, c.max-sourceLen(a))
	}
	return nil
}

// send sends a datagram to a QP. mu is held.
func (c *PacketConn) send(b []byte, p *peer) error {
	last := len(c.sends) - 1
	slot := c.sends[last]
	n := len(append(appendSource(c.buf[slot:slot], p.source), b...))
	c.sge[0] = c.mr.SGE(slot, n)
	wr := verbs.SendWR{
		ID: uint64(slot), Opcode: verbs.Send, SGList: c.sge[:],
		AH: p.ah, RemoteQPN: p.qpn, RemoteQKey: rdmacm.UDPQKey,
	}
	if err := c.qp.PostSend(&wr); err != nil {
		return err
	}
	c.sends = c.sends[:last]
	return nil
}
