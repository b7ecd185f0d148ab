package host_test

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

// rogue is a target made of work requests. It answers as a target does, with the exception of the
// commands that handler takes.
type rogue struct {
	t         testing.TB
	l         *rdmacm.Listener
	to, from  *verbs.Device
	transport verbs.Transport
	queues    atomic.Int32 // I/O queues that it allows
	accept    nvme.ConnAccept
	private   []byte // of the reply; nil: that of accept

	mu      sync.Mutex
	handler func(q *rogueQueue, c *nvme.Command) bool

	ctx        context.Context
	goroutines sync.WaitGroup
}

// rogueQueue is a connection of a host. Its goroutine calls the handler.
type rogueQueue struct {
	*rogue
	id     uint16
	conn   *rdmacm.Conn
	pd     *verbs.PD
	cq     *verbs.CQ
	in     *verbs.MR // capsules
	out    *verbs.MR // responses and data, each in rogueSlot bytes
	at     int
	wcs    [1]verbs.WC
	shut   bool
	closed bool // by the handler
}

const (
	rogueReceives = 64
	rogueSends    = 256
	rogueCapsule  = nvme.CommandLen + 8<<10
	rogueSlot     = 8 << 10
	roguePattern  = 0xa5 // of data that is read
	rogueBlocks   = 1 << 12
	rogueID       = 7 // of the controller
)

// newRogue starts a target.
func newRogue(t testing.TB, transport verbs.Transport) *rogue {
	t.Helper()
	lan := new(pipe.Switch)
	r := &rogue{t: t, to: open(t, lan, "10.0.0.1/24"), from: open(t, lan, "10.0.0.2/24"), transport: transport,
		accept: nvme.ConnAccept{CRQSize: 32}}
	r.queues.Store(1)
	r.l = must(rdmacm.Listen(r.to, "10.0.0.1:0", &rdmacm.Config{Transport: transport}))(t)
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.Background())
	r.goroutines.Go(r.serve)
	t.Cleanup(func() {
		cancel()
		r.l.Close()
		r.goroutines.Wait()
		if n := r.from.Resources(); n.QP != 0 || n.CQ != 0 || n.MR != 0 || n.MW != 0 || n.PD > 1 {
			t.Errorf("the host leaves %+v", n)
		}
	})
	return r
}

// dial connects a controller with one queue. The test closes it.
func (r *rogue) dial(ctx context.Context, cfg *host.Config) (*host.Controller, error) {
	r.t.Helper()
	full := host.Config{IOQueues: 1, QueueDepth: 8}
	if cfg != nil {
		full = *cfg
	}
	full.HostNQN, full.Transport = hostNQN, r.transport
	if full.NQN == "" {
		full.NQN = subsystem
	}
	return host.Dial(ctx, r.from, r.addr(), &full)
}

func (r *rogue) addr() string {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), r.l.Addr().Port()).String()
}

// handle sets the handler, which returns true for a command that it has handled.
func (r *rogue) handle(f func(q *rogueQueue, c *nvme.Command) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handler = f
}

// onIO makes a handler for the data commands of I/O queues.
func onIO(f func(q *rogueQueue, c *nvme.Command)) func(q *rogueQueue, c *nvme.Command) bool {
	return func(q *rogueQueue, c *nvme.Command) bool {
		if q.id == 0 || c.Opcode == nvme.Fabrics {
			return false
		}
		f(q, c)
		return true
	}
}

func (r *rogue) serve() {
	for {
		req, err := r.l.Request(r.ctx)
		if err != nil {
			return
		}
		r.goroutines.Go(func() { r.connection(req) })
	}
}

