//go:build linux

package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestConformNetns: conform --netns creates its namespace, as root and as another user, tests a
// node in it, and leaves nothing.
func TestConformNetns(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil { // nobody runs it
		t.Fatal(err)
	}
	for name, attr := range map[string]*syscall.SysProcAttr{
		"root":   {},
		"nobody": {Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "nobody" {
				probe := exec.Command("unshare", "-rn", "true")
				probe.SysProcAttr = attr
				if err := probe.Run(); err != nil {
					t.Skipf("users may make no namespaces here: %v", err)
				}
			}
			for transport, want := range map[string]string{"rocev2": "PASS  PSN-WRAP", "iwarp": "PASS  ENH-A"} {
				cmd := exec.CommandContext(t.Context(), program, "conform", "--netns", "--transport", transport, "--wait",
					"20s")
				cmd.SysProcAttr = attr
				out, err := cmd.CombinedOutput()
				if s := string(out); err != nil || !strings.Contains(s, want) || !strings.Contains(s, "0 failed, "+skipped[transport]) {
					t.Errorf("%s: %v\n%s", transport, err, out)
				}
			}
		})
	}
	if out, err := exec.Command("ip", "link").CombinedOutput(); err != nil || strings.Contains(string(out), "target0") {
		t.Errorf("the namespace of who has called it: %v\n%s", err, out)
	}
}

// skipped is the number of cases that do not apply to a default node: those of another set-up of
// iWARP.
var skipped = map[string]string{"rocev2": "0 skipped", "iwarp": "7 skipped"}

// TestConformOverSockets: a node on the kernel's own sockets, run by nobody, conforms to all
// statements too.
func TestConformOverSockets(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	host := addrs[1][0][:strings.Index(addrs[1][0], "/")]
	t.Setenv("SOFTRNIC_CONFORM_TOKEN", "x")
	serving := m.start(1, "serve --link kernel:v1 --congestion --conform --conform-addr "+host+":18516")
	serving.await("msg=conform")
	for _, transport := range []string{"rocev2", "iwarp"} {
		m.enter(0)
		args := "conform --transport " + transport + " --wait 20s --addr 10.7.0.9 --link packet:v0 --target " + host +
			" --control " + host + ":18516"
		out, err := exec.CommandContext(t.Context(), m.program, strings.Fields(args)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "0 failed, "+skipped[transport]) {
			t.Errorf("%s: %v\n%s", transport, err, out)
		}
	}
	serving.stop()
}

// stop ends a program that runs until it is stopped.
func (r *running) stop() {
	r.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil || r.exit() != 0 {
		said := r.String()
		r.t.Errorf("%v\n%s", err, said)
	}
}
