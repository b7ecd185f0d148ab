//go:build linux

package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// process is a running program and its output.
type process struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr proc.Output
	ended  chan error
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	_, p.ended = proc.Start(t, cmd)
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
	if err := p.stderr.WaitFor(text, p.ended); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(p.cmd.Path), err, tailOf(p.stderr.String(), 2000))
	}
}

// endPatience is how long a program may take to end after ^C.
const endPatience = 30 * time.Second

// interrupt ends the program as ^C does. If it does not end, the test's log says where a program in
// Go waits.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	name := filepath.Base(p.cmd.Path)
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("%s has ended before: %v\n%s", name, err, tailOf(p.stderr.String(), 2000))
	}
	late := time.AfterFunc(endPatience, func() {
		t.Errorf("%s has not ended %v after ^C", name, endPatience)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	})
	<-p.ended
	if !late.Stop() {
		t.Logf("%s", tailOf(p.stderr.String(), 20000))
	}
}
