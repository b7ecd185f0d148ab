package rdmatransport_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// node is one end of the example: a host with a device, and what a connection needs.
type node struct {
	dev *verbs.Device
	mr  *verbs.MR
	cq  *verbs.CQ
	qp  *verbs.QP
	buf []byte
}

func newNode(lan *pipe.Switch, addr string, cfg *rdmatransport.Config) *node {
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	check(err)
	dev, err := rdmatransport.Open(host, cfg)
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	n := &node{dev: dev, buf: make([]byte, 64)}
	n.mr, err = pd.RegMR(n.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	check(err)
	n.cq, err = dev.CreateCQ(16, nil)
	check(err)
	n.qp, err = pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: n.cq, RecvCQ: n.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	check(err)
	return n
}

// connect moves a QP to RTS. Two programs would exchange their QP numbers, PSNs and GIDs first.
func (n *node) connect(peer *node) {
	// The same in both directions, for brevity; applications choose it at random.
	const psn = 0x123456
	// GID 0 is the link-local address, GID 1 the address from Addr.
	gids, err := peer.dev.GIDTable(1)
	check(err)
	check(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: verbs.AccessRemoteWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	check(n.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: peer.qp.Num(), RQPSN: psn,
		MaxDestRDAtomic: 1, MinRNRTimer: 12, // 640 µs
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: gids[1].GID, SGIDIndex: 1}},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	check(n.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1,
	}, verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
		verbs.QPAttrMaxQPRDAtomic))
}

// Two nodes on one in-process switch. A writes into B's memory, and notifies it with an immediate
// value.
func Example() {
	lan := new(pipe.Switch)
	a, b := newNode(lan, "10.0.0.1/24", nil), newNode(lan, "10.0.0.2/24", nil)
	a.connect(b)
	b.connect(a)

	check(b.qp.PostRecv(&verbs.RecvWR{WRID: 7}))
	copy(a.buf, "hello, remote memory")
	check(a.qp.PostSend(&verbs.SendWR{
		WRID: 1, Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSignaled, ImmData: 42,
		SGList:     []verbs.SGE{a.mr.SGE(0, 20)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))

	wc := wait(b.cq)
	fmt.Println(wc.Status, wc.Opcode, wc.WRID, wc.ImmData, string(b.buf[:wc.ByteLen]))
	wc = wait(a.cq)
	fmt.Println(wc.Status, wc.Opcode, wc.WRID)
	// Output:
	// SUCCESS RECV_RDMA_WITH_IMM 7 42 hello, remote memory
	// SUCCESS RDMA_WRITE 1
}

// A device that traces its QPs to log/slog, at level debug.
func ExampleConfig_trace() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "qpn" {
				return slog.Attr{} // these differ between runs
			}
			return a
		},
	}))
	lan := new(pipe.Switch)
	a, b := newNode(lan, "10.0.0.1/24", &rdmatransport.Config{Trace: trace.Logger(logger)}), newNode(lan, "10.0.0.2/24", nil)
	a.connect(b)
	check(a.dev.Shutdown(context.Background())) // has written all events
	// Output:
	// level=DEBUG msg="QP state" transport=RoCE from=RESET to=INIT
	// level=DEBUG msg="QP state" transport=RoCE from=INIT to=RTR
	// level=DEBUG msg="send mode" transport=RoCE from=failed to="in order"
	// level=DEBUG msg=window transport=RoCE packets=512
	// level=DEBUG msg="QP state" transport=RoCE from=RTR to=RTS
	// level=DEBUG msg="send mode" transport=RoCE from="in order" to=failed
	// level=DEBUG msg="QP state" transport=RoCE from=RTS to=ERR
}

// wait waits for one completion.
func wait(cq *verbs.CQ) verbs.WC {
	var wc [1]verbs.WC
	_, err := cq.Wait(context.Background(), wc[:])
	check(err)
	return wc[0]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
