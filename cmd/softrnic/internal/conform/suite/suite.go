// Package suite is what a conformance case is, and how one is run and judged.
package suite

import (
	"fmt"
	"reflect"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
)

// Observed is the Source of a statement that no public text makes: what the implementations that are known do.
const Observed = "observed behaviour"

// Case is one statement, and what shows whether a target keeps to it.
type Case struct {
	ID        string
	Statement string
	Source    string // the clause or the RFC's section that says so, or Observed
	Harmful   string // which known target does not survive the case, or nothing
	Run       func(*T)
}

// Verdict is the outcome of a case.
type Verdict string

// The verdicts. Skip is of a case that cannot be judged here, for a reason that is not the target's fault.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"
	Skip Verdict = "SKIP"
)

// Result is a case that was run.
type Result struct {
	ID        string        `json:"id"`
	Statement string        `json:"statement"`
	Source    string        `json:"source"`
	Harmful   string        `json:"harmful,omitempty"`
	Verdict   Verdict       `json:"verdict"`
	Reason    string        `json:"reason,omitempty"` // of FAIL and SKIP
	Elapsed   time.Duration `json:"elapsed_ns"`
	Packets   []Packet      `json:"packets,omitempty"`
	Checks    []Check       `json:"-"`
}

// Packet is one that was sent or came back, from the IP header on.
type Packet struct {
	Time time.Time     `json:"time"`
	Sent bool          `json:"sent"`
	Data peer.Datagram `json:"data"`
}

// Check is a comparison that the verdict rests on: of a field of a reply, or of something else that the target shows.
type Check struct {
	Reply int    // which reply of the target, from 1 on; 0 for what is no reply
	Field string // what was compared
}

// Mutation is an alteration of what the target shows, by which a test has a case fail: it alters what a check compares, or
// drops the reply.
type Mutation struct {
	Check
	Number int // of the check among those of the case, from 1 on; used for what is no reply
	Drop   bool
}

// T is a case that is running. Its methods are called on the goroutine that runs the case.
type T struct {
	Mutate *Mutation // nil outside tests
	checks []Check
	defers []func()
}

// verdict is what a case ends with early.
type verdict struct {
	Verdict
	reason string
}

// Failf ends the case: the target does not keep to the statement.
func (t *T) Failf(format string, args ...any) { panic(verdict{Fail, fmt.Sprintf(format, args...)}) }

// Skipf ends the case without a judgement.
func (t *T) Skipf(format string, args ...any) { panic(verdict{Skip, fmt.Sprintf(format, args...)}) }

// Cleanup has f called when the case has ended, the last first.
func (t *T) Cleanup(f func()) { t.defers = append(t.defers, f) }

// Check notes a comparison, and tells whether the value that the target shows is to be altered before it. That of a reply's
// field is altered when the reply arrives.
func (t *T) Check(reply int, field string) (alter bool) {
	t.checks = append(t.checks, Check{reply, field})
	return t.Mutate != nil && reply == 0 && t.Mutate.Reply == 0 && t.Mutate.Number == len(t.checks)
}

// Judge runs the case, with m altering what the target shows if it is not nil. The packets are the caller's to add.
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

// NotRun is the result of a case that is not run.
func (c *Case) NotRun(reason string) Result { return c.result(Skip, reason) }

func (c *Case) result(v Verdict, reason string) Result {
	return Result{ID: c.ID, Statement: c.Statement, Source: c.Source, Harmful: c.Harmful, Verdict: v, Reason: reason}
}

// Is compares something that the target shows, other than a field of a reply.
func Is[V comparable](t *T, what string, got, want V) {
	if t.Check(0, what) {
		got = another(got)
	}
	if got != want {
		t.Failf("%s is %v, want %v", what, got, want)
	}
}

// another is a value other than v, which is a string, a bool or an integer.
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
