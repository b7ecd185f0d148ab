//go:build linux

package interop

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

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
