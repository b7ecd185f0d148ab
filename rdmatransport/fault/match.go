package fault

import (
	"strings"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// This file has the methods that the device calls.

// chooses counts a match of a rule and reports whether the rule chooses it. mu is held.
func (a *active) chooses() bool {
	a.seen++
	return a.hits(a.seen) && (a.random == nil || a.random.Float64() < a.share)
}

// hit is chooses for what fails at once.
func (a *active) hit() bool {
	if !a.chooses() {
		return false
	}
	a.injected++
	return true
}

func (a *active) ofQP(qp *verbs.QP) bool { return a.sel.qp == 0 || qp != nil && qp.Num() == a.sel.qp }

// Call implements verbs.Injector.
func (f *Device) Call(name string, qp *verbs.QP) syscall.Errno {
	if f.gone.Load() && !outlivesDevice(name) {
		return errGone
	}
	f.mu.Lock()
	f.sites[name]++
	var of *active
	for _, a := range f.rules {
		if a.kind != onCall || !a.ofQP(qp) || name != a.call && !isStateOf(name, a.call) {
			continue
		}
		if a.hit() && of == nil {
			of = a
		}
	}
	f.mu.Unlock()
	if of == nil {
		return 0
	}
	f.report(of.text, qp)
	return of.errno
}

// isStateOf reports whether name is call with a state: modify_qp:rtr of modify_qp.
func isStateOf(name, call string) bool {
	rest, ok := strings.CutPrefix(name, call)
	return ok && strings.HasPrefix(rest, ":")
}

// outlivesDevice reports whether a call does not fail because the device is removed. Calls on
// queues in the program's memory do not reach the kernel, and have no effect. Those of rdma_cm do
// not use the device's file: rdma_ucm closes the device's IDs itself, and package rdmacm does the
// same.
func outlivesDevice(name string) bool {
	return strings.HasPrefix(name, "post_") || name == "poll_cq" || strings.HasPrefix(name, "rdma_")
}

// Send implements verbs.Injector.
func (f *Device) Send(qp *verbs.QP, wr *verbs.SendWR, fails bool) (status verbs.WCStatus) {
	opcode := opcodeName(wr.Opcode)
	f.mu.Lock()
	defer f.mu.Unlock()
	var of *active
	for _, a := range f.rules {
		switch {
		case a.acts() && a.sel.nth != 0 && !a.done && a.ofPosts(qp):
			if a.seen++; a.seen == a.sel.nth {
				a.done = true
				f.dev.Clock().Go(func() { f.actLater(a, qp.Num()) }) // the QP is locked
			}
		case a.kind == onCompletion && a.status != 0 && !fails && a.ofQP(qp) && (a.sel.opcode == "" || a.sel.opcode == opcode) &&
			possible(a.status, qp.Type(), qp.Transport(), wr.Opcode):
			if a.chooses() && of == nil {
				of, status = a, a.status
			}
		}
	}
	f.choose(qp, false, of)
	return status
}

// failure is how a request of a QP is to complete.
type failure struct {
	qpn    uint32
	recv   bool
	status verbs.WCStatus
}

// choose notes the rule that has chosen a request, until the request completes. mu is held.
func (f *Device) choose(qp *verbs.QP, recv bool, a *active) {
	if a != nil {
		f.chosen[failure{qp.Num(), recv, a.status}] = a
	}
}

// Seen implements verbs.Injector.
func (f *Device) Seen(qp *verbs.QP, recv bool, status verbs.WCStatus) {
	of := failure{qp.Num(), recv, status}
	f.mu.Lock()
	a := f.chosen[of]
	delete(f.chosen, of)
	if a != nil {
		a.injected++
		if a.ended {
			f.ended++
		}
	}
	f.mu.Unlock()
	if a != nil {
		f.report(a.text, qp)
	}
}

// ofPosts reports whether a post of a QP counts for a rule that acts.
func (a *active) ofPosts(qp *verbs.QP) bool { return a.sel.qp == 0 || a.sel.qp == qp.Num() }

// Recv implements verbs.Injector.
func (f *Device) Recv(qp *verbs.QP) (status verbs.WCStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var of *active
	for _, a := range f.rules {
		if a.kind == onCompletion && a.status != 0 && a.sel.opcode == recv && a.ofQP(qp) && a.chooses() && of == nil {
			of, status = a, a.status
		}
	}
	f.choose(qp, true, of)
	return status
}

// Late implements verbs.Injector.
func (f *Device) Late(qp *verbs.QP, of verbs.WCOpcode, status verbs.WCStatus) (late time.Duration) {
	opcode := completionName(of)
	f.mu.Lock()
	if status != verbs.WCWRFlushErr {
		f.sites["wc:opcode="+opcode]++
	}
	var hit *active
	for _, a := range f.rules {
		if a.kind != onCompletion || !a.ofQP(qp) || a.sel.opcode != "" && a.sel.opcode != opcode {
			continue
		}
		switch {
		case a.status != 0 && a.sel.late != 0 && status == a.status:
			late = max(late, a.sel.late)
		case a.status == 0 && status != verbs.WCWRFlushErr && a.hit():
			late, hit = max(late, a.time), a
		}
	}
	f.mu.Unlock()
	if hit != nil { // a request that fails is counted when it completes
		f.inj.Counted()
		f.report(hit.text, qp)
	}
	return late
}

// outcomes are the events of rdma_cm with which a call may end, and their statuses.
var outcomes = map[rdmacm.EventType]struct {
	call   string
	status syscall.Errno
}{
	rdmacm.AddrError: {"rdma_resolve_addr", syscall.ETIMEDOUT}, rdmacm.RouteError: {"rdma_resolve_route", syscall.ETIMEDOUT},
	rdmacm.ConnectError: {"rdma_connect", syscall.EINVAL}, rdmacm.Unreachable: {"rdma_connect", syscall.ETIMEDOUT},
	rdmacm.Rejected: {"rdma_connect", 0},
}

// Outcome implements verbs.Injector. Without a reason, a rejection is the peer's application's.
func (f *Device) Outcome(name string) (event uint8, status int, ok bool) {
	f.mu.Lock()
	var of *active
	for _, a := range f.rules {
		if a.kind == onCM && outcomes[a.cm].call == name && a.hit() && of == nil {
			of = a
			event, status, ok = uint8(a.cm), -int(outcomes[a.cm].status), true
			if a.cm == rdmacm.Rejected {
				if status = a.sel.reason; status == 0 {
					status = rdmacm.RejectConsumerDefined
				}
			}
		}
	}
	f.mu.Unlock()
	if of != nil {
		f.inj.Counted()
		f.report(of.text, nil)
	}
	return event, status, ok
}

// EventLate implements verbs.Injector.
func (f *Device) EventLate(event uint8) (late time.Duration) {
	f.mu.Lock()
	var of *active
	for _, a := range f.rules {
		if a.kind == onCM && a.sel.late != 0 && uint8(a.cm) == event && a.hit() {
			late, of = max(late, a.sel.late), a
		}
	}
	f.mu.Unlock()
	if of != nil {
		f.inj.Counted()
		f.report(of.text, nil)
	}
	return late
}
