package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Config has the options of connections that Dial, Listen and Request.Accept make. The zero value
// and nil have useful defaults.
type Config struct {
	// Transport is the wire protocol, if there is one only.
	Transport verbs.Transport
	// Transports are the wire protocols if there are several. A listener serves all of them; Dial uses
	// the first that has a route to the peer. Transport must then be unset (RoCEv2).
	Transports []verbs.Transport
	// LocalAddr is the local address of Dial. If it is not valid, the route to the peer determines
	// it.
	LocalAddr netip.AddrPort
	// AFOnly makes a listener on all IPv6 addresses reject requests of IPv4 (IPV6_V6ONLY). One on
	// 0.0.0.0 rejects those of IPv6 anyway.
	AFOnly bool
	// TOS is the IP type of service of packets.
	TOS uint8

	// PD is the QP's protection domain. If nil, it is the device's default PD, which Conn.PD
	// returns.
	PD *verbs.PD
	// SendCQ and RecvCQ may be the same. If one is nil, a CQ with a completion channel is created,
	// and closed with the Conn.
	SendCQ, RecvCQ *verbs.CQ
	// SRQ is the source of the QP's receive requests, or nil. It belongs to PD.
	SRQ *verbs.SRQ
	// Cap has the sizes of the QP's queues. The zero value means 128 work requests in each queue, 4
	// SGEs and 64 bytes of inline data.
	Cap verbs.QPCap
	// SQSigAll makes every send work request signaled.
	SQSigAll bool

	// PrivateData is sent to the peer in the connection request or reply: see ConnParam.
	PrivateData []byte
	// Param has the other parameters of the request or reply; nil means DefaultConnParam.
	Param *ConnParam
	// Prepare, if not nil, is called when the QP has been created and the peer cannot send yet. It
	// can post receive requests. If it returns an error, the connection ends.
	Prepare func(*Conn) error

	// Backlog is the number of connections that wait in a listener to be accepted; 0 means 1024.
	Backlog int
}

// transports returns the wire protocols.
func (cfg *Config) transports(op string) ([]verbs.Transport, error) {
	switch {
	case len(cfg.Transports) == 0:
		return []verbs.Transport{cfg.Transport}, nil
	case cfg.Transport != 0:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "Transport %v and Transports %v: only one of them may be set",
			cfg.Transport, cfg.Transports)
	}
	return cfg.Transports, nil
}

func (cfg *Config) param() *ConnParam {
	p := DefaultConnParam()
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
	id   *ID
	ch   *EventChannel // of id
	qp   *verbs.QP
	peer ConnParam

	close wakeup.Once
	err   error // of Close and CloseContext
}

// newConn creates the QP of an ID and calls cfg.Prepare.
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
	if err := id.setOption("disconnect with the peer", func() { id.autoDisconnect = true }); err != nil {
		return nil, err
	}
	c := &Conn{id: id.ID, ch: id.ch, qp: id.QP()}
	if e := id.Event(); e != nil && e.Type == ConnectRequest {
		c.peer = e.Param
	}
	if cfg.Prepare != nil {
		return c, cfg.Prepare(c)
	}
	return c, nil
}

// resolveTimeout bounds the time that Dial waits for a neighbour. It allows a few ARP requests, one
// second apart. Linux's NVMe host has the same.
const resolveTimeout = 3 * time.Second

// Dial connects to "host:port", where either may be a name. It tries the host's addresses in turn.
// The error wraps an *EventError if the network or the peer refused the connection.
func Dial(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	transports, err := cfg.transports("dial " + addr)
	if err != nil {
		return nil, err
	}
	addrs, err := LookupHost(ctx, addr)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addrs {
		c, err := dial(ctx, dev, a, transports, cfg)
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

func dial(ctx context.Context, dev *verbs.Device, to netip.AddrPort, transports []verbs.Transport, cfg *Config) (
	c *Conn, err error,
) {
	id, err := CreateSyncID(TCP, dev)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		// Removes its completions from the CQs, which the QP for the next address uses too.
		if qp := id.QP(); qp != nil {
			_ = verbs.Move(qp, verbs.StateReset)
		}
		err = errors.Join(err, id.close())
	}()
	if err := errors.Join(id.SetTOS(cfg.TOS), id.SetTransports(transports...)); err != nil {
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

// QP returns the connected QP, which is in RTS, or in ERR after the end of the connection. Close
// closes it.
func (c *Conn) QP() *verbs.QP { return c.qp }

// PD returns the QP's protection domain. The default PD, and memory regions in it, outlive the
// Conn.
func (c *Conn) PD() *verbs.PD { return c.qp.PD() }

// SendCQ returns the CQ of send work requests.
func (c *Conn) SendCQ() *verbs.CQ { return c.qp.SendCQ() }

// RecvCQ returns the CQ of receive work requests.
func (c *Conn) RecvCQ() *verbs.CQ { return c.qp.RecvCQ() }

// Peer returns the parameters of the peer's request or reply: its private data, and the depths from
// this side's view.
func (c *Conn) Peer() ConnParam { return c.peer }

// ID returns the connection's ID.
func (c *Conn) ID() *ID { return c.id }

// Transport returns the wire protocol.
func (c *Conn) Transport() verbs.Transport { return c.id.Transport() }

// LocalAddr returns the local address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// PeerAddr returns the peer's address and port.
func (c *Conn) PeerAddr() netip.AddrPort { return c.id.PeerAddr() }

// Done returns a channel that is closed when either side has ended the connection.
func (c *Conn) Done() <-chan struct{} { return c.id.Done() }

// closeTimeout bounds the time that Close waits for the peer to confirm the disconnection.
const closeTimeout = 2 * time.Second

// Close is CloseContext with a timeout of 2 seconds.
func (c *Conn) Close() error {
	ctx, cancel := c.ch.clock().WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.CloseContext(ctx)
}

// CloseContext disconnects, which flushes the posted work requests (rdma_disconnect). It waits for
// the peer's confirmation or until ctx ends. The provider then continues to retransmit by itself.
// CloseContext always closes the objects that Dial or Accept created. Before that it waits,
// without regard to ctx, until events of CQs that they created are acknowledged.
//
// The end of ctx is no error. The error is that of closing an object, such as ErrBusy if a QP of
// the application uses a CQ of the Conn. Only the first call of Close or CloseContext has an
// effect, and the others wait for it and return its error.
func (c *Conn) CloseContext(ctx context.Context) error {
	c.close.Do(c.ch.clock(), func() {
		id := newSyncID(c.id, c.ch)
		id.exemptFromFaults()
		_ = id.Disconnect(ctx) // it fails if the connection has ended, or the peer does not answer
		c.err = id.close()
	})
	return c.err
}
