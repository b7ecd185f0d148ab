package replicated

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/static"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const (
	port     = 7471
	receives = 64 // messages that may arrive at a time
	backlog  = 16 // messages that wait for a peer: the oldest is dropped

	// patience is the time after which a connection is given up: that a peer does not answer may be a
	// matter of the network, or of the connection's way through it.
	patience = 500 * time.Microsecond
	pause    = 200 * time.Microsecond // between two attempts to connect
)

// Host is a node with its device. It has a connection to each other node, on which it only sends.
// All that arrives is in one completion queue.
type Host struct {
	Node  *Node
	h     *fabric.Host
	stack *static.Host
	dev   *verbs.Device
	pd    *verbs.PD
	peers []*peer

	srq      *verbs.SRQ
	arrivals *verbs.CQ
	received *verbs.MR
}

// peer is what a host has of another one.
type peer struct {
	addr    netip.AddrPort
	waiting []*Message
	buffer  *verbs.MR // of the message that is being sent
}

// Open opens a device on the simulated host, and starts a node. On another network only the first
// lines differ: those that make a stack, such as netstack.New or kernel.New.
func Open(f *fabric.Fabric, h *fabric.Host, committed func(index int, value uint64)) (*Host, error) {
	s, err := static.New(h, &static.Config{Addr: h.Addr(), Neighbour: f.Neighbour})
	if err != nil {
		return nil, err
	}
	r := &Host{h: h, stack: s}
	if r.dev, err = rdmatransport.Open(s, nil); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := r.prepare(f); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	// The host's random numbers follow from the fabric's seed.
	random := rand.New(rand.NewPCG(uint64(h.Clock().Uint32()), 0))
	r.Node = NewNode(h.Index(), len(f.Hosts()), random, r.send, committed)
	h.Go(r.listen)
	h.Go(r.receive)
	h.Go(r.keepTime)
	for i, p := range r.peers {
		if i != h.Index() {
			h.Go(func(proc *fabric.Process) { r.keepConnected(proc, p) })
		}
	}
	return r, nil
}

// Close closes the device without waiting for peers.
func (r *Host) Close() error { return errors.Join(r.dev.Provider().Close(), r.stack.Close()) }

func (r *Host) prepare(f *fabric.Fabric) (err error) {
	if r.pd, err = r.dev.AllocPD(); err != nil {
		return err
	}
	if r.srq, err = r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: receives, MaxSGE: 1}}); err != nil {
		return err
	}
	if r.arrivals, err = r.dev.CreateCQ(receives, nil); err != nil {
		return err
	}
	if r.received, err = r.pd.RegMR(make([]byte, receives*maxMessage), verbs.AccessLocalWrite); err != nil {
		return err
	}
	for i := range uint64(receives) {
		if err := r.postRecv(i); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts() {
		p := &peer{addr: netip.AddrPortFrom(h.Addr(), port)}
		if p.buffer, err = r.pd.RegMR(make([]byte, maxMessage), 0); err != nil {
			return err
		}
		r.peers = append(r.peers, p)
	}
	return nil
}

func (r *Host) postRecv(slot uint64) error {
	return r.srq.PostRecv(&verbs.RecvWR{WRID: slot, SGList: []verbs.SGE{r.received.SGE(int(slot)*maxMessage, maxMessage)}})
}

// config returns the options of a connection: it has the host's queues for what arrives.
func (r *Host) config() *rdmacm.Config {
	return &rdmacm.Config{Transport: verbs.RoCEv2, PD: r.pd, SRQ: r.srq, RecvCQ: r.arrivals,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
}

// send leaves a message to the process of the peer's connection.
func (r *Host) send(to int, m *Message) {
	p := r.peers[to]
	if len(p.waiting) == backlog {
		p.waiting = p.waiting[1:]
	}
	p.waiting = append(p.waiting, m)
}

// keepConnected sends the messages for a peer, and connects again when a connection is given up.
func (r *Host) keepConnected(proc *fabric.Process, p *peer) {
	for {
		ctx, cancel := proc.WithTimeout(context.Background(), patience)
		c, err := rdmacm.Dial(ctx, r.dev, p.addr.String(), r.config())
		cancel()
		if err != nil {
			proc.Sleep(pause)
			continue
		}
		for err == nil {
			proc.Until(func() bool { return len(p.waiting) > 0 })
			m := p.waiting[0]
			p.waiting = p.waiting[1:]
			err = sendOn(proc, c, p.buffer, m)
		}
		ctx, cancel = proc.WithTimeout(context.Background(), patience)
		_ = c.CloseContext(ctx) // whether the peer confirms it or not
		cancel()
	}
}

// sendOn sends a message and waits for its acknowledgement.
func sendOn(proc *fabric.Process, c *rdmacm.Conn, buffer *verbs.MR, m *Message) error {
	n := m.encode(buffer.Buf())
	wr := verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{buffer.SGE(0, n)}}
	if err := c.QP().PostSend(&wr); err != nil {
		return err
	}
	ctx, cancel := proc.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := c.SendCQ().Wait(ctx, wc[:]); err != nil {
		return err
	}
	return wc[0].Err()
}

// listen accepts connections. What arrives on them is a matter of receive.
func (r *Host) listen(*fabric.Process) {
	l, err := rdmacm.Listen(r.dev, fmt.Sprint(":", port), r.config())
	check(err)
	for {
		c, err := l.Accept(context.Background())
		if err != nil {
			return // the device is closed
		}
		r.h.Go(func(proc *fabric.Process) {
			proc.Until(func() bool { return ended(c) })
			_ = c.Close()
		})
	}
}

func ended(c *rdmacm.Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// receive gives the node what arrives.
func (r *Host) receive(proc *fabric.Process) {
	var wcs [16]verbs.WC
	for {
		n, err := r.arrivals.Wait(context.Background(), wcs[:])
		if err != nil {
			return // the device is closed
		}
		for _, wc := range wcs[:n] {
			check(wc.Err())
			at := int(wc.WRID) * maxMessage
			m, err := decode(r.received.Buf()[at : at+int(wc.ByteLen)])
			check(err)
			check(r.postRecv(wc.WRID))
			r.Node.Receive(proc.Now(), m)
		}
	}
}

// keepTime calls Tick when it is due.
func (r *Host) keepTime(proc *fabric.Process) {
	for {
		if wait := r.Node.Due() - proc.Now(); wait > 0 {
			proc.Sleep(wait) // what is due may be put off meanwhile
			continue
		}
		r.Node.Tick(proc.Now())
	}
}

// check ends the program for an error that is a fault of its own.
func check(err error) {
	if err != nil {
		panic(err)
	}
}
