// Package conformtest helps to test the conformance cases: it provides a target on our device and
// judges each case.
package conformtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/responder"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/verbs"
)

const module = "github.com/softrnic/softrnic/"

// Once makes TestOurs run each case without mutated replies. tests/long removes rules from the
// engine, and TestOurs must then fail.
var Once = flag.Bool("once", false, "TestOurs: no mutated replies")

// Must returns v, and ends the test if there is an error.
func Must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// listener has one connection, in memory. A test in virtual time cannot wait for a socket of the
// machine.
type listener struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { close(l.ended); return nil }
func (l *listener) Addr() net.Addr { return nil }

// Connect runs dev as a target and connects to it. end ends both.
func Connect(t *testing.T, dev *verbs.Device) (c *control.Client, end func() error) {
	t.Helper()
	near, far := net.Pipe()
	l := &listener{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
	l.conns <- far
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- responder.Serve(ctx, l, new(accept.Limits).Gate("conform", 16), slog.New(slog.DiscardHandler), dev, "secret")
	}()
	c = Must(control.New(near, "secret", 30*time.Second))(t)
	return c, func() error {
		err := c.Close()
		cancel()
		return errors.Join(err, <-served, dev.Close())
	}
}

// Mutate judges a passed case repeatedly, each time with one compared value altered, and once
// without the last reply. The case must fail each time. Mutate returns the number of runs.
func Mutate(t *testing.T, passed *suite.Result, judge func(m *suite.Mutation) error) int {
	t.Helper()
	if len(passed.Checks) == 0 {
		t.Fatal("it compares nothing")
	}
	if *Once {
		return 0
	}
	var all []suite.Mutation
	last := 0
	for i, check := range passed.Checks {
		all = append(all, suite.Mutation{Check: check, Number: i + 1})
		last = max(last, check.Reply)
	}
	if last > 0 {
		all = append(all, suite.Mutation{Check: suite.Check{Reply: last}, Drop: true})
	}
	for _, m := range all {
		if err := judge(&m); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	return len(all)
}

// Failed returns an error unless the verdict is FAIL.
func Failed(r suite.Result) error {
	if r.Verdict != suite.Fail {
		return fmt.Errorf("%s", r.Verdict)
	}
	return nil
}

// Distinct checks that IDs and statements are unique, and that each case has a source.
func Distinct(t *testing.T, cases []suite.Case) {
	t.Helper()
	ids, statements := map[string]bool{}, map[string]bool{}
	for _, c := range cases {
		if ids[c.ID] || statements[c.Statement] || c.Source == "" || c.Statement == "" {
			t.Errorf("%s: %q, source %q", c.ID, c.Statement, c.Source)
		}
		ids[c.ID], statements[c.Statement] = true, true
	}
}

// WithoutEngines checks that the tester does not use the code that it tests. Of our packages it may
// import only those that allowed accepts.
func WithoutEngines(t *testing.T, allowed func(own string) bool) {
	t.Helper()
	out := Must(exec.Command("go", "list", "-deps", ".", "../peer", "../suite", "../control").Output())(t)
	for dep := range strings.FieldsSeq(string(out)) {
		own, ok := strings.CutPrefix(dep, module)
		if ok && !strings.HasPrefix(own, "cmd/softrnic/internal/conform/") && !allowed(own) {
			t.Errorf("the tester is linked with %s", own)
		}
	}
}
