// Package cli is what commands share: their input and output, their errors, which become one line
// on stderr and an exit code, and their log. The drop-in libraries have it too.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/softrnic/softrnic/link/pipe"
)

// Exit codes.
const (
	ExitOK = iota
	ExitFailed
	ExitUsage
	// ExitIncomplete is the code of a check that found nothing wrong, and could not check everything.
	ExitIncomplete
)

// Env is the environment of a command line.
type Env struct {
	Stdin          io.Reader // nil: empty
	Stdout, Stderr io.Writer
	// LAN is the switch of nodes with --link pipe. If it is nil, each node has its own switch.
	LAN *pipe.Switch
	// Counted makes each node count the packets on its link.
	Counted bool
	// Command is the file of the command softrnic, with which nodes start a hub. "" is the running
	// program.
	Command string

	text *Checked // returned by Text; set by Run
}

// Text returns a writer to Stdout that defers errors. A command need not check each write: the
// first error becomes the command's error.
func (e *Env) Text() io.Writer { return e.text }

// WriteJSON writes v to Stdout as indented JSON.
func (e *Env) WriteJSON(v any) error {
	enc := json.NewEncoder(e.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Checked is a writer that keeps the first error and writes nothing after it. Its callers need not
// check the error of each write.
type Checked struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewChecked returns a Checked that writes to w.
func NewChecked(w io.Writer) *Checked { return &Checked{w: w} }

// Write implements io.Writer.
func (c *Checked) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		n, c.err = c.w.Write(b)
	}
	return n, c.err
}

// Err returns the first error.
func (c *Checked) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// OnPipe returns an environment whose nodes are on a new switch.
func (e *Env) OnPipe(cfg *pipe.Config) (*Env, error) {
	lan, err := pipe.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Env{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, LAN: lan, Counted: true, text: e.text}, nil
}

// Run runs a command and returns its exit code. The error is that of the command, or else the first
// one of Text. It is reported on one line. parse returns the command, or nil if nothing is left to
// do.
func (e *Env) Run(ctx context.Context, parse func() (command func() error, err error)) int {
	e.text = NewChecked(e.Stdout)
	command, err := parse()
	switch {
	case e.text.Err() != nil:
		return e.fail(e.text.Err())
	case err != nil:
		return e.fail(err)
	case command == nil:
		return ExitOK
	}
	if err = command(); err == nil {
		err = e.text.Err()
	} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("interrupted")
	}
	return e.fail(err)
}

// fail reports err on one line, unless it is nil, and returns the exit code.
func (e *Env) fail(err error) int {
	if err == nil {
		return ExitOK
	}
	if status := ExitStatus(0); errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(e.Stderr, "softrnic: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.As(err, new(UsageError)) {
		return ExitUsage
	}
	if errors.As(err, new(IncompleteError)) {
		return ExitIncomplete
	}
	return ExitFailed
}

// UsageError is an error in the command line.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// ExitStatus is the error of a command that returns the exit status of another program. It is not
// reported on stderr.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// IncompleteError says what a check could not check, if it found nothing wrong.
type IncompleteError struct{ Err error }

func (e IncompleteError) Error() string { return e.Err.Error() }

func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

func Version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("softrnic %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
