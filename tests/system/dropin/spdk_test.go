//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/spdk"
)

// spdkLab is a medium with a target.
type spdkLab struct {
	ctx    context.Context
	medium cmMedium
	spdk   *spdk.Installed
	dir    string // of sockets and files, owned by the user nobody
}

// TestSPDK runs SPDK's target and hosts as nobody, without huge pages: SPDK's hosts with both
// targets, SPDK's and softrnic nvme serve, and the commands of softrnic nvme with SPDK's target.
func TestSPDK(t *testing.T) {
	gate.Long(t)
	installed := spdk.Find(t)
	for _, m := range mediaOf([]endpoints{{link: "shm:spdk", server: "10.9.0.1/24", client: "10.9.0.2/24"},
		{link: "kernel:lo", server: "127.18.11.1", client: "127.18.11.2"}}, &cmProgram{}) {
		t.Run(m.link+" "+m.transport, func(t *testing.T) {
			for _, with := range []string{"nvmf_tgt", "softrnic nvme serve"} {
				t.Run(with, func(t *testing.T) {
					// A cleanup interrupts the target.
					ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 15*time.Minute)
					t.Cleanup(cancel)
					l := &spdkLab{ctx: ctx, medium: m, spdk: installed, dir: shared(t)}
					if with == "nvmf_tgt" {
						spdk.Until(t, l.side(t, m.server, "").Target(t), spdk.Listening)
						l.softrnicHosts(t)
					} else {
						spdk.Until(t, l.softrnic(t, m.server, "nvme", "serve", "--namespace", fmt.Sprintf("memory,size=%d", spdk.Disk),
							"--nqn", spdk.NQN), "msg=serving")
					}
					l.side(t, m.client, with).Hosts(t)
				})
			}
		})
	}
}

// side returns SPDK on an address.
func (l *spdkLab) side(t *testing.T, addr, with string) *spdk.Side {
	return &spdk.Side{Installed: l.spdk, Dir: l.dir, Address: l.target(), NQN: spdk.NQN, IWARP: l.medium.transport == "iwarp", With: with,
		Over: fmt.Sprintf("%s (%s)", l.medium.name(), l.medium.called),
		Run: func(program string, args ...string) *exec.Cmd {
			cmd := runner(l.ctx, t, l.dir, "--no-shared --link "+l.medium.link+" --addr "+addr, append([]string{program}, args...)...)
			cmd.Env = append(cmd.Env, "SOFTRNIC_TRANSPORT="+l.medium.transport)
			return cmd
		}}
}

// softrnic returns a command of softrnic on an address, as nobody.
func (l *spdkLab) softrnic(t *testing.T, addr string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := runner(l.ctx, t, l.dir, "")
	cmd.Args = append(append([]string{cmd.Path}, args...), "--link", l.medium.link, "--addr", addr)
	return cmd
}

// target returns the address of the target.
func (l *spdkLab) target() string {
	addr, _, _ := strings.Cut(l.medium.server, "/")
	return addr
}

// softrnicHosts runs the commands of softrnic nvme against the target: discovery ten times, data
// that is read back, and I/O of all sizes and depths.
func (l *spdkLab) softrnicHosts(t *testing.T) {
	run := func(t *testing.T, command string, args ...string) string {
		t.Helper()
		out, err := l.softrnic(t, l.medium.client, append([]string{"nvme", command, l.target(), "--transport",
			strings.ToLower(l.medium.called)}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("softrnic nvme %s %s: %v\n%s", command, args, err, out)
		}
		return string(out)
	}
	t.Run("softrnic nvme", func(t *testing.T) {
		for range 10 {
			if out := run(t, "discover"); !strings.Contains(out, spdk.NQN) {
				t.Fatalf("discover does not find the subsystem:\n%s", out)
			}
		}
		if out := run(t, "identify"); !strings.Contains(out, "SPDK") {
			t.Fatalf("identify does not name the model:\n%s", out)
		}
		data := make([]byte, spdk.Disk/2)
		_, _ = rand.Read(data) // never fails
		in, back := filepath.Join(l.dir, "in"), filepath.Join(l.dir, "back")
		if err := os.WriteFile(in, data, 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, "write", in)
		run(t, "read", back, "--size", fmt.Sprint(len(data)))
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("read returns %d bytes (%v), which differ from the %d that were written", len(got), err, len(data))
		}
		for i, op := range []string{"randread", "randwrite"} {
			for size, depth := 512, 1+i*31; size <= 128<<10; size, depth = size*4, min(depth*4, 127) {
				out := run(t, "bench", "--op", op, "--bs", fmt.Sprint(size), "--depth", fmt.Sprint(depth), "--duration", "1s")
				t.Logf("softrnic nvme bench with nvmf_tgt over %s (%s), %s", l.medium.name(), l.medium.called,
					strings.Join(strings.Fields(out), " "))
			}
		}
	})
}
