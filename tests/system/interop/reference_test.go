//go:build linux

package interop

import "github.com/softrnic/softrnic/verbs"

const (
	ok        = verbs.WCSuccess
	flushed   = verbs.WCWRFlushErr
	remAccess = verbs.WCRemAccessErr
	remInvReq = verbs.WCRemInvReqErr
	remOp     = verbs.WCRemOpErr
	locProt   = verbs.WCLocProtErr
	locLen    = verbs.WCLocLenErr
	locQPOp   = verbs.WCLocQPOpErr
	rnrExc    = verbs.WCRNRRetryExcErr
)

// failsRemotely is the outcome if both QPs fail: the request completes with status, the first
// receive with recv.
func failsRemotely(status, recv verbs.WCStatus) outcome {
	return outcome{
		sends: []verbs.WCStatus{status, flushed, flushed}, recvs: []verbs.WCStatus{recv, flushed, flushed},
		requester: verbs.StateErr, responder: verbs.StateErr,
	}
}

// failsHere is the outcome if only the requester detects the error.
func failsHere(status verbs.WCStatus) outcome {
	return outcome{sends: []verbs.WCStatus{status, flushed, flushed}, requester: verbs.StateErr, responder: verbs.StateRTS}
}

// succeeds is the outcome without an error, if the given number of requests consume a receive.
func succeeds(receives int) outcome {
	return outcome{
		sends: []verbs.WCStatus{ok, ok, ok}, recvs: []verbs.WCStatus{ok, ok, ok}[:receives],
		requester: verbs.StateRTS, responder: verbs.StateRTS,
	}
}

// refused is the outcome if posting the request fails.
var refused = outcome{refused: true}

// noSuchLKey is the outcome of a SEND or WRITE whose lkey does not exist.
var noSuchLKey = errorCase{
	want: failsHere(locQPOp), sending: true,
	asRequester: instead(failsHere(locProt)), why: "a key that is not one is a protection error in every request (IBTA Vol 1 §11.6.2)",
}

func instead(o outcome) *outcome { return &o }

// remoteOp is a kind of request with remote memory. Unless a case changes it, the address is the
// beginning of that memory.
type remoteOp struct {
	name   string
	opcode verbs.WROpcode
	right  verbs.Access // needed right of the remote memory and QP
	length int
	align  int // of its remote address
}

var remoteOps = []remoteOp{
	{"WRITE", verbs.RDMAWrite, verbs.AccessRemoteWrite, 16, 1},
	{"WRITE_WITH_IMM", verbs.RDMAWriteWithImm, verbs.AccessRemoteWrite, 16, 1},
	{"READ", verbs.RDMARead, verbs.AccessRemoteRead, 16, 1},
	{"CMP_AND_SWP", verbs.AtomicCmpAndSwp, verbs.AccessRemoteAtomic, 8, 8},
	{"FETCH_AND_ADD", verbs.AtomicFetchAndAdd, verbs.AccessRemoteAtomic, 8, 8},
}

// trial is what a case may change before its request is posted.
type trial struct {
	*verbs.SendWR
	local, remote, other memory
}

// request returns a valid request of the kind, changed.
func (op remoteOp) request(change func(trial)) func(local, remote, other memory) verbs.SendWR {
	return func(local, remote, other memory) verbs.SendWR {
		wr := verbs.SendWR{
			Opcode: op.opcode, SGList: []verbs.SGE{local.SGE(0, op.length)},
			RemoteAddr: remote.Addr(), RKey: remote.RKey(),
		}
		if change != nil {
			change(trial{&wr, local, remote, other})
		}
		return wr
	}
}

