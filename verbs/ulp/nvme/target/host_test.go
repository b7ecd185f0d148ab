package target_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

const (
	subsystem = "nqn.2014-08.org.example:disk"
	hostNQN   = "nqn.2014-08.org.example:host"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

// open opens a device on a network. It is closed at the end of the test.
func open(t testing.TB, lan *pipe.Switch, addr string) *verbs.Device {
	t.Helper()
	return openOn(t, lan.Port(), addr)
}

func openOn(t testing.TB, l link.Link, addr string) *verbs.Device {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		host.Close()
	})
	return dev
}

// lab is a target, and a device for hosts.
type lab struct {
	t         testing.TB
	target    *target.Target
	to, from  *verbs.Device
	at        netip.AddrPort
	transport verbs.Transport
	dataSize  int // of a queue's memory for data
}

// newLab starts a target. Its default is a subsystem with 16 MiB of memory.
func newLab(t testing.TB, transport verbs.Transport, cfg *target.Config) *lab {
	t.Helper()
	lan := new(pipe.Switch)
	return labOn(t, open(t, lan, "10.0.0.1/24"), open(t, lan, "10.0.0.2/24"), netip.MustParseAddr("10.0.0.1"), transport, cfg)
}

func labOn(t testing.TB, to, from *verbs.Device, at netip.Addr, transport verbs.Transport, cfg *target.Config) *lab {
	t.Helper()
	var full target.Config
	if cfg != nil {
		full = *cfg
	}
	full.NQN, full.Transports = subsystem, []verbs.Transport{transport}
	if full.Namespaces == nil {
		full.Namespaces = []target.Namespace{{Backend: target.NewMemory(16 << 20)}}
	}
	l := &lab{t: t, to: to, from: from, transport: transport, dataSize: dataSize}
	var err error
	l.target, err = target.Listen(to, netip.AddrPortFrom(at, 0).String(), &full)
	ok(t, err)
	l.at = netip.AddrPortFrom(at, l.target.Addr().Port())
	t.Cleanup(func() {
		ok(t, l.target.Close())
		if r := to.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
			t.Errorf("the target leaves %+v", r)
		}
	})
	return l
}

// both runs a test over both transports.
func both(t *testing.T, f func(t *testing.T, transport verbs.Transport)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// queue is a queue of a host that is made of work requests.
type queue struct {
	l    *lab
	conn *rdmacm.Conn
	cq   *verbs.CQ
	pd   *verbs.PD
	mr   *verbs.MR // capsules that are sent
	in   *verbs.MR // capsules that arrive
	data *verbs.MR // for data of commands
	cid  uint16
	at   int // of the next capsule in mr
	wc   verbs.WC
}

const (
	capsule   = nvme.CommandLen + 8192
	capsules  = 64
	dataSize  = 2 << 20
	testDepth = 32
)

// request returns the private data of a connection request.
func request(qid uint16, entries int) *nvme.ConnRequest {
	return &nvme.ConnRequest{QID: qid, HRQSize: uint16(entries), HSQSize: uint16(entries - 1)}
}

// dial connects a queue, without a Connect command.
func (l *lab) dial(private []byte) (q *queue, err error) {
	l.t.Helper()
	q = &queue{l: l}
	q.pd = must(l.from.AllocPD())(l.t)
	q.cq = must(l.from.CreateCQ(1024, nil))(l.t)
	all := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessMWBind
	q.mr = must(q.pd.RegMR(make([]byte, capsules*capsule), 0))(l.t)
	q.in = must(q.pd.RegMR(make([]byte, capsules*nvme.CompletionLen), verbs.AccessLocalWrite))(l.t)
	q.data = must(q.pd.RegMR(make([]byte, l.dataSize), all))(l.t)
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	q.conn, err = rdmacm.Dial(ctx, l.from, l.at.String(), &rdmacm.Config{
		Transport: l.transport, PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq, PrivateData: private,
		Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: capsules, MaxSendSGE: 1, MaxRecvSGE: 1},
		Prepare: func(c *rdmacm.Conn) error {
			for i := range capsules {
				if err := q.receive(c.QP(), i); err != nil {
					return err
				}
			}
			return nil
		},
	})
	l.t.Cleanup(q.close)
	return q, err
}

func (q *queue) receive(qp *verbs.QP, i int) error {
	return qp.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{q.in.SGE(i*nvme.CompletionLen, nvme.CompletionLen)}})
}

// close frees the queue's objects, so that the device can be closed.
func (q *queue) close() {
	if q.pd == nil {
		return
	}
	if q.conn != nil {
		q.conn.Close()
	}
	for _, mr := range []*verbs.MR{q.mr, q.in, q.data} {
		mr.Close()
	}
	q.cq.Close()
	q.pd.Close()
	q.pd = nil
}

const sendID = 1 << 32

// send sends a command with data in its capsule, and returns its CID.
func (q *queue) send(c nvme.Command, inline []byte) uint16 {
	q.l.t.Helper()
	q.cid++
	c.CID = q.cid
	ok(q.l.t, q.sendRaw(append(c.Append(nil), inline...)))
	return c.CID
}

