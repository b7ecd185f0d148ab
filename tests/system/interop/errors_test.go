//go:build linux

package interop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// errorCase is one request that fails, and a SEND after it.
//
// The responder has posted three receives, 1 to 3 (but see posted). The requester posts 1, the
// failing request. Directly after it is 2, a valid SEND of 16 bytes, fenced, so that it does not
// overtake an error that only the response reveals. After both completions it posts 3, another
// SEND.
type errorCase struct {
	name    string
	path    path         // the zero value: usual
	local   verbs.Access // of the requester's memory, of 4096 bytes; 0: all
	remote  verbs.Access // of the responder's memory, of 4096 bytes; 0: all
	room    verbs.Access // of the receives' memory, of 4096 bytes; 0: all
	recvLen int          // room of the first receive; 0: all 4096
	posted  receives
	sending bool // the requester finds the error when it gathers what it sends
	// request returns the failing request. other is the responder's memory in another PD than its
	// QP's.
	request func(local, remote, other memory) verbs.SendWR
	// recv changes the responder's first receive.
	recv func(wr *verbs.RecvWR)
	want outcome // with rxe on both sides
	// asRequester and asResponder are the outcomes if SoftRNIC has that role and follows the
	// specification or hardware instead of rxe. why has the reason.
	asRequester, asResponder *outcome
	why                      string
}

// receives says when an errorCase posts its receives.
type receives int

const (
	postedFirst receives = iota
	postedLate           // after the failing request has waited for them
	postedNever
)

// outcome is the outcome of an errorCase.
type outcome struct {
	refused              bool             // by PostSend, with EINVAL; then nothing else happens
	sends                []verbs.WCStatus // of the completed requests, in order
	recvs                []verbs.WCStatus // of the completed receives, in order
	requester, responder verbs.QPState
}

func (o outcome) String() string {
	if o.refused {
		return "refused"
	}
	return fmt.Sprintf("sends %v, QP %v; receives %v, QP %v", o.sends, o.requester, o.recvs, o.responder)
}

func (o outcome) equal(p outcome) bool {
	return o.refused == p.refused && slices.Equal(o.sends, p.sends) && slices.Equal(o.recvs, p.recvs) && o.requester == p.requester &&
		o.responder == p.responder
}

// by returns an outcome with a kernel's rxe as the requester.
func (c errorCase) by(k peer.Kernel, want outcome) outcome {
	if c.sending && k.Has(peer.SendErrorsFlushed) {
		want.sends = append([]verbs.WCStatus{flushed}, want.sends[1:]...)
	}
	return want
}

