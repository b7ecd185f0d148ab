//go:build linux

package interop

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
)

// iwarpError is one request for which the responder terminates the stream. Before it the responder
// has posted two receives of 64 bytes (but see noRecv), and the requester two of none.
type iwarpError struct {
	name    string
	remote  verbs.Access // of the responder's memory, of 4096 bytes; 0: all
	noRecv  bool
	request func(local, remote, other memory) verbs.SendWR
	// terminate is the Terminate that the RFCs name.
	terminate error
	// sent is the completion of siw's request: it completes when TCP has carried it. received are
	// those of the responder's receives.
	sent     verbs.WCStatus
	received []verbs.WCStatus
	// read: siw's response to a READ ends it with a remote access error, and siw's posted requests
	// are not flushed.
	read bool
	// ours: SoftRNIC alone responds.
	ours bool
	// siwTerminate is siw's Terminate, if different.
	siwTerminate error
}

// siw of Linux 6.1 deviates from the RFCs. It detects errors of a READ when it is about to respond,
// and does not flush its receives. For a SEND that is too long it reports that there is no buffer.
func iwarpErrors() (cases []iwarpError) {
	both := []verbs.WCStatus{flushed, flushed}
	for _, op := range []struct {
		name                         string
		opcode                       verbs.WROpcode
		right                        verbs.Access
		sent                         verbs.WCStatus
		stag, bounds, noRight, other error
	}{
		{"WRITE", verbs.RDMAWrite, verbs.AccessRemoteWrite, ok,
			ddp.ErrInvalidSTag, ddp.ErrBounds, ddp.ErrInvalidSTag, ddp.ErrSTagNotAssociated},
		{"READ", verbs.RDMARead, verbs.AccessRemoteRead, flushed,
			rdmap.InvalidSTag, rdmap.BoundsViolation, rdmap.AccessViolation, rdmap.STagNotAssociated},
	} {
		request := func(change func(wr *verbs.SendWR, other memory)) func(local, remote, other memory) verbs.SendWR {
			return func(local, remote, other memory) verbs.SendWR {
				wr := verbs.SendWR{
					Opcode: op.opcode, SGList: []verbs.SGE{local.SGE(0, 16)}, RemoteAddr: remote.Addr(), RKey: remote.RKey(),
				}
				change(&wr, other)
				return wr
			}
		}
		for _, c := range []iwarpError{
			{name: "wrong STag", terminate: op.stag,
				request: request(func(wr *verbs.SendWR, _ memory) { wr.RKey ^= 0x55555500 })},
			{name: "past the end", terminate: op.bounds,
				request: request(func(wr *verbs.SendWR, _ memory) { wr.RemoteAddr += 4096 - 15 })},
			{name: "before the beginning", terminate: op.bounds,
				request: request(func(wr *verbs.SendWR, _ memory) { wr.RemoteAddr-- })},
			{name: "without the right", terminate: op.noRight, remote: allAccess &^ op.right,
				request: request(func(*verbs.SendWR, memory) {})},
			{name: "STag of another PD", terminate: op.other,
				request: request(func(wr *verbs.SendWR, other memory) { wr.RemoteAddr, wr.RKey = other.Addr(), other.RKey() })},
		} {
			c.read = op.opcode == verbs.RDMARead
			c.ours = c.read && c.remote != 0
			c.name, c.sent, c.received = op.name+" "+c.name, op.sent, both
			cases = append(cases, c)
		}
	}
	send := func(n int) func(local, _, _ memory) verbs.SendWR {
		return func(local, _, _ memory) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{local.SGE(0, n)}}
		}
	}
	return append(cases,
		iwarpError{name: "SEND with no receive posted", noRecv: true, request: send(16), terminate: ddp.ErrNoBuffer, sent: ok},
		iwarpError{name: "SEND of one byte too many", request: send(65), terminate: ddp.ErrTooLong, siwTerminate: ddp.ErrNoBuffer, sent: ok,
			received: []verbs.WCStatus{verbs.WCLocLenErr, flushed}},
	)
}

