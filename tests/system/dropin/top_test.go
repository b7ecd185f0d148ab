//go:build linux && amd64

package dropin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestRunTop: softrnic top shows the queue pair of a program run with --top, and none of one run
// without it.
func TestRunTop(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, flags := range []string{"--top", ""} {
		freePort++
		program := runner(ctx, t, dir, "--link shm:top --addr 10.9.0.1/24 "+flags, "ibv_rc_pingpong", "-g", "1", "-p", fmt.Sprint(freePort))
		var said proc.Output
		program.Stdout, program.Stderr = &said, &said
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- program.Wait() }()
		if err := listens(freePort, ended); err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
		top := runner(ctx, t, dir, "")
		top.Args = []string{top.Path, "top", "--count", "1", "--json"}
		out, err := top.CombinedOutput()
		var node struct {
			Command string
			Addrs   []string
			QPs     []struct{ Type, State string }
		}
		if e := json.Unmarshal(out, &node); flags != "" && (err != nil || e != nil ||
			!strings.HasPrefix(node.Command, "ibv_rc_pingpong ") ||
			len(node.QPs) != 1 || node.QPs[0].Type != "RC" || node.QPs[0].State != "INIT") {
			t.Errorf("top: %v, %v\n%s", err, e, out)
		}
		if flags == "" && strings.Contains(string(out), "pingpong") {
			t.Errorf("without --top: %s", out)
		}
		_ = program.Process.Signal(syscall.SIGTERM)
		<-ended
	}
}
