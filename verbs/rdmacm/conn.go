package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Config says how Dial, Listen and Request.Accept make a connection. The zero Config is a good one, and so is nil.
type Config struct {
	// Transport is the wire protocol.
	Transport verbs.Transport
	// Transports are those of a listener that serves several; it takes the place of Transport.
	Transports []verbs.Transport
	// LocalAddr is where Dial connects from; not valid, the way to the peer decides.
	LocalAddr netip.AddrPort
	// TOS is the type of service of packets.
	TOS uint8

	// PD is what the QP is made in; nil is the device's default PD, which Conn.PD tells.
	PD *verbs.PD
	// SendCQ and RecvCQ may be the same; nil is a new one with a completion channel, which goes with the Conn.
	SendCQ, RecvCQ *verbs.CQ
	// SRQ gives the QP its receive requests; it is of PD.
	SRQ *verbs.SRQ
	// Cap is the size of the queues; zero is 128 work requests each way, of 4 SGEs and 64 bytes inline.
	Cap verbs.QPCap
	// SQSigAll makes every send work request signalled.
	SQSigAll bool

	// PrivateData goes to the peer with the connection request or its answer: see ConnParam.
	PrivateData []byte
	// Param is what else goes with it; nil is Defaults.
	Param *ConnParam
	// Prepare is called when the QP is made and the peer cannot send yet: the place to post receives. Its error gives
	// the connection up.
	Prepare func(*Conn) error

	// Backlog is how many connections a listener keeps that nobody has accepted; 0 is 1024.
	Backlog int
}

func (cfg *Config) transports() []verbs.Transport {
	if len(cfg.Transports) > 0 {
		return cfg.Transports
	}
	return []verbs.Transport{cfg.Transport}
}

func (cfg *Config) param() *ConnParam {
	p := Defaults()
	if cfg.Param != nil {
		*p = *cfg.Param
	}
	if cfg.PrivateData != nil {
		p.PrivateData = cfg.PrivateData
	}
	return p
}

// Conn is a connected QP.
type Conn struct {
	id   *SyncID
	qp   *verbs.QP
	peer ConnParam

	close sync.Once
	err   error // of Close
}

// newConn makes the QP of an ID, and prepares it.
func newConn(id *SyncID, cfg *Config) (*Conn, error) {
	size := cfg.Cap
	if size == (verbs.QPCap{}) {
		size = verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	}
	if err := id.CreateQP(cfg.PD, &verbs.QPInitAttr{
		SendCQ: cfg.SendCQ, RecvCQ: cfg.RecvCQ, SRQ: cfg.SRQ, Cap: size, SQSigAll: cfg.SQSigAll,
	}); err != nil {
		return nil, err
	}
	if err := id.set("answer", func() { id.answers = true }); err != nil {
		return nil, err
	}
	c := &Conn{id: id, qp: id.QP()}
	if e := id.Event(); e != nil && e.Type == ConnectRequest {
		c.peer = e.Param
	}
	if cfg.Prepare != nil {
		return c, cfg.Prepare(c)
	}
	return c, nil
}

// resolveTimeout is how long Dial looks for a neighbour: a few questions, a second apart.
const resolveTimeout = 5 * time.Second

// Dial connects to "host:port", where either may be a name. Of the host's addresses it takes the first that works. An
// error wraps an *EventError if the network or the peer said no.
func Dial(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	addrs, err := LookupHost(ctx, addr)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addrs {
		c, err := dial(ctx, dev, a, cfg)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &verbs.Error{Op: "dial " + addr, Detail: errs[0].Error(), Err: errors.Join(errs...)}
}

func dial(ctx context.Context, dev *verbs.Device, to netip.AddrPort, cfg *Config) (c *Conn, err error) {
	id, err := CreateSyncID(TCP, dev)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, id.Destroy())
		}
	}()
	if err := errors.Join(id.SetTOS(cfg.TOS), id.SetTransports(cfg.transports()...)); err != nil {
		return nil, err
	}
	if err := id.resolveAddr(ctx, cfg.LocalAddr, to, resolveTimeout); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(ctx); err != nil {
		return nil, err
	}
	if c, err = newConn(id, cfg); err != nil {
		return nil, err
	}
	if err := id.Connect(ctx, cfg.param()); err != nil {
		return nil, err
	}
	c.peer = id.Event().Param
	return c, nil
}

// QP is the connected QP, in RTS; in ERR when the connection is over. Close destroys it.
func (c *Conn) QP() *verbs.QP { return c.qp }

// PD is the QP's protection domain. The default one, and memory regions in it, outlive the Conn.
func (c *Conn) PD() *verbs.PD { return c.qp.PD() }

// SendCQ is where send work requests complete.
func (c *Conn) SendCQ() *verbs.CQ { return c.qp.SendCQ() }

// RecvCQ is where receive work requests complete.
func (c *Conn) RecvCQ() *verbs.CQ { return c.qp.RecvCQ() }

// Peer is what the peer sent with its request or answer: private data, and depths as seen from here.
func (c *Conn) Peer() ConnParam { return c.peer }

// ID is the connection's ID.
func (c *Conn) ID() *ID { return c.id.ID }

// Transport is the wire protocol.
func (c *Conn) Transport() verbs.Transport { return c.id.Transport() }

// LocalAddr is the local address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// PeerAddr is the peer's address and port.
func (c *Conn) PeerAddr() netip.AddrPort { return c.id.PeerAddr() }

// Done is closed when the connection is over, by either side.
func (c *Conn) Done() <-chan struct{} { return c.id.Ended() }

// closeTimeout is how long Close waits for the peer to answer. One that does not is told again by the provider, or
// finds out by itself.
const closeTimeout = 2 * time.Second

// Close disconnects, which flushes what is posted, waits a little for the peer, and destroys what Dial or Accept made.
// Events of CQs that were made too must be acknowledged. Any number of calls give the same error.
func (c *Conn) Close() error {
	c.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = c.id.Disconnect(ctx) // it fails if the connection is over, or the peer does not answer
		c.err = c.id.Destroy()
	})
	return c.err
}
