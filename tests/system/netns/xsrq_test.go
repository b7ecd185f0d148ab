//go:build linux

package netns

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestPingpongXSRQ: two programs, each with a TAP interface of its own in one bridge, play over XRC. The kernel's rxe has no XRC.
func TestPingpongXSRQ(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	linktest.Bridge(t, "br0", mtu)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func(args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, program, append([]string{"pingpong", "xsrq", "-n", "200", "-s", "5000", "-e"}, args...)...)
	}
	server := run("--link", "tap:rnic0,bridge=br0", "--addr", "10.7.0.1/24")
	var complaint strings.Builder
	server.Stderr = &complaint
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stdout)
	if _, err := said.ReadString('\n'); err != nil { // it listens
		t.Error(err)
	}
	if out, err := run("--link", "tap:rnic1,bridge=br0", "--addr", "10.7.0.2/24", "10.7.0.1").CombinedOutput(); err != nil {
		t.Errorf("client: %v\n%s", err, out)
		cancel()
	}
	rest, _ := io.ReadAll(said)
	if err := server.Wait(); err != nil || !strings.HasSuffix(string(rest), "success\n") {
		t.Errorf("server: %v\n%s%s", err, rest, complaint.String())
	}
}
