package raw

// The send and receive path of frames.

import (
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// qp is the provider's part of a QP. The QP's lock protects it.
type qp struct {
	e         *Engine
	h         verbs.QPHandle
	num       uint32
	nic       stack.NIC // of its port; nil before INIT
	destroyed bool

	sent, received uint64
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(_, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrPort != 0 {
		if attr.PortNum < 1 || int(attr.PortNum) > len(q.e.nics) {
			return fmt.Errorf("port %d: %w", attr.PortNum, verbs.ErrInvalid)
		}
		nic := q.e.nics[attr.PortNum-1]
		if err := checkFrames(nic); err != nil {
			return err
		}
		q.nic = nic
	}
	if to == verbs.StateReset {
		q.nic = nil
	}
	return nil
}

// checkFrames returns an error if the NIC's stack has no port for raw frames.
func checkFrames(nic stack.NIC) error {
	if nic.Frames() == nil {
		return fmt.Errorf("raw packets on %s, whose network stack carries no raw frames: %w", nic.Name(), verbs.ErrNotSupported)
	}
	return nil
}

// Query implements verbs.ProviderQP.
func (q *qp) Query(*verbs.QPAttr) {}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv() {}

// Counters implements verbs.ProviderQP.
func (q *qp) Counters() map[string]uint64 {
	return map[string]uint64{"raw_sent_frames": q.sent, "raw_rcvd_frames": q.received}
}

// Peer implements verbs.ProviderQP.
func (q *qp) Peer() netip.Addr { return netip.Addr{} }

// Placed implements verbs.ProviderQP.
func (q *qp) Placed(failed *verbs.PlaceError) {
	if failed != nil {
		q.h.Fail()
	}
}

// Destroy implements verbs.ProviderQP.
func (q *qp) Destroy() {
	q.e.qps.Delete(q.num)
	q.destroyed = true
	q.e.Counters.sent.Add(q.sent)
	q.e.Counters.received.Add(q.received)
}

// PostSend implements verbs.ProviderQP: it sends all posted requests. A frame that the link refuses
// is lost, as it could be on the network.
func (q *qp) PostSend() {
	if q.h.State() == verbs.StateSQD {
		q.h.Drained() // nothing is ever in progress
		return
	}
	if q.h.SendLen() == 0 {
		return
	}
	out := q.nic.Frames().Sender()
	for q.h.SendLen() > 0 {
		status := q.send(out, q.h.Send(0))
		q.h.CompleteSend(status, 0)
		if status != verbs.WCSuccess {
			q.h.FailSend()
			break
		}
		q.sent++
	}
	out.Flush()
}

// send adds a frame. A frame without a complete Ethernet header, or longer than the link's MTU, is
// a local length error.
func (q *qp) send(out stack.FrameSender, wr *verbs.PostedSend) verbs.WCStatus {
	n := wr.Length()
	if n > maxFrame {
		return verbs.WCLocLenErr
	}
	b := out.Frame(int(n))
	if b == nil {
		return verbs.WCLocLenErr
	}
	status := verbs.WCSuccess
	if data := wr.Inline(); data != nil {
		copy(b, data)
	} else {
		status = q.e.regions.Gather(b, q.h.PD(), wr.SGList, 0, nil)
	}
	if status == verbs.WCSuccess && stack.PacketLen(b) > q.nic.MTU() {
		status = verbs.WCLocLenErr
	}
	if status != verbs.WCSuccess {
		out.Drop()
	}
	return status
}

// maxFrame is more than any link takes, in bytes.
const maxFrame = 1 << 20

// receive places a frame in the next receive request. If the frame is too long, the request gets a
// local length error and the QP moves to ERR, as in ConnectX, whose drivers post buffers of the
// MTU.
func (q *qp) receive(frame []byte, tag uint32) {
	q.h.Lock()
	defer q.h.Unlock()
	c := &q.e.Counters
	if s := q.h.State(); q.destroyed || s < verbs.StateRTR || s > verbs.StateSQE {
		c.OutOfBuffer.Add(1)
		return
	}
	wr := q.h.Recv()
	if wr == nil {
		c.OutOfBuffer.Add(1)
		return
	}
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(len(frame)), FlowTag: tag}
	if uint64(len(frame)) > wr.Length() {
		c.TooLong.Add(1)
		wc.Status = verbs.WCLocLenErr
	} else {
		wc.Status = q.e.regions.ScatterRecv(frame, q.h, wr, 0, 0)
	}
	q.h.CompleteRecv(&wc, false)
	if wc.Status != verbs.WCSuccess {
		q.h.Fail()
		return
	}
	q.received++
}
