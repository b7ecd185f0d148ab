package perf

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// queuePair is one QP of a measurement. Messages are counted from 0. Message k is sent from slot k
// modulo txSlots of the side that has the data to slot k modulo rxSlots of the other side. A SEND
// is placed in the slot of the receive request.
type queuePair struct {
	lane  *rdmaLane
	plan  *plan
	index int
	qp    *verbs.QP
	conn  *rdmacm.Conn

	tx, rx         verbs.SGE // the first slots
	peerTx, peerRx uint64
	peerRKey       uint32
	stride         uint64
	txEnd, rxEnd   uint64 // sizes of all slots in bytes

	// The sender's state.
	txAt, rxAt uint64 // slot offsets of the next message
	posted     int64  // messages since the QP was created
	completed  int64  // messages known to be complete by signalled completions
	tail       int64  // unsignalled messages after the last signalled one
	goal       int64  // final value of posted; 0: until the lane ends
	closed     bool   // no more messages are posted
	credits    int64  // messages for which the peer has receives
	wrs        []*verbs.SendWR
	extra      verbs.SendWR // request for a credit or a flush

	// The receiver's state.
	received   int64 // messages
	consumed   int64 // receives consumed by messages and credits
	uncredited int64 // received messages without credit
	unposted   int   // consumed receives that are not reposted
	recvs      []*verbs.RecvWR
}

// Work request IDs: the kind, then the QP's index in its lane (16 bits), then a count (40 bits).
const (
	messageSent = iota
	creditSent
	flushed
	received

	kindShift  = 56
	indexShift = 40
	countMask  = 1<<indexShift - 1
)

func newQueuePair(l *rdmaLane, index int, qp *verbs.QP) *queuePair {
	p, mr := l.side.plan, l.side.mr
	q := &queuePair{lane: l, plan: p, index: index, qp: qp, stride: uint64(p.stride()), credits: 2 * int64(p.Depth)}
	q.txEnd, q.rxEnd = uint64(p.txSlots())*q.stride, uint64(p.rxSlots())*q.stride
	q.tx = mr.SGE(index*p.block(), p.Size)
	q.rx = mr.SGE(index*p.block()+p.txSlots()*p.stride(), p.Size)
	for range p.PostList {
		q.wrs = append(q.wrs, &verbs.SendWR{Opcode: operations[p.Op].opcode, SGList: []verbs.SGE{q.tx}, CompareAdd: 1})
	}
	if p.Op != opSend {
		q.credits = 1 << 62 // the operation consumes no receives at the peer
		return q
	}
	for range max(1, min(16, p.receives()/4)) {
		q.recvs = append(q.recvs, &verbs.RecvWR{WRID: q.id(received), SGList: []verbs.SGE{q.rx}})
	}
	return q
}

func (q *queuePair) id(kind uint64) uint64 {
	return kind<<kindShift | uint64(q.index/q.plan.Threads)<<indexShift
}

// setPeer sets the address of the peer's memory.
func (q *queuePair) setPeer(peer *offer) {
	q.peerTx = peer.Addr + uint64(q.index*q.plan.block())
	q.peerRx = q.peerTx + uint64(q.plan.txSlots()*q.plan.stride())
	q.peerRKey = peer.RKey
}

// begin prepares for a phase.
func (q *queuePair) begin(iters int64) {
	q.closed, q.goal = false, 0
	if iters > 0 {
		q.goal = q.posted + iters
	}
}

// post posts as many messages as there is room for, at most PostList, and returns their number.
// With stop, a QP without a goal posts at most one last message.
func (q *queuePair) post(stop bool) (int, error) {
	if q.closed {
		return 0, nil
	}
	if stop && q.tail == 0 {
		q.closed = true
		return 0, nil
	}
	n := min(int64(q.plan.PostList), int64(q.plan.Depth)-(q.posted-q.completed), q.credits)
	switch {
	case q.goal > 0:
		n = min(n, q.goal-q.posted)
	case stop:
		n = min(n, 1) // the last is signalled, so that all earlier messages complete
	}
	if n <= 0 {
		return 0, nil
	}
	for _, wr := range q.wrs[:n] {
		q.next(wr, stop)
	}
	q.credits -= n
	return int(n), q.qp.PostSend(q.wrs[:n]...)
}

