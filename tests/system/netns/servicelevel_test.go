//go:build linux

package netns

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// services creates QPs of every type on both nodes.
type services struct {
	*node
	pd   *verbs.PD
	xrcd *verbs.XRCD
	srq  *verbs.SRQ
	qps  map[verbs.QPType]*verbs.QP
}

func newServices(n *node) *services {
	s := &services{node: n, pd: n.mr.PD(), qps: map[verbs.QPType]*verbs.QP{}}
	var err error
	s.xrcd, err = n.dev.OpenXRCD(nil, 0)
	n.ok(err)
	s.srq, err = s.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: depth, MaxSGE: 1}, XRCD: s.xrcd, CQ: n.cq})
	n.ok(err)
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.XRCSend} {
		init := &verbs.QPInitAttr{Type: kind, Transport: verbs.RoCEv2, SendCQ: n.cq, Cap: verbs.QPCap{MaxSendWR: depth, MaxSendSGE: 1}}
		if kind != verbs.XRCSend {
			init.RecvCQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = n.cq, depth, 1
		}
		s.qps[kind], err = s.pd.CreateQP(init)
		n.ok(err)
	}
	s.qps[verbs.XRCRecv], err = s.xrcd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv, Transport: verbs.RoCEv2})
	n.ok(err)
	return s
}

// rts takes a QP to RTS, with a peer's if it has one.
func (n *node) rts(qp, peer *verbs.QP, av verbs.AHAttr) {
	kind := qp.Type()
	access := verbs.QPAttrAccessFlags
	if kind == verbs.UD {
		access = verbs.QPAttrQKey
	}
	n.ok(qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: n.mr.Access(), QKey: 0x1234},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|access))
	attr := &verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, MaxDestRDAtomic: 16, MinRNRTimer: 12, AHAttr: av}
	mask := verbs.QPAttrState
	if peer != nil {
		attr.DestQPNum = peer.Num()
		mask |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	}
	if kind == verbs.RC || kind == verbs.XRCRecv {
		mask |= verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	}
	n.ok(qp.Modify(attr, mask))
	attr = &verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 18, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16}
	mask = verbs.QPAttrState | verbs.QPAttrSQPSN
	switch kind {
	case verbs.RC, verbs.XRCSend:
		mask |= verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic
	case verbs.XRCRecv:
		mask |= verbs.QPAttrTimeout
	}
	n.ok(qp.Modify(attr, mask))
}

