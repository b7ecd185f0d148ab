//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestConform runs responder.py, which ships for kernel devices and hardware, on the drop-in
// libraries. softrnic conform finds that they conform to all statements. Some cases are skipped.
// Without --congestion there are no congestion notifications. rdma_cm in C has at most 255 bytes of
// private data. Seven iWARP cases need another set-up.
func TestConform(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs")
	for _, p := range []struct{ transport, cm, device, verdict string }{
		{"rocev2", "roce", "softrnic0", " 0 failed, 1 skipped"}, {"iwarp", "iwarp", "softrnic0_iw", " 0 failed, 8 skipped"},
	} {
		t.Run(p.transport, func(t *testing.T) {
			dir := shared(t)
			script := filepath.Join(dir, "responder.py")
			text, err := exec.CommandContext(t.Context(), command(t), "conform", "--pyverbs").Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(script, text, 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			freePort++
			control := fmt.Sprintf("127.0.0.1:%d", freePort)
			responder := runner(ctx, t, dir, "--link shm:conform --addr 10.9.0.1/24", "python3", script, p.device, control)
			responder.Env = append(responder.Env, "SOFTRNIC_CONFORM_TOKEN=x", "SOFTRNIC_TRANSPORT="+p.cm)
			var said proc.Output
			responder.Stdout, responder.Stderr = &said, &said
			if err := responder.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- responder.Wait() }()
			defer func() {
				_ = responder.Process.Signal(syscall.SIGTERM)
				<-ended
			}()
			if err := listens(freePort, ended); err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			args := []string{"conform", "--transport", p.transport, "--link", "shm:conform", "--addr", "10.9.0.2", "--target", "10.9.0.1",
				"--control", control, "--wait", "20s"}
			tester := exec.CommandContext(ctx, command(t), args...)
			tester.Env, tester.SysProcAttr = responder.Env, responder.SysProcAttr
			out, err := tester.CombinedOutput()
			if err != nil || !strings.Contains(string(out), p.verdict) {
				t.Errorf("%v\n%s%s", err, out, said.String())
			}
		})
	}
}