// next sets wr to the next message.
func (q *queuePair) next(wr *verbs.SendWR, last bool) {
	tx, rx := q.txAt, q.rxAt
	if q.txAt += q.stride; q.txAt == q.txEnd {
		q.txAt = 0
	}
	if q.rxAt += q.stride; q.rxAt == q.rxEnd {
		q.rxAt = 0
	}
	wr.RKey = q.peerRKey
	switch wr.Opcode {
	case verbs.Send:
		wr.SGList[0].Addr = q.tx.Addr + tx
	case verbs.RDMAWrite:
		wr.SGList[0].Addr, wr.RemoteAddr = q.tx.Addr+tx, q.peerRx+rx
	case verbs.RDMARead:
		wr.SGList[0].Addr, wr.RemoteAddr = q.rx.Addr+rx, q.peerTx+tx
	case verbs.AtomicFetchAndAdd:
		wr.SGList[0].Addr, wr.RemoteAddr = q.tx.Addr+tx, q.peerRx // all atomics use one word
	}
	q.posted++
	q.tail++
	wr.WRID, wr.Flags = q.id(messageSent)|uint64(q.posted)&countMask, 0
	if last || q.tail >= int64(q.plan.CQMod) || q.posted == q.goal {
		wr.Flags, q.tail = verbs.SendSignaled, 0
	}
	if q.posted == q.goal || last {
		q.closed = true
	}
}

// complete records the completion of a signalled message, and returns the number of messages that
// it completes.
func (q *queuePair) complete(count uint64) (int64, error) {
	n := int64((count - uint64(q.completed)) & countMask)
	if q.plan.Verify {
		for k := q.completed; k < q.completed+n; k++ {
			if err := q.verifyCompleted(uint64(k)); err != nil {
				return 0, err
			}
		}
	}
	q.completed += n
	return n, nil
}

// idle reports whether all posted messages are complete.
func (q *queuePair) idle() bool { return q.closed && q.completed == q.posted }

// flush posts a READ, which completes when all earlier messages have arrived. Over iWARP the
// completion of a WRITE or SEND only means that the stream has accepted it. The data of the READ is
// not used.
func (q *queuePair) flush() error {
	q.extra = verbs.SendWR{WRID: q.id(flushed), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
		SGList:     append(q.extra.SGList[:0], q.lane.side.mr.SGE(int(q.plan.memory())+q.index, 1)),
		RemoteAddr: q.peerTx, RKey: q.peerRKey}
	return q.qp.PostSend(&q.extra)
}

// postFirst posts all receives.
func (q *queuePair) postFirst() error {
	if q.plan.Op != opSend {
		return nil
	}
	for range q.plan.receives() {
		q.consumed++
		q.unposted++
		if err := q.repost(); err != nil {
			return err
		}
	}
	err := q.postRecvs()
	q.consumed = 0
	return err
}

// receive handles the completion of a receive.
func (q *queuePair) receive(wc *verbs.WC) error {
	slot := uint64(q.consumed) % uint64(q.plan.rxSlots())
	q.consumed++
	q.unposted++
	switch {
	case wc.ByteLen == 0:
		q.credits += int64(q.plan.Depth)
		return q.postRecvs() // at once: our credits do not count the receives that credits consume
	case int(wc.ByteLen) != q.plan.Size:
		return fmt.Errorf("message %d on QP %d has %d bytes, want %d", q.received, q.index, wc.ByteLen, q.plan.Size)
	}
	if q.plan.Verify {
		if err := q.verify(slot, uint64(q.received)); err != nil {
			return err
		}
	}
	q.received++
	q.uncredited++
	if err := q.repost(); err != nil {
		return err
	}
	if q.uncredited-int64(q.unposted) < int64(q.plan.Depth) || q.plan.Metric == metricLat {
		return nil
	}
	// A message of zero bytes gives the peer Depth credits.
	q.uncredited -= int64(q.plan.Depth)
	q.extra = verbs.SendWR{WRID: q.id(creditSent), Opcode: verbs.Send, Flags: verbs.SendSignaled}
	return q.qp.PostSend(&q.extra)
}

