//go:build linux

package interop

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// process is a program that runs, and its output.
type process struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr transcript
	ended  chan error
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan error, 1)}
	p.stderr.changed.L = &p.stderr.mu
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := cmd.Wait()
		p.stderr.end()
		p.ended <- err
	}()
	return p
}

// wait waits for the end of the program, which must exit with status 0.
func (p *process) wait(t *testing.T) {
	t.Helper()
	if err := <-p.ended; err != nil {
		t.Errorf("%s: %v\n%s", filepath.Base(p.cmd.Path), err, tailOf(p.stderr.String(), 2000))
	}
}

// await waits until the program has written a text to standard error.
func (p *process) await(t *testing.T, text string) {
	t.Helper()
	if !p.stderr.await(text) {
		t.Fatalf("%s does not say %q:\n%s", filepath.Base(p.cmd.Path), text, tailOf(p.stderr.String(), 2000))
	}
}

// transcript is output that can be waited for.
type transcript struct {
	mu      sync.Mutex
	changed sync.Cond // on mu
	text    strings.Builder
	ended   bool
}

func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	return s.text.Write(b)
}

func (s *transcript) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await reports whether the text came before the end.
func (s *transcript) await(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !strings.Contains(s.text.String(), text) {
		if s.ended {
			return false
		}
		s.changed.Wait()
	}
	return true
}
