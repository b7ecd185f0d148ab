//go:build linux

package netns

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestConformNetns: conform --netns makes its namespace, as root and as somebody else, tests a node in it, and leaves nothing.
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
				cmd := exec.CommandContext(t.Context(), program, "conform", "--netns", "--harmful", "--transport", transport, "--wait", "20s")
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

// skipped is how many cases a node is not judged by as it is: those of another set-up of iWARP.
var skipped = map[string]string{"rocev2": "0 skipped", "iwarp": "7 skipped"}

// TestConformOverTAP: a node on a TAP interface keeps to all statements, those about another set-up when it is set up so.
func TestConformOverTAP(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	linktest.Bridge(t, "br0", 0)
	if err := netlink.LinkSetUp(linktest.Interface(t, "lo")); err != nil { // the responder is there
		t.Fatal(err)
	}
	const serve = "serve --link tap:rnic0,bridge=br0 --addr 10.7.0.1/24 --congestion --conform --conform-token x"
	for _, c := range []struct {
		setUp, only string
		transports  []string
		skipped     map[string]string
	}{
		{"", "*", []string{"rocev2", "iwarp"}, skipped},
		{" --mpa no-crc,markers,revision1", "FPDU-CRC-NONE*,MARKER-RECEIVED,MARKER-RESERVED,MARKER-POINTER,INIT-PLAIN", []string{"iwarp"}, nil},
		{" --mpa client-server", "INIT-CLIENT-RTR", []string{"iwarp"}, nil},
	} {
		serving := startProgram(t, program, strings.Fields(serve+c.setUp)...)
		serving.await("msg=conform")
		for _, transport := range c.transports {
			keeps(t, program, transport, c.skipped[transport], "--link", "tap:rnic1,bridge=br0", "--target", "10.7.0.1", "--only", c.only)
		}
		serving.stop()
	}
}

// TestConformOverSockets: a node on the kernel's own sockets, which nobody has started, keeps to all statements too.
func TestConformOverSockets(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	host := addrs[1][0][:strings.Index(addrs[1][0], "/")]
	serving := m.start(1, "serve --link kernel:v1 --congestion --conform --conform-token x --conform-addr "+host+":18516")
	serving.await("msg=conform")
	for _, transport := range []string{"rocev2", "iwarp"} {
		m.enter(0)
		keeps(t, m.program, transport, skipped[transport], "--link", "packet:v0", "--target", host, "--control", host+":18516")
	}
	serving.stop()
}

// keeps runs softrnic conform with arguments, and wants PASS of each case but those that are skipped, of which there are none if it is "".
func keeps(t *testing.T, program, transport, skipped string, args ...string) {
	t.Helper()
	args = append([]string{"conform", "--harmful", "--transport", transport, "--wait", "20s", "--addr", "10.7.0.9", "--token", "x"}, args...)
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0 failed, "+cmp.Or(skipped, "0 skipped")) {
		t.Errorf("%s: %v\n%s", transport, err, out)
	}
}

// stop ends a program that ends when it is told to.
func (r *running) stop() {
	r.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil || r.exit() != 0 {
		said, _ := r.said()
		r.t.Errorf("%v\n%s", err, said)
	}
}