// try runs the case between two devices and checks the outcome.
func (c errorCase) try(t *testing.T, requester, responder *side, want outcome) {
	t.Helper()
	if got := c.run(t, requester, responder, want); !got.equal(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// run waits for the expected completions, and then for a while checks that there are no more.
func (c errorCase) run(t *testing.T, requester, responder *side, want outcome) outcome {
	t.Helper()
	p := c.path
	if p == (path{}) {
		p = usual
	}
	connect(t, requester, responder, p)
	local := requester.pd.regMR(4096, orAll(c.local))
	sound := requester.pd.regMR(4096, allAccess)
	remote := responder.pd.regMR(4096, orAll(c.remote))
	other := responder.dev.allocPD().regMR(4096, allAccess)
	room := responder.pd.regMR(4096, orAll(c.room))

	postReceives := func() {
		t.Helper()
		n := c.recvLen
		if n == 0 {
			n = room.Length()
		}
		first := &verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{room.SGE(0, n)}}
		if c.recv != nil {
			c.recv(first)
		}
		whole := []verbs.SGE{room.SGE(0, room.Length())}
		if err := responder.qp.PostRecv(first, &verbs.RecvWR{WRID: 2, SGList: whole}, &verbs.RecvWR{WRID: 3, SGList: whole}); err != nil {
			t.Fatal(err)
		}
	}
	if c.posted == postedFirst {
		postReceives()
	}
	send := func(id uint64) *verbs.SendWR {
		return &verbs.SendWR{WRID: id, Opcode: verbs.Send, Flags: verbs.SendSignaled | verbs.SendFence, SGList: []verbs.SGE{sound.SGE(0, 16)}}
	}
	tried := c.request(local, remote, other)
	tried.WRID, tried.Flags = 1, tried.Flags|verbs.SendSignaled
	if err := requester.qp.PostSend(&tried); errors.Is(err, syscall.EINVAL) {
		return outcome{refused: true}
	} else if err != nil {
		t.Fatal(err)
	}
	if err := requester.qp.PostSend(send(2)); err != nil {
		t.Fatal(err)
	}
	if c.posted == postedLate {
		if wcs := requester.qp.PollSend(1, 100*time.Millisecond); len(wcs) > 0 {
			t.Fatalf("completes as %v with no receive posted", wcs[0].Status)
		}
		postReceives()
	}
	var sent, received []verbs.WC
	await := func(list *[]verbs.WC, poll func(int, time.Duration) []verbs.WC, want int) {
		*list = append(*list, poll(max(0, want-len(*list)), patience)...)
	}
	await(&sent, requester.qp.PollSend, min(2, len(want.sends)))
	if err := requester.qp.PostSend(send(3)); err != nil {
		t.Fatal(err)
	}
	await(&sent, requester.qp.PollSend, len(want.sends))
	await(&received, responder.qp.PollRecv, len(want.recvs))
	// Unexpected completions would arrive at about the same time.
	sent = append(sent, requester.qp.PollSend(8, 50*time.Millisecond)...)
	received = append(received, responder.qp.PollRecv(8, 5*time.Millisecond)...)

	got := outcome{requester: requester.qp.State(), responder: responder.qp.State()}
	got.sends, got.recvs = statuses(t, sent), statuses(t, received)
	return got
}

func orAll(a verbs.Access) verbs.Access {
	if a == 0 {
		return allAccess
	}
	return a
}

// statuses checks that completions come in the order of their requests, 1, 2, …
func statuses(t *testing.T, wcs []verbs.WC) (list []verbs.WCStatus) {
	t.Helper()
	for i, wc := range wcs {
		if wc.WRID != uint64(i+1) {
			t.Errorf("completion %d is of request %d", i+1, wc.WRID)
		}
		list = append(list, wc.Status)
	}
	return list
}

// TestKernelErrors checks that the outcomes between two rxes are those of rxeReference.
func TestKernelErrors(t *testing.T) {
	gate.Long(t)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	requester, responder := openKernel(t, peers[0]), openKernel(t, peers[1])
	for _, c := range rxeReference() {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			c.try(t, newSide(t, requester, peers[0].Addr4()), newSide(t, responder, peers[1].Addr4()), c.by(peers[0].Kernel, c.want))
		})
	}
}

// TestErrors checks that the outcomes are the same with SoftRNIC as one of the sides, unless the
// errorCase says otherwise.
func TestErrors(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux, here := openKernel(t, p), openSoftRNIC(t, captured(t, openTAP(t, p.Netns)), nil)
	for _, c := range rxeReference() {
		name := strings.ReplaceAll(c.name, " ", "_")
		want := func(instead *outcome) outcome {
			if instead == nil {
				return c.want
			}
			if instead.equal(c.want) || c.why == "" {
				t.Errorf("%s: SoftRNIC does not differ from rxe, or the reason is missing (%q)", c.name, c.why)
			}
			return *instead
		}
		t.Run("requester/"+name, func(t *testing.T) {
			c.try(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()), want(c.asRequester))
		})
		t.Run("responder/"+name, func(t *testing.T) {
			c.try(t, newSide(t, linux, p.Addr4()), newSide(t, here, softrnicAddr4), c.by(p.Kernel, want(c.asResponder)))
		})
	}
}