// sendRaw sends a capsule.
func (q *queue) sendRaw(b []byte) error {
	i := q.at % capsules
	q.at++
	n := copy(q.mr.Buf()[i*capsule:(i+1)*capsule], b)
	return q.conn.QP().PostSend(&verbs.SendWR{WRID: sendID, Opcode: verbs.Send, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{q.mr.SGE(i*capsule, n)}})
}

// response waits for the next response.
func (q *queue) response() (nvme.Completion, error) {
	ctx, cancel := context.WithTimeout(q.l.t.Context(), 30*time.Second)
	defer cancel()
	for {
		var wcs [1]verbs.WC
		if _, err := q.cq.Wait(ctx, wcs[:]); err != nil {
			return nvme.Completion{}, err
		}
		if err := wcs[0].Err(); err != nil {
			return nvme.Completion{}, err
		}
		if wcs[0].WRID == sendID {
			continue
		}
		q.wc = wcs[0]
		i := int(q.wc.WRID)
		done, err := nvme.ParseCompletion(q.in.Buf()[i*nvme.CompletionLen:][:q.wc.ByteLen])
		if err != nil {
			return done, err
		}
		return done, q.receive(q.conn.QP(), i)
	}
}

// do executes a command.
func (q *queue) do(c nvme.Command, inline []byte) nvme.Completion {
	q.l.t.Helper()
	cid := q.send(c, inline)
	done, err := q.response()
	ok(q.l.t, err)
	if done.CID != cid {
		q.l.t.Fatalf("the response has CID %d, want %d", done.CID, cid)
	}
	return done
}

// keyed returns the SGL of n bytes of q.data.
func (q *queue) keyed(off, n int) nvme.SGL {
	return nvme.Keyed(q.data.Addr()+uint64(off), uint32(n), q.data.RKey(), false)
}

// reads executes a command that returns n bytes.
func (q *queue) reads(c nvme.Command, n int) ([]byte, nvme.Completion) {
	q.l.t.Helper()
	c.SGL = q.keyed(0, n)
	done := q.do(c, nil)
	return q.data.Buf()[:n], done
}

// want fails unless a command has a status.
func (q *queue) want(c nvme.Command, inline []byte, want nvme.Status) nvme.Completion {
	q.l.t.Helper()
	done := q.do(c, inline)
	if done.Status.Code() != want {
		q.l.t.Fatalf("%s: %v, want %v", c.Opcode.Name(false), done.Status, want)
	}
	return done
}

// connect sends the Connect command of a queue.
func (q *queue) connect(qid uint16, d *nvme.ConnectData, keepAlive time.Duration) nvme.Completion {
	q.l.t.Helper()
	p := nvme.ConnectCommand{QID: qid, SQSize: testDepth - 1, KeepAlive: keepAlive}
	c := p.Command()
	c.SGL = nvme.InCapsule(nvme.ConnectDataLen)
	return q.do(c, d.Append(nil))
}

func (l *lab) connectData(cntlid uint16) *nvme.ConnectData {
	return &nvme.ConnectData{HostID: [16]byte{1}, CNTLID: cntlid, SubsystemNQN: subsystem, HostNQN: hostNQN}
}

// association is a controller with its queues.
type association struct {
	*lab
	id    uint16
	admin *queue
	io    []*queue
}

// associate creates a controller and I/O queues.
func (l *lab) associate(ioQueues int, keepAlive time.Duration) *association {
	l.t.Helper()
	a := &association{lab: l, admin: must(l.dial(request(0, testDepth).Append(nil)))(l.t)}
	done := a.admin.connect(0, l.connectData(nvme.DynamicController), keepAlive)
	ok(l.t, done.Status.Err())
	a.id = uint16(done.Result)
	a.enable()
	for i := range ioQueues {
		q := must(l.dial(request(uint16(i+1), testDepth).Append(nil)))(l.t)
		ok(l.t, q.connect(uint16(i+1), l.connectData(a.id), 0).Status.Err())
		a.io = append(a.io, q)
	}
	return a
}

// enable enables the controller.
func (a *association) enable() {
	a.t.Helper()
	a.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, nvme.CCEnable|nvme.CCEntrySizes), nil, nvme.Success)
	if done := a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil); done.Result != nvme.CSTSReady {
		a.t.Fatalf("CSTS is %#x", done.Result)
	}
}

// ended waits until the target has ended a connection.
func (q *queue) ended() {
	q.l.t.Helper()
	select {
	case <-q.conn.Done():
	case <-time.After(30 * time.Second):
		q.l.t.Fatal("the connection goes on")
	}
}

// rw returns a Read or Write of the first namespace.
func rw(op nvme.Opcode, slba uint64, blocks uint32) nvme.Command {
	c := nvme.Command{Opcode: op, Flags: nvme.FlagSGL, NSID: 1}
	c.SetRange(slba, blocks)
	return c
}

// rejected returns the status of a rejected connection request.
func rejected(err error) nvme.RejectStatus {
	var e *rdmacm.EventError
	if !errors.As(err, &e) {
		return 0
	}
	r, err := nvme.ParseConnReject(e.PrivateData)
	if err != nil {
		return 0
	}
	return r.Status
}