// rxeReference has the outcome of each case between two kernels. It was recorded with
// TestKernelErrors, between two machines with Debian's Linux 6.1.192 (rxe) and rdma-core 44. The
// test confirms it in each run. Newer kernels differ by traits of the table of kernels.
//
// SoftRNIC follows the IBTA specification where rxe does not. Those cases have an asRequester or
// asResponder.
func rxeReference() (cases []errorCase) {
	for _, op := range remoteOps {
		cases = append(cases, op.remoteErrors()...)
		cases = append(cases, op.localErrors()...)
	}
	return append(cases, receiveErrors()...)
}

// remoteErrors have wrong keys, addresses or lengths of memory at the responder.
func (op remoteOp) remoteErrors() []errorCase {
	denied := failsRemotely(remAccess, flushed)
	if op.opcode == verbs.RDMAWriteWithImm {
		denied = failsRemotely(remAccess, remAccess) // it fails after it has consumed the receive
	}
	withoutRight := usual
	withoutRight.access &^= op.right
	cases := []errorCase{
		{name: "with another key", want: denied,
			request: op.request(func(t trial) { t.RKey ^= 0x55 })},
		{name: "with another index", want: denied,
			request: op.request(func(t trial) { t.RKey ^= 0x7f000000 })},
		{name: "with the key of another PD", want: denied,
			request: op.request(func(t trial) { t.RemoteAddr, t.RKey = t.other.Addr(), t.other.RKey() })},
		{name: "past the end", want: denied,
			request: op.request(func(t trial) { t.RemoteAddr += uint64(t.remote.Length() - op.length + op.align) })},
		{name: "before the beginning", want: denied,
			request: op.request(func(t trial) { t.RemoteAddr -= uint64(op.align) })},
		{name: "at the top of the address space", want: denied,
			request: op.request(func(t trial) { t.RemoteAddr = ^uint64(7) })},
		{name: "to memory without the right", want: denied,
			remote: allAccess &^ op.right, request: op.request(nil)},
		{name: "to a QP without the right", want: failsRemotely(remInvReq, flushed),
			path: withoutRight, request: op.request(nil)},
	}
	if op.align > 1 {
		cases = append(cases, errorCase{name: "misaligned", want: refused,
			request:     op.request(func(t trial) { t.RemoteAddr += 4 }),
			asRequester: instead(failsRemotely(remInvReq, flushed)), why: "it is for the responder to see (IBTA Vol 1 §9.4.5)"})
	} else {
		receives := 2
		if op.opcode == verbs.RDMAWriteWithImm {
			receives = 3
		}
		cases = append(cases,
			errorCase{name: "of nothing with another key", want: succeeds(receives),
				request: op.request(func(t trial) { t.SGList, t.RKey = nil, t.RKey^0x55 })},
			errorCase{name: "of several packets past the end", want: failsRemotely(remAccess, flushed),
				request: op.request(func(t trial) {
					t.SGList[0] = t.local.SGE(0, t.local.Length())
					t.RemoteAddr++
				})},
		)
	}
	if op.opcode == verbs.RDMAWriteWithImm {
		for i := range cases {
			if cases[i].want.equal(denied) {
				cases[i].asResponder = instead(failsRemotely(remAccess, verbs.WCLocAccessErr))
				cases[i].why = "at the responder it is an error of local access (IBTA Vol 1 §11.6.2)"
			}
		}
	}
	return op.named(cases)
}

