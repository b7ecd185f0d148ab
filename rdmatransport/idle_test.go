package rdmatransport_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// idleQPs is how many a process may well have.
const idleQPs = 100_000

// BenchmarkIdleQPs makes RC QPs, connects them in pairs and lets them idle: how much memory each takes, and how much of
// that is not the work queues, of one entry each.
func BenchmarkIdleQPs(b *testing.B) {
	const queues = int(unsafe.Sizeof(verbs.SendWR{}) + unsafe.Sizeof(verbs.RecvWR{}) + 2*unsafe.Sizeof(verbs.SGE{}))
	b.ReportAllocs()
	for b.Loop() {
		before := heap()
		qps := connectedQPs(b, idleQPs)
		each := float64(heap()-before) / idleQPs
		b.ReportMetric(each, "B/QP")
		b.ReportMetric(each-float64(queues), "B/QP-beyond-queues")
		runtime.KeepAlive(qps)
	}
}

// heap is the memory in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// connectedQPs makes QPs on two devices that are connected in pairs.
func connectedQPs(tb testing.TB, n int) (qps []*verbs.QP) {
	lan := pipe.New()
	type side struct {
		pd  *verbs.PD
		cq  *verbs.CQ
		gid verbs.GID
	}
	var sides [2]side
	check := func(err error) {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	for i := range sides {
		host, err := stack.New(lan.Port(), stack.Addr(fmt.Sprintf("10.0.0.%d/24", i+1)))
		check(err)
		tb.Cleanup(func() { _ = host.Close() })
		dev, err := verbs.Open(rdmatransport.New(host))
		check(err)
		s := &sides[i]
		s.pd, err = dev.AllocPD()
		check(err)
		s.cq, err = dev.CreateCQ(1, nil)
		check(err)
		s.gid, err = gidOf(dev)
		check(err)
	}
	const psn = 0x123456
	for len(qps) < n {
		var pair [2]*verbs.QP
		for i, s := range sides {
			qp, err := s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: s.cq, RecvCQ: s.cq,
				Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			check(err)
			pair[i] = qp
		}
		for i, qp := range pair {
			check(qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
				verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
			check(qp.Modify(&verbs.QPAttr{
				QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: pair[1-i].Num(), RQPSN: psn, MinRNRTimer: 12,
				AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: sides[1-i].gid, SGIDIndex: 1}},
			}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
				verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
			check(qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7},
				verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
					verbs.QPAttrMaxQPRDAtomic))
		}
		qps = append(qps, pair[:]...)
	}
	return qps
}

// gidOf is the GID of a device's address.
func gidOf(dev *verbs.Device) (verbs.GID, error) {
	e, err := dev.QueryGID(1, 1)
	return e.GID, err
}
