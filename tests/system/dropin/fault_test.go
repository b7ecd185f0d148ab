//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestFaults: unmodified programs meet a fault, and end with an error of their own.
func TestFaults(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	dir := shared(t)
	for _, c := range []struct{ rule, program, want string }{
		{"reg_mr=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't register MR"},
		{"create_qp=ENOSPC", "ibv_rc_pingpong -g 1", "Couldn't create QP"},
		{"rdma_bind_addr=EADDRINUSE", "rping -s", "rdma_bind_addr"},
		{"cm=ADDR_ERROR", "rping -c -a 10.9.0.2", "RDMA_CM_EVENT_ADDR_ERROR"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		out, err := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.1/24 --fault "+c.rule, strings.Fields(c.program)...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.rule, err, out)
		}
		cancel()
	}
}

// TestFaultOfCompletion: a completion of an unmodified program fails, and the trace says why.
func TestFaultOfCompletion(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	server := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.1/24", "ibv_rc_pingpong", "-g", "1", "-p", port)
	var said proc.Output
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	if err := listens(freePort, ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	trace := filepath.Join(dir, "trace")
	out, err := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.2/24 --trace "+trace+" --fault wc:opcode=send,nth=10=RETRY_EXC_ERR",
		"ibv_rc_pingpong", "-g", "1", "-p", port, "127.0.0.1").CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "Failed status transport retry counter exceeded (12)") {
		t.Errorf("%v: %s", err, out)
	}
	if events, err := os.ReadFile(trace); err != nil || !strings.Contains(string(events), "fault injected") {
		t.Errorf("%v: the trace has no fault: %s", err, events)
	}
	cancel() // The server waits for the client's next message.
	<-ended
}
