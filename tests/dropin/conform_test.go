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
)

// fewConformCases are those that are run without SOFTRNIC_LONG: some of each operation of the control protocol.
var fewConformCases = map[string]string{
	"rocev2": "HDR-*,PSN-*,DUP-*,REQ-ACK*,REQ-READ*,UD-*,UC-*,CM-*",
	"iwarp":  "MPA-REPLY-*,INIT-*,FPDU-*,DDP-TAGGED-*,RDMAP-*,READ-*,ATOMIC-ADD*,REQ-*",
}

// TestConform: responder.py, which ships for kernel devices and hardware, runs on the drop-in libraries, and by it softrnic conform finds
// that these keep to the statements, with SOFTRNIC_LONG to all of them.
func TestConform(t *testing.T) {
	needs(t, "/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs")
	for transport, few := range fewConformCases {
		t.Run(transport, func(t *testing.T) {
			dir := shared(t)
			script := filepath.Join(dir, "responder.py")
			text, err := exec.CommandContext(t.Context(), command(t), "conform", "--pyverbs").Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(script, text, 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			freePort++
			control := fmt.Sprintf("127.0.0.1:%d", freePort)
			device := map[string]string{"rocev2": "softrnic0", "iwarp": "softrnic0_iw"}[transport]
			responder := runner(ctx, t, dir, "--link shm:conform --addr 10.9.0.1/24", "python3", script, device, control)
			responder.Env = append(responder.Env, "SOFTRNIC_CONFORM_TOKEN=x", "SOFTRNIC_TRANSPORT="+map[string]string{"rocev2": "roce", "iwarp": "iwarp"}[transport])
			var said output
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
				t.Fatalf("%v\n%s", err, said.text())
			}
			args := []string{"conform", "--transport", transport, "--link", "shm:conform", "--addr", "10.9.0.2", "--target", "10.9.0.1",
				"--control", control, "--token", "x", "--wait", "20s", "--harmful"}
			if os.Getenv("SOFTRNIC_LONG") == "" {
				args = append(args, "--only", few)
			}
			tester := exec.CommandContext(ctx, command(t), args...)
			tester.Env, tester.SysProcAttr = responder.Env, responder.SysProcAttr
			began := time.Now()
			out, err := tester.CombinedOutput()
			t.Logf("%v", time.Since(began))
			if err != nil || !strings.Contains(string(out), " 0 failed") {
				t.Errorf("%v\n%s%s", err, out, said.text())
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "SKIP") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}