// run runs the case on a new connection.
func (c iwarpError) run(t *testing.T, requester, responder *side) {
	t.Helper()
	local, sink := requester.pd.regMR(4096, allAccess), responder.pd.regMR(128, allAccess)
	remote := responder.pd.regMR(4096, orAll(c.remote))
	other := responder.dev.allocPD().regMR(4096, allAccess)
	for id := range uint64(2) {
		if err := requester.qp.PostRecv(&verbs.RecvWR{WRID: id}); err != nil {
			t.Fatal(err)
		}
		if c.noRecv {
			continue
		}
		if err := responder.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{sink.SGE(64*int(id), 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	wr := c.request(local, remote, other)
	wr.Flags |= verbs.SendSignaled
	if err := requester.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	_, ours := requester.qp.(softrnicQP)
	request := func(want ...verbs.WCStatus) {
		t.Helper()
		if wcs := requester.qp.PollSend(1, patience); len(wcs) != 1 || !slices.Contains(want, wcs[0].Status) {
			t.Errorf("the request completes with %v, want %v", wcs, want)
		}
	}
	receives := func(whose string, qp queuePair, want []verbs.WCStatus) {
		t.Helper()
		var got []verbs.WCStatus
		for _, wc := range qp.PollRecv(len(want), patience) {
			got = append(got, wc.Status)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the %s's receives complete with %v, want %v", whose, got, want)
		}
	}
	switch {
	case ours && c.read:
		request(remAccess)
	case ours:
		request(c.sent)
	default:
		// For siw, a request that is answered immediately by a Terminate has failed to be sent.
		request(c.sent, locQPOp)
	}
	receives("requester", requester.qp, []verbs.WCStatus{flushed, flushed})
	if !ours || !c.read {
		receives("responder", responder.qp, c.received)
	}
}

// TestIWARPErrors checks that streams end as the RFCs require, with siw on either side.
func TestIWARPErrors(t *testing.T) {
	gate.System(t)
	file := filepath.Join(t.TempDir(), "capture.pcapng")
	cases := iwarpErrors()
	began := false // not without a peer
	ran := t.Run("streams", func(t *testing.T) {
		l := openIWARP(t, func(t *testing.T, l link.Link) link.Link { return captureTo(t, file, l) }, iwarp.Config{})
		began = true
		linux := pyverbs.OpenCM(t, l.peer, "siw0")
		p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
		dev := softrnic{t: t, dev: l.dev}
		for _, c := range cases {
			name := strings.ReplaceAll(c.name, " ", "_")
			if !c.ours {
				t.Run("requester/"+name, func(t *testing.T) {
					conn := dialSIW(t, p, linux.In(t), depths(4, 4), depths(4, 4))
					here, there := conn.sides(t)
					there.dev = kernel{linux.Device.In(t)}
					c.run(t, here, there)
				})
			}
			t.Run("responder/"+name, func(t *testing.T) {
				conn := acceptSIW(t, p, linux.In(t), depths(4, 4), depths(4, 4))
				here, there := conn.sides(t)
				here.dev = dev.in(t)
				c.run(t, there, here)
			})
		}
	})
	if !ran || !began {
		return
	}
	type terminated struct {
		name  string
		cause error
	}
	var want []terminated // by connection
	for _, c := range cases {
		if !c.ours {
			want = append(want, terminated{c.name + ": siw", cmp.Or(c.siwTerminate, c.terminate)})
		}
		want = append(want, terminated{c.name + ": SoftRNIC", c.terminate})
	}
	conns := wellFormedIWARP(t, file)
	if len(conns) != len(want) {
		t.Fatalf("%d connections are captured, want %d", len(conns), len(want))
	}
	for i, w := range want {
		cause, _ := rdmap.CauseOf(w.cause)
		if got := conns[i].halves[1].terminates; !slices.Equal(got, []rdmap.Cause{cause}) {
			t.Errorf("%s terminates with %v, want %v", w.name, got, cause)
		}
	}
}