// localErrors have wrong keys, addresses or lengths of memory at the requester.
func (op remoteOp) localErrors() []errorCase {
	noSuchKey, readOnly := errorCase{want: failsHere(locProt)}, failsHere(locProt)
	switch op.opcode {
	case verbs.RDMAWrite:
		noSuchKey, readOnly = noSuchLKey, succeeds(2)
	case verbs.RDMAWriteWithImm:
		noSuchKey, readOnly = noSuchLKey, succeeds(3)
	}
	noSuchKey.name = "with another lkey"
	noSuchKey.request = op.request(func(t trial) { t.SGList[0].LKey ^= 0x55 })
	cases := []errorCase{
		noSuchKey,
		{name: "with local memory past the end", want: failsHere(locProt), sending: noSuchKey.sending,
			request: op.request(func(t trial) { t.SGList[0] = t.local.SGE(t.local.Length()-op.length+1, op.length) })},
		{name: "with local memory that cannot be written", want: readOnly,
			local: verbs.AccessRemoteRead, request: op.request(nil)},
	}
	if op.align > 1 {
		cases = append(cases,
			errorCase{name: "into four bytes", want: refused,
				request:     op.request(func(t trial) { t.SGList[0].Length = 4 }),
				asRequester: instead(failsHere(verbs.WCLocLenErr)),
				why:         "the list is found too short when the request is carried out, as by hardware"},
			errorCase{name: "into sixteen bytes", want: succeeds(2),
				request:     op.request(func(t trial) { t.SGList[0].Length = 16 }),
				asRequester: instead(failsHere(verbs.WCLocLenErr)),
				why:         "the response has 8 bytes, which do not fit a list of another length"},
		)
	}
	return op.named(cases)
}

func (op remoteOp) named(cases []errorCase) []errorCase {
	for i := range cases {
		cases[i].name = op.name + " " + cases[i].name
	}
	return cases
}

// receiveErrors are errors of SEND whose receive request is missing, too short or wrong.
func receiveErrors() []errorCase {
	send := func(offset, n int) func(local, remote, other memory) verbs.SendWR {
		return func(local, _, _ memory) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{local.SGE(offset, n)}}
		}
	}
	impatient := usual
	impatient.rnrRetry = 3
	patient := impatient
	patient.minRNRTimer = 0 // 655 ms, three times
	sendFrom, writeWithImm := send(0, 16), remoteOps[1].request(nil)

	fromAnotherLKey := noSuchLKey
	fromAnotherLKey.name = "SEND from another lkey"
	fromAnotherLKey.request = func(local, remote, other memory) verbs.SendWR {
		wr := sendFrom(local, remote, other)
		wr.SGList[0].LKey ^= 0x55
		return wr
	}
	cases := []errorCase{
		{name: "SEND of one byte too many", recvLen: 99, request: send(0, 100)},
		{name: "SEND of one packet too many", recvLen: 1024, request: send(0, 2048)},
		{name: "SEND into another lkey", request: sendFrom, recv: func(wr *verbs.RecvWR) { wr.SGList[0].LKey ^= 0x55 }},
		{name: "SEND into memory past the end", request: sendFrom, recv: func(wr *verbs.RecvWR) { wr.SGList[0].Addr += 4096 - 15 }},
		{name: "SEND into memory that cannot be written", request: sendFrom, room: verbs.AccessRemoteRead},
	}
	for i := range cases {
		c := &cases[i]
		c.want = failsRemotely(remOp, locQPOp)
		if c.recvLen > 0 {
			c.asResponder, c.why = instead(failsRemotely(remInvReq, locLen)),
				"a receive that is too short is a length error (IBTA Vol 1 §9.9.3, §11.6.2)"
		} else {
			c.asResponder, c.why = instead(failsRemotely(remOp, locProt)), "a receive's memory fails as any other does (IBTA Vol 1 §11.6.2)"
		}
	}
	return append(cases, fromAnotherLKey,
		errorCase{name: "SEND from memory past the end", request: send(4096-15, 16), want: failsHere(locProt), sending: true},
		errorCase{name: "SEND with a receive posted late", posted: postedLate, path: patient, request: sendFrom, want: succeeds(3)},
		errorCase{name: "WRITE_WITH_IMM with a receive posted late", posted: postedLate, path: patient, request: writeWithImm,
			want: succeeds(3)},
		errorCase{name: "SEND with no receive posted", posted: postedNever, path: impatient, request: sendFrom, want: failsHere(rnrExc)},
		errorCase{name: "WRITE_WITH_IMM with no receive posted", posted: postedNever, path: impatient, request: writeWithImm,
			want: failsHere(rnrExc)},
	)
}
