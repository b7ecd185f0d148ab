// Package suite defines conformance cases, and runs and judges them.
package suite

import (
	"fmt"
	"reflect"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
)

// Observed is the Source of a statement without a public text. It describes the behaviour of known
// implementations.
const Observed = "observed behaviour"

// Case is one statement with a check of a target's conformance.
type Case struct {
	ID        string
	Statement string
	Source    string // the clause or RFC section with the statement, or Observed
	Run       func(*T)
}

// Verdict is the outcome of a case.
type Verdict string

// The verdicts. Skip is for a case that cannot be judged, without a fault of the target.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"
	Skip Verdict = "SKIP"
)

// Result is the result of a case.
type Result struct {
	ID        string        `json:"id"`
	Statement string        `json:"statement"`
	Source    string        `json:"source"`
	Verdict   Verdict       `json:"verdict"`
	Reason    string        `json:"reason,omitempty"` // of FAIL and SKIP
	Elapsed   time.Duration `json:"elapsed_ns"`
	Packets   []Packet      `json:"packets,omitempty"`
	Checks    []Check       `json:"-"`
}

// Packet is a sent or received packet, from the IP header on.
type Packet struct {
	Time time.Time     `json:"time"`
	Sent bool          `json:"sent"`
	Data peer.Datagram `json:"data"`
}

// Check is a comparison that the verdict depends on: of a field of a reply, or of another value
// that the target reports.
type Check struct {
	Reply int    // number of the target's reply, from 1 on; 0: not a reply
	Field string // name of the compared value
}

// Mutation is an alteration of a target's behaviour with which a test makes a case fail. It alters
// a compared value or drops a reply.
type Mutation struct {
	Check
	Number int // number of the check in the case, from 1 on; used if it is not of a reply
	Drop   bool
}

// T is a running case. Its methods are called on the goroutine that runs the case.
type T struct {
	Mutate *Mutation // nil outside tests
	checks []Check
	defers []func()
}

// verdict is the panic value that ends a case early.
type verdict struct {
	Verdict
	reason string
}

// Failf ends the case: the target does not conform to the statement.
func (t *T) Failf(format string, args ...any) { panic(verdict{Fail, fmt.Sprintf(format, args...)}) }

// Skipf ends the case without a judgement.
func (t *T) Skipf(format string, args ...any) { panic(verdict{Skip, fmt.Sprintf(format, args...)}) }

// Cleanup registers f to be called after the case, in reverse order.
func (t *T) Cleanup(f func()) { t.defers = append(t.defers, f) }

// Check records a comparison, and reports whether the target's value is to be altered before it. A
// field of a reply is altered when the reply is received.
func (t *T) Check(reply int, field string) (alter bool) {
	t.checks = append(t.checks, Check{reply, field})
	return t.Mutate != nil && reply == 0 && t.Mutate.Reply == 0 && t.Mutate.Number == len(t.checks)
}

// Judge runs the case with the mutation m, unless it is nil. The caller adds the packets to the
// result.
func (c *Case) Judge(m *Mutation) (r Result) {
	t := &T{Mutate: m}
	r = c.result(Pass, "")
	start := time.Now()
	defer func() { r.Elapsed, r.Checks = time.Since(start), t.checks }()
	defer func() {
		for i := len(t.defers) - 1; i >= 0; i-- {
			t.defers[i]()
		}
	}()
	defer func() {
		switch v := recover().(type) {
		case nil:
		case verdict:
			r.Verdict, r.Reason = v.Verdict, v.reason
		default:
			panic(v)
		}
	}()
	c.Run(t)
	return r
}

// NotRun returns the result of a case that is not run.
func (c *Case) NotRun(reason string) Result { return c.result(Skip, reason) }

func (c *Case) result(v Verdict, reason string) Result {
	return Result{ID: c.ID, Statement: c.Statement, Source: c.Source, Verdict: v, Reason: reason}
}

// Is compares a value that the target reports, other than a field of a reply.
func Is[V comparable](t *T, what string, got, want V) {
	if t.Check(0, what) {
		got = another(got)
	}
	if got != want {
		t.Failf("%s is %v, want %v", what, got, want)
	}
}

// another returns a value other than v, which is a string, a bool or an integer.
func another[V comparable](v V) V {
	switch a := reflect.ValueOf(&v).Elem(); a.Kind() {
	case reflect.String:
		a.SetString(a.String() + "0")
	case reflect.Bool:
		a.SetBool(!a.Bool())
	case reflect.Int:
		a.SetInt(a.Int() + 1)
	default:
		a.SetUint(a.Uint() + 1)
	}
	return v
}
