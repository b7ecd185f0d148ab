package main

import (
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// The suite's own tests, which run it against our node.
const (
	conformRoCE  = "cmd/softrnic/internal/conform/rocev2"
	conformIWARP = "cmd/softrnic/internal/conform/iwarp"

	roce  = "rdmatransport/internal/rocetransport/"
	iwarp = "rdmatransport/internal/iwarptransport/"
)

// breaches remove rules of the wire protocols from the engines. The cases of softrnic conform must
// notice.
var breaches = []mutation{
	{"no First packet within a WRITE", roce + "responder.go", "return info.Write() && !info.First()", "return info.Write()", conformRoCE,
		"TestOurs"},
	{"no First packet within a SEND", roce + "responder.go", "return info.Send() && !info.First()", "return info.Send()", conformRoCE,
		"TestOurs"},
	{"a message begins with a First packet", roce + "responder.go", "\treturn info.First()\n", "\treturn true\n", conformRoCE, "TestOurs"},
	{"a QP permits WRITEs or not", roce + "responder.go", "return flags&verbs.AccessRemoteWrite != 0\n\tcase info.Read()",
		"return true\n\tcase info.Read()", conformRoCE, "TestOurs"},
	{"a QP permits READs or not", roce + "responder.go", "return flags&verbs.AccessRemoteRead != 0 && ", "return ", conformRoCE,
		"TestOurs"},
	{"a QP permits atomics or not", roce + "responder.go", "return flags&verbs.AccessRemoteAtomic != 0 && ", "return ", conformRoCE,
		"TestOurs"},
	{"a First or Middle packet is full", roce + "responder.go", "return n == q.mtu", "return n <= q.mtu", conformRoCE, "TestOurs"},
	{"a Last packet has data", roce + "responder.go", "return n > 0 && n <= q.mtu", "return n <= q.mtu", conformRoCE, "TestOurs"},
	{"an Only packet is no longer than the MTU", roce + "responder.go", "\treturn n <= q.mtu\n", "\treturn true\n", conformRoCE,
		"TestOurs"},
	{"the NAK of a SEND that is too long", roce + "responder.go", "wire.NakInvalidRequest, verbs.WCLocLenErr",
		"wire.NakRemoteAccess, verbs.WCLocLenErr", conformRoCE, "TestOurs"},
	{"a WRITE's whole range is checked first", roce + "responder.go", "uint64(p.RETH.Length), verbs.AccessRemoteWrite); !ok",
		"n, verbs.AccessRemoteWrite); !ok", conformRoCE, "TestOurs"},
	{"a WRITE ends where its RETH says", roce + "responder.go", "fits := n <= left && (n == left) == info.Last()", "fits := n <= left",
		conformRoCE, "TestOurs"},
	{"the MSN counts messages", roce + "responder.go", "q.receiving.OnExecuted(info.Last())\n\treturn true\n}\n\n// execWrite",
		"q.receiving.OnExecuted(true)\n\treturn true\n}\n\n// execWrite", conformRoCE, "TestOurs"},
	{"the timer in an RNR NAK", roce + "responder.go", "wire.RNRNak | q.h.Attr().MinRNRTimer", "wire.RNRNak | 1", conformRoCE, "TestOurs"},
	{"immediate data are delivered", roce + "responder.go", "wc.ImmData = p.Imm", "wc.ImmData = p.Imm + 1", conformRoCE, "TestOurs"},
	{"CMP_SWAP compares before it swaps", roce + "deferred.go", "word.CompareSwap(a.Compare, a.Swap)",
		"word.CompareSwap(a.Swap, a.Compare)", conformRoCE, "TestOurs"},
	{"FETCH_ADD adds the swap data", roce + "deferred.go", "word.FetchAdd(a.Swap)", "word.FetchAdd(a.Compare)", conformRoCE, "TestOurs"},
	{"a wrong ICRC is a lost packet", roce + "receive.go", "right = run.Check(d.Header, b)", "right = run.Check(d.Header, b) || true",
		conformRoCE, "TestOurs"},
	{"the P_Key is looked at", roce + "receive.go", "case pkt.PKey&0x7fff != defaultPKey&0x7fff:", "case false:", conformRoCE, "TestOurs"},
	{"a packet is of the QP's service", roce + "receive.go", "case pkt.Opcode.Transport() != q.service:", "case false:", conformRoCE,
		"TestOurs"},
	{"a reserved opcode is refused", roce + "receive.go", "case info.Request() || !info.Known():", "case info.Request():", conformRoCE,
		"TestOurs"},
	{"a connection is in the state Migrated", roce + "packet.go", "\tp.MigReq = true ", "\tp.MigReq = false ", conformRoCE, "TestOurs"},
	{"no more SENDs than credits", roce + "send/credits.go", "wire.PSNDiff(n+1, c.limit) <= 1", "true", conformRoCE, "TestOurs"},
	{"an MRA is heeded", roce + "cm/retry.go", "c.arm(wait(min(msg.ServiceTimeout, mraTimeout)) + wait(", "c.arm(wait(", conformRoCE,
		"TestOurs"},
	{"a DREQ is repeated as it was", roce + "cm/teardown.go", "c.maxRetries = maxRetries\n", "c.maxRetries = 0\n", conformRoCE, "TestOurs"},
	{"a CNP has BECN", roce + "notification.go", "BECN: true, ", "", conformRoCE, "TestOurs"},
	{"a duplicate is answered", roce + "receive/request.go", "\t\ts.repeat(p, m)\n", "", conformRoCE, "TestOurs"},
	{"a gap is answered once", roce + "receive/request.go", "case !reported, v.waitsForReceive()", "case true, v.waitsForReceive()",
		conformRoCE, "TestOurs"},
	{"the NAK of a gap", roce + "receive/respond.go", "a.Syndrome = wire.NakPSNSeq", "a.Syndrome = wire.NakInvalidRequest", conformRoCE,
		"TestOurs"},
	{"the result of an atomic is kept for duplicates", roce + "receive/history.go", "into >= 0 && into <", "into > 0 && into <",
		conformRoCE, "TestOurs"},
	{"the MSN of an ACK", roce + "response.go", "MSN: s.MSN()}, s.AckPSN()", "MSN: s.MSN() + 1}, s.AckPSN()", conformRoCE, "TestOurs"},
	{"the MSN of a READ response", roce + "response.go", "AckUnlimited, MSN: r.MSN}", "AckUnlimited}", conformRoCE, "TestOurs"},
	{"the last packet asks for an acknowledgement", roce + "requester.go", "ask && most == 1", "false", conformRoCE, "TestOurs"},
	{"a WRITE's RETH has the whole length", roce + "requester.go", "RKey: wr.RKey, Length: uint32(wr.Length())",
		"RKey: wr.RKey, Length: uint32(n)", conformRoCE, "TestOurs"},
	{"FETCH_ADD has no compare data", roce + "requester.go", "p.AtomicETH.Swap, p.AtomicETH.Compare = wr.CompareAdd, 0", "", conformRoCE,
		"TestOurs"},
	{"a READ repeats missing packets", roce + "requester.go", "Addr: wr.RemoteAddr + off", "Addr: wr.RemoteAddr", conformRoCE, "TestOurs"},
	{"a fenced request waits", roce + "requester.go", "wr.Flags&verbs.SendFence != 0", "false", conformRoCE, "TestOurs"},
	{"a READ response has the length that was asked for", roce + "completer.go",
		"uint64(len(p.Payload)) != min(wr.Length()-off, uint64(q.mtu))", "false", conformRoCE, "TestOurs"},
	{"a NAK's code is the completion's status", roce + "completer.go", "return verbs.WCRemInvReqErr, true", "return verbs.WCRemOpErr, true",
		conformRoCE, "TestOurs"},
	{"an atomic's result is in host order", roce + "completer.go", "binary.NativeEndian.PutUint64(orig", "binary.BigEndian.PutUint64(orig",
		conformRoCE, "TestOurs"},
	{"an rnr_retry of 7 is unlimited", roce + "send/retry.go", "retryInfinite = 7", "retryInfinite = 9", conformRoCE, "TestOurs"},
	{"retry_cnt retries", roce + "send/retry.go", "if r.timeoutsAndNAKs >= limit {", "if r.timeoutsAndNAKs+1 >= limit {", conformRoCE,
		"TestOurs"},
	{"an RNR NAK's timer runs out first", roce + "send/acknowledge.go", "s.env.Clock()+wait)", "s.env.Clock()+wait/8)", conformRoCE,
		"TestOurs"},
	{"an RNR NAK's retries have an end", roce + "send/retry.go", "if r.rnrNAKs >= limit {", "if false {", conformRoCE, "TestOurs"},
	{"the Q_Key of a datagram", roce + "ud.go", "case p.DETH.QKey != q.h.Attr().QKey:", "case false:", conformRoCE, "TestOurs"},
	{"the sender of a datagram", roce + "ud.go", "SrcQP: p.DETH.SrcQP", "SrcQP: 0", conformRoCE, "TestOurs"},
	{"the IPv4 header of a datagram is after 20 bytes", "stack/datagram.go", "copy(grh[at:], ip)", "copy(grh[:], ip)",
		conformRoCE, "TestOurs"},
	{"a gap ends a message of an unreliable connection", roce + "uc.go", "\t\tr.message = noMessage\n\t}\n\tr.noteRequest",
		"\t}\n\tr.noteRequest", conformRoCE, "TestOurs"},
	{"the Q_Key of QP 1", roce + "gsi.go", "pkt.DETH.QKey != mad.QKey, ", "", conformRoCE, "TestOurs"},
	{"the rights of a region", "rdmatransport/internal/memory/regions.go", "\tcase mr.Access()&need != need:\n", "\tcase false:\n",
		conformRoCE, "TestOurs"},
	{"a stale connection", roce + "cm/passive.go", "rej.Reason = mad.StaleConnection", "rej.Reason = mad.Timeout", conformRoCE, "TestOurs"},
	{"a service without a listener", roce + "cm/passive.go", "rej.Reason = mad.InvalidServiceID", "rej.Reason = mad.ConsumerDefined",
		conformRoCE, "TestOurs"},
	{"a duplicate REQ is recognised", roce + "cm/passive.go", "if c := m.byID[byID]; c != nil {", "if c := m.byID[byID]; false {",
		conformRoCE, "TestOurs"},
	{"whose READs are meant", roce + "cm/passive.go", "c.responder, c.initiator = msg.InitiatorDepth, msg.ResponderResources",
		"c.initiator, c.responder = msg.InitiatorDepth, msg.ResponderResources", conformRoCE, "TestOurs"},
	{"a DREQ names the peer's QP", roce + "cm/teardown.go", "RemoteQPN: c.remoteQPN", "RemoteQPN: c.localQPN", conformRoCE, "TestOurs"},
	{"a duplicate REP is answered", roce + "cm/active.go", "\tif c.state == established {\n\t\tc.sendRTU()\n\t} else",
		"\tif c.state != established", conformRoCE, "TestOurs"},
	{"a REP is repeated", roce + "cm/retry.go", "if noCarrier || c.retries < c.maxRetries {", "if noCarrier {", conformRoCE, "TestOurs"},

	{"a WRITE over iWARP needs the QP's right", iwarp + "placement.go",
		"if n > 0 && q.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {", "if false {", conformIWARP, "TestOurs"},
	{"an STag of another stream", iwarp + "placement.go", "return ddp.ErrSTagNotAssociated", "return ddp.ErrInvalidSTag", conformIWARP,
		"TestOurs"},
	{"a WRITE beyond its region", iwarp + "placement.go", "return ddp.ErrBounds\n\t}\n\treturn ddp.ErrInvalidSTag",
		"return ddp.ErrInvalidSTag\n\t}\n\treturn ddp.ErrInvalidSTag", conformIWARP, "TestOurs"},
	{"a WRITE beyond 2^64", iwarp + "placement.go", "if err := ddp.CheckTO(h.TO, len(payload)); err != nil {\n\t\treturn err\n\t}\n", "",
		conformIWARP, "TestOurs"},
	{"a READ response is where it must be", iwarp + "placement.go", "case n > 0 && h.TO != s.reads.placed, s", "case s", conformIWARP,
		"TestOurs"},
	{"the queues of untagged messages", iwarp + "placement.go", "if h.QN >= rdmap.Queues {",
		"if h.QN >= rdmap.Queues {\n\t\treturn nil\n\t}\n\tif h.QN >= rdmap.Queues {", conformIWARP, "TestOurs"},
	{"an opcode is on its queue", iwarp + "placement.go", "if err := op.CheckUntagged(h.QN); err != nil {\n\t\treturn err\n\t}\n", "",
		conformIWARP, "TestOurs"},
	{"a SEND needs a receive request", iwarp + "placement.go", "\tif wr == nil {\n\t\treturn ddp.ErrNoBuffer",
		"\tif wr == nil {\n\t\treturn nil", conformIWARP, "TestOurs"},
	{"a READ over iWARP needs the QP's right", iwarp + "placement.go", "if q.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0 {",
		"if false {", conformIWARP, "TestOurs"},
	{"the MSN of an atomic's response", iwarp + "responses.go", "MSN: s.numbers.next(rdmap.QueueAtomicResponse)",
		"MSN: s.numbers.next(rdmap.QueueAtomicResponse) + 1", conformIWARP, "TestOurs"},
	{"an optional CRC is not checked", iwarp + "conn.go", "c.request.frame.CRC || !c.e.config.NoCRC", "true", conformIWARP,
		"TestOurs"},
	{"the IRD is the peer's ORD", iwarp + "listen.go", "depth(f.Enhanced.ORD), depth(f.Enhanced.IRD)",
		"depth(f.Enhanced.IRD), depth(f.Enhanced.ORD)", conformIWARP, "TestOurs"},
}

// TestConformMutations: the conformance suite notices each rule that is removed from the engines.
func TestConformMutations(t *testing.T) {
	gate.Long(t)
	takeOut(t, breaches, "-once")
}
