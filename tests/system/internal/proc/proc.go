// Package proc starts programs for tests and waits for their output.
package proc

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is the time limit of WaitFor.
const patience = time.Minute

// Output is the output of a program. The zero Output is empty.
type Output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed by the next Write; nil if nothing waits
}

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.buf.Write(b)
}

func (o *Output) String() string {
	text, _ := o.look()
	return text
}

// look returns the output, and a channel that is closed when there is more.
func (o *Output) look() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}

// WaitFor waits until a program has written a text. It fails after a minute, or if the program ends
// earlier. ended has a buffer for one element, receives it when the program ends, and keeps it.
func (o *Output) WaitFor(text string, ended chan error) error {
	late := time.After(patience)
	for {
		all, more := o.look()
		if strings.Contains(all, text) {
			return nil
		}
		select {
		case <-more:
		case err := <-ended:
			ended <- err
			if !strings.Contains(o.String(), text) {
				return fmt.Errorf("it ended before it said %q: %w", text, err)
			}
			return nil
		case <-late:
			return fmt.Errorf("it does not print %q", text)
		}
	}
}

// Start starts a program. said receives standard output and standard error, unless they are set
// already. ended receives an element when the program has ended.
func Start(t testing.TB, cmd *exec.Cmd) (said *Output, ended chan error) {
	t.Helper()
	said, ended = new(Output), make(chan error, 1)
	if cmd.Stdout == nil {
		cmd.Stdout = said
	}
	if cmd.Stderr == nil {
		cmd.Stderr = said
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- cmd.Wait() }()
	return said, ended
}
