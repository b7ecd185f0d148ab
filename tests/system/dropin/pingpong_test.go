//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// pingpongs are Debian's ibv_*_pingpong with their options, and the minimum number of bytes in each
// direction.
var pingpongs = []struct {
	args  string
	bytes uint64
}{
	{"ibv_rc_pingpong -n 200", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -e", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -N", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -N -e", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -o", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -O", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -o -P", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -t", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -N -t", 200 * 4096},
	{"ibv_rc_pingpong -n 200 -c -N -j", 200 * 4096},
	{"ibv_uc_pingpong -n 200", 200 * 4096},
	{"ibv_uc_pingpong -n 200 -c -e", 200 * 4096},
	{"ibv_ud_pingpong -n 200 -s 1024", 200 * 1024},
	{"ibv_ud_pingpong -n 200 -s 1024 -e", 200 * 1024},
	{"ibv_srq_pingpong -n 200", 200 * 4096},
	{"ibv_srq_pingpong -n 200 -e", 200 * 4096},
	{"ibv_srq_pingpong -n 200 -c -o", 200 * 4096},
	{"ibv_xsrq_pingpong", 5 * 4096},
	{"ibv_xsrq_pingpong -e -o", 5 * 4096},
}

// freePort is the TCP port of the next ping-pong, on which its two sides exchange their QPs.
var freePort = 28515

var portMu sync.Mutex

// nextPort returns and increments freePort, for tests that run in parallel.
func nextPort() int {
	portMu.Lock()
	defer portMu.Unlock()
	freePort++
	return freePort
}

func TestPingpong(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	build(t)
	for i, link := range links {
		for j, p := range pingpongs {
			if !turn(j, i, len(links)) {
				continue
			}
			t.Run(link.link+" "+p.args, func(t *testing.T) {
				programs.Ran(t, p.args, link.name()+" (RoCEv2)")
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				server, client := pair(t, i)
				freePort++
				args := append(strings.Fields(p.args), "-g", "1", "-p", fmt.Sprint(freePort))
				said := run(t, server.program(ctx, t, args[0], args[1:]...),
					client.program(ctx, t, args[0], append(args[1:], "127.0.0.1")...), freePort)
				for side, n := range map[string]*node{"server": server, "client": client} {
					counted := n.counted(t) // in words of 4 bytes
					if sent, got := 4*counted["port_xmit_data"], 4*counted["port_rcv_data"]; sent < p.bytes || got < p.bytes {
						t.Errorf("the %s's device sent %d bytes and received %d, want %d at least\n%s", side, sent, got, p.bytes, said)
					}
				}
			})
		}
	}
}

func TestDevinfo(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devinfo", "ibverbs-utils")
	programs.Ran(t, "ibv_devices", links[0].name()+" (RoCEv2)")
	programs.Ran(t, "ibv_devices", links[0].name()+" (iWARP)")
	programs.Ran(t, "ibv_devinfo -v", links[0].name()+" (RoCEv2)")
	programs.Ran(t, "ibv_devinfo -v", links[0].name()+" (iWARP)")
	n, _ := pair(t, 0)
	say := func(name string, args ...string) string {
		out, err := n.program(t.Context(), t, name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	for _, want := range []string{"softrnic0 ", "softrnic0_iw "} {
		if out := say("ibv_devices"); !strings.Contains(out, want) {
			t.Errorf("ibv_devices does not list %s:\n%s", want, out)
		}
	}
	out := say("ibv_devinfo", "-v")
	for _, want := range []string{
		"InfiniBand (0)", "iWARP (1)", "PORT_ACTIVE (4)", "link_layer:		Ethernet", "::ffff:10.9.0.1, RoCE v2",
		"atomic_cap:			ATOMIC_GLOB (2)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("ibv_devinfo -v does not print %q:\n%s", want, out)
		}
	}
	n.env = append(n.env, "SOFTRNIC_DEVICE=mlx5_0,")
	if out := say("ibv_devices"); !strings.Contains(out, "mlx5_0 ") || strings.Contains(out, "softrnic0") {
		t.Errorf("with SOFTRNIC_DEVICE=mlx5_0, ibv_devices lists\n%s", out)
	}
	n.env = append(n.env, "SOFTRNIC_GUID=0002:c903:0012:3456")
	if out := say("ibv_devices"); !strings.Contains(out, "0002c90300123456") {
		t.Errorf("with SOFTRNIC_GUID, ibv_devices lists\n%s", out)
	}
	n.env = append(n.env, "SOFTRNIC_LINK=carrier-pigeon")
	if out, err := n.program(t.Context(), t, "ibv_devices").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "carrier-pigeon") {
		t.Errorf("with a missing link, ibv_devices ends with %v and prints\n%s", err, out)
	}
}

// TestOneProcess runs testdata/oneprocess.c, which describes its checks.
func TestOneProcess(t *testing.T) {
	gate.System(t)
	dir := build(t)
	program := dir + "/oneprocess"
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/oneprocess.c", "-libverbs",
		"-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, _ := pair(t, 0)
	n.env = append(n.env, "SOFTRNIC_LINK=pipe")
	out, err := n.program(ctx, t, program).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
