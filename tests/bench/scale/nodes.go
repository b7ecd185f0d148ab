//go:build linux

package main

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// node is a device whose QPs share a CQ.
type node struct {
	host *netstack.Host
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	gid  verbs.GID
}

// framed hides the medium of a link, so that nodes of one process do not find each other and all
// data goes in frames.
type framed struct{ link.Link }

// newNodes opens two nodes on one network, in frames or directly. cqe is the size of their CQs.
func newNodes(frames bool, cqe int) (nodes [2]*node, err error) {
	return newNodesOn(func(l link.Link) link.Link {
		if frames {
			return framed{l}
		}
		return l
	}, cqe)
}

// newNodesOn opens them on the network's ports, which wrap may replace.
func newNodesOn(wrap func(link.Link) link.Link, cqe int) (nodes [2]*node, err error) {
	lan := new(pipe.Switch)
	for i := range nodes {
		if nodes[i], err = newNode(wrap(lan.Port()), fmt.Sprintf("10.0.0.%d/24", i+1), cqe); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

func newNode(port link.Link, addr string, cqe int) (*node, error) {
	n := new(node)
	var err error
	if n.host, err = netstack.New(port, &netstack.Config{Addrs: []string{addr}, TCP: netstack.TCPConfig{Memory: 16 << 30}}); err != nil {
		return nil, err
	}
	if n.dev, err = rdmatransport.Open(n.host, nil); err != nil {
		return nil, err
	}
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return nil, err
	}
	if n.cq, err = n.dev.CreateCQ(cqe, nil); err != nil {
		return nil, err
	}
	entry, err := n.dev.QueryGID(1, 1)
	n.gid = entry.GID
	return n, err
}

// withCQ returns the same node with a new CQ for QPs created from now on.
func (n *node) withCQ(cqe int) (*node, error) {
	cq, err := n.dev.CreateCQ(cqe, nil)
	if err != nil {
		return nil, err
	}
	other := *n
	other.cq = cq
	return &other, nil
}

// pair creates a QP on each node, RC or UC, and connects the two. depth is the size of the send
// queues.
func pair(nodes [2]*node, kind verbs.QPType, depth int) (qps [2]*verbs.QP, err error) {
	const psn = 0x123456
	var toReceive, toSend verbs.QPAttrMask // attributes that RC needs beyond UC's
	if kind == verbs.RC {
		toReceive = verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
		toSend = verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic
	}
	for i, n := range nodes {
		if qps[i], err = n.pd.CreateQP(&verbs.QPInitAttr{Type: kind, SendCQ: n.cq, RecvCQ: n.cq,
			Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
			return qps, err
		}
	}
	for i, qp := range qps {
		if err := qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: verbs.AccessRemoteWrite},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags); err != nil {
			return qps, err
		}
		if err := qp.Modify(&verbs.QPAttr{
			QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: qps[1-i].Num(), RQPSN: psn, MinRNRTimer: 12,
			AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: nodes[1-i].gid, SGIDIndex: 1}},
		}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|toReceive); err != nil {
			return qps, err
		}
		if err := qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7},
			verbs.QPAttrState|verbs.QPAttrSQPSN|toSend); err != nil {
			return qps, err
		}
	}
	return qps, nil
}
