package cm

import (
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// sendSIDRREQ asks for the QP of a service ID.
func (c *conn) sendSIDRREQ(data []byte) {
	c.timeout = wait(responseTimeout)
	c.qkey = defaultUDQKey
	c.set(sidrReqSent)
	c.sendRequest(c.tid, &mad.SIDRREQ{
		RequestID: c.localID, PKey: defaultPKey, ServiceID: c.serviceID, PrivateData: data,
	})
}

// onSIDRREP handles the answer.
func (c *conn) onSIDRREP(tid uint64, msg *mad.SIDRREP) {
	if c.state != sidrReqSent || tid != c.tid {
		return
	}
	c.release()
	data := append([]byte(nil), msg.PrivateData...)
	if msg.Status != mad.SIDRSuccess {
		c.report(rdmacm.ConnEvent{
			Type: rdmacm.Unreachable, Status: int(msg.Status), UD: rdmacm.UDParam{PrivateData: data},
		})
		return
	}
	c.qkey = msg.QKey
	c.report(rdmacm.ConnEvent{Type: rdmacm.Established, UD: rdmacm.UDParam{
		PrivateData: data, AHAttr: c.ahAttr(), QPNum: msg.QPN, QKey: msg.QKey,
	}})
}

// sidrKey returns the key of a passive resolution in Manager.sidr.
func (c *conn) sidrKey() peerKey { return peerKey{c.route.Dst, c.serviceID, c.remoteID} }

// onSIDRREQ handles a request for the QP of a service ID. validated: the peer's address is
// validated.
func (m *Manager) onSIDRREQ(d *Datagram, tid uint64, msg *mad.SIDRREQ, validated bool) {
	key := peerKey{d.Src, msg.ServiceID, msg.RequestID}
	if c := m.sidr[key]; c != nil {
		if c.tid == tid {
			m.Counters.duplicate(mad.AttrSIDRREQ)
			if c.state == sidrAnswered {
				m.Counters.sent(mad.AttrSIDRREP)
				m.Counters.resent(mad.AttrSIDRREP)
				c.path.Send(c.msg)
			}
			return
		}
		if c.state == sidrReqRcvd {
			return // the application has not answered the older one
		}
		delete(m.sidr, key)
	}
	no := &mad.SIDRREP{RequestID: msg.RequestID, ServiceID: msg.ServiceID, Status: mad.SIDRReject}
	l, known := m.findListener(msg.ServiceID, d.Dst)
	ip, err := mad.ParseIPCM(msg.PrivateData)
	allowed := m.cfg.Access.Admits(d.Src)
	if allowed && !known {
		no.Status = mad.SIDRUnsupported
	}
	if !allowed || l == nil || err != nil || l.space != rdmacm.UDP || ip.Src.Unmap() != d.Src || ip.Dst.Unmap() != d.Dst {
		m.reply(d, tid, no)
		return
	}
	if !validated && !l.acceptsUnvalidated() {
		m.hold(d, msg.RequestID, 0)
		return
	}
	if validated && !l.acceptsValidated(d.Src) {
		return
	}
	gid := m.cfg.GIDIndex(d.Port, d.Dst)
	if gid < 0 { // QPs cannot send from that address
		m.Counters.Dropped.Add(1)
		return
	}
	c := m.newConn(l.handler, rdmacm.Route{
		Transport: verbs.RoCEv2, Src: d.Dst, Dst: d.Src, PortNum: d.Port, GIDIndex: gid,
		MTU: m.cfg.MTU(d.Port), TOS: d.TrafficClass, SL: d.Priority,
	})
	if c.path, err = m.path(pathKey{d.Port, d.Dst, d.Src, d.TrafficClass, d.Priority, [6]byte{}}); err != nil {
		return
	}
	c.listener, c.validated, c.ud = l, validated, true
	c.localPort, c.remotePort = uint16(msg.ServiceID), ip.SrcPort
	c.serviceID, c.remoteID, c.tid = msg.ServiceID, msg.RequestID, tid
	c.qkey = defaultUDQKey
	m.sidr[key] = c
	c.set(sidrReqRcvd)
	c.report(rdmacm.ConnEvent{
		Type:  rdmacm.ConnectRequest,
		Route: c.route, LocalPort: c.localPort, PeerPort: c.remotePort,
		UD: rdmacm.UDParam{PrivateData: append([]byte(nil), msg.PrivateData[mad.IPCMLen:]...), AHAttr: c.ahAttr()},
	})
}

func (c *conn) acceptSIDR(p *rdmacm.ConnParam, qkey uint32) {
	if qkey != 0 {
		c.qkey = qkey
	}
	c.answerSIDR(&mad.SIDRREP{
		RequestID: c.remoteID, ServiceID: c.serviceID, Status: mad.SIDRSuccess,
		QPN: p.QPNum, QKey: c.qkey, PrivateData: p.PrivateData,
	})
}

func (c *conn) rejectSIDR(data []byte) {
	c.answerSIDR(&mad.SIDRREP{
		RequestID: c.remoteID, ServiceID: c.serviceID, Status: mad.SIDRReject, PrivateData: data,
	})
}

// answerSIDR sends the answer. It keeps the answer until the application closes the connection,
// because the answer may be lost.
func (c *conn) answerSIDR(msg *mad.SIDRREP) {
	c.sendMsg(c.tid, msg)
	kept := c.m.buf
	c.msg = &kept
	c.set(sidrAnswered)
}