// TestServiceLevel: in a VLAN, Wireshark sees the service level of each QP's address vector as
// priority, and its traffic class as DSCP, on all packets of the QP, including responses. CNPs have
// their own.
func TestServiceLevel(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	for gid, family := range map[int]string{1: "IPv4", 2: "IPv6"} {
		t.Run(family, func(t *testing.T) {
			lan := new(pipe.Switch)
			queue, err := impair.New(lan.Port(), &impair.Config{In: impair.Direction{Rate: 1e8, ECN: impair.ECN{Max: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "sl.pcapng")
			taken, err := capture.Create(queue, file)
			if err != nil {
				t.Fatal(err)
			}
			m := medium{vlan: true}
			device := &rdmatransport.Config{RoCE: roce.Config{DCQCN: &roce.DCQCN{CNP802PPrio: 7, CNPDSCP: 40}}}
			a := newServices(newNodeWith(t, m.node(t, taken), device, addrs[0]...))
			b := newServices(newNodeWith(t, m.node(t, lan.Port()), device, addrs[1]...))

			// b requests, a responds: priorities 1 to 5 and DSCPs 11 to 15 that way, 6 and 16 back.
			const back = 6
			sl := map[verbs.QPType]uint8{verbs.RC: 1, verbs.UC: 2, verbs.UD: 3, verbs.XRCSend: 4}
			av := func(to *services, sl uint8) verbs.AHAttr {
				g, err := to.dev.QueryGID(1, gid)
				to.ok(err)
				return verbs.AHAttr{IsGlobal: true, PortNum: 1, SL: sl,
					GRH: verbs.GRH{DGID: g.GID, SGIDIndex: uint8(gid), TrafficClass: (10 + sl) << 2}}
			}
			for kind, sl := range sl {
				far := kind
				switch kind {
				case verbs.UD:
					a.rts(a.qps[kind], nil, verbs.AHAttr{})
					b.rts(b.qps[kind], nil, verbs.AHAttr{})
					continue
				case verbs.XRCSend:
					far = verbs.XRCRecv
				}
				a.rts(a.qps[far], b.qps[kind], av(b, back))
				b.rts(b.qps[kind], a.qps[far], av(a, sl))
			}
			to := av(a, sl[verbs.UD])
			ah, err := b.pd.CreateAH(&to)
			b.ok(err)
			post := func(kind verbs.QPType, code verbs.WROpcode, size int) {
				b.ok(b.qps[kind].PostSend(&verbs.SendWR{Opcode: code, Flags: verbs.SendSignaled, SGList: []verbs.SGE{b.mr.SGE(0, size)},
					RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey(), RemoteSRQN: a.srq.Num(), AH: ah, RemoteQPN: a.qps[verbs.UD].Num(),
					RemoteQKey: 0x1234}))
				b.wait()
			}
			for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.AtomicFetchAndAdd} {
				for _, kind := range []verbs.QPType{verbs.RC, verbs.XRCSend} {
					size := 100_000
					if code == verbs.AtomicFetchAndAdd {
						size = 8
					} else {
						a.ok(a.srq.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{a.mr.SGE(0, 4096)}}))
						post(verbs.XRCSend, verbs.Send, 8)
						a.wait()
					}
					post(kind, code, size)
				}
			}
			post(verbs.UC, verbs.RDMAWrite, 100_000)
			a.ok(a.qps[verbs.UD].PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{a.mr.SGE(0, 4096)}}))
			post(verbs.UD, verbs.Send, 8)
			if wc := a.wait(); wc.SL != 3 || wc.CVLAN != 3<<13|vlanID {
				t.Errorf("a datagram came with service level %d and tag %#x", wc.SL, wc.CVLAN)
			}
			b.ok(ah.Close())
			for deadline := time.Now().Add(10 * time.Second); a.counters()["np_cnp_sent"] == 0 && time.Now().Before(deadline); {
				post(verbs.RC, verbs.RDMAWrite, 100_000)
			}
			a.ok(a.host.Close())

			layer := map[string]string{"IPv4": "ip.dsfield", "IPv6": "ipv6.tclass"}[family]
			out, err := exec.Command(tshark, append(slices.Clone(tsharkArgs), "-r", file, "-Y", "infiniband.bth", "-T", "fields", "-E",
				"separator=|",
				"-e", "infiniband.bth.opcode", "-e", "vlan.id", "-e", "vlan.priority", "-e", layer+".dscp", "-e",
				"_ws.malformed")...).Output()
			a.ok(err)
			seen := map[string]int{}
			for line := range strings.Lines(string(out)) {
				var opcode wire.Opcode
				var id, priority, dscp int
				if n, err := fmt.Sscanf(line, "%d|%d|%d|%d|\n", &opcode, &id, &priority, &dscp); err != nil {
					t.Fatalf("%q: %d fields: %v", line, n, err)
				}
				kind := map[wire.Transport]verbs.QPType{wire.RC: verbs.RC, wire.UC: verbs.UC, wire.UD: verbs.UD,
					wire.XRC: verbs.XRCSend}[opcode.Transport()]
				want, what := sl[kind], kind.String()
				info := opcode.Info()
				switch {
				case opcode == wire.CNP:
					want, what = 7, "CNP"
					if dscp == 40 {
						dscp = 17
					}
				case !info.Request():
					want, what = back, what+" answer"
				}
				if seen[what]++; id != vlanID || priority != int(want) || dscp != 10+int(want) {
					t.Errorf("%v, %s: VLAN %d, priority %d, DSCP %d; want %d, %d", opcode, what, id, priority, dscp, vlanID, want)
				}
			}
			for _, what := range []string{"RC", "RC answer", "UC", "UD", "XRC_SEND", "XRC_SEND answer", "CNP"} {
				if seen[what] == 0 {
					t.Errorf("tshark finds no %s packet: %v", what, seen)
				}
			}
		})
	}
}
