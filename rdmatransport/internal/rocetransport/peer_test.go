package rocetransport_test

// The test itself is the peer. It passes packets made with package wire to the engine, and checks
// every packet that the engine sends. The interface in between is only memory.

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// config is a test's configuration of the QP.
type config struct {
	service     verbs.QPType // RC if 0
	block       bool         // BlockSelfMcastLB
	mtu         verbs.MTU
	access      verbs.Access // of the QP
	rqPSN       uint32       // the peer's first PSN
	sqPSN       uint32       // the engine's first PSN
	destRD, rd  uint8        // max_dest_rd_atomic, max_rd_atomic
	timeout     uint8
	retry, rnr  uint8
	minRNR      uint8
	sigAll      bool
	cqe         int
	maxWR       int
	goBackN     bool
	strictICRC  bool
	rxeFlush    bool
	trimmedDSCP uint8
	dcqcn       *roce.DCQCN
	byDelay     *roce.ByDelay
	stopAt      verbs.QPState // leave the QP in this state
	v6          bool
	batch       int // datagrams in a frame of the link
	size        int // bytes of the memory region
	mrAccess    verbs.Access
	mrIOVA      uint64
	mrIOVAGiven bool
}

const (
	allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
		verbs.AccessFlushGlobal

	peerQPN  = 0x00abcd
	qkey     = 0x11111111
	peerAddr = 0x7f00_0000_1000 // remote memory of the engine's requests
	peerKey  = 0x0badcafe
	guard    = 4096 // bytes on either side of every region
	guardVal = 0xc7
)

var (
	us4, them4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	us6, them6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	linkLocal  = netip.MustParseAddr("fe80::1")
)

// rig is a device with one connected QP, and the peer.
type rig struct {
	t        testing.TB
	c        config
	port     *port // port 1
	port2    *port
	us, them netip.Addr
	dev      *verbs.Device
	pd       *verbs.PD
	xrcd     *verbs.XRCD
	scq, rcq *verbs.CQ
	qp       *verbs.QP

	qpns []uint32 // of qp, and of earlier ones

	got   [2][]verbs.WC // TestBadLink: completions of sends and receives so far
	later []func()      // actions for later

	whole []byte // buf with its guards
	buf   []byte // the memory of mr and lmr
	mr    *verbs.MR
}

// run runs a test in a bubble of virtual time.
func run(t *testing.T, name string, c config, f func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newRig(t, c)) })
	})
}

// bubble is run without a name.
func bubble(t *testing.T, c config, f func(r *rig)) {
	synctest.Test(t, func(t *testing.T) { f(newRig(t, c)) })
}

func newRig(t testing.TB, c config) *rig {
	t.Helper()
	for _, d := range []struct {
		v   *int
		def int
	}{{&c.cqe, 4096}, {&c.maxWR, 64}, {&c.size, 64 << 10}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.service == 0 {
		c.service = verbs.RC
	}
	if c.mtu == 0 {
		c.mtu = verbs.MTU1024
	}
	if c.access == 0 {
		c.access = allAccess
	}
	if c.mrAccess == 0 {
		c.mrAccess = allAccess
	}
	if c.destRD == 0 {
		c.destRD = 4
	}
	if c.rd == 0 {
		c.rd = 4
	}
	if c.minRNR == 0 {
		c.minRNR = 12
	}
	if c.stopAt == verbs.StateReset {
		c.stopAt = verbs.StateRTS
	}
	r := &rig{t: t, c: c, us: us4, them: them4}
	if c.v6 {
		r.us, r.them = us6, them6
	}
	r.port = &port{t: t, gids: []netip.Addr{linkLocal, us4, us6}, batch: c.batch, joins: map[netip.Addr]int{}, rxeFlush: c.rxeFlush}
	r.port2 = &port{t: t, gids: []netip.Addr{linkLocal}}
	r.dev = must(rdmatransport.Open(&host{ports: []*port{r.port, r.port2}},
		&rdmatransport.Config{RoCE: roce.Config{SelectiveRepeat: !c.goBackN, DCQCN: c.dcqcn,
			ByDelay: c.byDelay, StrictICRC: c.strictICRC, RxeFlush: c.rxeFlush,
			TrimmedDSCP: c.trimmedDSCP}}))
	r.pd = must(r.dev.AllocPD())
	r.scq = must(r.dev.CreateCQ(c.cqe, nil))
	r.rcq = must(r.dev.CreateCQ(c.cqe, nil))
	r.whole = make([]byte, guard+c.size+guard)
	r.buf = r.whole[guard : guard+c.size : guard+c.size]
	r.paint()
	if c.mrIOVAGiven {
		r.mr = must(r.pd.RegMREx(&verbs.MRInitAttr{Buf: r.buf, IOVA: new(c.mrIOVA), Access: c.mrAccess}))
	} else {
		r.mr = must(r.pd.RegMR(r.buf, c.mrAccess))
	}
	switch c.service {
	case verbs.XRCSend:
		r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: c.service, SendCQ: r.scq, Cap: verbs.QPCap{MaxSendWR: c.maxWR, MaxSendSGE: 32}}))
	case verbs.XRCRecv:
		r.xrcd = must(r.dev.OpenXRCD(nil, 0))
		r.qp = must(r.xrcd.CreateQP(&verbs.QPInitAttr{Type: c.service}))
	default:
		r.createQP()
	}
	rigs.Store(r.qp.Num(), r)
	r.connect()
	t.Cleanup(func() {
		rigs.CompareAndDelete(r.qp.Num(), r)
		r.guards()
		if err := r.qp.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		if r.port.paths != 0 {
			t.Errorf("%d paths are left open", r.port.paths)
		}
		r.dev.Provider().Close()
	})
	return r
}

