package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// without removes a right from the region or from the queue pair.
func without(right string, ofQP bool) func(*settings) {
	return func(s *settings) { suite.Deny(&s.Create, right, ofQP) }
}

// refused returns a case in which a request is answered with a NAK that ends the connection, and
// changes no memory. Valid requests may precede it.
func refused(id, statement, source string, syndrome uint8, request func(*qp) (before []*wire.Packet, bad *wire.Packet),
	change ...func(*settings)) entry {
	return entry{id, statement, source, func(t *tester) {
		q := t.rc(change...)
		before, bad := request(q)
		for _, p := range before {
			p.AckReq = true
			t.ask(p).ack(p.PSN)
		}
		q.Put(8192, pattern(64, 0x77))
		t.ask(bad).nak(syndrome, bad.PSN)
		q.Intact()
		q.Holds(8192, pattern(64, 0x77))
	}}
}

// only returns a request without requests before it.
func only(f func(*qp) *wire.Packet) func(*qp) ([]*wire.Packet, *wire.Packet) {
	return func(q *qp) ([]*wire.Packet, *wire.Packet) { return nil, f(q) }
}

// here is the target offset of refused requests.
const here = 8192

var (
	badKey = func(p *wire.Packet) *wire.Packet {
		p.RETH.RKey ^= 0x5a5a5a5a
		p.AtomicETH.RKey ^= 0x5a5a5a5a
		return p
	}
	aWrite = func(q *qp) *wire.Packet { return q.write(here, pattern(64, 1)) }
	aRead  = func(q *qp) *wire.Packet { return q.read(here, 64) }
	anAdd  = func(q *qp) *wire.Packet { return q.atomic(wire.RCFetchAdd, here, 0, 1) }
	opened = func(q *qp) []*wire.Packet {
		return []*wire.Packet{q.rdma(wire.RCWriteFirst, 0, 2*mtu, pattern(mtu, 1))}
	}
	sending = func(q *qp) []*wire.Packet {
		q.Recv(1, 0, 4096)
		return []*wire.Packet{q.packet(wire.RCSendFirst, pattern(mtu, 1))}
	}
)

const (
	access  = wire.NakRemoteAccess
	invalid = wire.NakInvalidRequest

	accessClause   = "IBTA Vol 1 §9.7.4.1, C9-88"
	sequenceClause = "IBTA Vol 1 §9.7.4.1, C9-66 to C9-72"
)