// connection accepts a connection and serves it until it ends.
func (r *rogue) connection(req *rdmacm.Request) {
	request, err := nvme.ParseConnRequest(req.Peer().PrivateData)
	if err != nil {
		r.t.Error(err)
		return
	}
	q := &rogueQueue{rogue: r, id: request.QID}
	q.pd = must(r.to.AllocPD())(r.t)
	q.cq = must(r.to.CreateCQ(1024, nil))(r.t)
	q.in = must(q.pd.RegMR(make([]byte, rogueReceives*rogueCapsule), verbs.AccessLocalWrite))(r.t)
	q.out = must(q.pd.RegMR(make([]byte, (rogueSends+1)*rogueSlot), verbs.AccessLocalWrite))(r.t)
	private := r.private
	if private == nil {
		private = r.accept.Append(nil)
	}
	q.conn, err = req.Accept(r.ctx, &rdmacm.Config{
		PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq, PrivateData: private,
		Cap: verbs.QPCap{MaxSendWR: rogueSends, MaxRecvWR: rogueReceives, MaxSendSGE: 1, MaxRecvSGE: 1},
		Prepare: func(conn *rdmacm.Conn) error {
			for i := range rogueReceives {
				if err := q.receive(conn.QP(), i); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err == nil {
		q.run()
		q.conn.Close()
	}
	q.in.Close()
	q.out.Close()
	q.cq.Close()
	q.pd.Close()
}

func (q *rogueQueue) receive(qp *verbs.QP, i int) error {
	return qp.PostRecv(&verbs.RecvWR{WRID: uint64(i + 1), SGList: []verbs.SGE{q.in.SGE(i*rogueCapsule, rogueCapsule)}})
}

// run answers commands until the connection ends.
func (q *rogueQueue) run() {
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	q.goroutines.Go(func() {
		select {
		case <-q.conn.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	for !q.closed {
		if _, err := q.cq.Wait(ctx, q.wcs[:]); err != nil || q.wcs[0].Status != verbs.WCSuccess {
			return
		}
		if q.wcs[0].WRID == 0 {
			continue
		}
		i := int(q.wcs[0].WRID - 1)
		c, err := nvme.ParseCommand(q.in.Buf()[i*rogueCapsule:][:q.wcs[0].ByteLen])
		if err != nil || q.receive(q.conn.QP(), i) != nil {
			return
		}
		q.mu.Lock()
		f := q.handler
		q.mu.Unlock()
		if f == nil || !f(q, &c) {
			q.serve(&c)
		}
	}
}

// serve answers a command as a target does.
func (q *rogueQueue) serve(c *nvme.Command) {
	var data []byte
	result := uint64(0)
	switch {
	case c.Opcode == nvme.Fabrics:
		switch c.FabricsType() {
		case nvme.Connect:
			result = rogueID
		case nvme.PropertySet:
			_, _, value := c.PropertyParams()
			q.shut = value&nvme.CCShutdown != 0
		case nvme.PropertyGet:
			switch p, _, _ := c.PropertyParams(); p {
			case nvme.PropertyCAP:
				result = nvme.MakeCAP(127, 0)
			case nvme.PropertyCSTS:
				result = nvme.CSTSReady
				if q.shut {
					result |= nvme.CSTSShutComplete
				}
			}
		}
	case q.id > 0 && c.Opcode == nvme.Read:
		data = bytes.Repeat([]byte{roguePattern}, int(c.SGL.Length))
	case q.id > 0:
	case c.Opcode == nvme.Identify && c.CNS() == nvme.CNSController:
		i := controller()
		data = i.Append(nil)
	case c.Opcode == nvme.Identify && c.CNS() == nvme.CNSNamespace:
		data = (&nvme.IdentifyNamespace{Size: rogueBlocks, BlockShift: 9}).Append(nil)
	case c.Opcode == nvme.SetFeatures && c.Feature() == nvme.FeatureQueues:
		result = uint64(q.queues.Load()-1) * 0x10001
	case c.Opcode == nvme.AsyncEventRequest:
		return
	}
	if data != nil {
		q.write(c.SGL.Addr, c.SGL.Key, data)
	}
	q.respond(c, nvme.Success, result)
}

func controller() nvme.IdentifyController {
	return nvme.IdentifyController{CNTLID: rogueID, SGLS: nvme.SGLSupported | nvme.SGLKeyed, CommandCapsule: nvme.CommandLen / 16, Response: 1,
		SubsystemNQN: subsystem}
}

// stage copies data to the next slot of out. No request that is still sent has it: there is one
// slot more than requests.
func (q *rogueQueue) stage(b []byte) []verbs.SGE {
	i := q.at % (rogueSends + 1)
	n := copy(q.out.Buf()[i*rogueSlot:][:rogueSlot], b)
	if n == 0 {
		return nil
	}
	return []verbs.SGE{q.out.SGE(i*rogueSlot, n)}
}

// post posts a work request. An error means that the connection has ended, or that the send queue
// is full.
func (q *rogueQueue) post(wr *verbs.SendWR) {
	wr.Flags = verbs.SendSignaled
	if q.conn.QP().PostSend(wr) == nil {
		q.at++
	}
}

// write writes to memory of the host.
func (q *rogueQueue) write(addr uint64, key uint32, b []byte) {
	for len(b) > 0 {
		n := min(len(b), rogueSlot)
		q.post(&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: q.stage(b[:n]), RemoteAddr: addr, RKey: key})
		addr, b = addr+uint64(n), b[n:]
	}
}

// send sends a response capsule.
func (q *rogueQueue) send(b []byte) { q.post(&verbs.SendWR{Opcode: verbs.Send, SGList: q.stage(b)}) }

// respond sends the response of a command. It invalidates the key if the command says so.
func (q *rogueQueue) respond(c *nvme.Command, status nvme.Status, result uint64) {
	b := response(c.CID, status, result)
	if c.SGL.Type == nvme.SGLKeyedData && c.SGL.Subtype == nvme.SGLInvalidate && c.SGL.Length > 0 {
		q.invalidate(b, c.SGL.Key)
		return
	}
	q.send(b)
}

// invalidate sends a response that invalidates a key.
func (q *rogueQueue) invalidate(b []byte, key uint32) {
	q.post(&verbs.SendWR{Opcode: verbs.SendWithInv, InvalidateRKey: key, SGList: q.stage(b)})
}

func response(cid uint16, status nvme.Status, result uint64) []byte {
	c := nvme.Completion{Result: result, SQHead: 0xffff, CID: cid, Status: status}
	return c.Append(nil)
}
