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

// MaxDatagram is the maximum length of a datagram in bytes, with its header of 8 bytes for IPv4 or
// 24 for IPv6. A path MTU below 2048 is a lower limit.
const MaxDatagram = 2048

const grhLen = 40 // bytes that a UD QP places before each datagram

// PacketConn is a datagram socket over a UD QP (rsocket(7), SOCK_DGRAM). Its name is the address of
// an ordinary UDP socket. The PacketConn and its peers exchange their QP numbers over that socket,
// and send the first datagrams over it. Datagrams may be lost, duplicated or reordered, and their
// source can be forged as easily as in UDP. Several goroutines may call the methods.
type PacketConn struct {
	cfg   Config
	dev   *verbs.Device
	sock  net.PacketConn
	local netip.AddrPort
	port  uint8 // of the device
	max   int   // length of a datagram with its header, in bytes
	pd    *verbs.PD
	ch    *verbs.CompChannel
	cq    *verbs.CQ
	qp    *verbs.QP
	mr    *verbs.MR
	buf   []byte // receive slots, then send slots
	slots int    // number of receive slots

	mu            sync.Mutex
	readable      sync.Cond
	writable      sync.Cond
	queue         []datagram // a ring of unread datagrams: count of them, from index first on
	first         int
	count         int
	freeSends     []int        // offsets of free send slots
	sge           [1]verbs.SGE // of the request being posted; a field saves an allocation
	peers         peers
	onReady       readyHook
	readDeadline  deadline
	writeDeadline deadline
	closed        bool
	err           error // the reason why reading has ended

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
}

var _ net.PacketConn = (*PacketConn)(nil)

// datagram is an unread datagram.
type datagram struct {
	from netip.AddrPort
	data []byte
	slot int // its slot, or −1 if it arrived over UDP
}

// NewPacketConn creates a datagram socket from a UDP socket of the device's host. The UDP socket
// comes, for example, from netstack.Host.ListenPacket, or for package kernel from net.ListenUDP.
// The PacketConn owns it and closes it, even after an error. iWARP does not support datagrams.
//
// RecvBuffer and SendBuffer of the Config determine the number of slots, each of 2 KiB. A datagram
// needs a slot while it waits to be read, or is being sent. Datagrams that arrive when no slot is
// free are lost.
func NewPacketConn(dev *verbs.Device, sock net.PacketConn, cfg *Config) (*PacketConn, error) {
	full, err := cfg.check()
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Addr: sock.LocalAddr(), Err: errors.Join(err, sock.Close())}
	}
	c := &PacketConn{cfg: *full, dev: dev, sock: sock}
	c.readable.L, c.writable.L = &c.mu, &c.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Addr: sock.LocalAddr(), Err: errors.Join(err, c.release())}
	}
	c.goroutines.Go(c.readUDP)
	c.goroutines.Go(func() {
		c.fail(serveCQ(c.ctx, c.ch, c.cq, c.handleCompletions))
	})
	return c, nil
}

// open creates the QP and its objects.
func (c *PacketConn) open() (err error) {
	const op = "datagram socket"
	if c.cfg.Transports[0] == verbs.IWARP {
		return verbs.Errorf(syscall.EOPNOTSUPP, op, "iWARP does not support datagrams")
	}
	udp, ok := c.sock.LocalAddr().(*net.UDPAddr)
	if !ok {
		return verbs.Errorf(syscall.EINVAL, op, "%v is not the address of a UDP socket", c.sock.LocalAddr())
	}
	// gVisor's form of the unspecified address.
	if c.local = unmapped(udp.AddrPort()); !c.local.Addr().IsValid() {
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
		Type: verbs.UD, Transport: c.cfg.Transports[0], SendCQ: c.cq, RecvCQ: c.cq, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: c.slots, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	for _, to := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: c.port, QKey: rdmacm.UDPQKey},
			verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey},
		{verbs.QPAttr{QPState: verbs.StateRTR}, 0},
		{verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrSQPSN},
	} {
		if err := c.qp.Modify(&to.attr, to.mask|verbs.QPAttrState); err != nil {
			return err
		}
	}
	c.queue = make([]datagram, 2*c.slots) // for QPs and UDP
	for i := range c.slots {
		if err := c.postReceive(i); err != nil {
			return err
		}
	}
	for i := range sends {
		c.freeSends = append(c.freeSends, c.slots*(grhLen+MaxDatagram)+i*MaxDatagram)
	}
	return nil
}

// portOf returns the port of a device that has an address. For an unspecified address it returns
// the first port.
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

// unmapped returns an address with an IPv4-mapped IPv6 address converted to IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// release frees all objects that exist.
func (c *PacketConn) release() error {
	c.cancel()
	errs := []error{c.sock.Close()}
	c.goroutines.Wait()
	c.mu.Lock() // a call that is still running may look up peers
	errs = append(errs, c.peers.destroy())
	c.mu.Unlock()
	return errors.Join(append(errs, closeMade(c.qp), closeMade(c.cq), closeMade(c.ch), closeMade(c.mr), closeMade(c.pd))...)
}

// Close frees the socket. Datagrams that were not read are lost. Calls that wait return
// net.ErrClosed.
func (c *PacketConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.readDeadline.stop()
	c.writeDeadline.stop()
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.changed()
	c.mu.Unlock()
	return c.release()
}

