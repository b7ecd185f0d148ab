package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// migrated is the source of the rule that MigReq is set in all packets of a connection that is not
// armed for path migration. It is public in chapter 22 of Shanley's book.
const migrated = "IBTA Vol 1 §17.2.8; T. Shanley, InfiniBand Network Architecture"

// answered sends a WRITE and returns the target's acknowledgement.
func answered(t *tester) (*qp, *reply) {
	q := t.rc()
	return q, t.ask(q.write(0, pattern(8, 1))).ack(firstPSN)
}

// ignored sends a WRITE that change has made invalid, with a right ICRC, and checks that it has no
// effect.
func ignored(t *tester, change func(*wire.Packet)) {
	q := t.rc()
	p := q.write(0, pattern(8, 1))
	change(p)
	t.unanswered(p)
	q.Holds(0, make([]byte, 8))
	q.State("RTS")
}

// accepted sends a WRITE whose bytes change has altered on the wire, and checks that it is
// executed.
func accepted(t *tester, change func(ip, packet []byte)) {
	q := t.rc()
	d := t.Peer.Make(q.write(0, pattern(8, 1)))
	change(d.Header(), d.Packet())
	t.sendRaw(d)
	t.reply().ack(firstPSN)
	q.Holds(0, pattern(8, 1))
}

var headers = []entry{
	{"HDR-VERSION", "Every packet has transport header version 0.", "IBTA Vol 1 §9.2", func(t *tester) {
		_, r := answered(t)
		equal(r, "version", r.raw.Packet()[1]&15, 0, "%d")
	}},
	{"HDR-RESERVED6", "The six reserved bits after FECN and BECN are sent as zero.", "IBTA Vol 1 §9.2, annex A17", func(t *tester) {
		_, r := answered(t)
		equal(r, "reserved 6", r.Reserved6, 0, "%#x")
	}},
	{"HDR-RESERVED7", "The seven reserved bits after AckReq are sent as zero.", "IBTA Vol 1 §9.2", func(t *tester) {
		_, r := answered(t)
		equal(r, "reserved 7", r.Reserved7, 0, "%#x")
	}},
	{"HDR-MIGRATION", "An acknowledgement of a connection without an alternate path has MigReq set: it is in the state Migrated.",
		migrated, func(t *tester) {
			_, r := answered(t)
			equal(r, "MigReq", r.MigReq, true, "%v")
		}},
	{"HDR-MIGRATION-CLEAR", "A request with MigReq clear is executed by a connection in the state Migrated.", suite.Observed,
		onRC(func(q *qp) {
			p := q.write(0, pattern(8, 1))
			p.MigReq = false
			q.t.ask(p).ack(firstPSN)
			q.Holds(0, pattern(8, 1))
		})},
	{"HDR-PKEY", "A packet of a connection has the P_Key of its partition.", "IBTA Vol 1 §9.2, §10.9", func(t *tester) {
		_, r := answered(t)
		equal(r, "P_Key", r.PKey, wire.DefaultPKey, "%#x")
	}},
	{"HDR-PAD", "An acknowledgement, which has no payload, has a pad count of 0.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.t.ask(q.write(0, pattern(8, 1)))
		equal(r, "pad", r.raw.Packet()[1]>>4&3, 0, "%d")
	})},
	{"HDR-ICRC", "A packet has the right ICRC.", "IBTA Vol 1 §7.8.1, annex A17.3.3", func(t *tester) {
		_, r := answered(t)
		equal(r, "ICRC", r.icrc, true, "right: %v")
	}},
	{"HDR-ICRC-WRONG", "A packet with a wrong ICRC is dropped without an answer.", "IBTA Vol 1 §7.8.1, §9.6", onRC(func(q *qp) {
		d := q.t.Peer.Make(q.write(0, pattern(8, 1)))
		d.Packet()[len(d.Packet())-1] ^= 0x80
		q.t.sendRaw(d)
		q.t.silent()
		q.Holds(0, make([]byte, 8))
	})},
	{"HDR-VERSION-WRONG", "A packet with an unknown transport header version is dropped without an answer.", "IBTA Vol 1 §9.6.1",
		func(t *tester) { ignored(t, func(p *wire.Packet) { p.Version = 1 }) }},
	{"HDR-QPN-UNKNOWN", "A packet to a queue pair that does not exist is dropped without an answer.", "IBTA Vol 1 §9.6.1",
		func(t *tester) { ignored(t, func(p *wire.Packet) { p.DestQP ^= 0x400000 }) }},
	{"HDR-PKEY-WRONG", "A packet of another partition is dropped without an answer.", "IBTA Vol 1 §9.6.1, §10.9",
		func(t *tester) { ignored(t, func(p *wire.Packet) { p.PKey = 0x8765 }) }},
	{"HDR-SERVICE-WRONG", "A packet of a transport service that is not the queue pair's is dropped without an answer.", "IBTA Vol 1 §9.6.1",
		func(t *tester) { ignored(t, func(p *wire.Packet) { p.Opcode = wire.UCWriteOnly }) }},
	{"HDR-RESERVED7-SET", "Reserved bits of the BTH are ignored on reception.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		p := q.write(0, pattern(8, 1))
		p.Reserved7 = 0x55
		q.t.ask(p).ack(firstPSN)
		q.Holds(0, pattern(8, 1))
	})},
	{"ICRC-TTL", "The ICRC does not cover the IPv4 time to live, which routers change.", "IBTA annex A17.3.3", func(t *tester) {
		accepted(t, func(ip, _ []byte) {
			ip[8] -= 3
			checksum.PutIPv4(ip[:20])
		})
	}},
	{"ICRC-TOS", "The ICRC does not cover the IPv4 type of service, which routers change.", "IBTA annex A17.3.3", func(t *tester) {
		accepted(t, func(ip, _ []byte) {
			ip[1] = 0x88
			checksum.PutIPv4(ip[:20])
		})
	}},
	{"ICRC-FECN", "The ICRC does not cover the byte of FECN and BECN, which switches change.", "IBTA Vol 1 §7.8.1, annex A17.3.3",
		func(t *tester) {
			accepted(t, func(_, packet []byte) { packet[4] |= 0x80 })
		}},
}