var refusals = []entry{
	refused("KEY-WRITE", "A WRITE with an unknown R_Key is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return badKey(aWrite(q)) })),
	refused("KEY-READ", "A READ with an unknown R_Key is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return badKey(aRead(q)) })),
	refused("KEY-ATOMIC", "An atomic with an unknown R_Key is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return badKey(anAdd(q)) })),
	refused("RIGHT-WRITE", "A WRITE to a region without the right to remote writes is answered with a NAK, remote access error.",
		accessClause, access, only(aWrite), without("remote_write", false), without("remote_atomic", false)),
	refused("RIGHT-READ", "A READ of a region without the right to remote reads is answered with a NAK, remote access error.",
		accessClause, access, only(aRead), without("remote_read", false)),
	refused("RIGHT-ATOMIC", "An atomic on a region without the right to remote atomics is answered with a NAK, remote access error.",
		accessClause, access, only(anAdd), without("remote_atomic", false)),
	refused("QP-WRITE", "A WRITE to a queue pair that does not allow them is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(aWrite), without("remote_write", true)),
	refused("QP-READ", "A READ to a queue pair that does not allow them is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(aRead), without("remote_read", true)),
	refused("QP-ATOMIC", "An atomic to a queue pair that does not allow them is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(anAdd), without("remote_atomic", true)),
	refused("RANGE-END", "A WRITE that ends beyond the region is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return q.write(memory-63, pattern(64, 1)) })),
	refused("RANGE-START", "A WRITE that begins before the region is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return q.write(-1, pattern(64, 1)) })),
	refused("RANGE-WRAP", "A WRITE whose last address is beyond 2^64 is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet {
			p := aWrite(q)
			p.RETH.Addr = 1<<64 - 32
			return p
		})),
	refused("RANGE-LENGTH",
		"The first packet of a WRITE whose whole length does not fit in the region is answered with a NAK, remote access error.",
		accessClause, access, only(func(q *qp) *wire.Packet { return q.rdma(wire.RCWriteFirst, here, memory, pattern(mtu, 1)) })),
	refused("RANGE-READ", "A READ that ends beyond the region is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return q.read(memory-63, 64) })),
	refused("RANGE-ATOMIC", "An atomic beyond the region is answered with a NAK, remote access error.", accessClause, access,
		only(func(q *qp) *wire.Packet { return q.atomic(wire.RCFetchAdd, memory, 0, 1) })),
	refused("ATOMIC-ALIGN", "An atomic whose address is not a multiple of 8 is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.4.5", invalid, only(func(q *qp) *wire.Packet { return q.atomic(wire.RCFetchAdd, here+4, 0, 1) })),
	refused("OPCODE-RESERVED", "A request with a reserved opcode of the service is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(func(q *qp) *wire.Packet { return q.packet(0x1f, nil) })),
	refused("SEQ-WRITE-MIDDLE", "A middle packet of a WRITE without a first packet is answered with a NAK, invalid request.",
		sequenceClause, invalid, only(func(q *qp) *wire.Packet { return q.packet(wire.RCWriteMiddle, pattern(mtu, 1)) })),
	refused("SEQ-WRITE-LAST", "A last packet of a WRITE without a first packet is answered with a NAK, invalid request.",
		sequenceClause, invalid, only(func(q *qp) *wire.Packet { return q.packet(wire.RCWriteLast, pattern(8, 1)) })),
	refused("SEQ-SEND-MIDDLE", "A middle packet of a SEND without a first packet is answered with a NAK, invalid request.",
		sequenceClause, invalid, only(func(q *qp) *wire.Packet {
			q.Recv(1, 0, 4096)
			return q.packet(wire.RCSendMiddle, pattern(mtu, 1))
		})),
	refused("SEQ-SEND-LAST", "A last packet of a SEND without a first packet is answered with a NAK, invalid request.",
		sequenceClause, invalid, only(func(q *qp) *wire.Packet {
			q.Recv(1, 0, 4096)
			return q.packet(wire.RCSendLast, pattern(8, 1))
		})),
	refused("SEQ-FIRST-IN-WRITE", "A first packet within a WRITE is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) {
			return opened(q), q.rdma(wire.RCWriteFirst, 0, 2*mtu, pattern(mtu, 1))
		}),
	refused("SEQ-ONLY-IN-WRITE", "An only packet within a WRITE is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) { return opened(q), aWrite(q) }),
	refused("SEQ-SEND-IN-WRITE", "A last packet of a SEND within a WRITE is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) {
			q.Recv(1, 0, 4096)
			return opened(q), q.packet(wire.RCSendLast, pattern(8, 1))
		}),
	refused("SEQ-READ-IN-WRITE", "A READ within a WRITE is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) { return opened(q), aRead(q) }),
	refused("SEQ-ATOMIC-IN-WRITE", "An atomic within a WRITE is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) { return opened(q), anAdd(q) }),
	refused("SEQ-FIRST-IN-SEND", "A first packet within a SEND is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) {
			return sending(q), q.packet(wire.RCSendFirst, pattern(mtu, 1))
		}),
	refused("SEQ-WRITE-IN-SEND", "A last packet of a WRITE within a SEND is answered with a NAK, invalid request.", sequenceClause, invalid,
		func(q *qp) ([]*wire.Packet, *wire.Packet) {
			return sending(q), q.packet(wire.RCWriteLast, pattern(8, 1))
		}),
	refused("LENGTH-FIRST-SHORT", "A first packet shorter than the path MTU is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(func(q *qp) *wire.Packet {
			return q.rdma(wire.RCWriteFirst, here, 2*mtu,
				pattern(mtu-4, 1))
		})),
	refused("LENGTH-MIDDLE-SHORT", "A middle packet shorter than the path MTU is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, func(q *qp) ([]*wire.Packet, *wire.Packet) {
			first := q.rdma(wire.RCWriteFirst, 0, 3*mtu, pattern(mtu, 1))
			return []*wire.Packet{first}, q.packet(wire.RCWriteMiddle, pattern(mtu-4, 1))
		}),
	refused("LENGTH-ONLY-LONG", "An only packet longer than the path MTU is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(func(q *qp) *wire.Packet { return q.write(here, pattern(mtu+4, 1)) })),
	refused("LENGTH-LAST-EMPTY", "A last packet without payload is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, func(q *qp) ([]*wire.Packet, *wire.Packet) { return sending(q), q.packet(wire.RCSendLast, nil) }),
	refused("LENGTH-WRITE-MORE", "A WRITE with more bytes than its RETH names is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(func(q *qp) *wire.Packet { return q.rdma(wire.RCWriteOnly, here, 32, pattern(64, 1)) })),
	refused("LENGTH-WRITE-LESS", "A WRITE with fewer bytes than its RETH names is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, func(q *qp) ([]*wire.Packet, *wire.Packet) {
			return opened(q), q.packet(wire.RCWriteLast, pattern(mtu-4, 1))
		}),
	refused("LENGTH-SEND", "A SEND that is longer than its receive request is answered with a NAK, invalid request.",
		"IBTA Vol 1 §9.7.4.1", invalid, only(func(q *qp) *wire.Packet {
			q.Recv(1, here, 63)
			return q.packet(wire.RCSendOnly, pattern(64, 1))
		})),
	{"NAK-ERROR-STATE", "A queue pair that has refused a request with a NAK, remote access error, is in the error state.",
		"IBTA Vol 1 §9.9.3, §10.3.1", onRC(func(q *qp) {
			q.t.ask(badKey(aWrite(q))).nak(access, firstPSN)
			q.State("ERR")
		})},
	{"NAK-ERROR-SILENT", "A queue pair in the error state answers nothing.", "IBTA Vol 1 §10.3.1", onRC(func(q *qp) {
		q.t.ask(badKey(aWrite(q))).nak(access, firstPSN)
		q.t.unanswered(aWrite(q))
		q.Holds(here, make([]byte, 64))
	})},
	{"NAK-MSN", "A NAK for a refused request has the MSN of the last request that is complete.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		q.t.ask(aWrite(q)).ack(firstPSN)
		q.t.ask(badKey(aWrite(q))).nak(access, firstPSN+1).msn(1)
	})},
}