// repost reposts consumed receives once there are several.
func (q *queuePair) repost() error {
	if q.unposted < len(q.recvs) {
		return nil
	}
	return q.postRecvs()
}

func (q *queuePair) postRecvs() error {
	first := uint64(q.consumed - int64(q.unposted))
	for i, wr := range q.recvs[:q.unposted] {
		wr.SGList[0].Addr = q.rx.Addr + (first+uint64(i))%uint64(q.plan.rxSlots())*q.stride
	}
	n := q.unposted
	q.unposted = 0
	return q.qp.PostRecv(q.recvs[:n]...)
}

// slot returns the memory of a receive slot.
func (q *queuePair) slot(i uint64) []byte {
	b, _ := q.lane.side.mr.Bytes(q.rx.Addr+i*q.stride, uint64(q.plan.Size))
	return b
}

// verify compares a slot with the peer's k-th message.
func (q *queuePair) verify(slot, k uint64) error {
	from := q.index*q.plan.block() + int(k%uint64(q.plan.txSlots()))*q.plan.stride()
	if !bytes.Equal(q.slot(slot), q.lane.side.peer[from:][:q.plan.Size]) {
		return fmt.Errorf("message %d on QP %d did not arrive as it was sent", k, q.index)
	}
	q.lane.metered.verified++
	return nil
}

// verifyCompleted verifies the result of message k, a READ or an atomic.
func (q *queuePair) verifyCompleted(k uint64) error {
	switch q.plan.Op {
	case opRead:
		return q.verify(k%uint64(q.plan.rxSlots()), k)
	case opAtomic:
		b, _ := q.lane.side.mr.Bytes(q.tx.Addr+k%uint64(q.plan.txSlots())*q.stride, 8)
		if got := binary.NativeEndian.Uint64(b); got != k {
			return fmt.Errorf("atomic %d on QP %d found %d, want %d", k, q.index, got, k)
		}
		q.lane.metered.verified++
	}
	return nil
}

// verifyMemory verifies the memory after sent WRITEs or atomics of the peer.
func (q *queuePair) verifyMemory(sent int64) error {
	switch q.plan.Op {
	case opWrite:
		if q.plan.Metric == metricLat {
			return q.verifyPing(sent)
		}
		for k := max(0, sent-int64(q.plan.rxSlots())); k < sent; k++ {
			if err := q.verify(uint64(k)%uint64(q.plan.rxSlots()), uint64(k)); err != nil {
				return err
			}
		}
	case opAtomic:
		if got := binary.NativeEndian.Uint64(q.slot(0)); got != uint64(sent) {
			return fmt.Errorf("the word of QP %d is %d after %d additions of 1", q.index, got, sent)
		}
	}
	return nil
}

// verifyPing verifies the last WRITE of a ping-pong: slot 0 except its last byte, which counts the
// messages.
func (q *queuePair) verifyPing(sent int64) error {
	if sent == 0 {
		return nil
	}
	got, want := q.slot(0), q.lane.side.peer[q.index*q.plan.block():][:q.plan.Size]
	last := q.plan.Size - 1
	if !bytes.Equal(got[:last], want[:last]) || got[last] != byte(sent) {
		return fmt.Errorf("message %d did not arrive as it was sent", sent-1)
	}
	q.lane.metered.verified++
	return nil
}