func (r *rig) createQP() {
	c := &r.c
	r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{
		Type: c.service, SendCQ: r.scq, RecvCQ: r.rcq, SQSigAll: c.sigAll, BlockSelfMcastLB: c.block,
		Cap: verbs.QPCap{MaxSendWR: c.maxWR, MaxRecvWR: c.maxWR, MaxSendSGE: 32, MaxRecvSGE: 32, MaxInlineData: 512},
	}))
}

// paint fills the guards, and the region with a different pattern.
func (r *rig) paint() {
	for i := range r.whole {
		r.whole[i] = guardVal
	}
	for i := range r.buf {
		r.buf[i] = byte(i*7 + i>>8)
	}
}

// connect moves the QP from RESET to the state that the test needs.
func (r *rig) connect() {
	r.t.Helper()
	c := &r.c
	r.qpns = append(r.qpns, r.qp.Num())
	gid := uint8(1)
	if c.v6 {
		gid = 2
	}
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: c.access, QKey: qkey},
			verbs.QPAttrQKey | verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags},
		{verbs.QPAttr{
			QPState: verbs.StateRTR, PathMTU: c.mtu, DestQPNum: peerQPN, RQPSN: c.rqPSN,
			MaxDestRDAtomic: c.destRD % 255, MinRNRTimer: c.minRNR,
			AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GIDFromAddr(r.them), SGIDIndex: gid}},
		}, verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
		{verbs.QPAttr{
			QPState: verbs.StateRTS, SQPSN: c.sqPSN, Timeout: c.timeout, RetryCnt: c.retry, RNRRetry: c.rnr,
			MaxRDAtomic: c.rd % 255,
		}, verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry |
			verbs.QPAttrMaxQPRDAtomic},
	} {
		if r.qp.State() == c.stopAt {
			return
		}
		if err := r.qp.Modify(&step.attr, step.mask&attrMask[c.service]); err != nil {
			r.t.Fatal(err)
		}
	}
}

// attrMask has the attributes of each service.
var attrMask = map[verbs.QPType]verbs.QPAttrMask{
	verbs.RC: ^verbs.QPAttrQKey,
	verbs.UC: ^(verbs.QPAttrQKey | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer | verbs.QPAttrTimeout |
		verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic),
	verbs.XRCSend: ^(verbs.QPAttrQKey | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer),
	verbs.XRCRecv: ^(verbs.QPAttrQKey | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic),
	verbs.UD:      verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey | verbs.QPAttrSQPSN,
}

// none is 0 as a count of READs and atomics: 0 in config is the default.
const none = 255

