//go:build linux

package pyverbs

import (
	_ "embed"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

//go:embed cm.py
var cmDriver []byte

// CM is the rdma_cm of a kernel, over one of its devices. Like those of Device, its methods are for
// the test's own goroutine; they wait for the peer.
type CM struct{ *Device }

// OpenCM starts rdma_cm in a peer, until the test ends.
func OpenCM(t testing.TB, p *peer.Peer, device string) CM {
	t.Helper()
	return CM{start(t, p, "cm.py", device)}
}

// In is like that of Device.
func (c CM) In(t testing.TB) CM { return CM{c.Device.In(t)} }

// Listener is a listener in the TCP port space.
type Listener struct {
	c  CM
	id int
}

// Listen listens on an address.
func (c CM) Listen(addr netip.AddrPort) *Listener {
	c.t.Helper()
	l := &Listener{c: c}
	c.must("listen", arguments{"addr": addr.Addr(), "port": addr.Port()}, &l.id)
	return l
}

// Close ends the listener.
func (l *Listener) Close() {
	l.c.t.Helper()
	l.c.must("unlisten", arguments{"listener": l.id}, nil)
}

// Conn is a connection. The application, not rdma_cm, created its QP, and destroying the QP ends
// the connection.
type Conn struct {
	PD *PD
	QP *QP
	// Param is the private data of the peer, and the attributes of the QP.
	Param rdmacm.ConnParam

	c CM
}

// Accept waits for a connection request and accepts it.
func (l *Listener) Accept(param *rdmacm.ConnParam, size verbs.QPCap) *Conn {
	l.c.t.Helper()
	return l.c.conn("accept", arguments{"listener": l.id}, param, size)
}

// Connect connects to a listener.
func (c CM) Connect(addr netip.AddrPort, param *rdmacm.ConnParam, size verbs.QPCap) *Conn {
	c.t.Helper()
	return c.conn("connect", arguments{"addr": addr.Addr(), "port": addr.Port()}, param, size)
}

func (c CM) conn(op string, args arguments, param *rdmacm.ConnParam, size verbs.QPCap) *Conn {
	c.t.Helper()
	for name, value := range map[string]any{
		"send_wr": size.MaxSendWR, "recv_wr": size.MaxRecvWR, "sge": max(size.MaxSendSGE, size.MaxRecvSGE),
		"private_data":        hex.EncodeToString(param.PrivateData),
		"responder_resources": param.ResponderResources, "initiator_depth": param.InitiatorDepth,
		"retry": param.RetryCount, "rnr_retry": param.RNRRetryCount,
	} {
		args[name] = value
	}
	var made struct {
		ID, PD                                                        int
		Num                                                           uint32
		PrivateData                                                   string
		ResponderResources, InitiatorDepth, RetryCount, RNRRetryCount uint8
	}
	c.must(op, args, &made)
	return &Conn{
		PD: &PD{d: c.Device, id: made.PD},
		QP: &QP{d: c.Device, id: made.ID, num: made.Num},
		Param: rdmacm.ConnParam{
			PrivateData: c.bytes(made.PrivateData), QPNum: made.Num,
			ResponderResources: made.ResponderResources, InitiatorDepth: made.InitiatorDepth,
			RetryCount: made.RetryCount, RNRRetryCount: made.RNRRetryCount,
		},
		c: c,
	}
}

func (c CM) bytes(text string) []byte {
	c.t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// Disconnect disconnects without waiting.
func (c *Conn) Disconnect() {
	c.c.t.Helper()
	c.c.must("disconnect", arguments{"conn": c.QP.id}, nil)
}

// AwaitDisconnected waits for the event.
func (c *Conn) AwaitDisconnected() {
	c.c.t.Helper()
	c.c.must("await_disconnected", arguments{"conn": c.QP.id}, nil)
}

// Event is an event as an application gets it.
type Event struct {
	Type        rdmacm.EventType
	Status      int
	PrivateData string // in hexadecimal
}

// Attempt tries to connect, without a QP, and returns the events up to the final one.
func (c CM) Attempt(space rdmacm.PortSpace, addr netip.AddrPort, privateData []byte) (events []Event) {
	c.t.Helper()
	c.must("attempt", arguments{"space": space, "addr": addr.Addr(), "port": addr.Port(),
		"private_data": hex.EncodeToString(privateData)}, &events)
	return events
}

// RawListener is a listener that accepts nothing.
type RawListener struct {
	c  CM
	id int
}

// ListenRaw listens in any port space.
func (c CM) ListenRaw(space rdmacm.PortSpace, addr netip.AddrPort) *RawListener {
	c.t.Helper()
	l := &RawListener{c: c}
	c.must("listen_raw", arguments{"space": space, "addr": addr.Addr(), "port": addr.Port()}, &l.id)
	return l
}

// Reject waits for a request and rejects it.
func (l *RawListener) Reject(privateData []byte) (request Event) {
	l.c.t.Helper()
	l.c.must("reject", arguments{"listener": l.id, "private_data": hex.EncodeToString(privateData)}, &request)
	return request
}

// Drop waits for a request and destroys its ID without an answer.
func (l *RawListener) Drop() (request Event) {
	l.c.t.Helper()
	l.c.must("reject", arguments{"listener": l.id, "private_data": nil}, &request)
	return request
}

// Close ends the listener.
func (l *RawListener) Close() {
	l.c.t.Helper()
	l.c.must("close", arguments{"obj": l.id}, nil)
}
