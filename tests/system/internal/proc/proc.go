// Package proc starts programs for tests, which wait for what the programs say.
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

// patience is how long a program may take to say something.
const patience = time.Minute

// Output is what a program has written. The zero Output is empty.
type Output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed by the next Write; nil if nobody waits
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

// look is what there is, and what is closed when there is more.
func (o *Output) look() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}

// WaitFor waits until a program has written a text. It fails after a minute, or if the program ends
// before: ended, which has room for an element, has one then, and keeps it.
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
			return fmt.Errorf("it does not say %q", text)
		}
	}
}

// Start starts a program. said is what it writes to whichever of standard output and standard error
// is nil; ended has an element when it has ended.
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