func (r *rig) modify(to verbs.QPState) {
	r.t.Helper()
	if err := r.qp.Modify(&verbs.QPAttr{QPState: to}, verbs.QPAttrState); err != nil {
		r.t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// mtu returns the path MTU in bytes.
func (r *rig) mtu() int { return r.c.mtu.Bytes() }

// guards checks that nothing around the region has changed.
func (r *rig) guards() {
	r.t.Helper()
	for i, b := range r.whole {
		if b != guardVal && (i < guard || i >= guard+len(r.buf)) {
			r.t.Fatalf("byte %d outside of the region of %d bytes has changed", i-guard, len(r.buf))
		}
	}
}

// Packets of the peer.

type option func(*wire.Packet)

func ackReq(p *wire.Packet) { p.AckReq = true }

func imm(v uint32) option { return func(p *wire.Packet) { p.Imm = v } }

func reth(addr uint64, rkey uint32, n uint32) option {
	return func(p *wire.Packet) { p.RETH = wire.RETH{Addr: addr, RKey: rkey, Length: n} }
}

func flush(placement, selectivity uint8) option {
	return func(p *wire.Packet) { p.FETH = wire.FETH{Placement: placement, Selectivity: selectivity} }
}

// at returns the RETH of n bytes at an offset of the region.
func (r *rig) at(off int, n uint32) option { return reth(r.mr.Addr()+uint64(off), r.mr.RKey(), n) }

func (r *rig) atomic(off int, compare, swap uint64) option {
	return func(p *wire.Packet) {
		p.AtomicETH = wire.AtomicETH{Addr: r.mr.Addr() + uint64(off), RKey: r.mr.RKey(), Swap: swap, Compare: compare}
	}
}

// req returns a request packet of the peer; psn counts from the first.
func (r *rig) req(op wire.Opcode, psn int, payload []byte, opts ...option) wire.Packet {
	p := wire.Packet{Payload: payload}
	p.Opcode, p.PKey, p.DestQP, p.Pad = op, wire.DefaultPKey, r.qp.Num(), wire.PadLen(len(payload))
	p.PSN = wire.PSNAdd(r.c.rqPSN, uint32(psn))
	for _, o := range opts {
		o(&p)
	}
	return p
}

// resp returns a response packet of the peer; psn counts from the engine's first.
func (r *rig) resp(op wire.Opcode, psn int, syndrome uint8, payload []byte) wire.Packet {
	if r.c.service == verbs.XRCSend {
		op |= wire.Opcode(wire.XRC) << 5
	}
	p := r.req(op, 0, payload)
	p.PSN = wire.PSNAdd(r.c.sqPSN, uint32(psn))
	p.AETH.Syndrome = syndrome
	return p
}

func (r *rig) ack(psn int) wire.Packet { return r.resp(wire.RCAck, psn, wire.AckUnlimited, nil) }

func (r *rig) nak(syndrome uint8, psn int) wire.Packet { return r.resp(wire.RCAck, psn, syndrome, nil) }

func (r *rig) data(op wire.Opcode, psn int, payload []byte) wire.Packet {
	return r.resp(op, psn, wire.AckUnlimited, payload)
}

func (r *rig) atomicAck(psn int, orig uint64) wire.Packet {
	p := r.resp(wire.RCAtomicAck, psn, wire.AckUnlimited, nil)
	p.AtomicAckETH.Orig = orig
	return p
}

// fill returns n bytes whose values depend on their position.
func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*13+i>>8)
	}
	return b
}

// frame makes one frame of packets of one size, except a shorter last one.
func (r *rig) frame(pkts ...wire.Packet) *stack.Datagram {
	d := &stack.Datagram{Src: r.them, Dst: r.us, SrcPort: 50000, SegmentSize: pkts[0].Size()}
	h := make([]byte, headerLen(r.us))
	for i := range pkts {
		n := pkts[i].Size()
		if n > d.SegmentSize || n < d.SegmentSize && i < len(pkts)-1 {
			r.t.Fatalf("packet %d of a superframe has %d bytes, the first %d", i, n, d.SegmentSize)
		}
		b := make([]byte, n)
		putHeader(h, d.Src, d.Dst, d.SrcPort, i, n)
		pkts[i].Encode(h, b)
		d.Payload = append(d.Payload, b...)
	}
	d.Header = make([]byte, len(h))
	putHeader(d.Header, d.Src, d.Dst, d.SrcPort, 0, len(d.Payload))
	return d
}

// give passes each packet to the engine in its own frame.
func (r *rig) give(pkts ...wire.Packet) {
	for i := range pkts {
		r.port.receive(r.frame(pkts[i]))
	}
}

// giveFrame passes all packets to the engine in one superframe.
func (r *rig) giveFrame(pkts ...wire.Packet) { r.port.receive(r.frame(pkts...)) }

// Packets of the engine.

// take returns the packets sent since the last call.
func (r *rig) take() []wire.Packet {
	r.port.mu.Lock()
	defer r.port.mu.Unlock()
	sent := r.port.sent
	r.port.sent = nil
	return sent
}