// LocalAddr returns the address of the UDP socket, a *net.UDPAddr.
func (c *PacketConn) LocalAddr() net.Addr { return c.sock.LocalAddr() }

// QP returns the socket's QP, for its state and counters. Only the PacketConn may post work
// requests to it.
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
	return c.qp.PostRecv(&verbs.RecvWR{WRID: receiveID | uint64(slot),
		SGList: []verbs.SGE{c.mr.SGE(slot*(grhLen+MaxDatagram), grhLen+MaxDatagram)}})
}

// handleCompletions handles completions.
func (c *PacketConn) handleCompletions(wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		if wc.WRID&receiveID == 0 {
			c.freeSends = append(c.freeSends, int(wc.WRID))
			c.writable.Broadcast() // a writer may use UDP from now on, and then needs no slot
			c.changed()
			continue
		}
		if slot := int(wc.WRID &^ receiveID); wc.Status != verbs.WCSuccess || !c.handleDatagram(slot, int(wc.ByteLen)) {
			c.repost(slot)
		}
	}
}

// handleDatagram queues a received datagram. It returns false if the datagram is invalid or
// dropped. mu is held.
func (c *PacketConn) handleDatagram(slot, n int) bool {
	if n < grhLen || c.closed {
		return false
	}
	from, data, ok := parseSource(c.buf[slot*(grhLen+MaxDatagram):][grhLen:n])
	if !ok {
		return false
	}
	return c.enqueue(datagram{unmapped(from), data, slot})
}

// enqueue adds a datagram to the queue, or returns false if the queue is full. mu is held.
func (c *PacketConn) enqueue(d datagram) bool {
	if c.count == len(c.queue) {
		return false
	}
	c.queue[(c.first+c.count)%len(c.queue)] = d
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

// ReadFrom reads one datagram, truncated to the length of b. The address is a *net.UDPAddr.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromAddrPort is like ReadFrom, without an allocation for the address.
func (c *PacketConn) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.count == 0 || c.closed || c.readDeadline.expired {
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.readDeadline.expired:
			err = os.ErrDeadlineExceeded
		default:
			err = c.err
		}
		if err != nil {
			return 0, from, c.opError("read", err)
		}
		c.readable.Wait()
	}
	n, from = c.dequeue(b)
	return n, from, nil
}

// dequeue removes the oldest datagram from the queue. mu is held.
func (c *PacketConn) dequeue(b []byte) (n int, from netip.AddrPort) {
	d := c.queue[c.first]
	c.first = (c.first + 1) % len(c.queue)
	c.count--
	n = copy(b, d.data)
	if d.slot >= 0 {
		c.repost(d.slot)
	}
	return n, d.from
}

// WriteTo sends one datagram to a *net.UDPAddr, or to another address whose String is an IP address
// and a port.
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

// WriteToAddrPort sends one datagram. It uses UDP if the peer's QP is not known yet.
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

// write sends a datagram, and waits for a free slot if necessary.
func (c *PacketConn) write(b []byte, to netip.AddrPort) error {
	c.mu.Lock()
	for {
		switch {
		case c.closed:
			c.mu.Unlock()
			return net.ErrClosed
		case c.writeDeadline.expired:
			c.mu.Unlock()
			return os.ErrDeadlineExceeded
		}
		p := c.peers.get(to)
		if p.ah == nil {
			c.mu.Unlock()
			return c.sendUDP(opData, b, to)
		}
		if len(c.freeSends) > 0 {
			err := c.send(b, p)
			c.mu.Unlock()
			return err
		}
		c.writable.Wait()
	}
}

// check returns an error for a datagram that cannot be sent.
func (c *PacketConn) check(n int, to netip.AddrPort) error {
	a := to.Addr()
	switch {
	case !a.IsValid() || a.IsUnspecified() || to.Port() == 0:
		return verbs.Errorf(syscall.EINVAL, "write", "%v is not the address and port of a socket", to)
	case a.IsMulticast():
		return verbs.Errorf(syscall.EOPNOTSUPP, "write", "%v: rsockets do not support multicast", to)
	case !c.local.Addr().IsUnspecified() && c.local.Addr().Is4() != a.Is4():
		return verbs.Errorf(syscall.EAFNOSUPPORT, "write", "%v and %v differ in their IP version", to, c.local)
	case n > c.max-sourceLen(a):
		return verbs.Errorf(syscall.EMSGSIZE, "write", "%d bytes; a datagram to %v has at most %d", n, a, c.max-sourceLen(a))
	}
	return nil
}

// send sends a datagram to a QP. mu is held.
func (c *PacketConn) send(b []byte, p *peer) error {
	last := len(c.freeSends) - 1
	slot := c.freeSends[last]
	n := len(append(appendSource(c.buf[slot:slot], p.source), b...))
	c.sge[0] = c.mr.SGE(slot, n)
	wr := verbs.SendWR{
		WRID: uint64(slot), Opcode: verbs.Send, SGList: c.sge[:],
		AH: p.ah, RemoteQPN: p.qpn, RemoteQKey: rdmacm.UDPQKey,
	}
	if err := c.qp.PostSend(&wr); err != nil {
		return err
	}
	c.freeSends = c.freeSends[:last]
	return nil
}
