//go:build linux

package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestConformNetns: conform --netns makes its namespace, as root and as somebody else, tests a node in it, and leaves nothing.
func TestConformNetns(t *testing.T) {
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
				cmd := exec.CommandContext(t.Context(), program, "conform", "--netns", "--transport", transport, "--wait", "20s")
				cmd.SysProcAttr = attr
				out, err := cmd.CombinedOutput()
				if s := string(out); err != nil || !strings.Contains(s, want) || !strings.Contains(s, "0 failed, 0 skipped") {
					t.Errorf("%s: %v\n%s", transport, err, out)
				}
			}
		})
	}
	if out, err := exec.Command("ip", "link").CombinedOutput(); err != nil || strings.Contains(string(out), "target0") {
		t.Errorf("the namespace of who has called it: %v\n%s", err, out)
	}
}

// TestConformOverSockets: a node on the kernel's own sockets, which nobody has started, keeps to the statements too. It sends no congestion
// notifications, as it was not told to.
func TestConformOverSockets(t *testing.T) {
	m := newMachines(t)
	host := addrs[1][0][:strings.Index(addrs[1][0], "/")]
	serving := m.start(1, "serve --link kernel:v1 --conform --conform-token x --conform-addr "+host+":18516")
	serving.await("msg=conform")
	for transport, skipped := range map[string]string{"rocev2": "1 skipped", "iwarp": "0 skipped"} {
		m.enter(0)
		cmd := exec.CommandContext(t.Context(), m.program, "conform", "--transport", transport, "--wait", "20s",
			"--link", "packet:v0", "--addr", "10.7.0.9", "--target", host, "--control", host+":18516", "--token", "x")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "0 failed, "+skipped) {
			t.Errorf("%s: %v\n%s", transport, err, out)
		}
	}
	if err := serving.cmd.Process.Signal(syscall.SIGTERM); err != nil || serving.exit() != 0 {
		said, _ := serving.said()
		t.Errorf("%v\n%s", err, said)
	}
}