// brief formats a packet as the tests expect it. PSNs and addresses count from the first.
func (r *rig) brief(p *wire.Packet) string {
	var s strings.Builder
	w := func(format string, args ...any) { fmt.Fprintf(&s, format, args...) }
	info := p.Opcode.Info()
	base := r.c.sqPSN
	if info.Response() {
		base = r.c.rqPSN
	}
	psn := wire.PSNDiff(p.PSN, base)
	name := p.Opcode.String()
	for _, service := range []string{"RC ", "UC ", "UD "} {
		name = strings.TrimPrefix(name, service)
	}
	switch {
	case p.Opcode != wire.RCAck:
		w("%s %d", strings.Replace(name, "READ Response ", "", 1), psn)
	case p.AETH.IsACK():
		w("ack %d", psn)
	case p.AETH.IsRNR():
		w("rnr%d %d", p.AETH.Value(), psn)
	default:
		w("nak%x %d", p.AETH.Syndrome, psn)
	}
	if info.HasAETH() {
		w(" msn %d", p.AETH.MSN)
		if p.AETH.IsACK() && p.AETH.Value() != 0x1f {
			w(" credits %d", p.AETH.Value())
		}
	}
	if info.HasPayload() {
		w(" len %d", len(p.Payload))
	}
	if info.HasRETH() {
		w(" at %d+%d", p.RETH.Addr-peerAddr, p.RETH.Length)
		if p.RETH.RKey != peerKey {
			w(" rkey %#x", p.RETH.RKey)
		}
	}
	if info.HasAtomicETH() {
		w(" at %d swap %d compare %d", p.AtomicETH.Addr-peerAddr, p.AtomicETH.Swap, p.AtomicETH.Compare)
	}
	if info.HasAtomicAckETH() {
		w(" orig %d", p.AtomicAckETH.Orig)
	}
	if info.HasDETH() {
		w(" qkey %#x", p.DETH.QKey)
		if p.DETH.SrcQP != r.qp.Num() || p.DETH.Reserved8 != 0 {
			w(" with DETH %+v", p.DETH)
		}
	}
	if info.HasImmDt() {
		w(" imm %d", p.Imm)
	}
	if p.Solicited {
		w(" se")
	}
	if p.AckReq {
		w(" ackreq")
	}
	mark := p.Reserved7 // TestMarks distinguishes the two marks
	if service := p.Opcode.Transport(); service == wire.RC || service == wire.XRC {
		for _, qpn := range r.qpns {
			if m := r.mine(qpn, p); mark == m.Newest() || mark == m.Again() {
				mark = 0
				break
			}
		}
	}
	if p.DestQP != peerQPN || p.PKey != wire.DefaultPKey || p.FECN || p.BECN || p.Reserved6 != 0 || mark != 0 {
		w(" with BTH %+v", p.BTH)
	}
	return s.String()
}

// expect checks the packets sent since the last look, and returns them.
func (r *rig) expect(want ...string) []wire.Packet {
	r.t.Helper()
	sent := r.take()
	var got []string
	for i := range sent {
		got = append(got, r.brief(&sent[i]))
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("the engine sent\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return sent
}

// The application's view.

func poll(t testing.TB, cq *verbs.CQ) []verbs.WC {
	t.Helper()
	var wcs [64]verbs.WC
	var all []verbs.WC
	for {
		n, err := cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

// completions checks the contents of a CQ: "7 SUCCESS SEND 0" is WRID, status, and on success
// opcode and length, followed by " imm 5" for immediate data.
func (r *rig) completions(cq *verbs.CQ, want ...string) {
	r.t.Helper()
	r.check(poll(r.t, cq), want)
}

func (r *rig) check(wcs []verbs.WC, want []string) {
	r.t.Helper()
	var got []string
	for _, wc := range wcs {
		s := fmt.Sprintf("%d %v", wc.WRID, wc.Status)
		if wc.Status == verbs.WCSuccess {
			s += fmt.Sprintf(" %v %d", wc.Opcode, wc.ByteLen)
			if wc.Flags&verbs.WCWithImm != 0 {
				s += fmt.Sprintf(" imm %d", wc.ImmData)
			}
		}
		if wc.QPNum != r.qp.Num() {
			s += fmt.Sprintf(" of QP %#x", wc.QPNum)
		}
		got = append(got, s)
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("completions\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (r *rig) state(want verbs.QPState) {
	r.t.Helper()
	if got := r.qp.State(); got != want {
		r.t.Fatalf("the QP is in %v, want %v", got, want)
	}
}

// recv posts a receive request of n bytes at an offset of the region.
func (r *rig) recv(id uint64, off, n int) {
	r.t.Helper()
	if err := r.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{r.mr.SGE(off, n)}}); err != nil {
		r.t.Fatal(err)
	}
}

// post posts send requests.
func (r *rig) post(wrs ...*verbs.SendWR) {
	r.t.Helper()
	if err := r.qp.PostSend(wrs...); err != nil {
		r.t.Fatal(err)
	}
}

// wr returns a signalled request for n bytes at the start of the region, and at peerAddr.
func (r *rig) wr(id uint64, op verbs.WROpcode, n int) *verbs.SendWR {
	return &verbs.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{r.mr.SGE(0, n)},
		RemoteAddr: peerAddr, RKey: peerKey}
}

// counter returns a counter of the device.
func (r *rig) counter(name string) uint64 {
	r.t.Helper()
	v, ok := must(r.dev.HWCounters())[name]
	if !ok {
		r.t.Fatalf("no counter %s", name)
	}
	return v
}

// sleep lets virtual time pass, and waits for everything that is due.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
