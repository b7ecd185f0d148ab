//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// runsc builds gVisor's sandbox, in the version of go.mod, if it does not exist yet. It is built
// without cgo: the C library makes system calls that runsc does not permit itself.
func runsc(t *testing.T) string {
	t.Helper()
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	v := strings.TrimSpace(string(version))
	dir := filepath.Join(cache, "softrnic-runsc", v)
	program := filepath.Join(dir, "runsc")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.Command("go", "install", "gvisor.dev/gvisor/runsc@"+v)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return program
}

// TestSandbox: two processes in a gVisor sandbox, each on the sockets of its kernel, over the
// loopback interface.
func TestSandbox(t *testing.T) {
	gate.Long(t) // building the sandbox takes minutes
	sandbox := runsc(t)
	program := filepath.Join(t.TempDir(), "softrnic")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/softrnic/softrnic/cmd/softrnic").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	const server, client = " --link kernel:lo --addr 127.0.0.1", " --link kernel:lo --addr 127.0.0.2 "
	for _, c := range []struct{ server, says, client, prints string }{
		{"pingpong rc -c -n 100", "local address", "pingpong rc -c -n 100 127.0.0.1", "100 iters"},
		{"pingpong ud -c -n 100", "local address", "pingpong ud -c -n 100 127.0.0.1", "100 iters"},
		{"rping -s -d", "listening", "rping -c -a 127.0.0.1 -C 50 -S 5000 -V -v", "ping data: rdma-ping-49"},
		{"rping -s -d --transport iwarp", "listening", "rping -c -a 127.0.0.1 -C 50 -S 5000 -V -v --transport iwarp",
			"ping data: rdma-ping-49"},
		{"perf write bw", "Waiting", "perf write bw -D 1s --transport rocev2 --transport iwarp 127.0.0.1", "65536"},
		{"perf send lat", "Waiting", "perf send lat -n 500 --verify 127.0.0.1", "500"},
	} {
		t.Run(c.client, func(t *testing.T) {
			script := fmt.Sprintf(`cd /tmp
%[1]s %[2]s --counters >server 2>&1 & server=$!
until grep -q '%[3]s' server; do
	kill -0 $server || { cat server; exit 1; }
	sleep 0.1
done
%[1]s %[4]s
code=$?
[ $code = 0 ] || kill $server
wait $server || code=$?
echo The server: >&2
cat server >&2
exit $code`, program, c.server+server, c.says, c.client+client)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, sandbox, "--root="+t.TempDir(), "--rootless", "--network=none", "do", "/bin/sh", "-c", script)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil || !strings.Contains(stdout.String(), c.prints) {
				t.Fatalf("%v, no %q in\n%s\n%s", err, c.prints, &stdout, &stderr)
			}
			for _, bad := range []string{"icrc_", "malformed"} {
				if strings.Contains(stderr.String(), bad) {
					t.Errorf("counted:\n%s", &stderr)
				}
			}
			if strings.HasPrefix(c.client, "perf") {
				t.Log(stdout.String())
			}
		})
	}
}
