package cm

import (
	"github.com/softrnic/softrnic/verbs"
)

// QPAttr implements rdmacm.ProviderConn.
func (c *conn) QPAttr(to verbs.QPState) (a verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	a.QPState, mask = to, verbs.QPAttrState
	if to == verbs.StateErr || to == verbs.StateReset {
		return a, mask, nil
	}
	if c.ud {
		return c.udAttr(to)
	}
	ending := c.state == dreqSent || c.state == dreqRcvd || c.state == timewait
	known := c.remoteQPN != 0 && c.state != idle && !ending
	switch to {
	case verbs.StateInit:
		if !known && c.state != reqSent && c.state != mraReqRcvd {
			break
		}
		a.PortNum = c.route.PortNum
		a.QPAccessFlags = verbs.AccessRemoteWrite
		if c.responder > 0 {
			a.QPAccessFlags |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
				verbs.AccessFlushGlobal | verbs.AccessFlushPersistent
		}
		return a, mask | verbs.QPAttrAccessFlags | verbs.QPAttrPKeyIndex | verbs.QPAttrPort, nil
	case verbs.StateRTR:
		if !known {
			break
		}
		a.AHAttr = c.ahAttr()
		a.PathMTU = c.mtu
		a.DestQPNum = c.remoteQPN
		a.RQPSN = c.recvPSN
		mask |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
		if c.qpType == verbs.RC || c.qpType == verbs.XRCRecv {
			a.MaxDestRDAtomic = min(c.responder, c.m.cfg.MaxDepth) // the peer's value is not trusted
			mask |= verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
		}
		return a, mask, nil
	case verbs.StateRTS:
		if !known {
			break
		}
		a.SQPSN = c.sendPSN
		mask |= verbs.QPAttrSQPSN
		switch c.qpType {
		case verbs.RC, verbs.XRCSend:
			a.RetryCnt, a.RNRRetry, a.MaxRDAtomic = c.retryCount, c.rnrRetry, min(c.initiator, c.m.cfg.MaxDepth)
			mask |= verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic
			fallthrough
		case verbs.XRCRecv:
			a.Timeout = c.ackTimeout
			if c.ackOption != 0 {
				a.Timeout = c.ackOption
			}
			mask |= verbs.QPAttrTimeout
		}
		return a, mask, nil
	}
	return verbs.QPAttr{}, 0, c.stateError("attributes for "+to.String(), "connecting or established")
}

// udAttr needs no attributes of the peer.
func (c *conn) udAttr(to verbs.QPState) (a verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	a.QPState, mask = to, verbs.QPAttrState
	switch to {
	case verbs.StateInit:
		a.PortNum, a.QKey = c.route.PortNum, c.qkey
		mask |= verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
	case verbs.StateRTS:
		mask |= verbs.QPAttrSQPSN
	}
	return a, mask, nil
}

// ahAttr returns the address of the peer.
func (c *conn) ahAttr() verbs.AHAttr {
	return verbs.AHAttr{
		GRH: verbs.GRH{
			DGID: verbs.GIDFromAddr(c.route.Dst), FlowLabel: c.flowLabel, SGIDIndex: uint8(c.route.GIDIndex),
			HopLimit: hopLimit, TrafficClass: c.route.TOS,
		},
		SL:       c.route.SL,
		IsGlobal: true,
		PortNum:  c.route.PortNum,
	}
}
