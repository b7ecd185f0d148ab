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
